//! Every operation, at every path MTU, at every size that could go wrong.

use core::time::Duration;
use std::vec;
use std::vec::Vec;

use super::memory::{BASE, REMOTE_READ};
use super::pair::*;
use crate::rc::{
    BindWindow, CompletedWork, LocalSge, Payload, PostError, QueuePairState, ReceivedInfo, SendOp,
    SendOptions, SendRequest, WorkStatus,
};
use crate::wire::Opcode;
use crate::{PathMtu, Psn};

/// Sizes around multiples of an MTU, and odd ones.
fn sizes(mtu: usize) -> Vec<usize> {
    let mut sizes = vec![0, 1, 2, 3, 4, 5, 63, 64, 65, 127, 255];
    for multiple in [1, 2, 3, 7, 16] {
        for delta in -4..=4 {
            sizes.push((mtu as isize * multiple + delta) as usize);
        }
    }
    sizes
}

fn pair_at(mtu: PathMtu) -> Pair {
    Pair::new(&Options { mtu, ..Options::default() })
}

/// Splits `length` bytes at `offset` into three elements, one of them possibly empty.
fn three(offset: usize, length: usize) -> [LocalSge; 3] {
    let (a, b) = (length / 3, length / 5);
    [sge(offset, a), sge(offset + a, b), sge(offset + a + b, length - a - b)]
}

fn assert_completed(pair: &Pair, end: usize, work: CompletedWork, wr_id: u64, length: usize) {
    let completion = pair.completions(end).last().copied().expect("it completed");
    assert_eq!(completion.wr_id, wr_id);
    assert_eq!(completion.status, WorkStatus::Success);
    assert_eq!(completion.work, work);
    assert_eq!(completion.byte_length, length as u32);
}

/// Nothing may be in flight, charged or waiting when all is done.
fn assert_quiet(pair: &Pair) {
    for end in &pair.ends {
        assert_eq!(end.in_flight(), 0);
        assert_eq!(end.reads.used(), 0);
        for qp in &end.qps {
            assert_eq!(qp.deadline(), None);
            assert!(!qp.wants_transmit());
        }
    }
}

const SOURCE: usize = 4099;
const SINK: usize = 300_001;

#[test]
fn sends_of_every_size() {
    for mtu in PathMtu::ALL {
        let mut pair = pair_at(mtu);
        for (id, size) in sizes(mtu.bytes()).into_iter().enumerate() {
            let data = pair.rng.bytes(size);
            pair.ends[0].memory.bytes[SOURCE..SOURCE + size].copy_from_slice(&data);
            pair.recv(1, id as u64, &three(SINK, size + 3));
            pair.send(0, id as u64, SendOp::Send, &three(SOURCE, size));
            pair.run();
            assert_completed(&pair, 1, CompletedWork::Receive, id as u64, size);
            assert_completed(&pair, 0, CompletedWork::Send, id as u64, size);
            assert_eq!(pair.ends[1].memory.bytes[SINK..SINK + size], data, "{mtu:?} {size}");
            assert_eq!(pair.ends[1].memory.bytes[SINK + size], 0);
            pair.ends[1].memory.bytes.fill(0);
            assert_quiet(&pair);
        }
    }
}

#[test]
fn the_latest_receive_is_used_first() {
    let mut pair = pair_at(PathMtu::Bytes1024);
    for id in 0..3 {
        pair.recv(1, id, &[sge(SINK, 10)]);
    }
    for id in 0..3 {
        pair.send(0, id, SendOp::Send, &[sge(SOURCE, 10)]);
        pair.run();
    }
    let used: Vec<u64> = pair.completions(1).iter().map(|completion| completion.wr_id).collect();
    assert_eq!(used, [2, 1, 0]);
}

