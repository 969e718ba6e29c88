//! Start and end of connections.

use std::sync::Arc;
use std::time::Duration;

use feedrail_target::stepped::Stop;
use feedrail_target::stepped::Turn;
use feedrail_target::testing::Delay;
use feedrail_target::testing::UNCONNECTED_PER_ADDRESS;
use nvme_proto::rdma_cm::{ConnectRequest, RejectStatus};
use nvme_proto::{Cntlid, IntoBytes, Qid, Sgl, Status};
use rdma::sim::SimConfig;

use super::host::Link;
use super::pattern;
use super::world::{On, World, namespaces, read, two_namespaces, write};

#[test]
fn connections_are_refused_with_the_reason() {
    let mut world = World::new(&two_namespaces());
    let host = world.add_host();
    let request = |qid, receive, send| ConnectRequest::new(Qid(qid), Cntlid(0), receive, send);
    let mut format = request(0, 32, 32).as_bytes().to_vec();
    format[0] = 1;
    for (private, status) in [
        (format, RejectStatus::INVALID_RECFMT),
        (request(1000, 32, 32).as_bytes().to_vec(), RejectStatus::INVALID_QID),
        (request(1, 256, 256).as_bytes().to_vec(), RejectStatus::INVALID_HSQSIZE),
        (request(0, 0, 32).as_bytes().to_vec(), RejectStatus::INVALID_HRQSIZE),
    ] {
        assert_eq!(world.link_with(host, &private), Link::Rejected(status), "{private:?}");
    }
    // No resources of them are left.
    let admin = world.admin(host);
    world.io(admin, 1, 128);
}

/// One turn accepts some of many connections, and reports that more are waiting.
#[test]
fn many_connections_are_accepted_over_several_turns() {
    const CROWD: usize = 120;
    let mut world = World::new(&two_namespaces());
    let host = world.add_host();
    let (now, to) = (world.now, world.address);
    for _ in 0..CROWD {
        world.hosts[host].connect(now, to, 0, 4);
    }
    // All have arrived before the target polls.
    let until = now + Duration::from_millis(10);
    while world.now < until {
        if !world.hosts[host].turn(world.now) {
            let next = [world.hosts[host].deadline(), world.network.next_event()];
            let next = next.into_iter().flatten().min().unwrap_or(until);
            world.now = next.max(world.now + Duration::from_nanos(100)).min(until);
        }
    }
    let mut before = 0;
    while before < CROWD as u64 {
        assert_eq!(world.target.turn(world.now), Turn::Busy);
        let connections = world.target.connections();
        assert!((1..=64).contains(&(connections - before)), "{before} and then {connections}");
        before = connections;
    }
    world.run_until("all are let in", |world| world.hosts[host].all_are(Link::Up(4)));
}

#[test]
fn one_host_does_not_take_all_connections() {
    let mut world = World::new(&namespaces("connections = 8"));
    let (greedy, other) = (world.add_host(), world.add_host());
    let taken = world.admin(greedy);
    (1..=3).for_each(|qid| _ = world.io(taken, qid, 32));
    assert_eq!(world.link(greedy, 0, 32).1, Link::Rejected(RejectStatus::NO_RESOURCES));
    let admin = world.admin(other);
    world.io(admin, 1, 32);
    // After it has left there is room again.
    let now = world.now;
    world.hosts[greedy].disconnect(now, taken.queue);
    world.wait_down(taken);
    world.run_for(Duration::from_secs(1));
    world.admin(greedy);
}

/// Quotas ignore NQNs, since a host can send any.
#[test]
fn a_borrowed_name_does_not_use_its_owners_quota() {
    let mut world = World::new(&namespaces("connections = 8"));
    let (victim, thief) = (world.add_host(), world.add_host());
    world.names[thief] = world.names[victim];
    let stolen = world.admin(thief);
    (1..=3).for_each(|qid| _ = world.io(stolen, qid, 32));
    let admin = world.admin(victim);
    (1..=3).for_each(|qid| _ = world.io(admin, qid, 32));
}

