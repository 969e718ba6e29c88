//! Goodput under losses in the network, in virtual time.

use core::time::Duration;
use std::vec;
use std::vec::Vec;

use super::pair::*;
use crate::PathMtu;
use crate::rc::{QueuePairCounters, SendOp, WorkStatus, datagram_cost};

/// A receive buffer that never overflows.
const LARGE_BUFFER: u64 = 16 << 20;
/// How long an end takes for a packet of 4,096 bytes: 1.6 GB/s, as over loopback.
const SERVICE: Duration = Duration::from_nanos(2500);

/// State of the queues before the slowest link in the second half of a run, both directions
/// together.
#[derive(Clone, Copy, Debug)]
struct QueueMeasured {
    dropped: u64,
    marked: u64,
    /// Bytes that a packet of the data found waiting, on average.
    mean: f64,
    notifications: u64,
}

/// Measurements of a run.
#[derive(Clone, Debug)]
struct Measured {
    /// Bytes per second that each queue pair completed.
    rates: Vec<f64>,
    /// Packets that were sent again, by packets sent.
    repeats: f64,
    queue: QueueMeasured,
}

impl Measured {
    fn total(&self) -> f64 {
        self.rates.iter().sum()
    }

    /// Jain's index: 1 if all get the same.
    fn fairness(&self) -> f64 {
        let squares: f64 = self.rates.iter().map(|rate| rate * rate).sum();
        self.total() * self.total() / (squares * self.rates.len() as f64)
    }
}

/// Keeps operations of `length` bytes in flight on each queue pair, `depth` of them, for two equal
/// times; the second one counts.
fn measure(options: &Options, op: SendOp, length: usize, depth: u64, time: Duration) -> Measured {
    let count = options.queue_pairs;
    let mut pair = Pair::new(options);
    for qp in 0..count {
        for id in 0..depth {
            pair.send_on(0, qp, id, op, SIGNALED, &[sge(200_000, length)]);
        }
    }
    let run = |pair: &mut Pair| {
        let mut done = vec![0_u64; count];
        let end = pair.now + time;
        loop {
            let next = pair.turn();
            for (qp, completion) in core::mem::take(&mut pair.ends[0].completions) {
                assert_eq!(completion.status, WorkStatus::Success);
                done[qp] += 1;
                pair.send_on(0, qp, completion.wr_id, op, SIGNALED, &[sge(200_000, length)]);
            }
            pair.forget_packets();
            // Without a next time the requests that were just posted are all there is to do.
            let next = next.unwrap_or(pair.now);
            if next > end {
                break;
            }
            pair.now = next;
        }
        done
    };
    run(&mut pair);
    let (start, before) = (pair.now, counters(&pair));
    pair.queues = pair.queues.map(LinkQueue::restarted);
    let done = run(&mut pair);
    let (seconds, after) = ((pair.now - start).as_secs_f64(), counters(&pair));
    let again = after.packets_retransmitted - before.packets_retransmitted;
    Measured {
        rates: done.iter().map(|done| (done * length as u64) as f64 / seconds).collect(),
        repeats: again as f64 / (after.packets_sent - before.packets_sent) as f64,
        queue: QueueMeasured {
            dropped: pair.queues.iter().map(|queue| queue.dropped).sum(),
            marked: pair.queues.iter().map(|queue| queue.marked).sum(),
            mean: (pair.queues.iter())
                .map(|queue| queue.found as f64 / queue.packets.max(1) as f64)
                .fold(0.0, f64::max),
            notifications: after.notifications_sent - before.notifications_sent,
        },
    }
}

fn counters(pair: &Pair) -> QueuePairCounters {
    let mut total = QueuePairCounters::default();
    for qp in pair.ends.iter().flat_map(|end| &end.qps) {
        total += qp.counters();
    }
    total
}

fn options(round_trip_us: u64, loss_ppm: u64) -> Options {
    let mut options =
        Options { mtu: PathMtu::Bytes4096, ack_timeout_exponent: 19, ..Options::default() };
    options.network.latency = Duration::from_micros(round_trip_us) / 2;
    options.network.buffer = LARGE_BUFFER;
    options.network.service = SERVICE;
    options.network.loss_ppm = loss_ppm;
    options.read_budget = Some(LARGE_BUFFER);
    options
}

/// Goodput with 0.01, 0.1 and 1 % of the packets lost, by that without loss. Prints it, and the
/// packets that were sent again.
fn kept(op: SendOp, length: usize, round_trip_us: u64, selective_recovery: bool) -> [f64; 3] {
    let time = Duration::from_millis(150) + Duration::from_micros(round_trip_us) * 100;
    let of = |loss_ppm| {
        let options = Options { selective_recovery, ..options(round_trip_us, loss_ppm) };
        measure(&options, op, length, 32, time)
    };
    let lossless = of(0).total();
    let (name, recovery) = (
        if matches!(op, SendOp::RdmaRead { .. }) { "READ" } else { "WRITE" },
        if selective_recovery { "selective" } else { "go-back-N" },
    );
    let mut line = std::format!(
        "{name} {length:6} B RTT {round_trip_us:5} us {recovery} {:7.1} MB/s",
        lossless / 1e6
    );
    let kept = [100, 1_000, 10_000].map(|loss_ppm| {
        let measured = of(loss_ppm);
        let share = measured.total() / lossless;
        let repeats = measured.repeats * 100.0;
        line += &std::format!(" | {loss_ppm:5} ppm {share:.2}, {repeats:.1} % again");
        share
    });
    std::println!("{line}");
    kept
}

