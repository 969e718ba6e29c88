//! Tests of the packet formats.

use alloc::vec;
use alloc::vec::Vec;
use core::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use proptest::prelude::*;

use super::*;
use crate::{Psn, Qpn};

fn bth() -> impl Strategy<Value = Bth> {
    (any::<[bool; 5]>(), any::<u16>(), any::<u32>(), any::<u32>()).prop_map(
        |([solicited, migrated, fecn, becn, ack_request], pkey, qpn, psn)| Bth {
            solicited,
            migrated,
            pad_bytes: 0,
            pkey,
            fecn,
            becn,
            dest_qpn: Qpn::new(qpn),
            ack_request,
            psn: Psn::new(psn),
        },
    )
}

fn aeth() -> impl Strategy<Value = Aeth> {
    (any::<u8>(), any::<u32>()).prop_map(|(syndrome, msn)| {
        Aeth::parse(&(u32::from(syndrome) << 24 | msn >> 8).to_be_bytes())
    })
}

fn reth() -> impl Strategy<Value = Reth> {
    any::<(u64, u32, u32)>().prop_map(|(addr, rkey, length)| Reth { addr, rkey, length })
}

fn tail() -> impl Strategy<Value = Tail> {
    prop_oneof![
        Just(Tail::Plain),
        any::<u32>().prop_map(Tail::Immediate),
        any::<u32>().prop_map(Tail::Invalidate)
    ]
}

fn identification() -> impl Strategy<Value = Identification> {
    any::<(u16, bool)>().prop_map(|(id, dont_fragment)| Identification { id, dont_fragment })
}

fn message() -> impl Strategy<Value = Message> {
    prop_oneof![
        Just(Message::SendFirst),
        Just(Message::SendMiddle),
        tail().prop_map(Message::SendLast),
        tail().prop_map(Message::SendOnly),
        reth().prop_map(Message::WriteFirst),
        Just(Message::WriteMiddle),
        any::<Option<u32>>().prop_map(Message::WriteLast),
        (reth(), any::<Option<u32>>()).prop_map(|(reth, tail)| Message::WriteOnly(reth, tail)),
        reth().prop_map(Message::ReadRequest),
        aeth().prop_map(Message::ReadResponseFirst),
        Just(Message::ReadResponseMiddle),
        aeth().prop_map(Message::ReadResponseLast),
        aeth().prop_map(Message::ReadResponseOnly),
        aeth().prop_map(Message::Acknowledge),
        any::<(u32, u32)>()
            .prop_map(|(qkey, qpn)| Message::UdSendOnly(Deth { qkey, source_qpn: Qpn::new(qpn) })),
        (0x18u8..0x60).prop_map(|opcode| Message::Other(Opcode(opcode))),
    ]
}

fn build(
    mut bth: Bth,
    message: &Message,
    payload: &[u8],
    flow: &Flow,
    id: Identification,
) -> Vec<u8> {
    bth.pad_bytes = pad_bytes(payload.len() as u32);
    let mut datagram = Headers::new(&bth, message).as_slice().to_vec();
    let headers_length = datagram.len();
    datagram.extend_from_slice(payload);
    datagram.extend_from_slice(&[0; 3][..usize::from(bth.pad_bytes)]);
    let mut icrc = Icrc::new(flow, id, datagram.len() + 4, &datagram[..headers_length]);
    icrc.update(&datagram[headers_length..]);
    datagram.extend_from_slice(&icrc.finish());
    datagram
}

fn endpoints_v4() -> (SocketAddr, SocketAddr) {
    let source = SocketAddr::new(Ipv4Addr::new(127, 1, 2, 3).into(), 0xC123);
    (source, SocketAddr::new(Ipv4Addr::new(127, 9, 8, 7).into(), UDP_PORT))
}

fn endpoints_v6() -> (SocketAddr, SocketAddr) {
    let source = SocketAddr::new(Ipv6Addr::new(0xFD00, 1, 2, 3, 4, 5, 6, 7).into(), 0xC123);
    (source, SocketAddr::new(Ipv6Addr::LOCALHOST.into(), UDP_PORT))
}

fn flow((source, destination): (SocketAddr, SocketAddr)) -> Flow {
    Flow::new(source, destination).unwrap()
}