#[test]
fn connections_without_connect_use_no_quota() {
    let mut world = World::new(&namespaces("connections = 8"));
    for _ in 0..2 {
        let stranger = world.add_host();
        for _ in 0..8 {
            assert_eq!(world.link(stranger, 1, 128).1, Link::Up(128));
        }
    }
    let host = world.add_host();
    let admin = world.admin(host);
    world.io(admin, 1, 128);
}

/// Any host may use the discovery service, for as long as it keeps its controller alive.
#[test]
fn discovery_controllers_use_no_quota() {
    let config = namespaces("connections = 8\ncntlid_min = 1\ncntlid_max = 2");
    let most = config.limits.discovery_controllers_per_address();
    let mut world = World::new(&config);
    let (friend, other) = (world.add_host(), world.add_host());
    let admin = world.admin(friend);
    let discovers = world.discover(friend, 0);
    let strangers: Vec<usize> = (0..6).map(|_| world.add_host()).collect();
    for &stranger in &strangers {
        let lines: Vec<On> = (0..2 * most).map(|at| world.discover(stranger, at as u8)).collect();
        lines[..most].iter().for_each(|on| world.wait_down(*on));
        let newest = lines.last().expect("there are some");
        assert_eq!(world.state(*newest), Link::Up(32), "an older one has to go");
    }
    assert_eq!(world.state(discovers), Link::Up(32), "others have more");
    (1..=3).for_each(|qid| _ = world.io(admin, qid, 32));
    let admin = world.admin(other);
    (1..=3).for_each(|qid| _ = world.io(admin, qid, 32));
    let all = world.target.associations().controllers().len();
    assert_eq!(all, 2 + config.limits.discovery_controllers());
    assert_eq!(world.link(strangers[0], 0, 32).1, Link::Rejected(RejectStatus::NO_RESOURCES));
}

#[test]
fn the_oldest_unconnected_connection_is_displaced() {
    let mut world = World::new(&two_namespaces());
    let (stranger, host) = (world.add_host(), world.add_host());
    let admin = world.admin(host);
    let mut silent: Vec<On> =
        (0..=UNCONNECTED_PER_ADDRESS).map(|_| world.link(stranger, 1, 16).0).collect();
    world.wait_down(silent.remove(0));
    world.run_for(Duration::from_millis(100));
    assert!(silent.iter().all(|on| world.state(*on) == Link::Up(16)), "no other one");
    world.io(admin, 1, 128);
    let known = world.admin(stranger);
    silent.into_iter().for_each(|on| world.wait_down(on));
    assert_eq!(world.state(known), Link::Up(32), "its Connect succeeded");
}

/// Completion queues of many long queues do not limit connections further.
#[test]
fn long_queues_are_accepted_up_to_the_limit() {
    const QUEUES: usize = 110;
    let mut world = World::new(&namespaces("queue_depth = 1024\nconnections = 512"));
    let host = world.add_host();
    let request = ConnectRequest::new(Qid(1), Cntlid(0), 1024, 1024);
    for _ in 0..QUEUES {
        let (now, to) = (world.now, world.address);
        let queue = world.hosts[host].connect_with(now, to, 1, 4, request.as_bytes());
        assert_eq!(world.link_state(On { host, queue }), Link::Up(1024));
    }
}

/// Two hosts: one that fails, and one that must not be affected.
fn two_hosts(world: &mut World) -> (On, On, On) {
    let (bad, good) = (world.add_host(), world.add_host());
    let bad_admin = world.admin(bad);
    let bad_io = world.io(bad_admin, 1, 32);
    let good_admin = world.admin(good);
    (bad_admin, bad_io, world.io(good_admin, 1, 32))
}

fn all_is_well(world: &mut World, good: On) {
    let bytes = pattern(65_536, 9);
    world.write(good, 1, 1000, &bytes);
    assert!(world.read(good, 1, 1000, 65_536) == bytes);
    world.run_for(Duration::from_secs(1));
    let used: Vec<u64> = world.target.stats().iter().map(|group| group.pool.used_bytes).collect();
    assert_eq!(used, [0, 0], "every buffer came back");
}

#[test]
fn a_short_capsule_ends_its_queue() {
    let mut world = World::new(&two_namespaces());
    let (bad_admin, bad, good) = two_hosts(&mut world);
    world.hosts[bad.host].send_bytes(bad.queue, &[0; 63]);
    world.wait_down(bad);
    all_is_well(&mut world, good);
    world.hosts[bad.host].send_bytes(bad_admin.queue, &[0; 63]);
    world.wait_down(bad_admin);
    assert_eq!(world.target.associations().controllers().len(), 1);
}

