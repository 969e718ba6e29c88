//! The memory of a manager is bounded, and the share of one peer as well.

use core::net::{Ipv4Addr, SocketAddr};
use core::time::Duration;

use proptest::prelude::*;

use super::pair::*;
use crate::cm::*;
use crate::{Psn, Qpn, Time};

fn small() -> ManagerConfig {
    let limits = ManagerLimits {
        connections: 100,
        half_open: 50,
        half_open_per_peer: 10,
        time_wait: 20,
        outgoing: 30,
        unsolicited_per_second: 5,
    };
    ManagerConfig { limits, ..ManagerConfig::new(0xB, 2) }
}

/// A request with names of its own, sent by `from`.
fn request(from: SocketAddr, number: u32) -> Mad {
    request_named(from, number, number)
}

/// A request with this name and from this queue pair.
fn request_named(from: SocketAddr, name: u32, qpn: u32) -> Mad {
    let mut host = Side::new(from, ManagerConfig::new(0xA, u128::from(name)));
    let connect = ConnectParams {
        source: SocketAddr::new(from.ip(), 50_000),
        qpn: Qpn::new(2 + qpn),
        starting_psn: Psn::new(qpn),
        ..connect_to(target_address(), 2)
    };
    host.manager.connect(Time::ZERO, &connect).unwrap();
    host.sent_one().0.mad
}

fn address(number: u32) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::from(0x0A00_0000 + number).into(), 4791)
}

/// Accepts every request and closes every connection that ended.
fn serve(side: &mut Side, now: Time) {
    while let Some(event) = side.manager.poll_event() {
        match event {
            ManagerEvent::Request { connection, .. } => {
                side.manager.accept(now, connection, &accept_with(3)).unwrap();
            }
            ManagerEvent::Established { .. } => {}
            over => side.manager.close(now, over.connection()),
        }
    }
}

#[test]
fn one_peer_fills_its_own_share_only() {
    let mut pair = Pair::with(ManagerConfig::new(0xA, 1), small());
    let (_, waiting) = pair.requested(2);
    for number in 0..1000 {
        // Another port is no other peer.
        let from = SocketAddr::from(([10, 9, 9, 9], 4791 + (number % 7) as u16));
        pair.target.manager.handle_datagram(pair.now, from, &request(from, number), |_| None);
    }
    assert_eq!(pair.target.manager.half_open(), 11);
    assert_eq!(pair.target.manager.counters().evicted, 990);
    assert_eq!(pair.target.sent(), []);
    assert_eq!(core::iter::from_fn(|| pair.target.manager.poll_event()).count(), 10);
    pair.target.manager.accept(pair.now, waiting, &accept_with(3)).unwrap();
}

#[test]
fn all_peers_together_stay_within_the_limit() {
    let mut pair = Pair::with(ManagerConfig::new(0xA, 1), small());
    for number in 0..1000 {
        let from = address(number);
        pair.target.manager.handle_datagram(pair.now, from, &request(from, number), |_| None);
    }
    assert_eq!(pair.target.manager.connections(), 50);
    assert_eq!(core::iter::from_fn(|| pair.target.manager.poll_event()).count(), 50);
}

/// Requests with forged senders, the newcomer's own among them, do not keep a peer out.
#[test]
fn a_newcomer_connects_in_a_flood() {
    let mut pair = Pair::with(ManagerConfig::new(0xA, 1), small());
    for number in 0..500 {
        let from = if number % 3 == 0 { host_address() } else { address(number) };
        pair.target.manager.handle_datagram(pair.now, from, &request(from, 100 + number), |_| None);
        serve(&mut pair.target, pair.now);
    }
    pair.target.sent();
    let host = pair.host.manager.connect(pair.now, &connect_to(target_address(), 2)).unwrap();
    pair.reach_target();
    serve(&mut pair.target, pair.now);
    pair.reach_host();
    assert!(
        matches!(pair.host.event(), ManagerEvent::Accepted { connection, .. } if connection == host)
    );
    pair.host.manager.confirm(host).unwrap();
    pair.reach_target();
    assert!(matches!(pair.target.event(), ManagerEvent::Established { .. }));
}

#[test]
fn half_open_connections_do_not_count_as_connections() {
    let mut config = small();
    config.limits.connections = 2;
    let mut pair = Pair::with(ManagerConfig::new(0xA, 1), config);
    for number in 100..140 {
        let from = address(number);
        pair.target.manager.handle_datagram(pair.now, from, &request(from, number), |_| None);
    }
    while pair.target.manager.poll_event().is_some() {}
    pair.established(2);
    pair.established(4);
    let connect = connect_to(target_address(), 6);
    let refused = pair.host.manager.connect(pair.now, &connect).unwrap();
    pair.reach_target();
    pair.reach_host();
    let ManagerEvent::Rejected { connection, reason, .. } = pair.host.event() else { panic!() };
    assert_eq!((connection, reason), (refused, RejectReason::NO_RESOURCES));
}

