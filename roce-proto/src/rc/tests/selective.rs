//! Recovery between peers that tell which packets came: only what was lost is sent again.

use core::time::Duration;
use std::collections::BTreeMap;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::memory::{BASE, REMOTE_WRITE};
use super::pair::*;
use crate::rc::{CompletedWork, QueuePairState, SendOp, WorkStatus};
use crate::wire::{Aeth, Bth, Headers, Message, NakCode, Opcode, Reth, Syndrome, Tail, pad_bytes};
use crate::{PathMtu, Psn};

const MTU: usize = 512;
const START: u32 = 0x00FF_FFF0;

fn options() -> Options {
    Options { mtu: PathMtu::Bytes512, send_psn: [START, 7], ..Options::default() }
}

/// A packet for end `to`, `ahead` packets after the first, with this payload.
fn datagram(
    options: &Options,
    to: usize,
    ahead: u32,
    message: &Message,
    payload: &[u8],
) -> Vec<u8> {
    let first = match message {
        Message::SelectiveAcknowledge(..) => options.send_psn[to],
        _ => options.send_psn[1 - to],
    };
    let mut bth = Bth::new(qpn(0), Psn::new(first).plus(ahead));
    bth.ack_request = true;
    bth.pad_bytes = pad_bytes(payload.len() as u32);
    let mut datagram = Headers::new(&bth, message).as_slice().to_vec();
    datagram.extend_from_slice(payload);
    datagram.extend(vec![0; usize::from(bth.pad_bytes) + 4]);
    datagram
}

fn write(offset: usize, length: usize) -> Message {
    let (addr, rkey) = (BASE + offset as u64, KEY);
    Message::WriteOnly(Reth { addr, rkey, length: length as u32 }, None)
}

/// End 1, to which packets are handed that its peer never sent; its answers are lost.
struct Receiver(Pair);

impl Receiver {
    fn new() -> Self {
        let mut pair = Pair::new(&options());
        pair.network.loss_ppm = 1_000_000;
        Self(pair)
    }

    /// Hands over a packet that asks for an acknowledgement; returns the positive, negative and
    /// selective ones.
    fn take(&mut self, ahead: u32, message: Message, payload: &[u8]) -> Vec<Answer> {
        self.answers(&datagram(&options(), 1, ahead, &message, payload))
    }

    /// Takes a packet that does not ask for an acknowledgement.
    fn take_silently(&mut self, ahead: u32, message: Message, payload: &[u8]) -> Vec<Answer> {
        const ACK_REQUEST: usize = 8;
        let mut datagram = datagram(&options(), 1, ahead, &message, payload);
        datagram[ACK_REQUEST] &= 0x7F;
        self.answers(&datagram)
    }

    fn answers(&mut self, datagram: &[u8]) -> Vec<Answer> {
        let now = self.0.now;
        self.0.ends[1].deliver(now, datagram);
        self.0.turn();
        let since = |psn: Psn| psn.since(Psn::new(START));
        let acknowledgements = core::mem::take(&mut self.0.acknowledgements);
        let selective = core::mem::take(&mut self.0.selective);
        let plain = acknowledgements.into_iter().map(|(_, psn, syndrome)| match syndrome {
            Syndrome::Nak(code) => Answer::Nak(since(psn), code),
            _ => Answer::Ack(since(psn)),
        });
        let selective = selective.into_iter().map(|(psn, latest, bits)| {
            let word = bits.first_chunk().map_or(0, |word| u64::from_be_bytes(*word));
            Answer::Selective { expected: since(psn.next()), latest: since(latest), word }
        });
        plain.chain(selective).collect()
    }

