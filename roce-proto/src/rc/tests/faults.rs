//! Loss, duplication and reordering: slower, never wrong.

use core::time::Duration;
use std::collections::VecDeque;
use std::vec::Vec;

use super::memory::{BASE, REMOTE_READ};
use super::pair::*;
use crate::PathMtu;
use crate::rc::{BindWindow, CompletedWork, SendOp, WorkStatus};

/// A workload in which every message is different, checked against its expected result: each end
/// sends, writes and reads; memory that one operation touches belongs to it until it completes.
struct Workload {
    pair: Pair,
    left: [u64; 2],
    running: [VecDeque<Running>; 2],
    free: [Vec<usize>; 2],
    receives: [VecDeque<Vec<u8>>; 2],
    done: u64,
}

struct Running {
    wr_id: u64,
    work: CompletedWork,
    slot: usize,
    data: Vec<u8>,
}

const SLOT: usize = 20_000;
const SLOTS: usize = 24;
/// Each end's memory: the part for its own operations, then the part for its peer's, then receives.
const OWN: usize = 0;
const PEERS: usize = SLOT * SLOTS;
const RECEIVES: usize = 2 * SLOT * SLOTS;
const RECEIVE: usize = SLOT;
/// Receives that are enough: with fewer, some SEND may find none.
const ENOUGH_RECEIVES: usize = SLOTS;

impl Workload {
    fn new(options: &Options, operations: u64, receives: usize) -> Self {
        let memory_bytes = RECEIVES + RECEIVE * receives;
        let mut pair = Pair::new(&Options { memory_bytes, ..options.clone() });
        for end in 0..2 {
            for slot in 0..receives {
                pair.recv(end, slot as u64, &[sge(RECEIVES + slot * RECEIVE, RECEIVE)]);
            }
        }
        Self {
            pair,
            left: [operations; 2],
            running: [VecDeque::new(), VecDeque::new()],
            free: [(0..SLOTS).collect(), (0..SLOTS).collect()],
            receives: [VecDeque::new(), VecDeque::new()],
            done: 0,
        }
    }

    fn run(&mut self) {
        let limit = self.pair.now + Duration::from_secs(3600);
        loop {
            for end in 0..2 {
                self.check(end);
                self.post(end);
            }
            match self.pair.turn() {
                Some(next) => self.pair.now = next,
                None if self.pair.ends.iter().all(|end| end.completions.is_empty()) => break,
                None => {}
            }
            assert!(self.pair.now < limit, "stuck");
        }
        assert_eq!(self.left, [0, 0], "everything was posted");
        for end in 0..2 {
            assert!(self.running[end].is_empty(), "everything completed");
            assert!(self.receives[end].is_empty(), "everything was received");
            assert_eq!(self.pair.ends[end].in_flight(), 0);
            assert_eq!(self.pair.ends[end].reads.used(), 0);
        }
    }

    fn post(&mut self, end: usize) {
        while self.left[end] > 0 && !self.free[end].is_empty() {
            let Some(slot) = self.free[end].pop() else { return };
            let wr_id = self.left[end];
            self.left[end] -= 1;
            let length = match self.pair.rng.below(4) {
                0 => self.pair.rng.below(100),
                1 => self.pair.rng.below(SLOT as u64),
                _ => self.pair.rng.below(5000),
            } as usize;
            let mut data = self.pair.rng.bytes(length);
            let (own, peers) = (OWN + slot * SLOT, PEERS + slot * SLOT);
            let kind = self.pair.rng.below(4);
            let (work, op) = match kind {
                3 => (CompletedWork::Bind, bind(wr_id)),
                0 => (CompletedWork::Send, SendOp::Send),
                1 => (CompletedWork::RdmaWrite, write_to(peers)),
                _ => (CompletedWork::RdmaRead, read_from(peers)),
            };
            if kind == 3 {
                data.clear();
            }
            let length = data.len();
            let source = if kind == 2 { (1 - end, peers) } else { (end, own) };
            self.pair.ends[source.0].memory.bytes[source.1..source.1 + length]
                .copy_from_slice(&data);
            if kind == 0 {
                self.receives[1 - end].push_back(data.clone());
            }
            let half = length / 2;
            let sges = [sge(own, half), sge(own + half, length - half)];
            self.pair.send(end, wr_id, op, &sges);
            self.running[end].push_back(Running { wr_id, work, slot, data });
        }
    }

    fn check(&mut self, end: usize) {
        for (_, completion) in core::mem::take(&mut self.pair.ends[end].completions) {
            assert_eq!(completion.status, WorkStatus::Success);
            if completion.work == CompletedWork::Receive {
                let data = self.receives[end].pop_front().expect("the peer sent it");
                let at = RECEIVES + completion.wr_id as usize * RECEIVE;
                assert_eq!(completion.byte_length as usize, data.len());
                assert_eq!(self.pair.ends[end].memory.bytes[at..at + data.len()], data);
                self.pair.recv(end, completion.wr_id, &[sge(at, RECEIVE)]);
                continue;
            }
            let running = self.running[end].pop_front().expect("it was posted");
            assert_eq!((completion.wr_id, completion.work), (running.wr_id, running.work));
            let (at, offset) = match running.work {
                CompletedWork::RdmaWrite => (1 - end, PEERS + running.slot * SLOT),
                _ => (end, OWN + running.slot * SLOT),
            };
            let found = &self.pair.ends[at].memory.bytes[offset..offset + running.data.len()];
            assert_eq!(found, running.data);
            self.free[end].push(running.slot);
            self.done += 1;
        }
    }
}

