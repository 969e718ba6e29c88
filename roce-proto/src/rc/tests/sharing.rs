//! Queue pairs that share a receiver.

use core::time::Duration;
use std::vec::Vec;

use super::pair::*;
use crate::PathMtu;
use crate::rc::{QueuePairCounters, WorkStatus};

/// The receive buffer of a stock Linux socket, as the kernel counts it.
const STOCK_BUFFER: u64 = 425_984;

fn total(pair: &Pair, end: usize) -> QueuePairCounters {
    let mut total = QueuePairCounters::default();
    for qp in &pair.ends[end].qps {
        total += qp.counters();
    }
    total
}

fn shared(queue_pairs: usize) -> Options {
    let mut options = Options { queue_pairs, mtu: PathMtu::Bytes4096, ..Options::default() };
    options.network.buffer = STOCK_BUFFER;
    options.network.service = Duration::from_micros(2);
    options.read_budget = Some(STOCK_BUFFER);
    options
}

/// Keeps every queue pair busy with writes (or reads) of 128 KiB until each did `rounds`.
fn bulk(pair: &mut Pair, rounds: u64, read: bool) {
    const LENGTH: usize = 128 << 10;
    let op = if read { read_from(0) } else { write_to(0) };
    let count = pair.ends[0].qps.len();
    for round in 0..rounds {
        for qp in 0..count {
            pair.send_on(0, qp, round, op, SIGNALED, &[sge(200_000, LENGTH)]);
        }
    }
    pair.run();
    assert_eq!(pair.ends[0].completions.len() as u64, rounds * count as u64);
    assert!(pair.ends[0].completions.iter().all(|(_, c)| c.status == WorkStatus::Success));
    assert_eq!(pair.ends[0].in_flight(), 0);
    assert_eq!(pair.ends[0].reads.used(), 0);
}

/// Posts as many further writes of queue pair 0, a few at a time.
fn bulk_more(pair: &mut Pair, rounds: u64) {
    for _ in 0..rounds / 32 {
        pair.ends[0].completions.clear();
        bulk(pair, 32, false);
    }
}

#[test]
fn writes_of_many_queue_pairs_rarely_repeat() {
    for count in [1, 4, 64] {
        let mut pair = Pair::new(&shared(count));
        bulk(&mut pair, 64.min(1024 / count as u64), false);
        let counters = total(&pair, 0);
        let share = counters.packets_retransmitted as f64 / counters.packets_sent as f64;
        assert!(share < 0.01, "{count} queue pairs: {share:.4} were sent again, {counters:?}");
    }
}

#[test]
fn reads_do_not_overrun_our_own_buffer() {
    for count in [1, 4, 64] {
        let mut pair = Pair::new(&shared(count));
        bulk(&mut pair, 64.min(256 / count as u64), true);
        assert_eq!(pair.overruns, 0);
        assert_eq!(total(&pair, 0).packets_retransmitted, 0);
    }
}

#[test]
fn a_failed_queue_pair_returns_its_share() {
    let mut pair = Pair::new(&shared(2));
    for id in 0..10 {
        pair.send_on(0, 0, id, write_to(0), SIGNALED, &[sge(0, 100_000)]);
        pair.send_on(0, 0, id, read_from(0), SIGNALED, &[sge(0, 100_000)]);
        pair.send_on(0, 1, id, write_to(0), SIGNALED, &[sge(0, 100_000)]);
        pair.send_on(0, 1, id, read_from(0), SIGNALED, &[sge(0, 100_000)]);
    }
    pair.run_for(Duration::from_micros(200));
    assert!(pair.ends[0].in_flight() > 0);
    pair.fail(0);
    pair.run();
    let done = |status| pair.ends[0].completions.iter().filter(|(_, c)| c.status == status).count();
    assert!(done(WorkStatus::Flushed) > 0);
    assert!(done(WorkStatus::Success) >= 20);
    assert_eq!(done(WorkStatus::Flushed) + done(WorkStatus::Success), 40);
    assert_eq!(pair.ends[0].in_flight(), 0);
    assert_eq!(pair.ends[0].reads.used(), 0);
}

/// The peer gets RDMA READ requests and never answers them.
#[test]
fn a_silent_peer_does_not_block_other_reads() {
    let mut pair = Pair::new(&Options { ack_timeout_exponent: 0, ..shared(2) });
    pair.fail(1);
    for id in 0..4 {
        pair.send_on(0, 0, id, read_from(0), SIGNALED, &[sge(0, 512 << 10)]);
    }
    pair.run_for(Duration::from_millis(1));
    for id in 0..4 {
        pair.send_on(0, 1, id, read_from(0), SIGNALED, &[sge(0, 512 << 10)]);
    }
    pair.run_for(Duration::from_secs(1));
    let done: Vec<usize> = pair.ends[0].completions.iter().map(|(qp, _)| *qp).collect();
    assert_eq!(done, [1; 4]);
}