#[test]
fn an_oversized_capsule_ends_its_queue() {
    let mut world = World::new(&two_namespaces());
    let (bad_admin, bad, good) = two_hosts(&mut world);
    world.hosts[bad.host].send_bytes(bad.queue, &[0; 64 + 4097]);
    world.wait_down(bad);
    all_is_well(&mut world, good);
    assert_eq!(world.state(bad_admin), Link::Up(32));
}

#[test]
fn a_key_that_grants_nothing_ends_its_queue() {
    for sqe in [read(1, 0, 4096), write(1, 0, 4096)] {
        let mut world = World::new(&two_namespaces());
        let (bad_admin, bad, good) = two_hosts(&mut world);
        let sgl = Sgl::Keyed { address: 0x1000, length: 4096, key: 0xDEAD_BEEF, invalidate: false };
        world.post(bad, &sqe.with_data(sgl), &[]);
        world.wait_down(bad);
        all_is_well(&mut world, good);
        assert_eq!(world.state(bad_admin), Link::Up(32));
    }
}

#[test]
fn a_host_that_leaves_early_leaks_nothing() {
    let mut world = World::slow(&two_namespaces());
    let (bad_admin, bad, good) = two_hosts(&mut world);
    for slot in 0..16 {
        let sgl = world.keyed(bad, slot * 65_536, 65_536);
        let sqe = if slot % 2 == 0 { read(1, 0, 65_536) } else { write(1, 512, 65_536) };
        world.post(bad, &sqe.with_data(sgl), &[]);
    }
    world.run_for(Duration::from_micros(500));
    let now = world.now;
    world.hosts[bad.host].disconnect(now, bad_admin.queue);
    world.wait_down(bad);
    all_is_well(&mut world, good);
}

#[test]
fn a_host_that_vanishes_is_noticed() {
    let mut world = World::slow(&two_namespaces());
    let (_, bad, good) = two_hosts(&mut world);
    let sgl = world.keyed(bad, 0, 4096);
    world.post(bad, &read(1, 0, 4096).with_data(sgl), &[]);
    world.network.cut("10.0.0.1".parse().unwrap(), "10.0.1.1".parse().unwrap());
    world.run_until("the association is given up", |world| {
        let (good, bytes) = (good, 512);
        world.read(good, 1, 0, bytes);
        world.target.associations().controllers().len() == 1
    });
    all_is_well(&mut world, good);
}

#[test]
fn silence_ends_the_association() {
    let mut world = World::new(&two_namespaces());
    let host = world.add_host();
    let admin = world.admin(host);
    let io = world.io(admin, 1, 32);
    let start = world.now;
    world.wait_down(admin);
    world.wait_down(io);
    let silence = world.now - start;
    assert!((Duration::from_secs(15)..Duration::from_secs(40)).contains(&silence), "{silence:?}");
}

#[test]
fn a_connection_without_connect_is_closed() {
    let mut world = World::new(&two_namespaces());
    let host = world.add_host();
    let (on, link) = world.link(host, 0, 32);
    assert_eq!(link, Link::Up(32));
    world.wait_down(on);
    // A command before Connect is out of sequence.
    let (on, _) = world.link(host, 0, 32);
    let sqe = nvme_proto::Sqe::new(0x18);
    assert_eq!(world.status(on, &sqe, &[]), Status::COMMAND_SEQUENCE_ERROR);
}

#[test]
fn draining_finishes_commands_under_way() {
    let mut world = World::slow(&two_namespaces());
    let host = world.add_host();
    let admin = world.admin(host);
    let on = world.io(admin, 1, 32);
    let cids: Vec<_> = (0..8)
        .map(|slot| {
            let sgl = world.keyed(on, slot * 4096, 4096);
            world.post(on, &read(1, 0, 4096).with_data(sgl), &[])
        })
        .collect();
    world.run_for(Duration::from_micros(500));
    world.target.stop(Stop::Drain);
    for cid in cids {
        assert!(world.response(on, cid).status().is_success());
    }
    world.wait_down(on);
    world.wait_down(admin);
    world.run_until("the target has ended", |world| world.target.is_over());
}

