//! Messages on the wire.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use proptest::prelude::*;

use super::pair::*;
use crate::cm::*;

/// A reserved bit is one that does not come back.
fn reserved_bits(echo: impl Fn(&[u8; MESSAGE_BYTES]) -> [u8; MESSAGE_BYTES]) -> u32 {
    let mut reserved = 0;
    for bit in 0..MESSAGE_BYTES * 8 {
        let mut bytes = [0; MESSAGE_BYTES];
        bytes[bit / 8] = 0x80 >> (bit % 8);
        let back = echo(&bytes);
        if back == [0; MESSAGE_BYTES] {
            reserved += 1;
        } else {
            assert_eq!(back, bytes, "bit {bit} comes back where it was");
        }
    }
    reserved
}

#[test]
fn every_bit_has_its_place() {
    // After the first id and after the CA GUID 32 bits each; 12 in either path.
    assert_eq!(reserved_bits(|bytes| Req::parse(bytes).to_bytes()), 32 + 32 + 2 * 12);
    // A byte after queue pair, context and PSN; the end of the flags.
    assert_eq!(reserved_bits(|bytes| Rep::parse(bytes).to_bytes()), 3 * 8 + 4);
    assert_eq!(reserved_bits(|bytes| Rej::parse(bytes).to_bytes()), 6 + 1);
    assert_eq!(reserved_bits(|bytes| Mra::parse(bytes).to_bytes()), 6 + 3);
    assert_eq!(reserved_bits(|bytes| Dreq::parse(bytes).to_bytes()), 8);
    assert_eq!(reserved_bits(|bytes| Rtu::parse(bytes).to_bytes()), 0);
    assert_eq!(reserved_bits(|bytes| Drep::parse(bytes).to_bytes()), 0);
}

/// Where the fields of a reject and of an acknowledgement are: the capture has neither.
#[test]
fn rejects_and_acknowledgements_have_their_fields_in_place() {
    let mut private_data = [0; Rej::PRIVATE_DATA_BYTES];
    private_data[0] = 0xAA;
    let mut info = [0; Rej::INFO_BYTES];
    info[0] = 0xBB;
    let bytes = Rej {
        local_comm_id: CommId(0x0102_0304),
        remote_comm_id: CommId(0x0506_0708),
        rejected: RejectedMessage::REP,
        reason: RejectReason::CONSUMER_DEFINED,
        info_length: 1,
        info,
        private_data,
    }
    .to_bytes();
    assert_eq!(bytes[..12], [1, 2, 3, 4, 5, 6, 7, 8, 0x40, 0x02, 0, 28]);
    assert_eq!((bytes[12], bytes[84]), (0xBB, 0xAA));
    let bytes = Mra {
        local_comm_id: CommId(0x0102_0304),
        remote_comm_id: CommId(0x0506_0708),
        received: ReceivedMessage::REP,
        service_timeout: TimeoutExponent::saturating(24),
        private_data: [0xCC; Mra::PRIVATE_DATA_BYTES],
    }
    .to_bytes();
    assert_eq!(bytes[..11], [1, 2, 3, 4, 5, 6, 7, 8, 0x40, 24 << 3, 0xCC]);
}

#[test]
fn reject_information_stays_within_its_room() {
    let mut bytes = [0; MESSAGE_BYTES];
    bytes[9] = 0xFE;
    assert_eq!(Rej::parse(&bytes).info().len(), Rej::INFO_BYTES);
}

fn mad() -> impl Strategy<Value = Mad> {
    (0x10u16..0x17, any::<u64>(), proptest::collection::vec(any::<u8>(), MESSAGE_BYTES)).prop_map(
        |(attribute, transaction_id, body)| {
            let mut mad = [0; MAD_BYTES];
            mad[..4].copy_from_slice(&[1, 7, 2, 3]);
            mad[8..16].copy_from_slice(&transaction_id.to_be_bytes());
            mad[16..18].copy_from_slice(&attribute.to_be_bytes());
            mad[24..].copy_from_slice(&body);
            mad
        },
    )
}

