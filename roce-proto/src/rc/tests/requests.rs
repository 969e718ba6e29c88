//! Request packets one by one, as a foreign peer might send them.

use std::vec;
use std::vec::Vec;

use super::memory::{ALL, BASE};
use super::pair::*;
use crate::PathMtu;
use crate::Psn;
use crate::rc::{CompletedWork, QueuePairState, ReceivedInfo, WorkCompletion, WorkStatus};
use crate::wire::{
    Bth, Headers, Message, NakCode, Opcode, Reth, RnrTimer, Syndrome, Tail, pad_bytes,
};

const MTU: usize = 512;
const START: u32 = 0x00FF_FFFE;

/// End 1, to which packets are handed; its answers are not delivered.
struct Responder {
    pair: Pair,
    answered: usize,
}

impl Responder {
    fn new() -> Self {
        Self::of(true)
    }

    fn of(selective_recovery: bool) -> Self {
        let mut pair = Pair::new(&Options {
            mtu: PathMtu::Bytes512,
            send_psn: [START, 0],
            reads: 2,
            selective_recovery,
            ..Options::default()
        });
        pair.network.loss_ppm = 1_000_000;
        pair.ends[1].memory.bytes.fill(0x11);
        Self { pair, answered: 0 }
    }

    /// Hands over the packet `psn` packets after the first, with `length` bytes of 0xEE.
    fn take(&mut self, psn: u32, message: Message, length: usize) -> Vec<(u32, Syndrome)> {
        self.take_all(&[(psn, message, length)])
    }

    /// Hands over several packets together; returns the acknowledgements.
    fn take_all(&mut self, packets: &[(u32, Message, usize)]) -> Vec<(u32, Syndrome)> {
        self.give(packets);
        self.pair.turn();
        let answers = self.pair.acknowledgements[self.answered..]
            .iter()
            .map(|(_, psn, syndrome)| (psn.since(Psn::new(START)), *syndrome));
        let answers = answers.collect();
        self.answered = self.pair.acknowledgements.len();
        answers
    }

    /// Hands over several packets; the answers to them have not left yet.
    fn give(&mut self, packets: &[(u32, Message, usize)]) {
        for (psn, message, length) in packets {
            let mut bth = Bth::new(qpn(0), Psn::new(START).plus(*psn));
            bth.ack_request = true;
            bth.pad_bytes = pad_bytes(*length as u32);
            let mut datagram = Headers::new(&bth, message).as_slice().to_vec();
            datagram.extend(vec![0xEE; *length]);
            datagram.extend(vec![0; usize::from(bth.pad_bytes) + 4]);
            let now = self.pair.now;
            self.pair.ends[1].deliver(now, &datagram);
        }
    }

    fn completions(&self) -> Vec<WorkCompletion> {
        self.pair.completions(1)
    }

    fn is_untouched(&self) -> bool {
        self.pair.ends[1].memory.bytes.iter().all(|byte| *byte == 0x11)
    }
}

fn reth(offset: usize, length: usize) -> Reth {
    Reth { addr: BASE + offset as u64, rkey: KEY, length: length as u32 }
}

const fn nak(psn: u32, code: NakCode) -> (u32, Syndrome) {
    (psn, Syndrome::Nak(code))
}

#[test]
fn immediate_data_uses_up_a_receive() {
    let mut responder = Responder::new();
    for id in (0..3).rev() {
        responder.pair.recv(1, id, &[sge(id as usize * 1000, 1000)]);
    }
    let last = Message::WriteLast(Some(3));
    let answers = responder.take_all(&[
        (0, Message::SendOnly(Tail::Immediate(1)), 100),
        (1, Message::WriteOnly(reth(5000, 10), Some(2)), 10),
        (2, Message::WriteFirst(reth(6000, MTU + 1)), MTU),
        (3, last, 1),
    ]);
    assert_eq!(answers, [(3, Syndrome::ACK)]);
    let expected = [
        (0, CompletedWork::Receive, 100, 1),
        (1, CompletedWork::ReceiveWriteImmediate, 10, 2),
        (2, CompletedWork::ReceiveWriteImmediate, 513, 3),
    ];
    for (completion, (wr_id, work, _, immediate)) in responder.completions().iter().zip(expected) {
        assert_eq!((completion.wr_id, completion.work), (wr_id, work));
        assert_eq!(completion.received, ReceivedInfo::Immediate(immediate));
    }
    let lengths: Vec<u32> =
        responder.completions().iter().map(|completion| completion.byte_length).collect();
    assert_eq!(lengths, [100, 10, 513]);
    assert_eq!(responder.pair.ends[1].memory.bytes[1000], 0x11, "nothing is placed in the receive");

    // Without a receive nothing is written, until it comes again.
    let again = Message::WriteOnly(reth(9000, 10), Some(4));
    let not_ready = Syndrome::RnrNak(RnrTimer::new(12));
    assert_eq!(responder.take(4, again, 10), [(4, not_ready)]);
    assert_eq!(responder.pair.ends[1].memory.bytes[9000], 0x11);
    responder.pair.recv(1, 9, &[]);
    assert_eq!(responder.take(4, again, 10), [(4, Syndrome::ACK)]);
    assert_eq!(responder.pair.ends[1].memory.bytes[9000], 0xEE);
}

