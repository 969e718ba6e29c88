//! Errors end in the right status at both ends, and nothing is written after them.

use core::time::Duration;
use std::vec::Vec;

use super::memory::{ALL, BASE, LOCAL, REMOTE_READ, REMOTE_WRITE};
use super::pair::*;
use crate::rc::{
    BindWindow, CompletedWork, LocalSge, Payload, QueuePairState, RecvRequest, SendOp, SendRequest,
    WorkStatus,
};
use crate::wire::{Aeth, Bth, Headers, Message, NakCode, Opcode, RnrTimer, Syndrome};
use crate::{PathMtu, Psn};

fn statuses(pair: &Pair, end: usize) -> Vec<(u64, WorkStatus)> {
    pair.completions(end).iter().map(|completion| (completion.wr_id, completion.status)).collect()
}

fn assert_in_error(pair: &Pair) {
    for end in &pair.ends {
        assert_eq!(end.qps[0].state(), QueuePairState::Error);
        assert_eq!(end.qps[0].deadline(), None);
        assert_eq!(end.in_flight(), 0);
        assert_eq!(end.reads.used(), 0);
    }
}

/// Runs `op` against end 1, with a receive posted there and requests before and behind it.
fn refused(open: impl FnOnce(&mut Pair), op: SendOp, length: usize) -> Pair {
    let mut pair = Pair::new(&Options::default());
    open(&mut pair);
    pair.ends[0].memory.bytes[..length].fill(0xEE);
    pair.recv(1, 50, &[sge(0, 10)]);
    pair.send(0, 1, write_to(900_000), &[sge(0, 0)]);
    pair.send(0, 2, op, &[sge(0, length)]);
    pair.send(0, 3, write_to(900_000), &[sge(0, 1)]);
    pair.run();
    pair
}

#[test]
fn an_access_error_writes_nothing_from_there_on() {
    const OTHER: u32 = 0x77;
    // Key, address, length; packets of a WRITE that come before the one that is refused.
    let cases: [(u32, u64, usize, u64); 6] = [
        // An unknown key.
        (0xDEAD, BASE, 5000, 0),
        // One byte beyond the end, one before the start.
        (OTHER, BASE + 10_001, 5000, 4),
        (OTHER, BASE + 9_999, 5000, 0),
        // Only the last packet of several would be out of bounds.
        (OTHER, BASE + 10_000, 5001, 4),
        // The end of the address space.
        (OTHER, u64::MAX - 10, 5000, 0),
        (OTHER, u64::MAX, 1, 0),
    ];
    for (rkey, remote_addr, length, written) in cases {
        for op in [SendOp::RdmaWrite { remote_addr, rkey }, SendOp::RdmaRead { remote_addr, rkey }]
        {
            let open = |pair: &mut Pair| {
                pair.ends[1].memory.open(OTHER, 10_000, 5000, LOCAL | REMOTE_READ | REMOTE_WRITE);
            };
            let pair = refused(open, op, length);
            assert_eq!(
                statuses(&pair, 0),
                [(1, WorkStatus::Success), (2, WorkStatus::RemoteAccess), (3, WorkStatus::Flushed)]
            );
            assert_eq!(statuses(&pair, 1), [(50, WorkStatus::Flushed)]);
            let written = if matches!(op, SendOp::RdmaWrite { .. }) { written } else { 0 };
            assert_eq!(pair.ends[1].memory.placements, written);
            assert_in_error(&pair);
        }
    }
}

#[test]
fn rights_count() {
    const READABLE: u32 = 0x77;
    const WRITABLE: u32 = 0x78;
    for (rkey, write) in [(READABLE, true), (WRITABLE, false)] {
        let remote_addr = BASE;
        let op = if write {
            SendOp::RdmaWrite { remote_addr, rkey }
        } else {
            SendOp::RdmaRead { remote_addr, rkey }
        };
        let open = |pair: &mut Pair| {
            pair.ends[1].memory.open(READABLE, 0, 5000, REMOTE_READ);
            pair.ends[1].memory.open(WRITABLE, 0, 5000, LOCAL | REMOTE_WRITE);
        };
        let pair = refused(open, op, 3000);
        assert_eq!(statuses(&pair, 0)[1], (2, WorkStatus::RemoteAccess));
        assert_eq!(pair.ends[1].memory.placements, 0);
    }
}