fn flow_v4() -> Flow {
    flow(endpoints_v4())
}

fn flow_v6() -> Flow {
    flow(endpoints_v6())
}

/// The CRC from one buffer with all that it covers, as the annex has it: fields that may change on
/// the way are all ones.
fn icrc_by_the_book(
    (source, destination): (SocketAddr, SocketAddr),
    id: Identification,
    datagram: &[u8],
) -> [u8; 4] {
    let udp_length = 8 + datagram.len() as u16 + 4;
    let mut covered = vec![0xFF; 8];
    match (source, destination) {
        (SocketAddr::V4(source), SocketAddr::V4(destination)) => {
            covered.extend_from_slice(&[0x45, 0xFF]);
            covered.extend_from_slice(&(20 + udp_length).to_be_bytes());
            covered.extend_from_slice(&id.id.to_be_bytes());
            let flags = if id.dont_fragment { 0x40 } else { 0 };
            covered.extend_from_slice(&[flags, 0, 0xFF, 17, 0xFF, 0xFF]);
            covered.extend_from_slice(&source.ip().octets());
            covered.extend_from_slice(&destination.ip().octets());
        }
        (SocketAddr::V6(source), SocketAddr::V6(destination)) => {
            covered.extend_from_slice(&[0x6F, 0xFF, 0xFF, 0xFF]);
            covered.extend_from_slice(&udp_length.to_be_bytes());
            covered.extend_from_slice(&[17, 0xFF]);
            covered.extend_from_slice(&source.ip().octets());
            covered.extend_from_slice(&destination.ip().octets());
        }
        _ => unreachable!("both of one family"),
    }
    covered.extend_from_slice(&source.port().to_be_bytes());
    covered.extend_from_slice(&destination.port().to_be_bytes());
    covered.extend_from_slice(&udp_length.to_be_bytes());
    covered.extend_from_slice(&[0xFF, 0xFF]);
    let congestion = covered.len() + 4;
    covered.extend_from_slice(datagram);
    if let Some(byte) = covered.get_mut(congestion) {
        *byte = 0xFF;
    }
    crc32fast::hash(&covered).to_le_bytes()
}

/// The UDP payload of the congestion notification that an adapter's vendor gives as an example:
/// from 22.22.22.8, port 56238, to queue pair 0xD2 of 22.22.22.7, with the identification 0x98C6.
const NOTIFICATION: [u8; 32] = [
    0x81, 0x00, 0xFF, 0xFF, 0x40, 0x00, 0x00, 0xD2, 0x00, 0x00, 0x00, 0x00, // BTH
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, // reserved
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, //
    0xDA, 0xFC, 0x1B, 0xEF, // ICRC
];

#[test]
fn our_notifications_are_those_of_adapters() {
    let adapter = |last, port| SocketAddr::new(Ipv4Addr::new(22, 22, 22, last).into(), port);
    let flow = flow((adapter(8, 56_238), adapter(7, UDP_PORT)));
    let id = Identification { id: 0x98C6, dont_fragment: true };
    let bth = Bth::notification(Qpn::new(0xD2));
    let ours = build(bth, &Message::CongestionNotification, &[], &flow, id);
    assert_eq!(ours, NOTIFICATION);
    assert_eq!(verify(&flow, Identification::ZERO, &NOTIFICATION), Ok(id));
    let packet = Packet::parse(&NOTIFICATION).unwrap();
    assert_eq!((packet.bth, packet.message), (bth, Message::CongestionNotification));
    assert!(packet.payload.is_empty());
}

#[test]
fn malformed_notifications_have_their_error() {
    let mut without_becn = NOTIFICATION;
    without_becn[4] = 0;
    assert_eq!(Packet::parse(&without_becn), Err(PacketError::Notification));
    let mut padded = NOTIFICATION;
    padded[1] = 0x10;
    assert_eq!(Packet::parse(&padded), Err(PacketError::TooShort));
    let longer = [&NOTIFICATION[..], &[0; 4]].concat();
    assert_eq!(Packet::parse(&longer), Err(PacketError::Notification));
    for length in 0..NOTIFICATION.len() {
        assert_eq!(Packet::parse(&NOTIFICATION[..length]), Err(PacketError::TooShort));
    }
}

