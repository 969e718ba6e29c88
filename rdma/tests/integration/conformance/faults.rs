//! Networks that lose, repeat, reorder and damage packets, and receivers with little room.

use std::time::Duration;

use rdma::sim::SimConfig;
use rdma::{Group, Op, SendFlags, WcStatus};

use super::benches::SimBench;
use super::buffer::pattern;
use super::world::{Bench, World};

fn faulty() -> SimConfig {
    SimConfig {
        loss_ppm: 50_000,
        duplication_ppm: 20_000,
        reordering_ppm: 50_000,
        corruption_ppm: 5_000,
        jitter: Duration::from_micros(20),
        ..SimConfig::default()
    }
}

/// Reads, writes and sends both ways with every byte checked.
fn mixed_traffic<B: Bench>(world: &mut World<B>, rounds: u64) {
    let (left, right) = world.connect();
    let size = 40_000;
    let mut sources = [world.buffer(0, size), world.buffer(1, size)];
    let sinks = [world.buffer(0, 3 * size), world.buffer(1, 3 * size)];
    for round in 0..rounds {
        for (host, source) in sources.iter_mut().enumerate() {
            source.fill(2 * round + host as u64);
        }
        let length = 1 + (round as usize * 7919) % size;
        for (end, host) in [(left, 0), (right, 1)] {
            let (ours, theirs) = (&sources[host], &sources[1 - host]);
            let (sink, their_sink) = (&sinks[host], &sinks[1 - host]);
            world.recv(end, 4, &[sink.sge(0, size)]);
            let write = Op::RdmaWrite {
                remote_addr: their_sink.addr() + size as u64,
                rkey: their_sink.rkey(),
            };
            let read = Op::RdmaRead { remote_addr: theirs.addr(), rkey: theirs.rkey() };
            world.send(end, 1, write, SendFlags::NONE, &[ours.sge(0, length)]);
            world.send(end, 2, read, SendFlags::NONE, &[sink.sge(2 * size, length)]);
            world.send(end, 3, Op::Send, SendFlags::NONE, &[ours.sge(0, length)]);
            world.flush(end);
        }
        for host in [0, 1] {
            let mut seen: Vec<u64> = (0..4)
                .map(|_| {
                    let wc = world.completion(host);
                    assert_eq!(wc.status, WcStatus::SUCCESS, "{wc:?}");
                    wc.wr_id
                })
                .collect();
            seen.sort_unstable();
            assert_eq!(seen, [1, 2, 3, 4]);
        }
        for host in [0, 1] {
            let expected = pattern(2 * round + 1 - host as u64, length);
            for part in 0..3 {
                let what = ["send", "write", "read"][part];
                assert!(sinks[host].read(part * size, length) == expected, "a {what} went wrong");
            }
        }
    }
}

#[test]
fn no_byte_is_wrong_on_a_faulty_network() {
    for seed in 0..100 {
        let mut world = World::new(SimBench::new(seed, faulty()));
        mixed_traffic(&mut world, 6);
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| {
        let mut world = World::new(SimBench::new(seed, faulty()));
        mixed_traffic(&mut world, 4);
        (world.bench.network.stats(), world.now(), world.hosts[0].group.stats())
    };
    assert_eq!(run(7), run(7));
    assert_ne!(run(7).0, run(8).0);
}

#[test]
fn damaged_packets_are_counted_and_repaired() {
    let config = SimConfig { corruption_ppm: 100_000, ..SimConfig::default() };
    let mut world = World::new(SimBench::new(3, config));
    mixed_traffic(&mut world, 3);
    let failures: u64 = world.hosts.iter().map(|host| host.group.stats().icrc_failures).sum();
    assert!(failures > 0);
}

/// A cut is an error, within the retries, and not a hang; the other connections of the host live
/// on.
#[test]
fn a_healed_network_takes_new_connections() {
    let mut world = World::new(SimBench::quiet());
    let (left, _right) = world.connect();
    let buffer = world.buffer(0, 64);
    let [a, b] = [0, 1].map(|host| rdma::Device::local_ip(&world.hosts[host].device));
    world.bench.network.cut(a, b);
    world.post(left, 1, Op::Send, &[buffer.sge(0, 64)]);
    world.expect(0, 1, WcStatus::RETRY_EXCEEDED);
    world.bench.network.heal(a, b);
    let (left, right) = world.connect();
    world.recv(right, 2, &[]);
    world.post(left, 3, Op::Send, &[]);
    world.expect(1, 2, WcStatus::SUCCESS);
    world.expect(0, 3, WcStatus::SUCCESS);
}