/// Opens a window with a key of its own.
fn bind(number: u64) -> SendOp {
    SendOp::Bind(BindWindow {
        window: number,
        rkey: 0x8000_0000 | number as u32,
        region: u64::from(KEY),
        addr: BASE,
        length: 1,
        access: REMOTE_READ,
    })
}

fn faulty(seed: u64, loss: u64, duplication: u64, jitter_us: u64) -> Options {
    let mut options = Options { seed, ..Options::default() };
    options.mtu = PathMtu::ALL[(seed % 5) as usize];
    options.send_psn = [(seed * 7919) as u32, 0x00FF_FFF0];
    options.reads = 1 + (seed % 16) as u8;
    options.read_budget = seed.is_multiple_of(2).then_some(100_000);
    options.selective_recovery = !seed.is_multiple_of(4);
    options.network.loss_ppm = loss * 1000;
    options.network.duplication_ppm = duplication * 1000;
    options.network.jitter = Duration::from_micros(jitter_us);
    options
}

fn run(seed: u64, loss: u64, duplication: u64, jitter_us: u64) -> Workload {
    let receives = if seed.is_multiple_of(3) { ENOUGH_RECEIVES } else { 8 };
    let options = faulty(seed, loss, duplication, jitter_us);
    let mut workload = Workload::new(&options, 60, receives);
    workload.run();
    assert_eq!(workload.done, 120, "seed {seed}");
    workload
}

#[test]
fn nothing_is_repeated_where_nothing_is_lost() {
    for seed in (0..60).step_by(3) {
        let workload = run(seed, 0, 0, 0);
        for end in &workload.pair.ends {
            let counters = end.qps[0].counters();
            assert_eq!(counters.packets_retransmitted, 0, "seed {seed}: {counters:?}");
            assert_eq!(counters.ack_timeouts, 0);
        }
    }
}

#[test]
fn loss() {
    for seed in 0..100 {
        run(seed, 50, 0, 0);
    }
}

#[test]
fn duplication() {
    for seed in 0..50 {
        run(seed, 0, 200, 0);
    }
}

#[test]
fn reordering() {
    for seed in 0..50 {
        run(seed, 0, 0, 40);
    }
}

#[test]
fn loss_duplication_and_reordering() {
    for seed in 0..200 {
        run(seed, 50, 20, 30);
    }
}

#[test]
fn a_third_of_everything_is_lost() {
    for seed in 0..20 {
        let mut options = faulty(seed, 333, 50, 100);
        options.ack_timeout_exponent = 20;
        let mut workload = Workload::new(&options, 20, 8);
        workload.run();
        assert_eq!(workload.done, 40);
    }
}

#[test]
fn a_burst_of_loss_costs_milliseconds() {
    for seed in 0..20 {
        let mut pair = Pair::new(&Options { seed, ..Options::default() });
        pair.send(0, 1, write_to(0), &[sge(0, 1000)]);
        pair.run();
        let start = pair.now;
        pair.network.loss_ppm = 1_000_000;
        pair.send(0, 2, write_to(0), &[sge(0, 50_000)]);
        pair.run_for(Duration::from_micros(100));
        pair.network.loss_ppm = 0;
        pair.run();
        assert_eq!(pair.completions(0).len(), 2);
        assert!(pair.now - start < Duration::from_millis(12), "took {:?}", pair.now - start);
    }
}

#[test]
fn a_sleeping_peer_costs_one_packet_per_try() {
    let mut pair = Pair::new(&Options::default());
    pair.send(0, 1, write_to(0), &[sge(0, 100)]);
    pair.run();
    pair.ends[1].asleep_until = pair.now + Duration::from_millis(30);
    for id in 2..12 {
        pair.send(0, id, write_to(0), &[sge(0, 1500)]);
    }
    pair.run();
    let counters = pair.ends[0].qps[0].counters();
    assert_eq!(pair.completions(0).len(), 11);
    assert_eq!(counters.spurious_timeouts, 1, "{counters:?}");
    assert!(counters.packets_retransmitted <= 3, "{counters:?}");
}

/// The packets that a network costs that reorders or loses: they must not become a storm.
#[test]
fn reads_are_repaired_piece_by_piece() {
    for (loss, duplication, jitter_us) in [(50, 20, 0), (50, 20, 30), (10, 0, 0), (0, 0, 30)] {
        let mut options = faulty(3, loss, duplication, jitter_us);
        (options.mtu, options.reads) = (PathMtu::Bytes1024, 16);
        let mut pair = Pair::new(&options);
        for id in 0..64 {
            pair.send(0, id, read_from(0), &[sge(0, 64 << 10)]);
        }
        pair.run();
        assert_eq!(pair.completions(0).len(), 64);
        let sent = pair.ends[1].qps[0].counters().packets_sent;
        assert!(sent < 3 * 64 * 64, "{loss} {duplication} {jitter_us}: {sent} responses");
    }
}

#[test]
fn a_lost_response_costs_a_round_trip() {
    let mut pair = Pair::new(&Options::default());
    pair.send(0, 1, read_from(0), &[sge(0, 64 << 10)]);
    pair.run_for(Duration::from_micros(30));
    let start = pair.now;
    // Two of the responses that are in the air.
    pair.lose_in_flight(|psn| psn % 20 == 7);
    pair.run();
    assert_eq!(pair.completions(0).len(), 1);
    assert!(pair.now - start < Duration::from_millis(1), "took {:?}", pair.now - start);
}