#[test]
fn a_window_serves_one_queue_pair() {
    const WINDOW: u32 = 0x55;
    let mut pair = Pair::new(&Options { queue_pairs: 2, ..Options::default() });
    let bind = SendOp::Bind(BindWindow {
        window: 1,
        rkey: WINDOW,
        region: u64::from(KEY),
        addr: BASE,
        length: 5000,
        access: ALL,
    });
    pair.send(1, 1, bind, &[]);
    pair.run();
    let write = SendOp::RdmaWrite { remote_addr: BASE, rkey: WINDOW };
    pair.send_on(0, 0, 2, write, SIGNALED, &[sge(0, 3000)]);
    pair.run();
    assert_eq!(statuses(&pair, 0), [(2, WorkStatus::Success)]);
    let placed = pair.ends[1].memory.placements;
    pair.send_on(0, 1, 3, write, SIGNALED, &[sge(0, 3000)]);
    pair.run();
    assert_eq!(statuses(&pair, 0)[1], (3, WorkStatus::RemoteAccess));
    assert_eq!(pair.ends[1].memory.placements, placed);
    assert_eq!(
        pair.ends[0].qps[0].state(),
        QueuePairState::ReadyToSend,
        "the other one does not notice"
    );
}

#[test]
fn a_region_that_vanishes_ends_a_write() {
    let mut pair = Pair::new(&Options::default());
    pair.ends[1].memory.open(0x77, 0, 500_000, ALL);
    let write = SendOp::RdmaWrite { remote_addr: BASE, rkey: 0x77 };
    pair.send(0, 1, write, &[sge(0, 500_000)]);
    pair.run_for(core::time::Duration::from_micros(100));
    assert!(pair.ends[1].memory.placements > 0);
    pair.ends[1].memory.close(0x77);
    let placed = pair.ends[1].memory.placements;
    pair.run();
    assert_eq!(statuses(&pair, 0), [(1, WorkStatus::RemoteAccess)]);
    assert_eq!(pair.ends[1].memory.placements, placed);
    assert_in_error(&pair);
}

#[test]
fn a_region_that_vanishes_ends_a_read() {
    let mut pair = Pair::new(&Options { read_budget: Some(40_000), ..Options::default() });
    pair.ends[1].memory.open(0x77, 0, 500_000, ALL);
    let read = SendOp::RdmaRead { remote_addr: BASE, rkey: 0x77 };
    pair.send(0, 1, read, &[sge(0, 500_000)]);
    pair.send(0, 2, write_to(0), &[sge(0, 10)]);
    pair.run_for(core::time::Duration::from_micros(100));
    pair.ends[1].memory.close(0x77);
    pair.run();
    assert_eq!(statuses(&pair, 0), [(1, WorkStatus::RemoteAccess), (2, WorkStatus::Flushed)]);
    assert_in_error(&pair);
}

#[test]
fn a_message_longer_than_its_receive() {
    for length in [11, 1024, 5000] {
        let pair = refused(|_| {}, SendOp::Send, length);
        assert_eq!(
            statuses(&pair, 0),
            [
                (1, WorkStatus::Success),
                (2, WorkStatus::RemoteInvalidRequest),
                (3, WorkStatus::Flushed)
            ]
        );
        assert_eq!(statuses(&pair, 1), [(50, WorkStatus::LocalLength)]);
        assert_eq!(pair.ends[1].memory.placements, 0);
        assert_in_error(&pair);
    }
    // The second packet is too much.
    let mut pair = Pair::new(&Options::default());
    pair.recv(1, 51, &[sge(0, 1500)]);
    pair.recv(1, 50, &[sge(0, 1500)]);
    pair.send(0, 1, SendOp::Send, &[sge(2000, 1501)]);
    pair.run();
    assert_eq!(statuses(&pair, 1), [(50, WorkStatus::LocalLength), (51, WorkStatus::Flushed)]);
    assert_eq!(statuses(&pair, 0), [(1, WorkStatus::RemoteInvalidRequest)]);
}

