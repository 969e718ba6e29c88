//! Requests without a completion: they are acknowledged, but not each by itself.

use core::time::Duration;
use std::vec::Vec;

use super::pair::*;
use crate::Psn;
use crate::rc::SendOp;
use crate::wire::Opcode;

/// A pair whose end 1 has receives for 200 SENDs, and which has had `count` of them, one every
/// `gap`.
fn after(count: u64, gap: Duration) -> Pair {
    let mut options = Options::default();
    options.config.recv_wr = 200;
    let mut pair = Pair::new(&options);
    for id in (0..200).rev() {
        pair.recv(1, id, &[sge(0, 64)]);
    }
    for _ in 0..count {
        let next = pair.now + gap;
        send(&mut pair);
        pair.run_for(gap);
        pair.now = next;
    }
    pair
}

fn send(pair: &mut Pair) {
    pair.send_on(0, 0, 0, SendOp::Send, SILENT, &[sge(0, 64)]);
}

/// Everything arrived once, is acknowledged, and nothing is still awaited.
fn assert_done(pair: &Pair, count: u64) {
    let received: Vec<u64> = pair.completions(1).iter().map(|it| it.wr_id).collect();
    assert_eq!(received, (0..count).collect::<Vec<_>>());
    let queue_pair = &pair.ends[0].qps[0];
    assert_eq!((pair.ends[0].in_flight(), queue_pair.deadline()), (0, None));
}

#[test]
fn many_share_an_acknowledgement() {
    let mut pair = after(200, Duration::from_micros(100));
    pair.run();
    assert_done(&pair, 200);
    let acknowledgements = pair.count(1, Opcode::ACKNOWLEDGE);
    // One each 2 ms, and one for each quarter of a window that is still small.
    assert!((10..=40).contains(&acknowledgements), "{acknowledgements}");
    let counters = pair.ends[0].qps[0].counters();
    assert_eq!((counters.ack_timeouts, counters.packets_retransmitted), (0, 0));
}

#[test]
fn rare_requests_are_acknowledged_one_by_one() {
    let mut pair = after(20, Duration::from_millis(3));
    pair.run();
    assert_done(&pair, 20);
    assert_eq!(pair.count(0, Opcode::SEND_ONLY), 20);
    assert_eq!(pair.count(1, Opcode::ACKNOWLEDGE), 20);
}

#[test]
fn unacknowledged_requests_do_not_fill_the_queue() {
    let mut pair = after(200, Duration::from_micros(5));
    pair.run();
    assert_done(&pair, 200);
}

#[test]
fn a_repeated_packet_acknowledges_the_last_requests() {
    let mut pair = after(3, Duration::from_micros(100));
    assert_eq!(pair.count(1, Opcode::ACKNOWLEDGE), 1, "of the first");
    let limit = pair.ends[0].windows[0].limit();
    pair.run();
    assert_done(&pair, 3);
    assert_eq!(pair.count(0, Opcode::SEND_ONLY), 4, "the question is one of them");
    assert_eq!(pair.count(1, Opcode::ACKNOWLEDGE), 2);
    assert!(pair.ends[0].windows[0].limit() >= limit);
    let counters = pair.ends[0].qps[0].counters();
    assert_eq!((counters.ack_timeouts, counters.packets_retransmitted), (0, 0));
}

#[test]
fn the_last_request_leaves_the_window_unchanged() {
    let mut pair = after(2, Duration::from_micros(100));
    let limit = pair.ends[0].windows[0].limit();
    pair.run();
    assert_done(&pair, 2);
    assert_eq!(pair.ends[0].windows[0].limit(), limit);
}

#[test]
fn one_that_is_lost_is_sent_again() {
    for lost in 1..4 {
        let mut pair = after(1, Duration::from_micros(100));
        let first = Psn::new(Options::default().send_psn[0]);
        for index in 1..4 {
            send(&mut pair);
            pair.turn();
            if index == lost {
                pair.lose_in_flight(|psn| psn == first.plus(lost).value());
            }
        }
        let began = pair.now;
        pair.run();
        assert_done(&pair, 4);
        assert!(pair.now - began < Duration::from_millis(50), "{lost}");
    }
}
