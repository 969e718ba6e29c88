//! The recorded packets of the capture file.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

const FILE: &[u8] = include_bytes!("../../data/kernel-host-kernel-target.pcap");

const FILE_HEADER_BYTES: usize = 24;
const RECORD_HEADER_BYTES: usize = 16;
const ETHERNET_HEADER_BYTES: usize = 14;

/// One recorded packet, cut at the borders of its outer headers.
#[derive(Clone, Copy)]
pub(crate) struct Frame {
    pub(crate) source: SocketAddr,
    pub(crate) destination: SocketAddr,
    pub(crate) identification: u16,
    pub(crate) dont_fragment: bool,
    pub(crate) datagram: &'static [u8],
}

/// All packets of the capture, in order. Anything that is not Ethernet, IPv4 without options and
/// UDP fails the test, so that nothing is skipped.
pub(crate) fn frames() -> Vec<Frame> {
    assert_eq!(FILE[..4], 0xA1B2_C3D4_u32.to_le_bytes(), "little-endian, microseconds");
    assert_eq!(le32(FILE, 20), 1, "Ethernet");
    let mut rest = &FILE[FILE_HEADER_BYTES..];
    let mut frames = Vec::new();
    while !rest.is_empty() {
        let captured = le32(rest, 8) as usize;
        assert_eq!(captured, le32(rest, 12) as usize, "the whole packet was captured");
        let (packet, after) = rest[RECORD_HEADER_BYTES..].split_at(captured);
        frames.push(frame(packet));
        rest = after;
    }
    frames
}

fn frame(packet: &'static [u8]) -> Frame {
    assert_eq!(be16(packet, 12), 0x0800, "IPv4");
    let ip = &packet[ETHERNET_HEADER_BYTES..];
    assert_eq!((ip[0], ip[9]), (0x45, 17), "no options; UDP");
    let ip = &ip[..usize::from(be16(ip, 2))];
    let (ip, udp) = ip.split_at(20);
    assert_eq!(usize::from(be16(udp, 4)), udp.len());
    let address = |at: usize| Ipv4Addr::new(ip[at], ip[at + 1], ip[at + 2], ip[at + 3]);
    Frame {
        source: SocketAddrV4::new(address(12), be16(udp, 0)).into(),
        destination: SocketAddrV4::new(address(16), be16(udp, 2)).into(),
        identification: be16(ip, 4),
        dont_fragment: be16(ip, 6) == 0x4000,
        datagram: &udp[8..],
    }
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