#[test]
fn a_receive_into_memory_that_is_not_ours() {
    let mut pair = Pair::new(&Options::default());
    pair.recv(1, 50, &[LocalSge { lkey: 0xDEAD, ..sge(0, 100) }]);
    pair.send(0, 1, SendOp::Send, &[sge(0, 100)]);
    pair.run();
    assert_eq!(statuses(&pair, 0), [(1, WorkStatus::RemoteOperation)]);
    assert_eq!(statuses(&pair, 1), [(50, WorkStatus::LocalProtection)]);
    assert_in_error(&pair);
}

#[test]
fn an_ordinary_region_is_never_invalidated() {
    let pair = refused(|_| {}, SendOp::SendWithInvalidate { rkey: KEY }, 10);
    assert_eq!(statuses(&pair, 0)[1], (2, WorkStatus::RemoteAccess));
    assert_eq!(statuses(&pair, 1), [(50, WorkStatus::LocalAccess)]);
    assert_in_error(&pair);
}

#[test]
fn foreign_local_memory_fails_before_a_packet_leaves() {
    let bad = LocalSge { lkey: 0xDEAD, ..sge(0, 100) };
    for op in [SendOp::Send, write_to(0), read_from(0)] {
        let mut pair = Pair::new(&Options::default());
        pair.send(0, 1, op, &[bad]);
        pair.send(0, 2, op, &[sge(0, 1)]);
        pair.run();
        assert_eq!(
            statuses(&pair, 0),
            [(1, WorkStatus::LocalProtection), (2, WorkStatus::Flushed)]
        );
        assert_eq!(pair.log, []);
        assert_eq!(pair.ends[0].in_flight(), 0);
    }
}

#[test]
fn a_message_that_no_message_may_be() {
    let huge = LocalSge { length: u32::MAX, ..sge(0, 0) };
    for op in [SendOp::Send, write_to(0), read_from(0)] {
        let mut pair = Pair::new(&Options::default());
        pair.send(0, 1, op, &[huge, huge]);
        pair.run();
        assert_eq!(statuses(&pair, 0), [(1, WorkStatus::LocalLength)]);
        assert_eq!(pair.log, []);
    }
}

#[test]
fn a_window_that_cannot_be_bound() {
    let mut pair = Pair::new(&Options::default());
    let bind =
        BindWindow { window: 1, rkey: 9, region: 0xDEAD, addr: BASE, length: 1, access: ALL };
    pair.send(0, 1, SendOp::Bind(bind), &[]);
    pair.send(0, 2, SendOp::Send, &[]);
    pair.run();
    assert_eq!(statuses(&pair, 0), [(1, WorkStatus::WindowBind), (2, WorkStatus::Flushed)]);
}

#[test]
fn failing_flushes_and_silences() {
    let mut pair = Pair::new(&Options::default());
    for id in 0..10 {
        pair.recv(0, 100 + id, &[sge(0, 10)]);
        pair.send_on(0, 0, id, write_to(0), SILENT, &[sge(0, 10_000)]);
    }
    pair.run_for(core::time::Duration::from_micros(10));
    pair.fail(0);
    let sent = pair.log.len();
    pair.run();
    let expected: Vec<_> = (0..10)
        .map(|id| (id, WorkStatus::Flushed))
        .chain((100..110).rev().map(|id| (id, WorkStatus::Flushed)))
        .collect();
    assert_eq!(statuses(&pair, 0), expected);
    assert_eq!(pair.log[sent..].iter().filter(|(from, ..)| *from == 0).count(), 0);
    assert_eq!(pair.ends[0].in_flight(), 0);

    // Requests that are posted afterwards are flushed too.
    pair.send(0, 20, SendOp::Send, &[]);
    pair.recv(0, 120, &[]);
    pair.run();
    assert_eq!(statuses(&pair, 0)[20..], [(20, WorkStatus::Flushed), (120, WorkStatus::Flushed)]);
}

