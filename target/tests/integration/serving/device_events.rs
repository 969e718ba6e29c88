//! Asynchronous events of a device.

use std::time::Duration;

use rdma::sim::Sim;
use rdma::{Device, DeviceEvent};

use super::host::Link;
use super::pattern;
use super::world::{On, World, two_addresses, two_namespaces};

/// Only host of the target at an address, with an admin and an I/O queue.
fn host_at(world: &mut World, device: usize) -> (On, On) {
    world.address.set_ip(world.devices[device].local_ip());
    let host = world.add_host();
    let admin = world.admin(host);
    (admin, world.io(admin, 1, 32))
}

fn works(world: &mut World, on: On) {
    let bytes = pattern(65_536, 3);
    world.write(on, 1, 0, &bytes);
    assert!(world.read(on, 1, 0, 65_536) == bytes);
}

fn raise(world: &World, device: usize, event: DeviceEvent) {
    world.network.raise(world.devices[device].local_ip(), event);
}

#[test]
fn a_failed_queue_pair_ends_only_its_association() {
    let mut world = World::new(&two_namespaces());
    let (_, good) = host_at(&mut world, 0);
    let others = world.devices[0].queue_pairs();
    let (admin, io) = host_at(&mut world, 0);
    let is_new = |qpn: &u32| !others.contains(qpn);
    let qpn = world.devices[0].queue_pairs().into_iter().find(is_new).unwrap();
    raise(&world, 0, DeviceEvent::QpFatal { qpn });
    world.wait_down(io);
    world.wait_down(admin);
    works(&mut world, good);
    assert_eq!(world.target.connections(), 2);
    assert_eq!(world.devices[0].queue_pairs().len(), 2);
}

#[test]
fn events_for_unknown_queue_pairs_are_ignored() {
    let mut world = World::new(&two_namespaces());
    let (_, io) = host_at(&mut world, 0);
    raise(&world, 0, DeviceEvent::QpFatal { qpn: 0x00FF_FFFF });
    works(&mut world, io);
}

#[test]
fn a_port_flap_ends_no_connection() {
    let mut world = World::new(&two_namespaces());
    let (_, io) = host_at(&mut world, 0);
    raise(&world, 0, DeviceEvent::PortDown);
    raise(&world, 0, DeviceEvent::PortUp);
    works(&mut world, io);
}

#[test]
fn a_failed_device_ends_only_its_own_connections() {
    for event in [DeviceEvent::DeviceFatal, DeviceEvent::CqError] {
        let mut world = World::new(&two_addresses());
        let (admin, io) = host_at(&mut world, 0);
        let (_, good) = host_at(&mut world, 1);
        raise(&world, 0, event);
        world.wait_down(io);
        world.wait_down(admin);
        world.run_until("nothing is left of them", |world| world.target.connections() == 2);
        assert!(world.devices[0].queue_pairs().is_empty());
        works(&mut world, good);
        // The one address does not respond; the other still accepts connections.
        world.address.set_ip(world.devices[0].local_ip());
        assert_eq!(world.link(io.host, 0, 32).1, Link::Down);
        let (_, newcomer) = host_at(&mut world, 1);
        works(&mut world, newcomer);
    }
}

/// Running storage operations keep their buffers until they end, with or without a device.
#[test]
fn a_device_may_fail_with_commands_under_way() {
    let mut world = World::slow(&two_addresses());
    let (_, io) = host_at(&mut world, 0);
    let (_, good) = host_at(&mut world, 1);
    let sqe = super::world::read(1, 0, 65_536);
    for _ in 0..8 {
        let data = world.keyed(io, 0, 65_536);
        world.post(io, &sqe.with_data(data), &[]);
    }
    world.run_until("storage works on them", |world| {
        world.target.stats().iter().any(|group| group.pool.used_bytes > 0)
    });
    raise(&world, 0, DeviceEvent::DeviceFatal);
    world.run_until("nothing is left of them", |world| world.target.connections() == 2);
    works(&mut world, good);
    world.run_until("every buffer came back", |world| {
        world.target.stats().iter().all(|group| group.pool.used_bytes == 0)
    });
}

/// Replaces a device, since the network has only one at each address.
fn replace_device(world: &mut World, number: usize) {
    let ip = world.devices[number].local_ip();
    let groups = world.target.stats().len();
    drop(world.devices.remove(number));
    let network = world.network.clone();
    let mut device = None;
    world.run_until("all of the failed device is let go", |_| {
        device = network.device(ip, groups).ok();
        device.is_some()
    });
    let device = device.unwrap();
    let refused = world.target.add_device::<Sim>(device.clone()).unwrap();
    assert!(refused.is_empty(), "{refused:?}");
    world.devices.insert(number, device);
}

/// More often than a core has places for devices.
#[test]
fn devices_come_back_again_and_again() {
    let mut world = World::new(&two_addresses());
    let (_, good) = host_at(&mut world, 1);
    for round in 0..40 {
        let (admin, io) = host_at(&mut world, 0);
        works(&mut world, io);
        raise(&world, 0, DeviceEvent::DeviceFatal);
        world.wait_down(io);
        world.wait_down(admin);
        works(&mut world, good);
        replace_device(&mut world, 0);
        assert_eq!(world.target.connections(), 2, "in round {round}");
    }
    let (_, newcomer) = host_at(&mut world, 0);
    works(&mut world, newcomer);
}

/// Running storage operations keep a failed device until they end, and nothing keeps it longer.
#[test]
fn a_failed_device_is_let_go_after_its_commands() {
    let mut world = World::slow(&two_addresses());
    let (_, io) = host_at(&mut world, 0);
    let (_, good) = host_at(&mut world, 1);
    let data = world.keyed(io, 0, 65_536);
    world.post(io, &super::world::read(1, 0, 65_536).with_data(data), &[]);
    world.run_until("storage works on it", |world| {
        world.target.stats().iter().any(|group| group.pool.used_bytes > 0)
    });
    raise(&world, 0, DeviceEvent::DeviceFatal);
    let busy = |world: &mut World| world.target.stats().iter().any(|g| g.pool.used_bytes > 0);
    let (ip, network) = (world.devices[0].local_ip(), world.network.clone());
    // Device held by the test itself.
    let held = world.devices.remove(0);
    let mut steps = 0;
    world.run_until("the operation has ended", |world| {
        steps += u32::from(busy(world));
        let address_is_free = network.device(ip, 1).is_ok();
        assert!(!address_is_free);
        !busy(world)
    });
    assert!(steps > 1, "the device failed during the operation");
    world.devices.insert(0, held);
    replace_device(&mut world, 0);
    works(&mut world, good);
    let (_, newcomer) = host_at(&mut world, 0);
    works(&mut world, newcomer);
}

/// Connections that wait only for the host's answer to a disconnection end with their device.
#[test]
fn a_failed_device_keeps_no_disconnecting_connection() {
    let mut world = World::new(&two_addresses());
    host_at(&mut world, 0);
    let (target, silent) = (world.devices[0].local_ip(), "10.0.1.1".parse().unwrap());
    world.network.cut(target, silent);
    world.run_until("the association is given up", |world| {
        world.target.associations().controllers().is_empty()
    });
    world.run_for(Duration::from_millis(1));
    assert_eq!(world.target.connections(), 2, "no answer has come");
    raise(&world, 0, DeviceEvent::DeviceFatal);
    world.run_until("nothing is left of them", |world| world.target.connections() == 0);
    replace_device(&mut world, 0);
    let (_, newcomer) = host_at(&mut world, 0);
    works(&mut world, newcomer);
}