    fn byte(&self, offset: usize) -> u8 {
        self.0.ends[1].memory.bytes[offset]
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Ack(u32),
    Nak(u32, NakCode),
    /// The lowest bit of `word` stands for the packet after the expected one.
    Selective {
        expected: u32,
        latest: u32,
        word: u64,
    },
}

const fn selective(expected: u32, latest: u32, word: u64) -> Answer {
    Answer::Selective { expected, latest, word }
}

#[test]
fn writes_are_placed_before_their_turn() {
    let mut receiver = Receiver::new();
    assert_eq!(receiver.take(1, write(100, 4), &[1; 4]), [selective(0, 1, 0b1)]);
    assert_eq!(receiver.byte(100), 1);
    assert_eq!(receiver.take(3, write(200, 4), &[3; 4]), [selective(0, 3, 0b101)]);
    // A copy is not placed again.
    receiver.0.ends[1].memory.bytes[200] = 9;
    assert_eq!(receiver.take(3, write(200, 4), &[3; 4]), [selective(0, 3, 0b101)]);
    assert_eq!(receiver.byte(200), 9);
    assert_eq!(receiver.take(0, write(0, 4), &[7; 4]), [selective(2, 3, 0b1)]);
    assert_eq!(receiver.take(2, write(0, 4), &[7; 4]), [Answer::Ack(3)]);
    assert_eq!(receiver.0.ends[1].memory.placements, 4);
    assert_eq!(receiver.take(1, write(100, 4), &[8; 4]), [Answer::Ack(3)]);
    assert_eq!(receiver.byte(100), 1, "a copy that comes late is not placed");
}

#[test]
fn not_every_packet_behind_a_gap_is_answered() {
    let mut receiver = Receiver::new();
    let mut answered = vec![];
    for ahead in (1..10).chain([12, 13]) {
        if !receiver.take_silently(ahead, write(0, 4), &[1; 4]).is_empty() {
            answered.push(ahead);
        }
    }
    assert_eq!(answered, [1, 5, 9, 12], "the first behind each gap, and each fourth");
    // What fills a gap is answered, as long as another gap is left.
    assert_eq!(receiver.take_silently(0, write(0, 4), &[1; 4]), [selective(10, 13, 0b110)]);
    assert_eq!(receiver.take_silently(10, write(0, 4), &[1; 4]), [selective(11, 13, 0b11)]);
    assert_eq!(receiver.take_silently(11, write(0, 4), &[1; 4]), []);
    assert_eq!(receiver.take(14, write(0, 4), &[1; 4]), [Answer::Ack(14)]);
}

#[test]
fn a_message_is_not_received_before_its_turn() {
    let mut receiver = Receiver::new();
    receiver.0.recv(1, 5, &[sge(1000, 100)]);
    let send = Message::SendOnly(Tail::Plain);
    assert_eq!(receiver.take(2, send, &[2; 8]), [selective(0, 2, 0)]);
    assert_eq!(receiver.take(1, write(100, 4), &[1; 4]), [selective(0, 2, 0b1)]);
    assert!(receiver.0.completions(1).is_empty());
    assert_eq!(receiver.take(0, write(0, 4), &[7; 4]), [Answer::Ack(1)]);
    assert!(receiver.0.completions(1).is_empty(), "it was dropped");
    assert_eq!(receiver.take(2, send, &[2; 8]), [Answer::Ack(2)]);
    let completions = receiver.0.completions(1);
    assert_eq!(completions.len(), 1);
    assert_eq!((completions[0].wr_id, completions[0].work), (5, CompletedWork::Receive));
}

#[test]
fn immediate_data_and_parts_of_writes_wait_for_their_turn() {
    let mut receiver = Receiver::new();
    receiver.0.recv(1, 5, &[]);
    let Message::WriteOnly(reth, _) = write(0, 4) else { panic!() };
    let long = Reth { length: 2 * MTU as u32, ..reth };
    receiver.take(1, Message::WriteOnly(reth, Some(1)), &[1; 4]);
    receiver.take(2, Message::WriteFirst(long), &[1; MTU]);
    receiver.take(3, Message::WriteLast(None), &[1; MTU]);
    receiver.take(4, write(0, 4), &[1; 5]);
    assert_eq!(receiver.take(5, Message::ReadRequest(reth), &[]), [selective(0, 5, 0)]);
    assert_eq!(receiver.0.ends[1].memory.placements, 0);
    assert!(receiver.0.completions(1).is_empty());
}

#[test]
fn a_write_that_is_not_allowed_is_refused_in_its_turn() {
    let mut receiver = Receiver::new();
    let key = 0x77;
    let closed = Message::WriteOnly(Reth { addr: BASE, rkey: key, length: 4 }, None);
    assert_eq!(receiver.take(1, closed, &[1; 4]), [selective(0, 1, 0)]);
    assert_eq!(receiver.0.ends[1].qps[0].state(), QueuePairState::ReadyToSend);
    assert_eq!(receiver.take(0, write(0, 4), &[1; 4]), [Answer::Ack(0)]);
    assert_eq!(receiver.take(1, closed, &[1; 4]), [Answer::Nak(1, NakCode::REMOTE_ACCESS)]);
    assert_eq!(receiver.0.ends[1].qps[0].state(), QueuePairState::Error);
    // What came may be placed only while the memory is open.
    let mut receiver = Receiver::new();
    receiver.0.ends[1].memory.open(key, 0, 100, REMOTE_WRITE);
    assert_eq!(receiver.take(1, closed, &[1; 4]), [selective(0, 1, 1)]);
    receiver.0.ends[1].memory.close(key);
    assert_eq!(receiver.take(0, write(8, 4), &[1; 4]), [Answer::Ack(1)]);
}

#[test]
fn no_packet_fits_within_a_message_of_another() {
    let mut receiver = Receiver::new();
    receiver.0.recv(1, 5, &[sge(1000, 5 * MTU)]);
    assert_eq!(receiver.take(1, write(0, 4), &[1; 4]), [selective(0, 1, 1)]);
    let answers = receiver.take(0, Message::SendFirst, &[2; MTU]);
    assert_eq!(answers, [Answer::Nak(1, NakCode::INVALID_REQUEST)]);
    assert_eq!(receiver.0.ends[1].qps[0].state(), QueuePairState::Error);
}

#[test]
fn what_is_out_of_reach_is_not_remembered() {
    let mut receiver = Receiver::new();
    assert_eq!(receiver.take(2048, write(0, 4), &[1; 4]), []);
    assert_eq!(receiver.byte(0), 0);
    let answers = receiver.take(2047, write(0, 4), &[1; 4]);
    assert!(matches!(answers[..], [Answer::Selective { expected: 0, latest: 2047, word: 0 }]));
    assert_eq!(receiver.byte(0), 1);
}

/// A requester whose peer says what it likes.
struct Sender(Pair);

impl Sender {
    /// A sender with ten WRITEs and a SEND on their way, of one packet each.
    fn new() -> Self {
        let mut pair = Pair::new(&options());
        for id in 0..10 {
            pair.send(0, id, write_to(0), &[sge(0, MTU)]);
        }
        pair.send(0, 10, SendOp::Send, &[sge(0, MTU)]);
        pair.network.loss_ppm = 1_000_000;
        pair.turn();
        pair.forget_packets();
        Self(pair)
    }