#[test]
fn completions_do_not_overrun_after_a_failure() {
    let mut pair = Pair::new(&Options::default());
    let qp = &mut pair.ends[0].qps[0];
    let end = &mut crate::rc::SharedLimits {
        window: &mut pair.ends[1].windows[0],
        reads: &mut pair.ends[1].reads,
        overflowed: false,
    };
    qp.fail(end);
    let send =
        SendRequest { wr_id: 1, op: SendOp::Send, flags: SILENT, payload: Payload::Regions(&[]) };
    let recv = RecvRequest { wr_id: 1, sges: &[] };
    let sends = (0..1000).filter(|_| qp.post_send(&send).is_ok()).count();
    let receives = (0..1000).filter(|_| qp.post_recv(&recv).is_ok()).count();
    assert_eq!((sends, receives), (64, 64));
    let mut polled = 0;
    while let Some(completion) = qp.poll_completion() {
        assert!(matches!(completion.work, CompletedWork::Send | CompletedWork::Receive));
        polled += 1;
    }
    assert_eq!(polled, 128);
}

#[test]
fn a_vanished_peer_exhausts_the_retries() {
    let mut pair =
        Pair::new(&Options { retry_count: 3, ack_timeout_exponent: 14, ..Options::default() });
    pair.network.loss_ppm = 1_000_000;
    pair.send(0, 1, write_to(0), &[sge(0, 100_000)]);
    pair.send(0, 2, read_from(0), &[sge(0, 100)]);
    let start = pair.now;
    pair.run();
    assert_eq!(statuses(&pair, 0), [(1, WorkStatus::RetryExceeded), (2, WorkStatus::Flushed)]);
    // Four times 67 ms, and at most one more.
    let took = (pair.now - start).as_millis();
    assert!((268..=336).contains(&took), "took {took} ms");
    assert_eq!(pair.ends[0].in_flight(), 0);
}

#[test]
fn no_receive_posted_in_time() {
    let mut pair = Pair::new(&Options { rnr_retry_count: 3, ..Options::default() });
    pair.send(0, 1, SendOp::Send, &[sge(0, 10)]);
    pair.run();
    assert_eq!(statuses(&pair, 0), [(1, WorkStatus::RnrRetryExceeded)]);
    assert_eq!(pair.count(0, Opcode::SEND_ONLY), 4);
    assert_eq!(pair.ends[0].qps[0].counters().rnr_naks_received, 4);
}

#[test]
fn a_receive_posted_late_is_found() {
    for length in [10, 5000] {
        let mut pair = Pair::new(&Options { mtu: PathMtu::Bytes512, ..Options::default() });
        pair.ends[0].memory.bytes[..length].fill(7);
        pair.send(0, 1, SendOp::Send, &[sge(0, length)]);
        pair.send(0, 2, write_to(20_000), &[sge(0, 10)]);
        pair.run_for(core::time::Duration::from_millis(20));
        assert_eq!(pair.completions(0), []);
        pair.recv(1, 50, &[sge(10_000, 5000)]);
        pair.run();
        assert_eq!(statuses(&pair, 0), [(1, WorkStatus::Success), (2, WorkStatus::Success)]);
        assert_eq!(statuses(&pair, 1), [(50, WorkStatus::Success)]);
        assert_eq!(pair.ends[1].memory.bytes[10_000..10_000 + length], std::vec![7; length]);
    }
}