/// The owner of the address never answers, while requests come in its name.
#[test]
fn a_forged_request_draws_one_repetition() {
    for requests in [1, 2, 3, 10] {
        let mut pair = Pair::with(ManagerConfig::new(0xA, 1), small());
        let req = request(address(7), 1);
        let mut sent = 0;
        for _ in 0..requests {
            pair.target.manager.handle_datagram(pair.now, address(7), &req, |_| None);
            serve(&mut pair.target, pair.now);
            sent += pair.target.sent().len();
        }
        while let Some(deadline) = pair.target.manager.deadline() {
            pair.target.manager.handle_deadline(deadline);
            serve(&mut pair.target, deadline);
            sent += pair.target.sent().len();
        }
        assert_eq!(sent, requests + requests.min(2), "{requests} requests");
        assert_eq!(pair.target.manager.connections(), 0);
    }
}

/// A consumer that accepts requests and takes the connections back, as it does with the oldest of
/// many.
#[test]
fn forged_requests_draw_no_unsolicited_messages() {
    const REQUESTS: u32 = 400;
    let mut pair = Pair::with(ManagerConfig::new(0xA, 1), small());
    let mut sent = 0;
    for number in 0..REQUESTS {
        let from = address(number % 40);
        pair.target.manager.handle_datagram(pair.now, from, &request(from, number), |_| None);
        let connection = pair.target.request();
        pair.target.manager.accept(pair.now, connection, &accept_with(3)).unwrap();
        pair.target.manager.disconnect(pair.now, connection);
        pair.target.manager.close(pair.now, connection);
        sent += pair.target.sent().len();
    }
    assert_eq!(sent as u32, REQUESTS + small().limits.unsolicited_per_second);
}

/// A peer whose confirmation or packet came has the address from which its request came.
#[test]
fn a_confirmed_peer_gets_every_disconnect_request() {
    for by_packet in [false, true] {
        let mut pair = Pair::new();
        let (_, target) = if by_packet { pair.replied(2) } else { pair.established(2) };
        pair.target.manager.packet_arrived(target);
        pair.target.manager.disconnect(pair.now, target);
        let mut sent = pair.target.sent().len();
        while let Some(deadline) = pair.target.manager.deadline() {
            pair.target.manager.handle_deadline(deadline);
            sent += pair.target.sent().len();
        }
        assert_eq!(sent, 1 + usize::from(ManagerConfig::new(0, 0).disconnect_retries));
    }
}

/// A step of an attacker that forges the addresses of others and does not see their answers.
#[derive(Clone, Debug)]
enum Step {
    Request { from: u32, name: u32, qpn: u32 },
    Other { from: u32, attribute: u8, bytes: [u8; 8] },
    Answer { how: u8 },
    End { which: prop::sample::Index, close: bool },
    Pass(Duration),
}

fn step() -> impl Strategy<Value = Step> {
    let request = (0..4u32, 0..6u32, 0..4u32);
    let other = (0..4u32, 0x0Eu8..0x1B, any::<[u8; 8]>());
    prop_oneof![
        6 => request.prop_map(|(from, name, qpn)| Step::Request { from, name, qpn }),
        1 => other.prop_map(|(from, attribute, bytes)| Step::Other { from, attribute, bytes }),
        4 => (0..5u8).prop_map(|how| Step::Answer { how }),
        2 => (any::<prop::sample::Index>(), any::<bool>())
            .prop_map(|(which, close)| Step::End { which, close }),
        2 => (0..3000u64).prop_map(|millis| Step::Pass(Duration::from_millis(millis))),
    ]
}