proptest! {
    #[test]
    fn parsed_messages_encode_to_the_same(mad in mad()) {
        let (transaction_id, message) = ManagementMessage::parse(&mad).unwrap();
        let again = message.to_mad(transaction_id);
        prop_assert_eq!(ManagementMessage::parse(&again).unwrap(), (transaction_id, message));
    }

    #[test]
    fn ip_headers_survive(source: (u128, u16), destination: u128, v4: bool) {
        let ip = |bits: u128| -> IpAddr {
            if v4 { Ipv4Addr::from(bits as u32).into() } else { Ipv6Addr::from(bits).into() }
        };
        let header = IpHeader {
            source: SocketAddr::new(ip(source.0), source.1),
            destination: ip(destination),
        };
        prop_assert_eq!(IpHeader::parse(&header.to_bytes()), Some(header));
    }

    #[test]
    fn sums_of_timeouts_are_nearly_exact(a in 0u8..31, b in 0u8..31) {
        let (a, b) = (TimeoutExponent::saturating(a), TimeoutExponent::saturating(b));
        let (sum, exact) = (a.plus(b).duration(), a.duration() + b.duration());
        prop_assert!(sum * 2 > exact, "{sum:?} for {exact:?}");
        prop_assert!(sum < exact * 2, "{sum:?} for {exact:?}");
    }
}

#[test]
fn other_datagrams_are_not_ours() {
    let good = ManagementMessage::Rtu(Rtu {
        local_comm_id: CommId(1),
        remote_comm_id: CommId(2),
        private_data: [0; Rtu::PRIVATE_DATA_BYTES],
    })
    .to_mad(9);
    for (at, value) in [(0, 2), (1, 3), (2, 1), (3, 0x81)] {
        let mut mad = good;
        mad[at] = value;
        assert_eq!(ManagementMessage::parse(&mad), Err(MadError::NotConnectionManagement));
    }
    let mut unknown = good;
    unknown[17] = 0x1B;
    assert_eq!(
        ManagementMessage::parse(&unknown),
        Err(MadError::UnsupportedAttribute(Attribute(0x1B)))
    );
}

#[test]
fn ip_headers_of_unknown_kind_are_refused() {
    let header = IpHeader {
        source: SocketAddr::from((Ipv4Addr::new(10, 0, 0, 1), 1)),
        destination: Ipv4Addr::new(10, 0, 0, 2).into(),
    };
    let good = header.to_bytes();
    assert_eq!(IpHeader::parse(&good[..35]), None);
    for (at, value) in [(0, 1), (1, 0), (1, 0x50)] {
        let mut bytes = good;
        bytes[at] = value;
        assert_eq!(IpHeader::parse(&bytes), None);
    }
}

#[test]
fn addresses_become_gids_and_back() {
    let v4 = IpAddr::from(Ipv4Addr::new(10, 9, 0, 2));
    assert_eq!(Gid::from(v4).0, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 10, 9, 0, 2]);
    assert_eq!(IpAddr::from(Gid::from(v4)), v4);
    let v6 = IpAddr::from(Ipv6Addr::LOCALHOST);
    assert_eq!(IpAddr::from(Gid::from(v6)), v6);
}

#[test]
fn service_ids_hold_ports() {
    assert_eq!(ServiceId::tcp(4420).0, 0x0000_0000_0106_1144);
    assert_eq!(ServiceId::tcp(4420).port(), Some(4420));
    assert_eq!(ServiceId(0x0000_0000_0206_1144).port(), None);
    assert_eq!(ServiceId(0x1000_0000_0106_1144).port(), None);
}

#[test]
fn time_outs_have_the_lengths_of_the_table() {
    assert_eq!(TimeoutExponent::saturating(0).duration().as_nanos(), 4096);
    assert_eq!(TimeoutExponent::saturating(20).duration().as_millis(), 4294);
    assert_eq!(TimeoutExponent::saturating(99), TimeoutExponent::MAX);
}