#[test]
fn the_refusal_is_repeated_when_it_was_lost() {
    let mut pair = Pair::new(&Options::default());
    pair.send(0, 1, SendOp::RdmaWrite { remote_addr: 0, rkey: 0xDEAD }, &[sge(0, 10)]);
    pair.run_for(core::time::Duration::from_micros(20));
    // The packet is there; the answer is lost.
    pair.network.loss_ppm = 1_000_000;
    pair.run_for(core::time::Duration::from_micros(50));
    pair.network.loss_ppm = 0;
    pair.run();
    assert_eq!(statuses(&pair, 0), [(1, WorkStatus::RemoteAccess)]);
    assert_eq!(pair.ends[1].memory.placements, 0);
}

#[test]
fn a_read_where_none_is_allowed() {
    let mut pair = Pair::new(&Options { reads: 0, ..Options::default() });
    pair.send(0, 1, read_from(0), &[sge(0, 10)]);
    pair.run();
    assert_eq!(statuses(&pair, 0), [(1, WorkStatus::LocalOperation)]);
    assert_eq!(pair.log, []);
}

#[test]
fn a_persistent_gap_ends_the_connection() {
    let mut pair = Pair::new(&Options { retry_count: 1, ..Options::default() });
    pair.send(0, 1, write_to(0), &[sge(0, 1)]);
    pair.run();
    for id in 2..40 {
        pair.send(0, id, write_to(0), &[sge(0, 1)]);
    }
    // A network element that drops exactly one packet, whenever it comes.
    let start = pair.now;
    while pair.ends[0].qps[0].state() == QueuePairState::ReadyToSend {
        assert!(pair.now - start < core::time::Duration::from_secs(2), "it never gives up");
        let Some(next) = pair.turn() else { break };
        pair.lose_in_flight(|psn| psn == 0x00AB_CDEF + 5);
        pair.now = next;
    }
    assert!(statuses(&pair, 0).contains(&(6, WorkStatus::RetryExceeded)));
}

/// A peer may refuse a READ in the header of a response.
#[test]
fn a_response_that_refuses_is_no_data() {
    let cases = [
        (Syndrome::Nak(NakCode::REMOTE_ACCESS), WorkStatus::RemoteAccess),
        (Syndrome::Nak(NakCode::REMOTE_OPERATIONAL), WorkStatus::RemoteOperation),
        (Syndrome::RnrNak(RnrTimer::new(1)), WorkStatus::Success),
        (Syndrome::Reserved(0x40), WorkStatus::Success),
    ];
    for (syndrome, status) in cases {
        let options = Options::default();
        let mut pair = Pair::new(&options);
        pair.send(0, 1, read_from(0), &[sge(0, 100)]);
        pair.turn();
        let before = pair.ends[0].memory.bytes.clone();
        let response = Message::ReadResponseOnly(Aeth { syndrome, msn: 1 });
        let bth = Bth::new(qpn(0), Psn::new(options.send_psn[0]));
        let mut datagram = Headers::new(&bth, &response).as_slice().to_vec();
        datagram.extend([0xEE; 104]);
        pair.ends[0].deliver(pair.now, &datagram);
        assert!(pair.ends[0].memory.bytes == before, "{syndrome:?}");
        pair.run();
        assert_eq!(statuses(&pair, 0), [(1, status)], "{syndrome:?}");
    }
}

#[test]
fn a_long_read_can_be_abandoned() {
    let mut options =
        Options { mtu: PathMtu::Bytes256, memory_bytes: 1 << 24, ..Options::default() };
    options.queue_pairs = 1;
    let mut pair = Pair::new(&options);
    pair.ends[1].memory.open(0x99, 0, 1 << 24, ALL);
    let read = SendOp::RdmaRead { remote_addr: BASE, rkey: 0x99 };
    pair.send(0, 1, read, &[sge(0, 1 << 24)]);
    pair.run_for(Duration::from_micros(50));
    pair.fail(1);
    pair.fail(0);
    pair.run();
    assert_eq!(pair.ends[0].reads.used(), 0);
}
