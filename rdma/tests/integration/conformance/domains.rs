//! Protection domains keep peers apart.

use rdma::{Access, Device, MemoryWindow, Op, WcStatus};

use super::buffer::Buffer;
use super::differences::Fault;
use super::world::{Bench, World};

/// Gives host 1 a protection domain of its own for what it makes from now on.
fn enter_new_domain<B: Bench>(world: &mut World<B>) {
    world.hosts[1].device = world.hosts[1].device.in_new_domain().expect("a domain");
}

pub fn a_key_of_another_domain_is_refused<B: Bench>(bench: B) {
    let mut world = World::new(bench);
    let mut local = world.buffer(0, 128);
    local.fill(1);
    let mut foreign = world.buffer(1, 64);
    foreign.fill(2);
    enter_new_domain(&mut world);
    let own = world.buffer(1, 64);
    let (before, secret) = (local.all(), foreign.all());
    for reads in [false, true] {
        let op = |of: &Buffer<_>| match (of.addr(), of.rkey()) {
            (remote_addr, rkey) if reads => Op::RdmaRead { remote_addr, rkey },
            (remote_addr, rkey) => Op::RdmaWrite { remote_addr, rkey },
        };
        let (left, _right) = world.connect();
        world.post(left, 1, op(&own), &[local.sge(0, 64)]);
        world.expect(0, 1, WcStatus::SUCCESS);
        world.post(left, 2, op(&foreign), &[local.sge(64, 64)]);
        world.expect(0, 2, WcStatus::REMOTE_ACCESS_ERROR);
        assert_eq!(local.read(64, 64), before[64..], "read from another domain");
        assert_eq!(foreign.all(), secret, "written to another domain");
    }
}

pub fn our_own_requests_stay_in_their_domain<B: Bench>(bench: B) {
    let mut world = World::new(bench);
    let foreign = world.buffer(1, 64);
    enter_new_domain(&mut world);
    let (_left, right) = world.connect();
    world.post(right, 1, Op::Send, &[foreign.sge(0, 64)]);
    let flushed = world.has(Fault::LocalFailureIsFlushed);
    let error = if flushed { WcStatus::FLUSHED } else { WcStatus::LOCAL_PROTECTION_ERROR };
    world.expect(1, 1, error);
}

pub fn a_window_is_bound_within_its_domain<B: Bench>(bench: B) {
    let mut world = World::new(bench);
    let foreign = world.buffer(1, 64);
    let Some(mut foreign_window) = world.window(1) else { return };
    enter_new_domain(&mut world);
    let own = world.buffer(1, 64);
    let mut window = world.window(1).expect("there was one");
    let access = Access::REMOTE_WRITE | Access::REMOTE_READ;
    let binds = [
        window.bind(foreign.region(), foreign.addr(), 64, access),
        foreign_window.bind(own.region(), own.addr(), 64, access),
    ];
    for bind in binds {
        let (_left, right) = world.connect();
        world.post(right, 1, bind, &[]);
        let flushed = world.has(Fault::LocalFailureIsFlushed);
        world.expect(1, 1, if flushed { WcStatus::FLUSHED } else { WcStatus::WINDOW_BIND_ERROR });
    }
    // A window whose bind failed is not used again: see `MemoryWindow::bind`.
    let mut window = world.window(1).expect("there was one");
    let (_left, right) = world.connect();
    let bind = window.bind(own.region(), own.addr(), 64, access);
    world.post(right, 1, bind, &[]);
    world.expect(1, 1, WcStatus::SUCCESS);
}