/// 128 KiB: with go-back-N and one window 0.13, 0.04 and 0.02.
#[test]
fn writes_survive_losses() {
    for (selective_recovery, length, least) in [
        (true, 128 << 10, [0.98, 0.95, 0.8]),
        (true, 4 << 10, [0.98, 0.9, 0.6]),
        (false, 128 << 10, [0.85, 0.5, 0.15]),
        (false, 4 << 10, [0.8, 0.4, 0.1]),
    ] {
        let kept = kept(write_to(0), length, 50, selective_recovery);
        for (kept, least) in kept.into_iter().zip(least) {
            assert!(kept >= least, "{length} bytes: {kept:.3} of the rate without loss");
        }
    }
}

/// 128 KiB: before, 0.06 at any loss, since the responses that came after a missing one were
/// dropped, and asked for again one READ after the other.
#[test]
fn reads_survive_losses() {
    for (length, least) in [(128 << 10, [0.85, 0.5, 0.15]), (4 << 10, [0.8, 0.4, 0.1])] {
        let kept = kept(read_from(0), length, 50, true);
        for (kept, least) in kept.into_iter().zip(least) {
            assert!(kept >= least, "{length} bytes: {kept:.3} of the rate without loss");
        }
    }
}

/// A queue on the way that is much shorter than our receive buffer.
#[test]
fn reads_adapt_to_a_short_queue() {
    let mut options = Options { queue_pairs: 4, ..options(200, 0) };
    options.network.buffer = 425_984;
    let measured = measure(&options, read_from(0), 128 << 10, 8, Duration::from_millis(300));
    let repeats = measured.repeats;
    std::println!("{:.0} MB/s, {:.1} % again", measured.total() / 1e6, repeats * 100.0);
    assert!(measured.total() > 0.8e9 && repeats < 0.05, "{measured:?}");
}

/// A link of 1 Gbit/s with a queue of 35 packets, about 150,000 bytes, that reports nothing.
#[test]
fn flows_fill_a_bottleneck() {
    for (op, least, most_repeats) in [(read_from(0), 0.93, 0.02), (write_to(0), 0.93, 0.02)] {
        for (round_trip_us, flows) in
            [(100, 1), (100, 4), (500, 1), (500, 4), (1_000, 1), (1_000, 4)]
        {
            let mut options =
                Options { queue_pairs: flows, own_windows: true, ..options(round_trip_us, 0) };
            options.network.service = Duration::from_micros(33);
            options.network.buffer = 300_000;
            options.network.reports_overflow = false;
            let depth = 32 / flows as u64;
            let measured = measure(&options, op, 128 << 10, depth, Duration::from_millis(500));
            let (share, fairness) = (measured.total() / (4096.0 / 33e-6), measured.fairness());
            std::println!(
                "{op:?} {flows} flows, RTT {round_trip_us} us: {share:.2} of the rate, Jain's index {fairness:.2}, {:.1} % again",
                measured.repeats * 100.0
            );
            assert!(
                share > least && fairness > 0.9,
                "{flows} flows, {round_trip_us} us: {measured:?}"
            );
            assert!(
                measured.repeats < most_repeats,
                "{flows} flows, {round_trip_us} us: {measured:?}"
            );
        }
    }
}

/// A longer round trip makes losses dearer, for TCP as well. TCP's CUBIC with packets of 1,448
/// bytes gets 1.2 windows of the root of `1 / loss` packets in each round trip (RFC 9438, 5.2).
#[test]
fn writes_over_long_paths() {
    for round_trip_us in [200, 1_000, 10_000] {
        let lossy = options(round_trip_us, 1_000);
        let time = Duration::from_millis(150) + Duration::from_micros(round_trip_us) * 100;
        let measured = measure(&lossy, write_to(0), 128 << 10, 32, time).total();
        let tcp = 1.2 * 1000_f64.sqrt() * 1448.0 / (round_trip_us as f64 / 1e6);
        std::println!("RTT {round_trip_us} us: {:.1} MB/s, TCP {:.1}", measured / 1e6, tcp / 1e6);
        assert!(measured > tcp.min(800e6) * 0.9, "{measured} at {round_trip_us} us, TCP {tcp}");
    }
}