/// Packets that many queue pairs have sent without asking for an acknowledgement do not keep the
/// window from queue pairs that have packets to send.
#[test]
fn many_queue_pairs_share_the_whole_window() {
    let time = |count: usize| {
        let mut options = shared(count);
        options.config.send_wr = 1024;
        let mut pair = Pair::new(&options);
        let start = pair.now;
        bulk(&mut pair, 1024 / count as u64, false);
        pair.now - start
    };
    let alone = time(1);
    for count in [16, 64] {
        let together = time(count);
        assert!(together < alone * 6 / 5, "{count}: {together:?}, alone {alone:?}");
    }
}

/// The timers of all expire, each at its own time, and cannot tell its one packet's acknowledgement
/// from that of the same packet sent again.
#[test]
fn a_pause_halves_the_window_once() {
    let mut pair = Pair::new(&shared(64));
    bulk(&mut pair, 16, false);
    let before = pair.ends[0].windows[0].limit();
    pair.ends[1].asleep_until = pair.now + Duration::from_millis(60);
    for qp in 0..64 {
        pair.send_on(0, qp, 100, write_to(0), SIGNALED, &[sge(0, 100)]);
        pair.run_for(Duration::from_micros(100));
    }
    pair.run();
    let (after, counters) = (pair.ends[0].windows[0].limit(), total(&pair, 0));
    assert!(counters.ack_timeouts >= 64, "{counters:?}");
    assert!(after >= before / 2, "{before} became {after}: {counters:?}");
}

#[test]
fn no_queue_pair_starves() {
    let mut pair = Pair::new(&shared(16));
    for qp in 0..16 {
        for id in 0..32 {
            pair.send_on(0, qp, id, write_to(0), SIGNALED, &[sge(0, 32 << 10)]);
        }
    }
    // When the first is done, everybody must be nearly so.
    while pair.ends[0].completions.iter().filter(|(qp, _)| *qp == 0).count() < 32 {
        let Some(next) = pair.turn() else { break };
        pair.now = next;
    }
    for qp in 0..16 {
        let done = pair.ends[0].completions.iter().filter(|(at, _)| *at == qp).count();
        assert!(done >= 28, "queue pair {qp} did {done} of 32");
    }
}

/// Processes that know nothing of each other.
#[test]
fn queue_pairs_share_a_receive_buffer() {
    for (count, length, rounds, allowed) in
        [(64, 128 << 10, 16, 0.01), (64, 8192, 60, 0.02), (16, 128 << 10, 16, 0.02)]
    {
        let mut pair = Pair::new(&Options { own_windows: true, ..shared(count) });
        for round in 0..rounds {
            for qp in 0..count {
                pair.send_on(0, qp, round, write_to(0), SIGNALED, &[sge(200_000, length)]);
            }
        }
        let start = pair.now;
        pair.run();
        let counters = total(&pair, 0);
        let share = counters.packets_retransmitted as f64 / counters.packets_sent as f64;
        assert!(share < allowed, "{count} x {length}: {share:.4} were sent again, {counters:?}");
        // The receiver is busy for most of the time.
        let ideal = pair.network.service * (counters.packets_sent as u32);
        assert!(pair.now - start < ideal * 3, "{count} x {length}: {:?}", pair.now - start);
    }
}

/// Acknowledgements carry BECN while a buffer overflows, and then only: foreign peers may take it
/// for something else.
#[test]
fn an_overflow_is_reported_to_those_who_know_it() {
    for (buffer, reports_overflow) in
        [(STOCK_BUFFER, true), (STOCK_BUFFER, false), (u64::MAX, true)]
    {
        let mut options = Options { own_windows: true, reports_overflow, ..shared(64) };
        options.network.buffer = buffer;
        let mut pair = Pair::new(&options);
        bulk(&mut pair, 4, false);
        let overflowed = pair.overruns > 0;
        assert_eq!(overflowed, buffer == STOCK_BUFFER);
        assert_eq!(pair.becn_acknowledgements > 0, overflowed && reports_overflow);
    }
}

/// A peer that would report an overflow and does not has lost packets in the network: the window is
/// reduced less, and grows again sooner.
#[test]
fn losses_that_may_be_overflow_cost_more() {
    let limit_after = |reports_overflow| {
        let mut pair = Pair::new(&Options { reports_overflow, ..shared(1) });
        bulk(&mut pair, 64, false);
        pair.network.loss_ppm = 1000;
        bulk_more(&mut pair, 256);
        pair.ends[0].windows[0].limit()
    };
    let (network, unknown) = (limit_after(true), limit_after(false));
    assert!(network > 4 * unknown, "{network} where losses are told apart, {unknown} otherwise");
}