#[test]
fn a_sender_may_say_that_it_is_ours() {
    let said = |sender| {
        let mut pair = Pair::with(
            ManagerConfig { sender, ..ManagerConfig::new(0xA, 1) },
            ManagerConfig::new(0xB, 2),
        );
        pair.host.manager.connect(pair.now, &connect_to(target_address(), 2)).unwrap();
        pair.host.sent_one().0.mad
    };
    let plain = said(Sender::Unmarked);
    assert_eq!(plain[20..24], [0; 4]);
    for sender in [Sender::Unmarked, Sender::Feedrail, Sender::FeedrailAtSource] {
        let mut mad = said(sender);
        assert_eq!(Sender::of(&mad), sender);
        // The lowest bit of the field for an end-to-end context, in which others look at nothing.
        assert_eq!(mad[24 + 38], u8::from(sender.is_feedrail()));
        mad[24 + 38] = 0;
        assert_eq!((&mad[..20], &mad[24..]), (&plain[..20], &plain[24..]));
    }
    let mut other = plain;
    other[23] = 1;
    assert_eq!(Sender::of(&other), Sender::Unmarked);
}

/// Feedrail peers tell each other the port that their packets come from. The field of other peers
/// is ignored.
#[test]
fn only_peers_of_ours_tell_their_udp_source() {
    for (sender, told) in [(Sender::Feedrail, true), (Sender::Unmarked, false)] {
        let marked = |guid, key| ManagerConfig { sender, ..ManagerConfig::new(guid, key) };
        let mut pair = Pair::with(marked(0xA, 1), marked(0xB, 2));
        let connect = ConnectParams { udp_source: Some(50_001), ..connect_to(target_address(), 2) };
        pair.host.manager.connect(pair.now, &connect).unwrap();
        pair.reach_target();
        let target = pair.target.request();
        let accept = AcceptParams { udp_source: Some(50_002), ..accept_with(3) };
        let theirs = pair.target.manager.accept(pair.now, target, &accept).unwrap();
        pair.reach_host();
        let ManagerEvent::Accepted { agreement: ours, .. } = pair.host.event() else { panic!() };
        assert_eq!(theirs.peer_udp_source, Some(50_001).filter(|_| told));
        assert_eq!(ours.peer_udp_source, Some(50_002).filter(|_| told));
    }
}

/// An older peer of ours, or one of others, tells nothing.
#[test]
fn both_sides_must_recover_selectively() {
    let feedrail = |selective_recovery| (Sender::Feedrail, selective_recovery);
    let config = |guid, key, (sender, selective_recovery)| {
        let config = ManagerConfig::new(guid, key);
        ManagerConfig { sender, selective_recovery, ..config }
    };
    for (host, target, agreed) in [
        (feedrail(true), feedrail(true), true),
        (feedrail(true), feedrail(false), false),
        (feedrail(false), feedrail(true), false),
        (feedrail(true), (Sender::Unmarked, true), false),
        ((Sender::Unmarked, true), feedrail(true), false),
    ] {
        let mut pair = Pair::with(config(0xA, 1, host), config(0xB, 2, target));
        pair.host.manager.connect(pair.now, &connect_to(target_address(), 2)).unwrap();
        pair.reach_target();
        let request = pair.target.request();
        let theirs = pair.target.manager.accept(pair.now, request, &accept_with(3)).unwrap();
        pair.reach_host();
        let ManagerEvent::Accepted { agreement: ours, .. } = pair.host.event() else { panic!() };
        assert_eq!((ours.selective_recovery, theirs.selective_recovery), (agreed, agreed));
    }
}

