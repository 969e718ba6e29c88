//! Two managers on a network that loses, repeats and reorders.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::time::Duration;

use splitmix64::SplitMix64;

use super::pair::*;
use crate::cm::*;
use crate::{PathMtu, Qpn, Time};

fn duration_ms(random: &mut SplitMix64, limit: u64) -> Duration {
    Duration::from_micros(random.below(limit * 1000))
}

/// Something that happens at a point in time. The first side is the host, the second the target.
enum Action {
    Deliver(usize, Box<Mad>),
    /// The consumer has made up its mind.
    Answer(ConnectionId),
    /// The host has connected its queue pair.
    Confirm(ConnectionId),
    /// A packet reaches the queue pair of the target.
    Packet(ConnectionId),
    Disconnect(usize, ConnectionId),
}

struct World {
    random: SplitMix64,
    now: Time,
    sides: [Side; 2],
    agenda: BTreeMap<(Time, u64), Action>,
    scheduled: u64,
    loss_percent: u64,
    established: [BTreeMap<ConnectionId, Agreement>; 2],
    ended: [usize; 2],
    /// Queue pairs whose peer has ended the connection without a confirmation.
    forsaken: Vec<Qpn>,
}

const CONNECTIONS: usize = 4;

impl World {
    fn new(seed: u64) -> Self {
        let mut random = SplitMix64::new(seed);
        let path_mtu = PathMtu::ALL[random.below(5) as usize];
        let loss_percent = random.below(30);
        let pair = Pair::with(
            ManagerConfig::new(0xA, random.next_u64().into()),
            ManagerConfig { path_mtu, ..ManagerConfig::new(0xB, random.next_u64().into()) },
        );
        Self {
            random,
            now: Time::ZERO,
            sides: [pair.host, pair.target],
            agenda: BTreeMap::new(),
            scheduled: 0,
            loss_percent,
            established: [BTreeMap::new(), BTreeMap::new()],
            ended: [0, 0],
            forsaken: Vec::new(),
        }
    }

    fn schedule(&mut self, after: Duration, action: Action) {
        self.scheduled += 1;
        self.agenda.insert((self.now + after, self.scheduled), action);
    }

    fn transmit(&mut self, from: usize) {
        for transmit in self.sides[from].sent() {
            let copies = if self.random.below(100) < 5 { 2 } else { 1 };
            for _ in 0..copies {
                if self.random.below(100) >= self.loss_percent {
                    // Now and then one takes so long that it is overtaken by retries.
                    let slowest = if self.random.below(100) < 5 { 3000 } else { 20 };
                    let delay = duration_ms(&mut self.random, slowest);
                    self.schedule(delay, Action::Deliver(1 - from, Box::new(transmit.mad)));
                }
            }
        }
    }

    fn consume(&mut self, side: usize) {
        while let Some(event) = self.sides[side].manager.poll_event() {
            let think = duration_ms(&mut self.random, 600);
            match event {
                ManagerEvent::Request { connection, .. } => {
                    self.schedule(think, Action::Answer(connection));
                }
                ManagerEvent::Accepted { connection, agreement, .. } => {
                    self.established[side].insert(connection, agreement);
                    self.schedule(think, Action::Confirm(connection));
                }
                ManagerEvent::Established { connection } => {
                    let manager = &self.sides[side].manager;
                    let agreement = *manager.agreement(connection).unwrap();
                    self.established[side].insert(connection, agreement);
                }
                ManagerEvent::Rejected { connection, .. }
                | ManagerEvent::Failed { connection, .. }
                | ManagerEvent::Disconnected { connection, .. } => {
                    self.ended[side] += 1;
                    let agreement = self.established[side].remove(&connection);
                    // The peer did not answer: it may not have heard of it.
                    if let ManagerEvent::Disconnected { confirmed: false, .. } = event {
                        self.forsaken.extend(agreement.map(|agreement| agreement.remote_qpn));
                    }
                    self.sides[side].manager.close(self.now, connection);
                }
            }
        }
    }

