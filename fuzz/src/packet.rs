//! RoCE v2 packets: parse, verify the ICRC, build again and compare.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use roce_proto::wire::{
    Bth, Flow, Headers, Icrc, Identification, Packet, UDP_PORT, pad_bytes, verify,
};

/// One datagram: a packet that parses is encoded again and parses to the same; a checksum that
/// passes equals the computed one.
pub fn run(data: &[u8]) {
    for flow in [v4(), v6()].into_iter().flatten() {
        check_icrc(&flow, data);
    }
    let Ok(packet) = Packet::parse(data) else { return };
    let headers = Headers::new(&packet.bth, &packet.message);
    let pad = usize::from(packet.bth.pad_bytes);
    let again = assemble(&headers, packet.payload, pad, packet.icrc);
    assert_eq!(again.len(), data.len());
    assert_eq!(Packet::parse(&again), Ok(packet));
    let proper = Bth { pad_bytes: pad_bytes(packet.payload.len() as u32), ..packet.bth };
    let headers = Headers::new(&proper, &packet.message);
    let proper_pad = usize::from(proper.pad_bytes);
    let proper = Packet { bth: proper, ..packet };
    let again = assemble(&headers, packet.payload, proper_pad, packet.icrc);
    assert_eq!(Packet::parse(&again), Ok(proper), "pad follows from the payload's length");
}

fn assemble(headers: &Headers, payload: &[u8], pad: usize, icrc: u32) -> Vec<u8> {
    [headers.as_slice(), payload, &[0; 3][..pad], &icrc.to_le_bytes()].concat()
}

/// The checksum does not cover the congestion byte; the covered bytes begin with the whole base
/// transport header.
fn check_icrc(flow: &Flow, data: &[u8]) {
    let Ok(identification) = verify(flow, Identification::ZERO, data) else { return };
    let Some((covered, icrc)) = data.split_last_chunk::<4>() else {
        panic!("a packet without a checksum passed");
    };
    let (headers, rest) = covered.split_at(covered.len().min(Bth::BYTES));
    let mut ours = Icrc::new(flow, identification, data.len(), headers);
    ours.update(rest);
    assert_eq!(ours.finish(), *icrc);
    if flow.is_ipv6() {
        assert_eq!(identification, Identification::ZERO);
    }
}

fn v4() -> Option<Flow> {
    let source = SocketAddr::from((Ipv4Addr::new(10, 9, 0, 2), 0xC123));
    Flow::new(source, SocketAddr::from((Ipv4Addr::new(10, 9, 0, 1), UDP_PORT)))
}

fn v6() -> Option<Flow> {
    let source = SocketAddr::from((Ipv6Addr::LOCALHOST, 0xC123));
    Flow::new(source, SocketAddr::from((Ipv6Addr::LOCALHOST, UDP_PORT)))
}