#[test]
fn a_begun_message_stays_in_its_receive() {
    const LENGTH: usize = 100_000;
    let mut pair = pair_at(PathMtu::Bytes256);
    let data = pair.rng.bytes(LENGTH);
    pair.ends[0].memory.bytes[SOURCE..SOURCE + LENGTH].copy_from_slice(&data);
    pair.recv(1, 0, &three(SINK, LENGTH));
    pair.send(0, 0, SendOp::Send, &[sge(SOURCE, LENGTH)]);
    let mut posted = 0;
    while pair.completions(1).is_empty() {
        let begun = pair.ends[1].memory.bytes[SINK..SINK + 256] == data[..256];
        if begun && posted < 5 {
            posted += 1;
            pair.recv(1, posted, &[sge(SINK + 2 * LENGTH, 4)]);
        }
        pair.now = pair.turn().expect("the message is in progress");
    }
    assert_eq!(posted, 5, "while it was in progress");
    assert_completed(&pair, 1, CompletedWork::Receive, 0, LENGTH);
    assert_eq!(pair.ends[1].memory.bytes[SINK..SINK + LENGTH], data);
    for id in [5, 4, 3, 2, 1] {
        pair.send(0, id, SendOp::Send, &[sge(SOURCE, 4)]);
        pair.run();
        assert_completed(&pair, 1, CompletedWork::Receive, id, 4);
    }
}

#[test]
fn writes_of_every_size() {
    for mtu in PathMtu::ALL {
        let mut pair = pair_at(mtu);
        for (id, size) in sizes(mtu.bytes()).into_iter().enumerate() {
            let data = pair.rng.bytes(size);
            pair.ends[0].memory.bytes[SOURCE..SOURCE + size].copy_from_slice(&data);
            pair.send(0, id as u64, write_to(SINK), &three(SOURCE, size));
            pair.run();
            assert_completed(&pair, 0, CompletedWork::RdmaWrite, id as u64, size);
            assert_eq!(pair.completions(1), []);
            assert_eq!(pair.ends[1].memory.bytes[SINK..SINK + size], data, "{mtu:?} {size}");
            assert_eq!(pair.ends[1].memory.bytes[SINK + size], 0);
            assert_eq!(pair.ends[1].memory.bytes[SINK - 1], 0);
            pair.ends[1].memory.bytes.fill(0);
            assert_quiet(&pair);
        }
    }
}

#[test]
fn reads_of_every_size() {
    for mtu in PathMtu::ALL {
        let mut pair = pair_at(mtu);
        for (id, size) in sizes(mtu.bytes()).into_iter().enumerate() {
            let data = pair.rng.bytes(size);
            pair.ends[1].memory.bytes[SOURCE..SOURCE + size].copy_from_slice(&data);
            pair.send(0, id as u64, read_from(SOURCE), &three(SINK, size));
            pair.run();
            assert_completed(&pair, 0, CompletedWork::RdmaRead, id as u64, size);
            assert_eq!(pair.completions(1), []);
            assert_eq!(pair.ends[0].memory.bytes[SINK..SINK + size], data, "{mtu:?} {size}");
            assert_eq!(pair.ends[0].memory.bytes[SINK + size], 0);
            pair.ends[0].memory.bytes.fill(0);
            assert_quiet(&pair);
        }
        assert_eq!(pair.count(0, Opcode::READ_REQUEST), sizes(mtu.bytes()).len());
    }
}

#[test]
fn sequence_numbers_wrap() {
    for start in [0x00FF_FFFF, 0x00FF_FFF0, 0x007F_FFFE, 0] {
        let mut pair = Pair::new(&Options { send_psn: [start, start], ..Options::default() });
        let data = pair.rng.bytes(40_000);
        pair.ends[0].memory.bytes[..40_000].copy_from_slice(&data);
        for id in 0..4 {
            pair.recv(1, id, &[sge(100_000, 40_000)]);
            pair.send(0, id, write_to(200_000), &[sge(0, 40_000)]);
            pair.send(0, id, SendOp::Send, &[sge(0, 40_000)]);
            pair.send(0, id, read_from(200_000), &[sge(300_000, 40_000)]);
            pair.run();
        }
        assert_eq!(pair.completions(0).len(), 12);
        assert!(
            pair.completions(0).iter().all(|completion| completion.status == WorkStatus::Success)
        );
        for offset in [100_000, 200_000] {
            assert_eq!(pair.ends[1].memory.bytes[offset..offset + 40_000], data);
        }
        assert_eq!(pair.ends[0].memory.bytes[300_000..340_000], data);
    }
}

