//! Marks, congestion notifications, and the windows that they reduce.

use core::time::Duration;
use std::vec::Vec;

use super::pair::*;
use crate::Time;
use crate::rc::SendOp;
use crate::wire::{Bth, Ecn, Headers, Message, Opcode, Packet};

/// A link whose queue marks as soon as a packet has to wait.
fn marking(round_trip_us: u64) -> Options {
    let mut options = Options::default();
    options.network.latency = Duration::from_micros(round_trip_us) / 2;
    options.network.bottleneck =
        Some(Bottleneck { bytes_per_second: 125_000_000, queue: u64::MAX, mark_above: 0 });
    options
}

/// When notifications left each end while 32 operations of 64 KiB were done.
fn notifications(options: &Options, op: SendOp) -> (Pair, [Vec<Time>; 2]) {
    let mut pair = Pair::new(options);
    for id in 0..32 {
        pair.send(0, id, op, &[sge(0, 65_536)]);
    }
    let mut left = [Vec::new(), Vec::new()];
    while let Some(next) = pair.turn() {
        for (end, times) in left.iter_mut().enumerate() {
            let count = pair.count(end, Opcode::CONGESTION_NOTIFICATION);
            times.extend((0..count).map(|_| pair.now));
        }
        pair.forget_packets();
        pair.now = next;
    }
    assert_eq!(pair.completions(0).len(), 32);
    (pair, left)
}

#[test]
fn a_queue_pair_notifies_at_most_every_50_us() {
    for (op, receiver) in [(write_to(100_000), 1), (read_from(100_000), 0)] {
        for round_trip_us in [10, 100, 1_000] {
            let (pair, left) = notifications(&marking(round_trip_us), op);
            let times = &left[receiver];
            assert!(times.len() > 10, "{op:?}: {} notifications", times.len());
            let far = times.windows(2).all(|pair| pair[1] - pair[0] >= Duration::from_micros(50));
            assert!(far, "{op:?} at {round_trip_us} us: {times:?}");
            let sent = pair.ends[receiver].qps[0].counters();
            assert_eq!(sent.notifications_sent, times.len() as u64);
            // Notifications the other way, for marked ACKs and requests, are marked too.
            let marked = pair.queues[1 - receiver].marked;
            let notifications = left[1 - receiver].len() as u64;
            assert!((marked - notifications..=marked).contains(&sent.ecn_marked_packets));
            let handled = pair.ends[1 - receiver].qps[0].counters().notifications_handled;
            assert_eq!(handled, sent.notifications_sent, "all came");
        }
    }
}

#[test]
fn without_marks_there_are_none() {
    let (pair, left) = notifications(&Options::default(), write_to(100_000));
    assert!(left.iter().all(Vec::is_empty));
    assert_eq!(pair.ends[1].qps[0].counters().ecn_marked_packets, 0);
}

/// A packet of 16 reserved bytes for queue pair 0.
fn notification() -> Vec<u8> {
    let headers = Headers::new(&Bth::notification(qpn(0)), &Message::CongestionNotification);
    [headers.as_slice(), &[0; 4]].concat()
}

/// An end with a window that has grown, and packets in flight.
fn sending_with(options: &Options) -> Pair {
    let mut pair = Pair::new(options);
    for id in 0..60 {
        pair.send(0, id, write_to(100_000), &[sge(0, 65_536)]);
    }
    pair.run_for(Duration::from_millis(30));
    assert!(pair.ends[0].in_flight() > 50_000, "{}", pair.ends[0].in_flight());
    pair
}

/// A pair whose peers tell of overflows.
fn sending() -> Pair {
    let mut options = Options::default();
    options.network.latency = Duration::from_millis(1);
    sending_with(&options)
}

/// However many come: a peer can slow down what is sent to it, once in each round trip.
#[test]
fn a_burst_of_notifications_reduces_the_window_once() {
    let mut pair = sending();
    let before = pair.ends[0].windows[0].limit();
    for _ in 0..100 {
        pair.ends[0].deliver(pair.now, &notification());
    }
    let after = pair.ends[0].windows[0].limit();
    assert!(after < before, "{before} -> {after}");
    let most = pair.ends[0].in_flight().max(20_000);
    assert!(after >= most / 2 - 8_448, "{before} -> {after} of {most}");
    let counters = pair.ends[0].qps[0].counters();
    assert_eq!((counters.notifications_handled, counters.packets_dropped), (100, 0));
    pair.run();
    assert_eq!(pair.completions(0).len(), 60, "nothing was lost");
    assert_eq!(pair.ends[0].qps[0].counters().packets_retransmitted, 0);
}

/// A notification that is marked brings none.
#[test]
fn notifications_are_not_answered() {
    let mut pair = sending();
    for _ in 0..100 {
        pair.ends[0].deliver_marked(pair.now, &notification(), Ecn::Ce);
    }
    pair.run();
    assert_eq!(pair.count(0, Opcode::CONGESTION_NOTIFICATION), 0);
}

#[test]
fn an_ended_queue_pair_takes_no_notification() {
    let mut pair = sending();
    let before = pair.ends[0].windows[0].limit();
    pair.fail(0);
    let dropped = pair.ends[0].qps[0].counters().packets_dropped;
    pair.ends[0].deliver(pair.now, &notification());
    let counters = pair.ends[0].qps[0].counters();
    assert_eq!((counters.notifications_handled, counters.packets_dropped), (0, dropped + 1));
    assert_eq!(pair.ends[0].windows[0].limit(), before);
}

/// The acknowledgement that a peer sent last, with BECN.
fn acknowledgement(pair: &Pair) -> Vec<u8> {
    let (_, psn, syndrome) = *pair.acknowledgements.last().expect("some were sent");
    let bth = Bth { becn: true, ..Bth::new(qpn(0), psn) };
    let message = Message::Acknowledge(crate::wire::Aeth { syndrome, msn: 0 });
    let datagram = [Headers::new(&bth, &message).as_slice(), &[0; 4]].concat();
    assert!(Packet::parse(&datagram).is_ok());
    datagram
}

/// Peers of ours say with BECN that their receive buffer overflows, others that a queue is
/// congested.
#[test]
fn becn_of_foreign_peers_is_a_notification() {
    for ours in [false, true] {
        let mut options = Options { reports_overflow: ours, ..Options::default() };
        options.network.latency = Duration::from_millis(1);
        let mut pair = sending_with(&options);
        let before = pair.ends[0].windows[0].limit();
        let datagram = acknowledgement(&pair);
        pair.ends[0].deliver(pair.now, &datagram);
        assert_eq!(pair.ends[0].windows[0].limit() < before, !ours);
    }
}