proptest! {
    /// All management datagrams have the same length, so that their number tells the bytes.
    #[test]
    fn an_address_draws_little_more_than_it_sends(
        steps in prop::collection::vec(step(), 1..120)
    ) {
        const PER_SECOND: u32 = 1;
        let mut config = small();
        config.limits.unsolicited_per_second = PER_SECOND;
        let mut pair = Pair::with(ManagerConfig::new(0xA, 1), config);
        let mut known = alloc::vec::Vec::new();
        let (mut came, mut left) = ([0u64; 4], [0u64; 4]);
        for step in steps {
            let manager = &mut pair.target.manager;
            match step {
                Step::Request { from, name, qpn } => {
                    came[from as usize] += 1;
                    let mad = request_named(address(from), name, qpn);
                    manager.handle_datagram(pair.now, address(from), &mad, |_| None);
                }
                Step::Other { from, attribute, bytes } => {
                    came[from as usize] += 1;
                    let mut mad = [0; MAD_BYTES];
                    mad[..4].copy_from_slice(&[1, 7, 2, 3]);
                    mad[17] = attribute;
                    mad[24..32].copy_from_slice(&bytes);
                    manager.handle_datagram(pair.now, address(from), &mad, |_| None);
                }
                Step::Answer { how } => match manager.poll_event() {
                    Some(ManagerEvent::Request { connection, .. }) => {
                        known.push(connection);
                        match how {
                            0 => manager.reject(pair.now, connection, &[]).unwrap(),
                            1 => {}
                            _ => _ = manager.accept(pair.now, connection, &accept_with(3)).unwrap(),
                        }
                    }
                    Some(ManagerEvent::Established { .. }) => prop_assert!(false, "no peer has answered"),
                    Some(over) => manager.close(pair.now, over.connection()),
                    None => {}
                },
                Step::End { which, close } if !known.is_empty() => {
                    let connection = *which.get(&known);
                    if close {
                        manager.close(pair.now, connection);
                    } else {
                        manager.disconnect(pair.now, connection);
                    }
                }
                Step::End { .. } => {}
                Step::Pass(by) => {
                    pair.now = pair.now + by;
                    manager.handle_deadline(pair.now);
                }
            }
            for transmit in pair.target.sent() {
                let to = (0..4).find(|number| address(*number) == transmit.peer);
                left[to.expect("one that something came from") as usize] += 1;
            }
            let unsolicited: u64 =
                left.iter().zip(&came).map(|(left, came)| left.saturating_sub(*came)).sum();
            let seconds = 1 + (pair.now - Time::ZERO).as_secs();
            prop_assert!(unsolicited <= u64::from(PER_SECOND) * seconds, "{left:?} after {came:?}");
        }
    }
}

#[test]
fn requests_with_a_foreign_source_are_rejected() {
    let elsewhere: SocketAddr = SocketAddr::from(([10, 8, 8, 8], 50_000));
    let mut pair = Pair::new();
    let connect = ConnectParams { source: elsewhere, ..connect_to(target_address(), 2) };
    let host = pair.host.manager.connect(pair.now, &connect).unwrap();
    pair.reach_target();
    pair.target.assert_no_event();
    pair.reach_host();
    let ManagerEvent::Rejected { connection, reason, .. } = pair.host.event() else { panic!() };
    assert_eq!((connection, reason), (host, RejectReason::INVALID_GID));
}

#[test]
fn a_share_is_given_back() {
    let mut pair = Pair::with(ManagerConfig::new(0xA, 1), small());
    for round in 0..20 {
        let mut targets = alloc::vec::Vec::new();
        for number in 0..10 {
            let (host, target) = pair.requested(2 + round * 10 + number);
            targets.push((host, target));
        }
        for (number, (host, target)) in targets.into_iter().enumerate() {
            if number % 2 == 0 {
                pair.target.manager.reject(pair.now, target, &[]).unwrap();
            } else {
                pair.target.manager.close(pair.now, target);
            }
            pair.reach_host();
            pair.host.manager.close(pair.now, host);
        }
        while pair.host.manager.poll_event().is_some() {}
        assert_eq!(pair.target.manager.connections(), 0);
        assert!(pair.target.manager.time_wait.len() <= 20);
    }
}

#[test]
fn requests_taken_back_at_once_leave_nothing() {
    let mut pair = Pair::with(ManagerConfig::new(0xA, 1), small());
    for number in 0..1000 {
        let connect = connect_to(target_address(), 2 + number);
        let host = pair.host.manager.connect(pair.now, &connect).unwrap();
        pair.reach_target();
        pair.host.manager.close(pair.now, host);
        pair.reach_target();
        pair.target.sent();
    }
    // The consumer has not looked yet, and need not hear of any.
    assert_eq!(pair.target.manager.connections(), 0);
    pair.target.assert_no_event();
}

#[test]
fn established_connections_are_limited_too() {
    let mut config = small();
    config.limits.connections = 5;
    let mut pair = Pair::with(config, ManagerConfig::new(0xB, 2));
    for number in 0..5 {
        pair.established(2 + 2 * number);
    }
    let connect = connect_to(target_address(), 50);
    assert_eq!(pair.host.manager.connect(pair.now, &connect), Err(Error::TooManyConnections));
}

#[test]
fn ended_connections_are_forgotten_after_time_wait() {
    let mut pair = Pair::new();
    for number in 0..5 {
        let (_, target) = pair.requested(2 + number);
        pair.target.manager.reject(pair.now, target, &[]).unwrap();
    }
    assert_eq!(pair.target.manager.time_wait.len(), 5);
    let later = pair.now + ManagerConfig::new(0, 0).time_wait;
    pair.target.manager.handle_deadline(later);
    assert_eq!(pair.target.manager.time_wait.len(), 0);
}
