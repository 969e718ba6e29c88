//! A peer sends arbitrary packets: no panic, no hang, and no write outside the memory that was
//! granted.

use core::time::Duration;
use std::vec::Vec;

use super::memory::{ALL, BASE, LOCAL, REMOTE_READ, REMOTE_WRITE};
use super::pair::*;
use crate::rc::{QueuePairState, READS_MAX, SendOp, WorkStatus};
use crate::wire::{
    Aeth, Bth, Ecn, Headers, Message, NakCode, Opcode, Reth, RnrTimer, Syndrome, Tail,
};
use crate::{PathMtu, Psn};

const MEMORY: usize = 100_000;
const GRANTED: usize = 20_000;
const GRANTED_KEY: u32 = 0x99;

/// A packet that is likely to be the one that end 1 expects next, or close to it.
fn packet(rng: &mut Rng, near: &[u32]) -> Vec<u8> {
    let near = near[rng.below(near.len() as u64) as usize];
    let psn = match rng.below(8) {
        0 => rng.next() as u32,
        1 => near.wrapping_sub(rng.below(40) as u32),
        _ => near.wrapping_add(rng.below(3) as u32),
    };
    let mut bth = Bth::new(qpn(0), Psn::new(psn));
    bth.ack_request = rng.chance(500);
    bth.becn = rng.chance(50);
    if rng.chance(20) {
        bth.pkey = rng.next() as u16;
    }
    let message = if rng.chance(30) {
        bth = Bth::notification(qpn(0));
        Message::CongestionNotification
    } else {
        message(rng, psn)
    };
    let length = match rng.below(6) {
        _ if matches!(message, Message::CongestionNotification) => 0,
        _ if matches!(message, Message::SelectiveAcknowledge(..)) => 8 * rng.below(4) as usize,
        0 => 0,
        1 => rng.below(300) as usize,
        _ => 256,
    };
    bth.pad_bytes = (length as u32).wrapping_neg() as u8 & 3;
    let mut datagram = Headers::new(&bth, &message).as_slice().to_vec();
    datagram.extend(rng.bytes(length));
    datagram.extend_from_slice(&[0; 3][..usize::from(bth.pad_bytes)]);
    datagram.extend_from_slice(&[0; 4]);
    datagram
}

fn message(rng: &mut Rng, psn: u32) -> Message {
    let addr = match rng.below(8) {
        0 => rng.next(),
        1 => u64::MAX - rng.below(300),
        _ => BASE + rng.below(MEMORY as u64),
    };
    let rkey = if rng.chance(900) { GRANTED_KEY } else { rng.next() as u32 };
    let length = match rng.below(8) {
        0 => rng.next() as u32,
        1 => 1 << 31,
        2 => 0,
        3 => 256,
        _ => rng.below(2000) as u32,
    };
    let reth = Reth { addr, rkey, length };
    let syndrome = match rng.below(8) {
        0 => Syndrome::Nak(NakCode(rng.below(6) as u8)),
        1 => Syndrome::RnrNak(RnrTimer::new(rng.next() as u8)),
        2 => Syndrome::Reserved(0x40 | rng.below(32) as u8),
        3 => Syndrome::Nak(NakCode::PSN_SEQUENCE),
        _ => Syndrome::ACK,
    };
    let aeth = Aeth { syndrome, msn: rng.below(1 << 24) as u32 };
    let tail = match rng.below(3) {
        0 => Tail::Plain,
        1 => Tail::Immediate(7),
        _ => Tail::Invalidate(rkey),
    };
    match rng.below(19) {
        18 => {
            let latest = psn.wrapping_add(rng.below(100) as u32);
            Message::SelectiveAcknowledge(aeth, Psn::new(latest))
        }
        0 => Message::SendFirst,
        1 => Message::SendMiddle,
        2 => Message::SendLast(tail),
        3 => Message::SendOnly(tail),
        4 => Message::WriteFirst(reth),
        5 => Message::WriteMiddle,
        6 => Message::WriteLast(rng.chance(500).then_some(9)),
        7 => Message::WriteOnly(reth, rng.chance(500).then_some(9)),
        8 | 9 => Message::ReadRequest(reth),
        10 => Message::ReadResponseFirst(aeth),
        11 => Message::ReadResponseMiddle,
        12 => Message::ReadResponseLast(aeth),
        13 => Message::ReadResponseOnly(aeth),
        14 | 15 => Message::Acknowledge(aeth),
        _ => Message::Other(Opcode(rng.below(256) as u8)),
    }
}