#[test]
fn completions_keep_the_order_of_the_requests() {
    let mut pair = pair_at(PathMtu::Bytes512);
    let mut expected = vec![];
    for id in 0..60u64 {
        let op = match id % 3 {
            0 => write_to(1000),
            1 => read_from(2000),
            _ => SendOp::Send,
        };
        if id % 3 == 2 {
            pair.recv(1, id, &[sge(0, 3000)]);
        }
        let flags = if id % 4 == 0 { SILENT } else { SIGNALED };
        if id % 4 != 0 {
            expected.push(id);
        }
        pair.send_on(0, 0, id, op, flags, &[sge(5000, 1 + id as usize * 40)]);
    }
    pair.run();
    let ids: Vec<u64> = pair.completions(0).iter().map(|completion| completion.wr_id).collect();
    assert_eq!(ids, expected);
    // Messages in their order, into receives from the newest on.
    let received: Vec<(u64, u32)> =
        pair.completions(1).iter().map(|c| (c.wr_id, c.byte_length)).collect();
    let sent = (0..60).filter(|id| id % 3 == 2);
    let expected = sent.clone().rev().zip(sent.map(|id| 1 + id as u32 * 40));
    assert_eq!(received, expected.collect::<Vec<_>>());
}

/// A queue pair that gets its memory when it is used keeps its requests, receives, and completions
/// that wait.
#[test]
fn requests_beyond_the_first_few_keep_the_others() {
    for early in 0..8 {
        let mut pair = pair_at(PathMtu::Bytes512);
        let send = |pair: &mut Pair, id: u64| {
            pair.recv(1, id, &[sge(0, 100)]);
            pair.send(0, id, SendOp::Send, &[sge(5000, 1 + id as usize)]);
        };
        (0..early).for_each(|id| send(&mut pair, id));
        let peer = &mut pair.ends[1].qps[0];
        assert!(!peer.has_completions());
        pair.run();
        (early..60).for_each(|id| send(&mut pair, id));
        pair.run();
        let sent: Vec<u64> = pair.completions(0).iter().map(|one| one.wr_id).collect();
        assert_eq!(sent, (0..60).collect::<Vec<_>>());
        let received = pair.completions(1).into_iter().map(|one| (one.wr_id, one.byte_length));
        let newest_first = (0..early).rev().chain((early..60).rev());
        let expected = newest_first.zip((0..60).map(|id| 1 + id));
        assert_eq!(received.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    }
}

#[test]
fn requests_posted_before_the_connection_wait() {
    let options = Options::default();
    let mut pair = Pair::unconnected(&options);
    pair.recv(1, 7, &[sge(0, 100)]);
    pair.send(0, 8, SendOp::Send, &[sge(0, 100)]);
    pair.run();
    assert_eq!(pair.log, []);
    assert_eq!(pair.ends[0].qps[0].state(), QueuePairState::Init);
    for end in 0..2 {
        pair.ends[end].qps[0].connect(&connection(&options, end, 0));
    }
    pair.run();
    assert_completed(&pair, 0, CompletedWork::Send, 8, 100);
    assert_completed(&pair, 1, CompletedWork::Receive, 7, 100);
}

#[test]
fn inline_payload_is_captured_when_posted() {
    let mut pair = pair_at(PathMtu::Bytes256);
    pair.recv(1, 1, &[sge(0, 100)]);
    let mut bytes = [1u8, 2, 3, 4, 5];
    fn request<'a>(parts: &'a [&'a [u8]]) -> SendRequest<'a> {
        let payload = Payload::Inline(parts);
        SendRequest { wr_id: 2, op: SendOp::Send, flags: SIGNALED, payload }
    }
    pair.ends[0].qps[0].post_send(&request(&[&bytes[..2], &[], &bytes[2..]])).unwrap();
    bytes.fill(9);
    let too_long = [0; 65];
    assert_eq!(
        pair.ends[0].qps[0].post_send(&request(&[&too_long])),
        Err(PostError::InlineTooLong)
    );
    let parts = [&bytes[..]];
    let read = SendRequest { op: read_from(0), ..request(&parts) };
    assert_eq!(pair.ends[0].qps[0].post_send(&read), Err(PostError::InlineRead));
    pair.run();
    assert_eq!(pair.ends[1].memory.bytes[..6], [1, 2, 3, 4, 5, 0]);
    assert_completed(&pair, 0, CompletedWork::Send, 2, 5);
}

#[test]
fn a_window_opens_memory_until_it_is_invalidated() {
    let mut pair = pair_at(PathMtu::Bytes1024);
    const WINDOW: u32 = 0x5501;
    let bind = SendOp::Bind(BindWindow {
        window: 1,
        rkey: WINDOW,
        region: u64::from(KEY),
        addr: BASE + 1000,
        length: 500,
        access: REMOTE_READ,
    });
    pair.ends[0].memory.bytes[1000..1500].fill(0xAB);
    pair.recv(1, 1, &[sge(0, 64)]);
    pair.send(0, 2, bind, &[]);
    pair.send(0, 3, SendOp::Send, &[sge(0, 64)]);
    pair.run();
    let read = |offset: u64| SendOp::RdmaRead { remote_addr: BASE + offset, rkey: WINDOW };
    pair.send(1, 4, read(1000), &[sge(2000, 500)]);
    pair.run();
    assert_completed(&pair, 1, CompletedWork::RdmaRead, 4, 500);
    assert_eq!(pair.ends[1].memory.bytes[2000..2500], [0xAB; 500]);

    pair.recv(0, 5, &[sge(0, 64)]);
    pair.send(1, 6, SendOp::SendWithInvalidate { rkey: WINDOW }, &[sge(0, 16)]);
    pair.run();
    let received = pair.completions(0).last().copied().unwrap();
    assert_eq!((received.wr_id, received.received), (5, ReceivedInfo::Invalidated(WINDOW)));

    // The key can be bound again, and invalidated from our side.
    pair.send(0, 7, bind, &[]);
    pair.send(0, 8, SendOp::LocalInvalidate { rkey: WINDOW }, &[]);
    pair.run();
    assert_completed(&pair, 0, CompletedWork::LocalInvalidate, 8, 0);
    pair.send(1, 9, read(1000), &[sge(2000, 500)]);
    pair.run();
    assert_eq!(pair.completions(1).last().unwrap().status, WorkStatus::RemoteAccess);
}

#[test]
fn a_fence_waits_for_reads() {
    let mut pair = pair_at(PathMtu::Bytes1024);
    let fenced = SendOptions { fence: true, ..SIGNALED };
    pair.send(0, 1, read_from(0), &[sge(0, 10_000)]);
    pair.send_on(0, 0, 2, write_to(0), fenced, &[sge(0, 10)]);
    pair.run();
    let answered = pair.log.iter().position(|(_, opcode, _)| *opcode == Opcode::READ_RESPONSE_LAST);
    let written = pair.log.iter().position(|(_, opcode, _)| *opcode == Opcode::WRITE_ONLY);
    assert!(answered < written);
    assert_eq!(pair.completions(0).len(), 2);
}

#[test]
fn no_more_reads_than_agreed_are_outstanding() {
    for reads in [1, 2, 5] {
        let mut pair = Pair::new(&Options { reads, ..Options::default() });
        for id in 0..20 {
            pair.send(0, id, read_from(0), &[sge(50_000, 5000)]);
        }
        pair.run();
        assert_eq!(pair.completions(0).len(), 20);
        let mut outstanding = 0i32;
        for (_, opcode, _) in &pair.log {
            match *opcode {
                Opcode::READ_REQUEST => outstanding += 1,
                Opcode::READ_RESPONSE_LAST => outstanding -= 1,
                _ => {}
            }
            assert!(outstanding <= i32::from(reads));
        }
        assert_eq!(pair.count(0, Opcode::READ_REQUEST), 20, "none was repeated");
    }
}

#[test]
fn the_last_packet_carries_event_and_acknowledgement_request() {
    let mut pair = pair_at(PathMtu::Bytes256);
    pair.recv(1, 0, &[sge(0, 1000)]);
    let flags = SendOptions { solicited: true, ..SIGNALED };
    pair.send_on(0, 0, 1, SendOp::Send, flags, &[sge(0, 1000)]);
    pair.run();
    let sent: Vec<Opcode> = pair.log.iter().map(|(_, opcode, _)| *opcode).collect();
    assert_eq!(
        sent,
        [
            Opcode::SEND_FIRST,
            Opcode::SEND_MIDDLE,
            Opcode::SEND_MIDDLE,
            Opcode::SEND_LAST,
            Opcode::ACKNOWLEDGE
        ]
    );
    let last = Psn::new(0x00AB_CDEF + 3);
    assert_eq!(pair.log.last().unwrap().2, last);
    assert_eq!((&pair.asking[..], &pair.solicited[..]), (&[last][..], &[last][..]));
}

#[test]
fn a_batch_of_requests_is_acknowledged_once() {
    let mut pair = pair_at(PathMtu::Bytes4096);
    for id in 0..5 {
        pair.recv(1, id, &[sge(0, 64)]);
        pair.send(0, id, SendOp::Send, &[sge(0, 64)]);
    }
    pair.run();
    assert_eq!(pair.completions(0).len(), 5);
    assert_eq!(pair.count(1, Opcode::ACKNOWLEDGE), 1);
}

#[test]
fn a_read_needs_no_acknowledgement_besides_its_response() {
    let mut pair = pair_at(PathMtu::Bytes4096);
    pair.send(0, 1, write_to(0), &[sge(0, 64)]);
    pair.send(0, 2, read_from(0), &[sge(0, 64)]);
    pair.run();
    assert_eq!(pair.completions(0).len(), 2);
    assert_eq!(pair.count(1, Opcode::ACKNOWLEDGE), 0);
}

#[test]
fn a_silent_request_is_acknowledged_with_the_next() {
    let mut pair = pair_at(PathMtu::Bytes4096);
    pair.recv(1, 0, &[sge(0, 64)]);
    pair.send_on(0, 0, 1, write_to(1000), SILENT, &[sge(0, 4096)]);
    pair.send(0, 2, SendOp::Send, &[sge(0, 16)]);
    pair.run();
    assert_eq!(pair.completions(0).len(), 1);
    assert_eq!(pair.count(1, Opcode::ACKNOWLEDGE), 1);
    assert_quiet(&pair);
}

#[test]
fn both_ends_at_once() {
    let mut pair = pair_at(PathMtu::Bytes1024);
    for end in 0..2 {
        for id in 0..20 {
            pair.send(end, id, write_to(100_000), &[sge(0, 30_000)]);
            pair.send(end, id, read_from(200_000), &[sge(300_000, 30_000)]);
        }
    }
    pair.run();
    for end in 0..2 {
        assert_eq!(pair.completions(end).len(), 40);
        assert_eq!(pair.ends[end].qps[0].counters().packets_retransmitted, 0);
    }
    assert_quiet(&pair);
}

#[test]
fn a_queue_is_full_until_completions_are_polled() {
    let mut pair = pair_at(PathMtu::Bytes1024);
    let request =
        SendRequest { wr_id: 1, op: write_to(0), flags: SIGNALED, payload: Payload::Regions(&[]) };
    for _ in 0..64 {
        pair.ends[0].qps[0].post_send(&request).unwrap();
    }
    assert_eq!(pair.ends[0].qps[0].post_send(&request), Err(PostError::QueueFull));
    pair.run();
    assert_eq!(pair.completions(0).len(), 64);
    pair.ends[0].qps[0].post_send(&request).unwrap();
    let five = [sge(0, 1); 5];
    let too_many = SendRequest { payload: Payload::Regions(&five), ..request };
    assert_eq!(pair.ends[0].qps[0].post_send(&too_many), Err(PostError::TooManySges));
}

/// The opcodes that an end sends when it wakes up to a message, just after a write of `length`
/// bytes was posted to it.
fn opcodes_of_an_answer(length: usize) -> Vec<Opcode> {
    let mut pair = Pair::new(&Options::default());
    pair.recv(1, 1, &[sge(0, 64)]);
    pair.ends[1].asleep_until = pair.now + Duration::from_millis(1);
    pair.send(0, 2, SendOp::Send, &[sge(0, 64)]);
    pair.run_for(Duration::from_micros(500));
    pair.send(1, 3, write_to(0), &[sge(0, length)]);
    pair.run();
    assert_eq!([pair.completions(0).len(), pair.completions(1).len()], [1, 2]);
    pair.log.iter().filter(|(from, ..)| *from == 1).map(|(_, opcode, _)| *opcode).collect()
}

#[test]
fn an_answer_goes_before_the_acknowledgement() {
    let opcodes = opcodes_of_an_answer(64);
    assert_eq!(opcodes, [Opcode::WRITE_ONLY, Opcode::ACKNOWLEDGE]);
}

#[test]
fn a_long_answer_does_not_delay_an_acknowledgement() {
    let opcodes = opcodes_of_an_answer(256 << 10);
    let before = opcodes.iter().position(|opcode| *opcode == Opcode::ACKNOWLEDGE);
    assert!(before.is_some_and(|packets| packets <= 32), "{opcodes:?}");
}
