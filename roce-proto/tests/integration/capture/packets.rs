//! Every packet parses, its invariant CRC is right, and it encodes to the same bytes.

use std::collections::BTreeMap;

use roce_proto::wire::{
    Flow, Headers, Icrc, Identification, Message, Packet, UDP_PORT, pad_bytes, verify,
};

use super::pcap::{Frame, frames};

const PACKETS: usize = 718;

#[test]
fn every_packet_survives() {
    let frames = frames();
    assert_eq!(frames.len(), PACKETS);
    for (number, frame) in frames.iter().enumerate() {
        assert_eq!(frame.destination.port(), UDP_PORT);
        let packet = Packet::parse(frame.datagram)
            .unwrap_or_else(|error| panic!("packet {number}: {error}"));
        assert!(!matches!(packet.message, Message::Other(_)), "packet {number}: {packet:?}");
        let flow = flow(frame);
        assert_eq!(
            verify(&flow, Identification::ZERO, frame.datagram),
            Ok(identification(frame)),
            "packet {number}"
        );
        assert_eq!(encode(&packet, frame, &flow), frame.datagram, "packet {number}");
    }
}

#[test]
fn every_kind_of_packet_is_there() {
    let mut kinds = BTreeMap::new();
    for frame in frames() {
        let packet = Packet::parse(frame.datagram).unwrap();
        *kinds.entry(packet.message.opcode().0).or_insert(0) += 1;
    }
    assert_eq!(kinds.values().sum::<usize>(), PACKETS);
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), KINDS);
}

/// Opcode, and how many packets have it.
const KINDS: [(u8, usize); 15] = [
    (0x00, 3),   // SEND First
    (0x02, 3),   // SEND Last
    (0x04, 120), // SEND Only
    (0x06, 14),  // RDMA WRITE First
    (0x07, 141), // RDMA WRITE Middle
    (0x08, 14),  // RDMA WRITE Last
    (0x0A, 54),  // RDMA WRITE Only
    (0x0C, 3),   // RDMA READ Request
    (0x0D, 1),   // RDMA READ Response First
    (0x0E, 14),  // RDMA READ Response Middle
    (0x0F, 1),   // RDMA READ Response Last
    (0x10, 2),   // RDMA READ Response Only
    (0x11, 262), // Acknowledge
    (0x17, 71),  // SEND Only with Invalidate
    (0x64, 15),  // UD SEND Only
];

#[test]
fn a_flipped_bit_in_a_packet_is_noticed() {
    for frame in frames().iter().step_by(97) {
        let flow = flow(frame);
        let mut datagram = frame.datagram.to_vec();
        for bit in 0..datagram.len() * 8 {
            let congestion_byte = bit / 8 == 4;
            datagram[bit / 8] ^= 1 << (bit % 8);
            let same = verify(&flow, Identification::ZERO, &datagram) == Ok(identification(frame));
            assert_eq!(same, congestion_byte, "bit {bit}");
            datagram[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

fn flow(frame: &Frame) -> Flow {
    Flow::new(frame.source, frame.destination).unwrap()
}

fn identification(frame: &Frame) -> Identification {
    Identification { id: frame.identification, dont_fragment: frame.dont_fragment }
}

/// The UDP payload, from nothing but the parsed packet and its way.
fn encode(packet: &Packet<'_>, frame: &Frame, flow: &Flow) -> Vec<u8> {
    let pad = pad_bytes(packet.payload.len() as u32);
    let mut bth = packet.bth;
    bth.pad_bytes = pad;
    let headers = Headers::new(&bth, &packet.message);
    let headers = headers.as_slice();
    let pad = &[0; 3][..usize::from(pad)];
    let length = headers.len() + packet.payload.len() + pad.len() + 4;
    let mut icrc = Icrc::new(flow, identification(frame), length, headers);
    icrc.update(packet.payload);
    icrc.update(pad);
    [headers, packet.payload, pad, &icrc.finish()].concat()
}