/// The bytes that `Headers` writes for `Message::Other` may have an opcode that parses as another
/// message, with headers missing: the test uses such packets only if they parse.
fn parses(datagram: &[u8]) -> bool {
    crate::wire::Packet::parse(datagram).is_ok()
}

#[test]
fn a_hostile_peer() {
    let (mut placements, mut survivors, mut successes) = (0, 0, 0);
    let (mut marked, mut notified) = (0, 0);
    for seed in 0..4000 {
        let mut options = Options { seed, mtu: PathMtu::Bytes256, ..Options::default() };
        options.memory_bytes = MEMORY;
        options.selective_recovery = seed.is_multiple_of(2);
        options.ack_timeout_exponent = 10;
        options.read_budget = Some(50_000);
        let mut pair = Pair::new(&options);
        let end = &mut pair.ends[1];
        end.memory.bytes.fill(0x11);
        end.memory.close(KEY);
        end.memory.open(KEY, 0, MEMORY, LOCAL);
        end.memory.open(GRANTED_KEY, GRANTED, GRANTED, LOCAL | REMOTE_READ | REMOTE_WRITE);
        // Receives and reads go to the upper half, so that none of them writes to the lower half.
        let upper = MEMORY / 2;
        for id in 0..20 {
            pair.recv(1, id, &[sge(upper + id as usize * 500, 500)]);
            pair.send(1, id, SendOp::Send, &[sge(0, 700)]);
            pair.send(1, id, read_from(0), &[sge(upper + 20_000, 1000)]);
            pair.send(1, id, write_to(0), &[sge(0, 700)]);
        }
        pair.network.loss_ppm = 1_000_000;
        let mut rng = Rng::new(seed);
        for _ in 0..60 {
            let near: Vec<u32> = pair
                .log
                .iter()
                .rev()
                .take(8)
                .map(|(_, _, psn)| psn.value())
                .chain(core::iter::repeat_n(
                    options.send_psn[0].wrapping_add(rng.below(8) as u32),
                    4,
                ))
                .collect();
            let datagram = packet(&mut rng, &near);
            if parses(&datagram) {
                let now = pair.now;
                let ecn = if rng.chance(100) { Ecn::Ce } else { Ecn::Ect0 };
                pair.ends[1].deliver_marked(now, &datagram, ecn);
            }
            let sent = pair.log.len();
            pair.run_for(Duration::from_micros(50));
            let allowed = 300 + READS_MAX * (1 << 20);
            assert!(pair.log.len() - sent < allowed, "one packet set off a flood");
        }
        pair.fail(0);
        survivors += u32::from(pair.ends[1].qps[0].state() == QueuePairState::ReadyToSend);
        pair.run();
        let end = &pair.ends[1];
        placements += end.memory.placements;
        successes +=
            end.completions.iter().filter(|(_, c)| c.status == WorkStatus::Success).count();
        let counters = end.qps[0].counters();
        marked += counters.ecn_marked_packets;
        notified += counters.notifications_handled;
        assert!(counters.notifications_sent <= counters.ecn_marked_packets, "seed {seed}");
        assert!(end.completions.len() <= 80);
        assert_eq!(end.in_flight(), 0, "seed {seed}");
        assert_eq!(end.reads.used(), 0, "seed {seed}");
        let untouched = [0..GRANTED, 2 * GRANTED..upper, upper + 21_000..MEMORY];
        for range in untouched {
            assert!(end.memory.bytes[range].iter().all(|byte| *byte == 0x11), "seed {seed}");
        }
    }
    // Otherwise the packets were not near enough to the expected ones.
    assert!(placements > 1000 && survivors > 10 && successes > 1000);
    assert!(marked > 1000 && notified > 1000, "{marked} marked, {notified} notifications");
}

#[test]
fn a_long_read_can_be_abandoned() {
    let mut options =
        Options { mtu: PathMtu::Bytes256, memory_bytes: 1 << 24, ..Options::default() };
    options.queue_pairs = 1;
    let mut pair = Pair::new(&options);
    pair.ends[1].memory.open(GRANTED_KEY, 0, 1 << 24, ALL);
    let read = SendOp::RdmaRead { remote_addr: BASE, rkey: GRANTED_KEY };
    pair.send(0, 1, read, &[sge(0, 1 << 24)]);
    pair.run_for(Duration::from_micros(50));
    pair.fail(1);
    pair.fail(0);
    pair.run();
    assert_eq!(pair.ends[0].reads.used(), 0);
}