proptest! {
    /// Reserved bytes are not looked at.
    #[test]
    fn a_notification_has_a_length_and_becn(bth in bth(), bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
        let headers = Headers::new(&bth, &Message::CongestionNotification);
        let datagram = [&headers.as_slice()[..Bth::BYTES], &bytes, &[0; 4]].concat();
        let parsed = Packet::parse(&datagram);
        prop_assert_eq!(parsed.is_ok(), bth.becn && bytes.len() == 16);
        prop_assert!(parsed.is_err() || parsed.is_ok_and(|packet| packet.bth == bth));
    }

    #[test]
    fn a_packet_is_what_was_built(
        bth in bth(),
        message in message(),
        payload in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let datagram = build(bth, &message, &payload, &flow_v4(), Identification::ZERO);
        let packet = Packet::parse(&datagram).unwrap();
        let expected = Bth { pad_bytes: pad_bytes(payload.len() as u32), ..bth };
        prop_assert_eq!(packet.bth, expected);
        prop_assert_eq!(packet.message, message);
        prop_assert_eq!(packet.payload, &payload[..]);
        prop_assert_eq!(datagram.len() % 4, 0);
    }

    #[test]
    fn parsed_packets_encode_to_the_same_headers(
        datagram in proptest::collection::vec(any::<u8>(), 0..100),
    ) {
        if let Ok(packet) = Packet::parse(&datagram) {
            let headers = Headers::new(&packet.bth, &packet.message);
            prop_assert_eq!(Packet::parse(
                &[headers.as_slice(), packet.payload, &[0; 3][..usize::from(packet.bth.pad_bytes)], &[0; 4]].concat()
            ).unwrap().message, packet.message);
        }
        let _ = verify(&flow_v4(), Identification::ZERO, &datagram);
        let _ = verify(&flow_v6(), Identification::ZERO, &datagram);
    }

    #[test]
    fn every_cut_is_noticed(message in message(), cut in 0usize..16) {
        let datagram = build(Bth::new(Qpn::new(9), Psn::new(7)), &message, &[], &flow_v4(), Identification::ZERO);
        prop_assert!(Packet::parse(&datagram[..cut.min(datagram.len() - 1)]).is_err());
    }

    #[test]
    fn the_icrc_is_that_of_the_book(
        datagram in proptest::collection::vec(any::<u8>(), 0..5000),
        headers: proptest::sample::Index,
        id in identification(),
        ports: (u16, u16),
    ) {
        // Headers end where the payload begins, but any other place will do behind the congestion
        // byte.
        let headers = datagram.len().min(5 + headers.index(100));
        for (mut source, mut destination) in [endpoints_v4(), endpoints_v6()] {
            source.set_port(ports.0);
            destination.set_port(ports.1);
            let expected = icrc_by_the_book((source, destination), id, &datagram);
            let flow = flow((source, destination));
            let mut icrc = Icrc::new(&flow, id, datagram.len() + 4, &datagram[..headers]);
            icrc.update(&datagram[headers..]);
            prop_assert_eq!(icrc.finish(), expected);
            let zeros_and_headers = [&[0; Icrc::ZEROS], &datagram[..headers]].concat();
            let mut icrc = Icrc::behind_zeros(&flow, id, datagram.len() + 4, &zeros_and_headers);
            icrc.update(&datagram[headers..]);
            prop_assert_eq!(icrc.finish(), expected);
        }
    }

    #[test]
    fn the_identification_is_recovered(
        message in message(),
        length in 0usize..4097,
        sent in identification(),
        likely in identification(),
    ) {
        let datagram = build(Bth::new(Qpn::new(9), Psn::new(7)), &message, &vec![0xA5; length], &flow_v4(), sent);
        prop_assert_eq!(verify(&flow_v4(), likely, &datagram), Ok(sent));
    }

    #[test]
    fn a_flipped_bit_shows(length in 0usize..4097, bit: proptest::sample::Index) {
        let bth = Bth::new(Qpn::new(9), Psn::new(7));
        for flow in [flow_v4(), flow_v6()] {
            let mut datagram = build(bth, &Message::SendMiddle, &vec![1; length], &flow, Identification::ZERO);
            let bit = bit.index(datagram.len() * 8);
            datagram[bit / 8] ^= 1 << (bit % 8);
            // The congestion byte is not covered.
            if bit / 8 != 4 {
                prop_assert_ne!(verify(&flow, Identification::ZERO, &datagram), Ok(Identification::ZERO));
            }
        }
    }
}

