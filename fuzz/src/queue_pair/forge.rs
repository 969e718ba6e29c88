//! Forged packets, which neither end has sent.

use roce_proto::wire::{
    Aeth, Bth, Headers, Message, NakCode, Opcode, Reth, RnrTimer, Syndrome, Tail, pad_bytes,
};
use roce_proto::{Psn, Qpn};

use super::memory::{BASE, SHARED, SHARED_KEY};
use crate::input::Input;

/// A packet for `qpn` that it may expect next, or close to that.
pub(super) fn packet(qpn: Qpn, latest: Psn, input: &mut Input<'_>) -> Vec<u8> {
    let kind = input.u8();
    let shape = input.u8();
    let psn = latest.plus(8).minus(u32::from(shape & 15));
    let (length, argument) = (input.u16(), input.u16());
    let mut bth = Bth::new(qpn, psn);
    bth.ack_request = shape & 16 != 0;
    bth.becn = kind >= 0xF0;
    let message = message(kind, psn, length, argument);
    if matches!(message, Message::CongestionNotification) {
        bth = Bth::notification(qpn);
    }
    let payload = match shape >> 5 {
        0 => 0,
        _ if matches!(message, Message::CongestionNotification) => 0,
        // A bitmap of one word.
        _ if matches!(message, Message::SelectiveAcknowledge(..)) => 8,
        1 => 256,
        2 => 512,
        3 => 1024,
        _ => u32::from(length) % 1100,
    };
    bth.pad_bytes = pad_bytes(payload);
    let mut datagram = Headers::new(&bth, &message).as_slice().to_vec();
    datagram.resize(datagram.len() + payload as usize, kind);
    datagram.extend_from_slice(&[0; 3][..usize::from(bth.pad_bytes)]);
    datagram.extend_from_slice(&[0; 4]);
    datagram
}

fn message(kind: u8, psn: Psn, length: u16, argument: u16) -> Message {
    let reth = Reth {
        addr: BASE + SHARED.start as u64 + u64::from(argument & 0x1FFF),
        rkey: SHARED_KEY + u32::from(argument >> 15),
        length: if argument & 0x4000 == 0 { u32::from(length) } else { u32::from(length) << 16 },
    };
    let [low, high] = argument.to_le_bytes();
    let syndrome = match high & 7 {
        0 => Syndrome::Nak(NakCode(low & 7)),
        1 => Syndrome::RnrNak(RnrTimer::new(low)),
        2 => Syndrome::Reserved(0x40 | low & 31),
        3 => Syndrome::Nak(NakCode::PSN_SEQUENCE),
        _ => Syndrome::ACK,
    };
    let aeth = Aeth { syndrome, msn: u32::from(length) };
    let immediate = (low & 1 != 0).then_some(u32::from(argument));
    let tail = match low % 3 {
        0 => Tail::Plain,
        1 => Tail::Immediate(7),
        _ => Tail::Invalidate(100 + u32::from(high & 3)),
    };
    match kind % 17 {
        0 => Message::SendFirst,
        1 => Message::SendMiddle,
        2 => Message::SendLast(tail),
        3 => Message::SendOnly(tail),
        4 => Message::WriteFirst(reth),
        5 => Message::WriteMiddle,
        6 => Message::WriteLast(immediate),
        7 => Message::WriteOnly(reth, immediate),
        8 => Message::ReadRequest(reth),
        9 => Message::ReadResponseFirst(aeth),
        10 => Message::ReadResponseMiddle,
        11 => Message::ReadResponseLast(aeth),
        12 => Message::ReadResponseOnly(aeth),
        13 | 14 => Message::Acknowledge(aeth),
        15 => Message::SelectiveAcknowledge(aeth, psn.plus(u32::from(length) % 80)),
        _ if high & 1 == 0 => Message::Other(Opcode(low)),
        _ => Message::CongestionNotification,
    }
}