#[test]
fn one_complaint_for_each_gap() {
    let mut responder = Responder::of(false);
    let write = Message::WriteOnly(reth(0, 4), None);
    assert_eq!(responder.take(1, write, 4), [nak(0, NakCode::PSN_SEQUENCE)]);
    assert_eq!(responder.take(2, write, 4), []);
    assert!(responder.is_untouched());
    assert_eq!(responder.take(0, write, 4), [(0, Syndrome::ACK)]);
    assert_eq!(responder.take(3, write, 4), [nak(1, NakCode::PSN_SEQUENCE)]);
    // A packet that fills the gap before the negative acknowledgement left makes it obsolete.
    let answers = responder.take_all(&[(1, write, 4), (3, write, 4), (2, write, 4)]);
    assert_eq!(answers, [(2, Syndrome::ACK)]);
    assert_eq!(responder.pair.ends[1].qps[0].counters().sequence_naks_sent, 2);
}

#[test]
fn late_reads_of_closed_memory_are_harmless() {
    let mut responder = Responder::new();
    responder.pair.ends[1].memory.open(0x77, 0, 2 * MTU, ALL);
    let read = Message::ReadRequest(Reth { rkey: 0x77, ..reth(0, 2 * MTU) });
    responder.take(0, read, 0);
    // A duplicate comes late: its answer is not sent yet when the memory is closed.
    responder.give(&[(0, read, 0)]);
    responder.pair.ends[1].memory.close(0x77);
    let write = Message::WriteOnly(reth(3000, 4), None);
    assert_eq!(responder.take(2, write, 4), [(2, Syndrome::ACK)]);
    assert_eq!(responder.pair.ends[1].qps[0].state(), QueuePairState::ReadyToSend);
}

#[test]
fn a_duplicate_is_acknowledged_and_not_executed() {
    let mut responder = Responder::new();
    responder.pair.recv(1, 1, &[sge(0, 100)]);
    responder.pair.recv(1, 2, &[sge(200, 100)]);
    let send = Message::SendOnly(Tail::Plain);
    assert_eq!(responder.take(0, send, 8), [(0, Syndrome::ACK)]);
    assert_eq!(responder.take(0, send, 8), [(0, Syndrome::ACK)]);
    assert_eq!(responder.completions().len(), 1);
    assert_eq!(responder.take(1, send, 8), [(1, Syndrome::ACK)]);
    assert_eq!(responder.completions().len(), 2);
    // The key of a duplicate write no longer matters.
    let write = Message::WriteOnly(Reth { rkey: 0xDEAD, ..reth(0, 8) }, None);
    assert_eq!(responder.take(1, write, 8), [(1, Syndrome::ACK)]);
}

#[test]
fn a_duplicate_read_is_answered_from_its_start() {
    let mut responder = Responder::new();
    let read = |from: usize| Message::ReadRequest(reth(from * MTU, (4 - from) * MTU));
    let responses = |responder: &Responder| -> Vec<(Opcode, u32)> {
        let log = responder.pair.log.iter();
        log.map(|(_, opcode, psn)| (*opcode, psn.since(Psn::new(START)))).collect()
    };
    const FIRST: Opcode = Opcode::READ_RESPONSE_FIRST;
    const MIDDLE: Opcode = Opcode::READ_RESPONSE_MIDDLE;
    const LAST: Opcode = Opcode::READ_RESPONSE_LAST;
    responder.take(0, read(0), 0);
    let mut expected = vec![(FIRST, 0), (MIDDLE, 1), (MIDDLE, 2), (LAST, 3)];
    assert_eq!(responses(&responder), expected);
    responder.take(2, read(2), 0);
    expected.extend([(FIRST, 2), (LAST, 3)]);
    assert_eq!(responses(&responder), expected);
    responder.take(3, read(3), 0);
    expected.push((Opcode::READ_RESPONSE_ONLY, 3));
    assert_eq!(responses(&responder), expected);
    // Beyond the range that was asked for before, or without a key: no answer.
    responder.take(3, read(2), 0);
    let keyless = Message::ReadRequest(Reth { rkey: 0xDEAD, ..reth(0, MTU) });
    responder.take(3, keyless, 0);
    assert_eq!(responses(&responder), expected);
    assert_eq!(responder.pair.ends[1].qps[0].state(), QueuePairState::ReadyToSend);
}