/// A bottleneck of 1 Gbit/s with a queue of 150 KB, as a switch has, which tells nothing. With
/// go-back-N each loss there costs the rest of the window.
#[test]
fn a_short_queue_costs_few_repeats() {
    for flows in [1, 4] {
        let of = |selective_recovery| {
            let mut options = Options { queue_pairs: flows, own_windows: true, ..options(200, 0) };
            options.selective_recovery = selective_recovery;
            options.network.service = Duration::from_nanos(33_500);
            options.network.buffer = 36 * datagram_cost(4128);
            options.network.reports_overflow = false;
            measure(&options, write_to(0), 128 << 10, 8, Duration::from_secs(2))
        };
        let (before, now) = (of(false), of(true));
        let describe = |measured: &Measured| {
            let (total, repeats) = (measured.total() / 1e6, measured.repeats * 100.0);
            std::format!("{total:.1} MB/s, {repeats:.2} % again")
        };
        std::println!("{flows} flows: {}; go-back-N {}", describe(&now), describe(&before));
        assert!(now.repeats < 0.02, "{flows} flows: {now:?}");
        assert!(now.total() > 0.93 * 4096.0 / 33.5e-6, "{flows} flows: {now:?}");
    }
}

/// Processes that know nothing of each other, through one buffer that says nothing of its losses.
#[test]
fn flows_share_a_silent_queue_fairly() {
    for flows in [2, 4, 16] {
        let mut options = Options { queue_pairs: flows, own_windows: true, ..options(1_000, 0) };
        options.network.buffer = 1 << 20;
        options.network.reports_overflow = false;
        let measured = measure(&options, write_to(0), 128 << 10, 8, Duration::from_millis(800));
        let (fairness, repeats) = (measured.fairness(), measured.repeats);
        std::println!(
            "{flows} flows: {:.0} MB/s, Jain's index {fairness:.2}, {:.1} % again",
            measured.total() / 1e6,
            repeats * 100.0
        );
        assert!(fairness > 0.8, "{flows} flows: {measured:?}");
        assert!(measured.total() > 1.0e9, "{flows} flows: {measured:?}");
    }
}

/// The tables of decisions 069 and 071.
#[test]
#[ignore = "takes minutes"]
fn table() {
    for op in [write_to(0), read_from(0)] {
        for length in [128 << 10, 4 << 10] {
            for round_trip_us in [50, 200, 1_000, 10_000] {
                for selective_recovery in [false, true] {
                    kept(op, length, round_trip_us, selective_recovery);
                }
            }
        }
    }
}

/// Each flow is a process of its own.
fn through_queue(link: (u64, u64), flows: usize, mark_above: u64) -> Options {
    let (bytes_per_second, round_trip_us) = link;
    let mut options =
        Options { queue_pairs: flows, own_windows: true, ..options(round_trip_us, 0) };
    options.network.service = Duration::from_nanos(500);
    options.network.bottleneck = Some(Bottleneck { bytes_per_second, queue: 150_000, mark_above });
    options
}

/// Share of a link's capacity that goes through its queue. Prints it.
fn share_of_link(op: SendOp, link: (u64, u64), flows: usize, mark_above: u64) -> (f64, Measured) {
    // Windows become equal within hundreds of round trips.
    let time = Duration::from_millis(200) + Duration::from_micros(link.1) * 800;
    let measured = measure(&through_queue(link, flows, mark_above), op, 128 << 10, 32, time);
    let share = measured.total() / link.0 as f64;
    let QueueMeasured { dropped, marked, mean, notifications } = measured.queue;
    std::println!(
        "{op:?} {:4} MB/s RTT {:5} us, {flows:2} flows, marks above {mark_above}: {share:.3}, \
         Jain {:.2}, {:.2} % again, {dropped} dropped, {marked} marked, {notifications} CNPs, \
         {mean:.0} bytes wait",
        link.0 / 1_000_000,
        link.1,
        measured.fairness(),
        measured.repeats * 100.0,
    );
    (share, measured)
}

/// 1 and 10 Gbit/s.
const LINKS: [(u64, u64); 4] =
    [(125_000_000, 20), (125_000_000, 100), (125_000_000, 1_000), (1_250_000_000, 100)];

/// A queue of 150,000 bytes, which marks above 60,000, drops nothing in the steady state. Without
/// marks it drops, and up to 16 % of the packets are sent again.
#[test]
fn a_queue_that_marks_drops_nothing() {
    for op in [write_to(0), read_from(0)] {
        for link in LINKS {
            for flows in [1, 4] {
                let (share, measured) = share_of_link(op, link, flows, 60_000);
                assert_eq!(measured.queue.dropped, 0, "{op:?} {link:?} {flows} flows");
                assert!(share > 0.9, "{op:?} {link:?} {flows} flows: {share}");
                assert!(measured.queue.marked > 0 && measured.queue.notifications > 0);
                assert!(measured.fairness() > 0.6, "{measured:?}");
            }
        }
    }
}

/// The table of decision 070.
#[test]
#[ignore = "takes a minute"]
fn table_of_marks() {
    for op in [write_to(0), read_from(0)] {
        for link in LINKS.into_iter().chain([(125_000_000, 20_000), (1_250_000_000, 1_000)]) {
            for flows in [1, 2, 8, 16] {
                for mark_above in [u64::MAX, 30_000, 60_000] {
                    share_of_link(op, link, flows, mark_above);
                }
            }
        }
    }
}