    /// Everything before `expected` has come; returns the packets that are sent then.
    fn tell(&mut self, expected: u32, latest: u32, word: u64) -> Vec<u32> {
        let aeth = Aeth { syndrome: Syndrome::ACK, msn: 0 };
        let latest = Psn::new(START).plus(latest);
        let message = Message::SelectiveAcknowledge(aeth, latest);
        let bits = word.to_be_bytes();
        let bits = if word == 0 { &[] } else { &bits[..] };
        let ahead = expected.wrapping_sub(1);
        let datagram = datagram(&options(), 0, ahead, &message, bits);
        self.0.now = self.0.now + Duration::from_micros(50);
        self.0.ends[0].deliver(self.0.now, &datagram);
        self.0.turn();
        let sent = core::mem::take(&mut self.0.log);
        sent.into_iter().map(|(_, _, psn)| psn.since(Psn::new(START))).collect()
    }

    fn completed(&self) -> usize {
        self.0.completions(0).len()
    }
}

#[test]
fn only_what_is_missing_is_sent_again() {
    let mut sender = Sender::new();
    let full = sender.0.ends[0].in_flight() / 11;
    assert_eq!(sender.tell(1, 3, 0b11), [], "less than three packets are taken for reordering");
    assert_eq!(sender.completed(), 1);
    assert_eq!(sender.0.ends[0].in_flight(), 8 * full);
    assert_eq!(sender.tell(1, 5, 0b1011), [1], "the fourth may come yet");
    assert_eq!(sender.tell(1, 7, 0b11_1011), [4]);
    assert_eq!(sender.tell(1, 7, 0b11_1011), [], "once");
    assert_eq!(sender.0.ends[0].in_flight(), 5 * full);
    assert_eq!(sender.tell(8, 9, 1), []);
    assert_eq!(sender.completed(), 8);
    // The SEND was dropped, as what is before it is missing.
    assert_eq!(sender.tell(8, 10, 1), [8, 10]);
}

/// Packets that the peer claims to have are complete only once it has all before them, and claims
/// that cannot be true are ignored.
#[test]
fn a_peer_that_lies_gains_nothing() {
    let mut sender = Sender::new();
    let charged = sender.0.ends[0].in_flight();
    for (expected, latest, word) in
        [(0, 11, 0b1), (0, 3, 0b1111), (11, 12, 0), (3, 2, 0), (3, 3, 0), (0xFF_FFFF, 3, 0)]
    {
        assert_eq!(sender.tell(expected, latest, word), [], "{expected} {latest} {word}");
        assert_eq!((sender.0.ends[0].in_flight(), sender.completed()), (charged, 0));
    }
    // A SEND is never received before its turn.
    sender.tell(0, 10, 1 << 9 | 0xFF);
    assert_eq!(sender.completed(), 0);
    // It has the second packet, and now it has not.
    sender.tell(1, 10, 0xFF);
    assert_eq!(sender.completed(), 1);
    sender.0.run_for(Duration::from_secs(60));
    assert_eq!(sender.0.ends[0].qps[0].state(), QueuePairState::Error);
    assert_eq!(sender.0.ends[0].in_flight(), 0);
    let statuses = sender.0.completions(0);
    assert_eq!(statuses.len(), 11);
    assert_eq!(statuses[1].status, WorkStatus::RetryExceeded);
}

/// The form of acknowledgement is not for peers that did not agree to it.
#[test]
fn other_peers_go_back() {
    let options = Options { selective_recovery: false, ..options() };
    let mut pair = Pair::new(&options);
    pair.losses.insert((0, START), 1);
    for id in 0..10 {
        pair.send(0, id, write_to(0), &[sge(0, MTU)]);
    }
    let aeth = Aeth { syndrome: Syndrome::ACK, msn: 0 };
    let message = Message::SelectiveAcknowledge(aeth, Psn::new(START).plus(5));
    pair.turn();
    let (now, charged) = (pair.now, pair.ends[0].in_flight());
    pair.ends[0].deliver(now, &datagram(&options, 0, 0, &message, &[]));
    assert_eq!(pair.ends[0].in_flight(), charged);
    assert_eq!(pair.ends[0].qps[0].counters().packets_dropped, 1);
    pair.run();
    assert!(pair.selective.is_empty());
    assert_eq!(pair.completions(0).len(), 10);
    assert_eq!(pair.ends[0].qps[0].counters().packets_retransmitted, 10);
}

#[test]
fn reordering_costs_nothing() {
    for seed in 0..20 {
        let mut pair = Pair::new(&Options { seed, ..options() });
        pair.network.overtakers = 2;
        for id in 0..32 {
            pair.send(0, id, write_to(id as usize * 8192), &[sge(0, 8192)]);
        }
        pair.run();
        assert_eq!(pair.completions(0).len(), 32);
        assert_eq!(pair.ends[0].qps[0].counters().packets_retransmitted, 0, "seed {seed}");
    }
}

/// How long 64 KiB take when these packets of end `from` are lost once or more often, and the same
/// operation was done before.
fn time_with_losses(op: SendOp, losses: &[((usize, u32), u32)]) -> Duration {
    let mut pair = Pair::new(&options());
    pair.send(0, 1, op, &[sge(0, 64 << 10)]);
    pair.run();
    let start = pair.now;
    pair.losses = losses
        .iter()
        .map(|((from, psn), times)| ((*from, Psn::new(START).plus(128 + psn).value()), *times))
        .collect();
    pair.send(0, 2, op, &[sge(0, 64 << 10)]);
    pair.run();
    assert_eq!(pair.completions(0).len(), 2);
    pair.now - start
}

/// Of 128 packets all after the first ones are in flight together: what tells that one is lost is
/// that others came, be it one only.
#[test]
fn a_loss_that_others_show_costs_no_timeout() {
    let write = write_to(0);
    for losses in [vec![((0, 100), 1)], vec![((0, 126), 1)], vec![((0, 60), 2)], vec![((0, 60), 3)]]
    {
        let time = time_with_losses(write, &losses);
        assert!(time < Duration::from_millis(3), "{losses:?}: {time:?}");
    }
    let read = read_from(0);
    for losses in [vec![((1, 100), 1)], vec![((1, 126), 1)]] {
        let time = time_with_losses(read, &losses);
        assert!(time < Duration::from_millis(3), "{losses:?}: {time:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whichever packets are lost, and however often: each is sent again as often as it was lost,
    /// and once more at most where silence is all that tells; the memory is the same, and
    /// completions come in order.
    #[test]
    fn each_packet_is_sent_again_as_often_as_it_was_lost(
        lost in prop::collection::btree_map(0u32..160, 1u32..4, 0..20),
        lengths in prop::collection::vec(1usize..20 * MTU, 8..16),
        start in 0u32..1 << 24,
    ) {
        let memory_bytes = 1 << 20;
        let mut pair = Pair::new(&Options { send_psn: [start, 7], memory_bytes, ..options() });
        let data = pair.rng.bytes(memory_bytes / 2);
        pair.ends[0].memory.bytes[..data.len()].copy_from_slice(&data);
        pair.losses = lost.iter().map(|(psn, times)| {
            ((0, Psn::new(start).plus(*psn).value()), *times)
        }).collect();
        for (id, length) in lengths.iter().enumerate() {
            let at = id * 20 * MTU;
            pair.send(0, id as u64, write_to(memory_bytes / 2 + at), &[sge(at, *length)]);
        }
        pair.run();
        let completions = pair.completions(0);
        let ids: Vec<u64> = completions.iter().map(|completion| completion.wr_id).collect();
        prop_assert_eq!(ids, (0..lengths.len() as u64).collect::<Vec<_>>());
        prop_assert!(completions.iter().all(|completion| completion.status == WorkStatus::Success));
        for (id, length) in lengths.iter().enumerate() {
            let at = id * 20 * MTU;
            let written = &pair.ends[1].memory.bytes[memory_bytes / 2 + at..][..*length];
            prop_assert!(written == &data[at..at + length]);
        }
        prop_assert_eq!(pair.ends[0].in_flight(), 0);
        let mut copies = BTreeMap::new();
        for (end, opcode, psn) in &pair.log {
            if *end == 0 && *opcode == Opcode::WRITE_ONLY {
                *copies.entry(psn.since(Psn::new(start))).or_insert(0) += 1;
            }
        }
        for (psn, copies) in copies {
            let losses = lost.get(&psn).copied().unwrap_or(0);
            prop_assert!(copies <= 1 + losses + 1, "{psn} left {copies} times, {losses} were lost");
        }
        let again = pair.ends[0].qps[0].counters().packets_retransmitted;
        let total: u64 = lost.values().map(|times| u64::from(*times)).sum();
        prop_assert!(again <= total + 4 * (1 + lost.len() as u64), "{again} of {total} lost");
    }
}