#[test]
fn invalid_requests_are_refused() {
    const PLAIN: Tail = Tail::Plain;
    let full = MTU;
    let cases: Vec<Vec<(Message, usize)>> = vec![
        // Continued without a beginning.
        vec![(Message::SendMiddle, full)],
        vec![(Message::SendLast(PLAIN), 1)],
        vec![(Message::WriteMiddle, full)],
        vec![(Message::WriteLast(None), 1)],
        // Begun without an end, or continued as something else.
        vec![(Message::SendFirst, full), (Message::SendOnly(PLAIN), 1)],
        vec![(Message::SendFirst, full), (Message::SendFirst, full)],
        vec![(Message::SendFirst, full), (Message::WriteMiddle, full)],
        vec![(Message::SendFirst, full), (Message::ReadRequest(reth(0, 8)), 0)],
        vec![(Message::WriteFirst(reth(0, 2 * full)), full), (Message::SendLast(PLAIN), 1)],
        vec![(Message::WriteFirst(reth(0, 2 * full)), full), (Message::SendOnly(PLAIN), 1)],
        // Lengths that the position does not allow.
        vec![(Message::SendFirst, full - 1)],
        vec![(Message::SendFirst, 0)],
        vec![(Message::SendFirst, full), (Message::SendMiddle, full - 4)],
        vec![(Message::SendFirst, full), (Message::SendLast(PLAIN), 0)],
        vec![(Message::SendOnly(PLAIN), full + 1)],
        vec![(Message::WriteFirst(reth(0, full)), full)],
        vec![(Message::WriteFirst(reth(0, full + 1)), full - 1)],
        vec![(Message::WriteOnly(reth(0, 8), None), 7)],
        vec![(Message::WriteOnly(reth(0, 8), None), 9)],
        vec![(Message::WriteOnly(reth(0, full + 4), None), full + 4)],
        vec![(Message::WriteFirst(reth(0, 2 * full)), full), (Message::WriteMiddle, full)],
        vec![(Message::WriteFirst(reth(0, 2 * full)), full), (Message::WriteLast(None), full - 1)],
        vec![(Message::ReadRequest(reth(0, 8)), 4)],
        vec![(Message::ReadRequest(Reth { length: u32::MAX, ..reth(0, 0) }), 0)],
        // More READs in flight than were agreed.
        vec![(Message::ReadRequest(reth(0, 8)), 0); 3],
        // Atomics.
        vec![(Message::Other(Opcode(0x13)), 28)],
        vec![(Message::Other(Opcode(0x14)), 28)],
    ];
    for case in cases {
        let mut responder = Responder::new();
        responder.pair.recv(1, 1, &[sge(600_000, 100_000)]);
        let packets: Vec<_> = case
            .iter()
            .enumerate()
            .map(|(psn, (message, length))| (psn as u32, *message, *length))
            .collect();
        let answers = responder.take_all(&packets);
        let refused = case.len() as u32 - 1;
        assert_eq!(answers.last(), Some(&nak(refused, NakCode::INVALID_REQUEST)), "{case:?}");
        assert_eq!(responder.pair.ends[1].qps[0].state(), QueuePairState::Error, "{case:?}");
        assert_eq!(responder.completions()[0].status, WorkStatus::Flushed);
        if case.len() == 1 {
            assert!(responder.is_untouched(), "{case:?}");
        }
    }
}

#[test]
fn packets_of_other_services_are_dropped() {
    let mut responder = Responder::new();
    let datagram = Message::UdSendOnly(crate::wire::Deth { qkey: 1, source_qpn: qpn(0) });
    for message in [Message::Other(Opcode(0x24)), Message::Other(Opcode(0xFF)), datagram] {
        assert_eq!(responder.take(0, message, 8), []);
    }
    assert_eq!(responder.pair.ends[1].qps[0].state(), QueuePairState::ReadyToSend);
    assert_eq!(responder.pair.ends[1].qps[0].counters().packets_dropped, 3);
}