    fn act(&mut self, action: Action) {
        let now = self.now;
        match action {
            Action::Deliver(to, mad) => {
                let from = self.sides[1 - to].address;
                self.sides[to].manager.handle_datagram(now, from, &mad, |_| None);
            }
            Action::Answer(connection) => {
                let qpn = 0x1000 + connection.0 as u32;
                if self.random.below(100) < 20 {
                    let _ = self.sides[1].manager.reject(now, connection, b"no");
                } else {
                    let _ = self.sides[1].manager.accept(now, connection, &accept_with(qpn));
                }
            }
            Action::Confirm(connection) => {
                // The host's first packet is sent until it arrives, while a lost RTU may stay lost.
                if self.sides[0].manager.confirm(connection).is_ok() {
                    let when = duration_ms(&mut self.random, 600);
                    self.schedule(when, Action::Packet(connection));
                }
            }
            Action::Packet(host) => {
                let Some(agreement) = self.established[0].get(&host) else { return };
                let target = ConnectionId(u64::from(agreement.remote_qpn.value() - 0x1000));
                let target_knows = self.sides[1].manager.agreement(target).is_some();
                self.sides[1].manager.packet_arrived(target);
                if !target_knows {
                    // It is not acknowledged, so the queue pair fails.
                    self.sides[0].manager.disconnect(now, host);
                }
            }
            Action::Disconnect(side, connection) => {
                self.sides[side].manager.disconnect(now, connection);
            }
        }
    }

    /// Runs until nothing is left to happen.
    fn run(&mut self) {
        for _ in 0..100_000 {
            for side in [0, 1] {
                self.consume(side);
                self.transmit(side);
            }
            let agenda = self.agenda.first_key_value().map(|(&(time, _), _)| time);
            let deadlines = self.sides.iter().filter_map(|side| side.manager.deadline());
            let Some(next) = deadlines.chain(agenda).min() else { return };
            self.now = self.now.max(next);
            if agenda == Some(next) {
                let (_, action) = self.agenda.pop_first().expect("it is there");
                self.act(action);
            }
            for side in &mut self.sides {
                side.manager.handle_deadline(self.now);
            }
        }
        panic!("it does not come to rest");
    }

    fn assert_both_agree(&self) {
        let [hosts, targets] = self.established.each_ref().map(|side| {
            let mut side = side.clone();
            side.retain(|_, agreement| !self.forsaken.contains(&agreement.local_qpn));
            side
        });
        assert_eq!(hosts.len(), targets.len());
        for host in hosts.values() {
            let target = targets
                .values()
                .find(|target| target.local_qpn == host.remote_qpn)
                .expect("the other end");
            assert_eq!(target.remote_qpn, host.local_qpn);
            assert_eq!((target.send_psn, target.recv_psn), (host.recv_psn, host.send_psn));
            assert_eq!(target.path_mtu, host.path_mtu);
            assert!(host.initiator_depth <= target.responder_resources);
            assert!(target.initiator_depth <= host.responder_resources);
        }
    }
}

/// One life of a few connections; gives how many were established.
fn live(seed: u64) -> usize {
    let mut world = World::new(seed);
    for number in 0..CONNECTIONS {
        let path_mtu = PathMtu::ALL[world.random.below(5) as usize];
        let connect = ConnectParams { path_mtu, ..connect_to(target_address(), 2 + number as u32) };
        world.sides[0].manager.connect(world.now, &connect).unwrap();
    }
    world.run();
    world.assert_both_agree();
    let established = world.established[0].len();
    assert_eq!(established + world.ended[0], CONNECTIONS);

    for side in [0, 1] {
        let open: Vec<_> = world.established[side].keys().copied().collect();
        for connection in open {
            if world.random.below(100) < 60 {
                let when = duration_ms(&mut world.random, 50);
                world.schedule(when, Action::Disconnect(side, connection));
            }
        }
    }
    world.run();
    world.assert_both_agree();
    for side in [0, 1] {
        let open: Vec<_> = world.established[side].keys().copied().collect();
        for connection in open {
            world.sides[side].manager.close(world.now, connection);
        }
    }
    world.run();
    for side in &mut world.sides {
        assert_eq!(side.manager.connections(), 0);
        side.manager.handle_deadline(world.now + Duration::from_secs(3600));
        assert_eq!(side.manager.time_wait.len(), 0);
        assert_eq!(side.manager.table.half_open(), 0);
    }
    established
}

#[test]
fn both_sides_agree_over_any_network() {
    let mut established = 0;
    for seed in 0..500 {
        established += live(seed);
    }
    // About a fifth is rejected by the consumer.
    assert!(established > 500 * CONNECTIONS * 7 / 10, "{established} were established");
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let trace = |seed| {
        let mut world = World::new(seed);
        world.sides[0].manager.connect(world.now, &connect_to(target_address(), 2)).unwrap();
        world.run();
        (world.now, world.sides.map(|side| *side.manager.counters()))
    };
    assert_eq!(trace(7), trace(7));
    assert_ne!(trace(7), trace(8));
}
