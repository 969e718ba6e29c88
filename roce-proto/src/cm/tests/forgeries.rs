//! Messages of a stranger never reach a connection of another peer, and no message makes a manager
//! panic.

use alloc::vec::Vec;
use core::net::SocketAddr;

use proptest::prelude::*;

use super::pair::*;
use crate::cm::*;

/// Records everything that host and target say in the life of a connection.
fn conversation() -> Vec<Mad> {
    let mut pair = Pair::new();
    let mut said = Vec::new();
    let host = pair.host.manager.connect(pair.now, &connect_to(target_address(), 2)).unwrap();
    let mut step = |pair: &mut Pair| {
        let (from_host, from_target) = (pair.host.sent(), pair.target.sent());
        pair.target.receive(pair.now, host_address(), &from_host);
        pair.host.receive(pair.now, target_address(), &from_target);
        said.extend(from_host.iter().chain(&from_target).map(|transmit| transmit.mad));
    };
    step(&mut pair);
    let target = pair.target.request();
    pair.target.manager.accept(pair.now, target, &accept_with(3)).unwrap();
    step(&mut pair);
    pair.host.event();
    pair.host.manager.confirm(host).unwrap();
    step(&mut pair);
    pair.host.manager.disconnect(pair.now, host);
    step(&mut pair);
    step(&mut pair);
    assert_eq!(said.len(), 5);
    said
}

fn strangers() -> [SocketAddr; 2] {
    // Another machine, and another process on the peer's.
    ["10.0.0.3:4791".parse().unwrap(), "10.0.0.2:4792".parse().unwrap()]
}

#[test]
fn other_addresses_cannot_change_a_connection() {
    let said = conversation();
    let mut pair = Pair::new();
    let (host, target) = pair.established(2);
    for mad in &said {
        for stranger in strangers() {
            pair.host.manager.handle_datagram(pair.now, stranger, mad, |_| None);
            pair.target.manager.handle_datagram(pair.now, stranger, mad, |_| None);
        }
    }
    while let Some(event) = pair.target.manager.poll_event() {
        assert_ne!(event.connection(), target);
    }
    pair.host.assert_no_event();
    for transmit in pair.host.sent().iter().chain(&pair.target.sent()) {
        assert!(strangers().contains(&transmit.peer));
    }
    pair.host.manager.disconnect(pair.now, host);
    pair.reach_target();
    assert_eq!(
        pair.target.event(),
        ManagerEvent::Disconnected { connection: target, confirmed: true }
    );
}

/// Anything, or something that looks like a message, or a message that was said before with a few
/// bytes changed.
fn datagram() -> impl Strategy<Value = Mad> {
    let said = conversation();
    let noise = proptest::collection::vec(any::<u8>(), MAD_BYTES)
        .prop_map(|bytes| Mad::try_from(bytes).unwrap());
    let likely = (noise.clone(), 0x0Eu8..0x19).prop_map(|(mut mad, attribute)| {
        mad[..4].copy_from_slice(&[1, 7, 2, 3]);
        mad[16..18].copy_from_slice(&[0, attribute]);
        mad
    });
    let changes = proptest::collection::vec((0..MAD_BYTES, any::<u8>()), 0..4);
    let mutated = (proptest::sample::select(said), changes).prop_map(|(mut mad, changes)| {
        for (at, value) in changes {
            mad[at] = value;
        }
        mad
    });
    prop_oneof![1 => noise, 3 => likely, 6 => mutated]
}

#[derive(Clone, Debug)]
enum Step {
    FromPeer(Mad),
    FromStranger(Mad),
    ToTarget,
    ToHost,
    Pass,
    Consume,
    Disconnect,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => datagram().prop_map(Step::FromPeer),
        2 => datagram().prop_map(Step::FromStranger),
        2 => Just(Step::ToTarget),
        2 => Just(Step::ToHost),
        1 => Just(Step::Pass),
        2 => Just(Step::Consume),
        1 => Just(Step::Disconnect),
    ]
}

/// Handles events as a simple consumer does.
fn consume(side: &mut Side, pair_now: crate::Time) {
    while let Some(event) = side.manager.poll_event() {
        match event {
            ManagerEvent::Request { connection, .. } => {
                let _ = side.manager.accept(pair_now, connection, &accept_with(9));
            }
            ManagerEvent::Accepted { connection, .. } => {
                let _ = side.manager.confirm(connection);
            }
            ManagerEvent::Established { .. } => {}
            ManagerEvent::Rejected { connection, .. }
            | ManagerEvent::Failed { connection, .. }
            | ManagerEvent::Disconnected { connection, .. } => {
                side.manager.close(pair_now, connection)
            }
        }
    }
}

proptest! {
    #[test]
    fn nothing_that_arrives_makes_it_panic_or_leak(steps in proptest::collection::vec(step(), 1..60)) {
        let mut pair = Pair::new();
        let host = pair.host.manager.connect(pair.now, &connect_to(target_address(), 2)).unwrap();
        for step in steps {
            match step {
                Step::FromPeer(mad) => {
                    pair.target.manager.handle_datagram(pair.now, host_address(), &mad, |_| None);
                    pair.host.manager.handle_datagram(pair.now, target_address(), &mad, |_| None);
                }
                Step::FromStranger(mad) => {
                    pair.target.manager.handle_datagram(pair.now, strangers()[0], &mad, |_| None);
                }
                Step::ToTarget => {
                    for transmit in pair.host.sent() {
                        pair.target.manager.handle_datagram(pair.now, host_address(), &transmit.mad, |_| None);
                    }
                }
                Step::ToHost => {
                    for transmit in pair.target.sent() {
                        pair.host.manager.handle_datagram(pair.now, target_address(), &transmit.mad, |_| None);
                    }
                }
                Step::Pass => {
                    if pair.host.manager.deadline().or(pair.target.manager.deadline()).is_some() {
                        pair.pass_to_deadline();
                    }
                }
                Step::Consume => {
                    consume(&mut pair.host, pair.now);
                    consume(&mut pair.target, pair.now);
                }
                Step::Disconnect => pair.host.manager.disconnect(pair.now, host),
            }
        }
        // Every connection can be ended from any state: nothing waits for ever.
        consume(&mut pair.target, pair.now);
        consume(&mut pair.host, pair.now);
        pair.host.manager.close(pair.now, host);
        for id in 0..100 {
            pair.target.manager.close(pair.now, ConnectionId(id));
        }
        let mut rounds = 0;
        while pair.host.manager.deadline().or(pair.target.manager.deadline()).is_some() {
            pair.pass_to_deadline();
            rounds += 1;
            prop_assert!(rounds < 1000);
        }
        prop_assert_eq!(pair.host.manager.connections(), 0);
        prop_assert_eq!(pair.target.manager.connections(), 0);
    }
}