/// Messages of a connection travel in the class of its path, on both sides, and other answers in
/// class 0.
#[test]
fn messages_have_the_traffic_class_of_their_connection() {
    const CLASS: u8 = 0x68;
    let mut pair = Pair::new();
    let connect = ConnectParams { traffic_class: CLASS, ..connect_to(target_address(), 2) };
    let host = pair.host.manager.connect(pair.now, &connect).unwrap();
    let mut classes = Vec::new();
    let mut to_target = |pair: &mut Pair| {
        let (transmit, _) = pair.host.sent_one();
        classes.push(transmit.traffic_class);
        pair.target.receive(pair.now, pair.host.address, &[transmit]);
    };
    to_target(&mut pair);
    let target = pair.target.request();
    let agreement = pair.target.manager.accept(pair.now, target, &accept_with(3)).unwrap();
    assert_eq!(agreement.traffic_class, CLASS);
    let (rep, _) = pair.target.sent_one();
    pair.host.receive(pair.now, pair.target.address, &[rep]);
    pair.host.manager.confirm(host).unwrap();
    to_target(&mut pair);
    pair.host.manager.disconnect(pair.now, host);
    let (dreq, _) = pair.host.sent_one();
    pair.target.receive(pair.now, pair.host.address, &[dreq]);
    let (drep, _) = pair.target.sent_one();
    classes.extend([rep, dreq, drep].map(|transmit| transmit.traffic_class));
    assert_eq!(classes, [CLASS; 5]);
    // A DREQ of an unknown connection.
    let mut pair = Pair::new();
    pair.target.receive(pair.now, pair.host.address, &[dreq]);
    assert_eq!(pair.target.sent_one().0.traffic_class, 0);
}

fn asked(attribute: Attribute, body: &[u8]) -> Mad {
    let mut mad = [0; MAD_BYTES];
    mad[..4].copy_from_slice(&[1, 7, 2, 3]);
    mad[8..16].copy_from_slice(&[9; 8]);
    mad[16..18].copy_from_slice(&attribute.0.to_be_bytes());
    mad[24..24 + body.len()].copy_from_slice(body);
    mad
}

/// The one answer to a datagram: its attribute, and its message.
fn answered(pair: &mut Pair, mad: &Mad) -> (Attribute, [u8; MESSAGE_BYTES]) {
    pair.target.manager.handle_datagram(pair.now, host_address(), mad, |_| None);
    let sent = pair.target.sent();
    let [MadTransmit { peer, mad, .. }] = sent[..] else { panic!("{sent:?}") };
    assert_eq!((peer, &mad[..4], &mad[8..16]), (host_address(), &[1, 7, 2, 3][..], &[9; 8][..]));
    let attribute = Attribute(u16::from_be_bytes([mad[16], mad[17]]));
    (attribute, *mad.last_chunk().unwrap())
}

#[test]
fn an_alternate_path_is_declined() {
    let mut pair = Pair::new();
    let (host, _) = pair.established(2);
    pair.host.manager.disconnect(pair.now, host);
    let (_, ManagementMessage::Dreq(dreq)) = pair.host.sent_one() else { panic!() };
    let names = [dreq.local_comm_id.0.to_be_bytes(), dreq.remote_comm_id.0.to_be_bytes()];
    let swapped = [names[1], names[0]].concat();
    let (attribute, apr) = answered(&mut pair, &asked(Attribute::LAP, &names.concat()));
    assert_eq!((attribute, &apr[..8], apr[9]), (Attribute::APR, &swapped[..], 2));
    let (attribute, apr) = answered(&mut pair, &asked(Attribute::LAP, &[1; 8]));
    assert_eq!((attribute, &apr[..8], apr[9]), (Attribute::APR, &[1; 8][..], 1));
}

#[test]
fn a_service_is_not_resolved() {
    let mut body = [0; 16];
    body[..4].copy_from_slice(&[1, 2, 3, 4]);
    body[8..].copy_from_slice(&SERVICE.0.to_be_bytes());
    let (attribute, rep) = answered(&mut Pair::new(), &asked(Attribute::SIDR_REQ, &body));
    assert_eq!((attribute, &rep[..5]), (Attribute::SIDR_REP, &[1, 2, 3, 4, 1][..]));
    assert_eq!(rep[12..20], SERVICE.0.to_be_bytes());
}

#[test]
fn unsolicited_replies_get_no_answer() {
    let mut pair = Pair::new();
    for attribute in [Attribute::APR, Attribute::SIDR_REP, Attribute(0x1B)] {
        pair.target.manager.handle_datagram(
            pair.now,
            host_address(),
            &asked(attribute, &[]),
            |_| None,
        );
        assert_eq!(pair.target.sent(), []);
    }
}