#[test]
fn the_icrc_covers_incomplete_headers() {
    let id = Identification::ZERO;
    for length in 0..Bth::BYTES {
        let headers = &[0x5A; Bth::BYTES][..length];
        let icrc = Icrc::new(&flow_v4(), id, length + 4, headers).finish();
        let mut datagram = [headers, &icrc[..]].concat();
        assert_eq!(verify(&flow_v4(), Identification::ZERO, &datagram), Ok(id));
        for byte in (0..length).filter(|&byte| byte != 4) {
            datagram[byte] ^= 1;
            assert_ne!(
                verify(&flow_v4(), Identification::ZERO, &datagram),
                Ok(id),
                "byte {byte} of {length}"
            );
            datagram[byte] ^= 1;
        }
    }
}

#[test]
fn a_random_error_rarely_looks_like_an_identification() {
    let flow = flow_v4();
    let bth = Bth::new(Qpn::new(9), Psn::new(7));
    let mut datagram = build(bth, &Message::SendMiddle, &[3; 256], &flow, Identification::ZERO);
    let mut passed = 0;
    for value in 0u32..200_000 {
        let damage = value.wrapping_mul(0x9E37_79B9).to_le_bytes();
        datagram[100..104].copy_from_slice(&damage);
        passed += u32::from(verify(&flow, Identification::ZERO, &datagram).is_ok());
    }
    assert!(passed < 40, "{passed} of 200,000 damaged packets passed; about 6 are expected");
}

#[test]
fn ipv6_has_nothing_to_recover() {
    let flow = flow_v6();
    let bth = Bth::new(Qpn::new(9), Psn::new(7));
    let datagram = build(bth, &Message::SendMiddle, &[3; 256], &flow, Identification::ZERO);
    assert_eq!(verify(&flow, Identification::ZERO, &datagram), Ok(Identification::ZERO));
    let (source, mut destination) = endpoints_v6();
    destination.set_port(9);
    let other = Flow::new(source, destination).unwrap();
    assert_eq!(verify(&other, Identification::ZERO, &datagram), Err(IcrcMismatch));
}

#[test]
fn syndromes_keep_every_byte() {
    for byte in 0..=255u8 {
        let aeth = Aeth::parse(&[byte, 1, 2, 3]);
        assert_eq!(aeth.encode(), [byte, 1, 2, 3]);
    }
    assert_eq!(Aeth { syndrome: Syndrome::ACK, msn: 0 }.encode()[0], 0x1F);
    let nak = Aeth { syndrome: Syndrome::Nak(NakCode::REMOTE_ACCESS), msn: 0 };
    assert_eq!(nak.encode()[0], 0x62);
}

#[test]
fn rnr_times_match_the_table() {
    assert_eq!(RnrTimer::new(0).duration().as_micros(), 655_360);
    assert_eq!(RnrTimer::new(1).duration().as_micros(), 10);
    assert_eq!(RnrTimer::new(12).duration().as_micros(), 640);
    assert_eq!(RnrTimer::new(31).duration().as_micros(), 491_520);
}

#[test]
fn malformed_packets_have_their_error() {
    let flow = flow_v4();
    let bth = Bth::new(Qpn::new(9), Psn::new(7));
    let good =
        build(bth, &Message::SendOnly(Tail::Plain), &[1, 2, 3, 4], &flow, Identification::ZERO);
    let mut version = good.clone();
    version[1] |= 5;
    assert_eq!(Packet::parse(&version), Err(PacketError::Version(5)));
    let mut unaligned = good.clone();
    unaligned.insert(12, 0);
    assert_eq!(Packet::parse(&unaligned), Err(PacketError::Unaligned));
    let mut pad_without_payload =
        build(bth, &Message::SendOnly(Tail::Plain), &[], &flow, Identification::ZERO);
    pad_without_payload[1] |= 0x30;
    assert_eq!(Packet::parse(&pad_without_payload), Err(PacketError::TooShort));
}