/// The other queues end while one still has commands for its host, and its end is waited for
/// without polling.
#[test]
fn a_long_drain_sleeps_between_events() {
    let medium = Duration::from_secs(6);
    let mut world = World::with(&two_namespaces(), 1, SimConfig::default(), &|_, backend| {
        Arc::new(Delay::new(backend, medium))
    });
    let host = world.add_host();
    let admin = world.admin(host);
    let (busy, idle) = (world.io(admin, 1, 32), world.io(admin, 2, 32));
    let sgl = world.keyed(busy, 0, 4096);
    let cid = world.post(busy, &read(1, 0, 4096).with_data(sgl), &[]);
    world.run_for(Duration::from_millis(1));
    world.target.stop(Stop::Drain);
    world.wait_down(idle);
    world.run_for(Duration::from_millis(2900));
    for _ in 0..20 {
        world.now = world.now + Duration::from_millis(100);
        let rest = std::iter::from_fn(|| match world.target.turn(world.now) {
            Turn::Busy => Some(None),
            Turn::SleepUntil(at) => Some(Some(at)),
        });
        let at = rest.take(100).flatten().next().expect("it comes to rest").expect("the medium");
        assert!(at > world.now, "at {:?} until {at:?}", world.now);
    }
    assert!(world.response(busy, cid).status().is_success());
    world.wait_down(admin);
    world.run_until("the target has ended", |world| world.target.is_over());
    assert!(world.target.associations().peer_errors().worst(1).is_empty(), "no peer was lost");
}

#[test]
fn stopping_ends_all_connections_at_once() {
    let mut world = World::slow(&two_namespaces());
    let (_, bad, good) = two_hosts(&mut world);
    let sgl = world.keyed(bad, 0, 4096);
    world.post(bad, &read(1, 0, 4096).with_data(sgl), &[]);
    world.run_for(Duration::from_micros(500));
    world.target.stop(Stop::Now);
    world.run_until("the target has ended", |world| world.target.is_over());
    world.wait_down(bad);
    world.wait_down(good);
}

#[test]
fn connections_come_and_go_without_a_trace() {
    let mut world = World::new(&two_namespaces());
    let host = world.add_host();
    for _ in 0..20 {
        let admin = world.admin(host);
        let queues: Vec<On> = (1..=4).map(|qid| world.io(admin, qid, 8)).collect();
        for on in queues {
            world.read(on, 1, 0, 4096);
        }
        let now = world.now;
        world.hosts[host].disconnect(now, admin.queue);
        world.run_until("the association is gone", |world| {
            world.target.associations().controllers().is_empty()
        });
        world.run_for(Duration::from_millis(100));
        world.hosts[host].forget();
    }
    world.target.stop(Stop::Now);
    world.run_until("the target has ended", |world| world.target.is_over());
}

#[test]
fn nothing_is_lost_on_a_bad_network() {
    for seed in 0..10 {
        let network = SimConfig {
            loss_ppm: 50_000,
            duplication_ppm: 20_000,
            reordering_ppm: 50_000,
            jitter: Duration::from_micros(30),
            ..SimConfig::default()
        };
        let mut world = World::with(&two_namespaces(), seed, network, &|_, backend| backend);
        let host = world.add_host();
        let admin = world.admin(host);
        let on = world.io(admin, 1, 32);
        for round in 0..10u32 {
            let bytes = pattern(1 << (9 + round), seed as u32 * 100 + round);
            world.write(on, 1, round.into(), &bytes);
            assert!(world.read(on, 1, round.into(), bytes.len()) == bytes, "{seed} {round}");
        }
    }
}

#[test]
fn a_target_can_be_dropped_in_the_middle() {
    let mut world = World::slow(&two_namespaces());
    let host = world.add_host();
    let admin = world.admin(host);
    let on = world.io(admin, 1, 32);
    for slot in 0..8 {
        let sgl = world.keyed(on, slot * 4096, 4096);
        world.post(on, &write(1, 0, 4096).with_data(sgl), &[]);
    }
    world.run_for(Duration::from_micros(200));
    drop(world);
}