#[test]
fn an_operation_of_no_bytes_needs_no_key() {
    let mut responder = Responder::new();
    let nothing = Reth { addr: 0, rkey: 0xDEAD, length: 0 };
    assert_eq!(responder.take(0, Message::WriteOnly(nothing, None), 0), [(0, Syndrome::ACK)]);
    responder.take(1, Message::ReadRequest(nothing), 0);
    let last = responder.pair.log.last().copied();
    assert_eq!(last, Some((1, Opcode::READ_RESPONSE_ONLY, Psn::new(START).plus(1))));
}

/// Long writes as other requesters than ours send them.
#[test]
fn a_write_of_three_packets_is_reassembled() {
    let mut responder = Responder::new();
    let length = 2 * MTU + 100;
    let packets = [
        (0, Message::WriteFirst(reth(3000, length)), MTU),
        (1, Message::WriteMiddle, MTU),
        (2, Message::WriteLast(None), 100),
    ];
    assert_eq!(responder.take_all(&packets), [(2, Syndrome::ACK)]);
    let bytes = &responder.pair.ends[1].memory.bytes;
    let written = |at: &usize| bytes[*at] == 0xEE;
    assert!((3000..3000 + length).all(|at| written(&at)));
    assert_eq!((0..bytes.len()).filter(written).count(), length);
}

/// The range is announced before the first byte comes.
#[test]
fn a_write_beyond_its_region_places_nothing() {
    let mut responder = Responder::new();
    responder.pair.ends[1].memory.open(0x77, 3000, 2 * MTU, ALL);
    let first = Message::WriteFirst(Reth { rkey: 0x77, ..reth(3000, 2 * MTU + 1) });
    assert_eq!(responder.take(0, first, MTU), [nak(0, NakCode::REMOTE_ACCESS)]);
    assert!(responder.is_untouched());
}

#[test]
fn nothing_is_placed_after_a_failure() {
    let mut responder = Responder::new();
    responder.pair.ends[1].memory.open(0x77, 0, 1000, ALL);
    responder.pair.fail(1);
    assert_eq!(responder.take(0, Message::WriteOnly(reth(0, 8), None), 8), []);
    assert!(responder.is_untouched());
}

#[test]
fn answers_to_nothing_are_dropped() {
    use crate::wire::Aeth;
    let mut responder = Responder::new();
    let codes = [0, 1, 2, 3, 4, 31].map(|code| Syndrome::Nak(NakCode(code)));
    for syndrome in codes.into_iter().chain([Syndrome::ACK, Syndrome::RnrNak(RnrTimer::new(1))]) {
        let aeth = Aeth { syndrome, msn: 0 };
        for message in [Message::Acknowledge(aeth), Message::ReadResponseOnly(aeth)] {
            // Before, at and after the packet that it will send first.
            for psn in [0u32, 1, 2, 3, 1 << 23] {
                responder.take(psn, message, 0);
            }
        }
    }
    assert_eq!(responder.pair.ends[1].qps[0].state(), QueuePairState::ReadyToSend);
}

/// Three messages come before the first response leaves.
#[test]
fn a_read_response_has_its_requests_message_number() {
    let mut responder = Responder::new();
    let read = |length| Message::ReadRequest(reth(0, length));
    responder.give(&[
        (0, Message::WriteOnly(reth(0, 8), None), 8),
        (1, read(3 * MTU), 0),
        (4, read(8), 0),
        (5, Message::WriteOnly(reth(0, 8), None), 8),
    ]);
    responder.pair.turn();
    let numbers = |responder: &mut Responder| {
        let responses = core::mem::take(&mut responder.pair.responses);
        let since = |(psn, msn): (Psn, u32)| (psn.since(Psn::new(START)), msn);
        responses.into_iter().map(since).collect::<Vec<_>>()
    };
    assert_eq!(numbers(&mut responder), [(1, 2), (3, 2), (4, 3)]);
    // The end of the first is asked for again.
    let rest = Message::ReadRequest(reth(2 * MTU, MTU));
    responder.give(&[(3, rest, 0)]);
    responder.pair.turn();
    assert_eq!(numbers(&mut responder), [(3, 2)]);
}

#[test]
fn every_packet_has_the_migrated_bit() {
    use crate::wire::{Aeth, Packet};
    let aeth = Aeth { syndrome: Syndrome::ACK, msn: 0 };
    let headers = Headers::new(&Bth::new(qpn(0), Psn::new(1)), &Message::Acknowledge(aeth));
    let datagram = [headers.as_slice(), &[0; 4]].concat();
    assert_eq!(datagram[1] & 0x40, 0x40);
    assert!(Packet::parse(&datagram).unwrap().bth.migrated);
}
