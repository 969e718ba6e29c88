//! What a manager remembers is bounded, and one peer's share as well.

use core::net::{Ipv4Addr, SocketAddr};

use super::pair::*;
use crate::cm::*;
use crate::{Psn, Qpn, Time};

fn small() -> Config {
    let limits = Limits {
        connections: 100,
        half_open: 50,
        half_open_per_peer: 10,
        time_wait: 20,
        outgoing: 30,
    };
    Config { limits, ..Config::new(0xB, 2) }
}

/// A request with names of its own.
fn request(number: u32) -> Mad {
    let mut host = Side::new(host_address(), Config::new(0xA, u128::from(number)));
    let connect = Connect {
        qpn: Qpn::new(2 + number),
        starting_psn: Psn::new(number),
        ..connect_to(target_address(), 2)
    };
    host.manager.connect(Time::ZERO, &connect).unwrap();
    host.sent_one().0.mad
}

fn address(number: u32) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::from(0x0A00_0000 + number).into(), 4791)
}

#[test]
fn one_peer_fills_its_own_share_only() {
    let mut pair = Pair::with(Config::new(0xA, 1), small());
    let flooder = SocketAddr::from(([10, 9, 9, 9], 4791));
    for number in 0..1000 {
        // Another port is no other peer.
        let from = SocketAddr::new(flooder.ip(), 4791 + (number % 7) as u16);
        pair.target.manager.handle_datagram(pair.now, from, &request(number));
    }
    assert_eq!(pair.target.manager.connections(), 10);
    let sent = pair.target.sent();
    assert_eq!(sent.len(), 30, "answers beyond the limit are dropped");
    for transmit in sent {
        let Ok((_, Message::Rej(rej))) = Message::parse(&transmit.mad) else { panic!() };
        assert_eq!(rej.reason, RejectReason::NO_RESOURCES);
    }
    assert!(pair.target.manager.counters().dropped > 900);
    while pair.target.manager.poll_event().is_some() {}
    pair.established(2);
}

#[test]
fn all_peers_together_stay_within_the_limit() {
    let mut pair = Pair::with(Config::new(0xA, 1), small());
    for number in 0..1000 {
        pair.target.manager.handle_datagram(pair.now, address(number), &request(number));
    }
    assert_eq!(pair.target.manager.connections(), 50);
    assert_eq!(core::iter::from_fn(|| pair.target.manager.poll_event()).count(), 50);
}

#[test]
fn a_share_is_given_back() {
    let mut pair = Pair::with(Config::new(0xA, 1), small());
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
fn a_peer_that_asks_and_leaves_again_and_again_keeps_to_its_share() {
    let mut pair = Pair::with(Config::new(0xA, 1), small());
    for number in 0..1000 {
        let connect = connect_to(target_address(), 2 + number);
        let host = pair.host.manager.connect(pair.now, &connect).unwrap();
        pair.reach_target();
        pair.host.manager.close(pair.now, host);
        pair.reach_target();
        pair.target.sent();
    }
    // The consumer has not looked yet.
    assert_eq!(pair.target.manager.connections(), 10);
}

#[test]
fn established_connections_are_limited_too() {
    let mut config = small();
    config.limits.connections = 5;
    let mut pair = Pair::with(config, Config::new(0xB, 2));
    for number in 0..5 {
        pair.established(2 + 2 * number);
    }
    let connect = connect_to(target_address(), 50);
    assert_eq!(pair.host.manager.connect(pair.now, &connect), Err(Error::TooManyConnections));
}

#[test]
fn what_is_over_is_forgotten_in_time() {
    let mut pair = Pair::new();
    for number in 0..5 {
        let (_, target) = pair.requested(2 + number);
        pair.target.manager.reject(pair.now, target, &[]).unwrap();
    }
    assert_eq!(pair.target.manager.time_wait.len(), 5);
    let later = pair.now + Config::new(0, 0).time_wait;
    pair.target.manager.handle_deadline(later);
    assert_eq!(pair.target.manager.time_wait.len(), 0);
}
