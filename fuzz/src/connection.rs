//! Two communication managers, the calls of their users, and a network that does anything to
//! datagrams.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use roce_proto::cm::{
    AcceptParams, Attribute, ConnectParams, ConnectionId, Error, MAD_BYTES, Mad, Manager,
    ManagerConfig, ManagerEvent, ManagerLimits, ServiceId, TimeoutExponent,
};
use roce_proto::{PathMtu, Psn, Qpn, Time};

use crate::input::Input;

const SERVICE: ServiceId = ServiceId::tcp(4420);
const LIMITS: ManagerLimits = ManagerLimits {
    connections: 8,
    half_open: 4,
    half_open_per_peer: 3,
    time_wait: 4,
    outgoing: 16,
    unsolicited_per_second: 2,
};
const FLYING_MAX: usize = 64;
const OPERATIONS_MAX: usize = 400;
/// Deadlines after which a manager has given up whatever it waits for.
const DEADLINES_MAX: usize = 1000;

/// Runs a sequence of operations of eight bytes each.
///
/// Must hold: calls succeed exactly where the caller was told that they may; the events of a
/// connection come in their order, one of them ends it and nothing follows; limits are kept;
/// nothing is left in the end. While datagrams are only lost, repeated and overtaken, two ends of a
/// connection have agreed on the same parameters.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut world = ConnectionWorld::new();
    for _ in 0..OPERATIONS_MAX {
        if input.is_empty() {
            break;
        }
        let mut operation = Input::new(input.slice(8));
        world.operate(&mut operation);
        world.collect();
    }
    world.end();
}

/// A connection's state as its caller sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionStage {
    /// The caller asked for the connection.
    Connecting,
    /// The peer accepted its request, and it has not confirmed yet.
    Replied,
    /// The peer asked for it.
    Requested,
    /// The caller accepted the peer's request, which the peer has to confirm.
    Granted,
    Established,
    /// The caller was told that the connection has ended, and has to close it.
    Ended,
}

struct ConnectionWorld {
    now: Time,
    sides: [ConnectionSide; 2],
    next_qpn: u32,
    /// Datagrams are lost, repeated and overtaken at most.
    honest: bool,
}

struct ConnectionSide {
    manager: Manager,
    address: SocketAddr,
    stages: BTreeMap<ConnectionId, ConnectionStage>,
    /// Datagrams for this side.
    flying: VecDeque<Mad>,
}

impl ConnectionWorld {
    fn new() -> Self {
        let side = |index: u8| {
            let config = ManagerConfig {
                limits: LIMITS,
                max_retries: 3,
                ..ManagerConfig::new(u64::from(index) + 1, u128::from(index) + 1)
            };
            let mut manager = Manager::new(config);
            manager.listen(SERVICE).expect("the service has no listener");
            let address = SocketAddr::from(([10, 0, 0, index + 1], 4791));
            ConnectionSide { manager, address, stages: BTreeMap::new(), flying: VecDeque::new() }
        };
        Self { now: Time::from_nanos(1), sides: [side(0), side(1)], next_qpn: 2, honest: true }
    }

    fn operate(&mut self, input: &mut Input<'_>) {
        let (what, side) = (input.choice(15), input.choice(2));
        match what {
            0 => self.connect(side, input),
            1 => self.accept(side, input),
            2 => self.reject(side, input),
            3 => self.confirm(side, input),
            4 => {
                if let Some((id, _)) = self.pick(side, input) {
                    self.sides[side].manager.disconnect(self.now, id);
                }
            }
            5 => {
                if let Some((id, _)) = self.pick(side, input) {
                    self.sides[side].manager.close(self.now, id);
                    self.sides[side].stages.remove(&id);
                }
            }
            6 => {
                if let Some((id, _)) = self.pick(side, input) {
                    self.sides[side].manager.packet_arrived(id);
                }
            }
            7 => self.deliver_one(side, input),
            8 => self.deliver_all(side),
            9 => drop(self.take(side, input)),
            10 => {
                if let Some(mad) = self.take(side, input) {
                    self.sides[side].flying.push_front(mad);
                    self.sides[side].flying.push_back(mad);
                }
            }
            11 => self.corrupt(side, input),
            12 => self.stranger(side, input),
            13 => self.pass(input),
            _ => {
                let peer = self.sides[1 - side].address;
                self.sides[side].manager.handle_unreachable(self.now, peer);
            }
        }
    }

    /// One of the connections that a side's caller knows.
    fn pick(&self, side: usize, input: &mut Input<'_>) -> Option<(ConnectionId, ConnectionStage)> {
        let stages = &self.sides[side].stages;
        let index = usize::from(input.u8()).checked_rem(stages.len())?;
        stages.iter().nth(index).map(|(id, stage)| (*id, *stage))
    }

    fn draw_qpn(&mut self) -> Qpn {
        self.next_qpn += 1;
        Qpn::new(self.next_qpn)
    }

    fn connect(&mut self, side: usize, input: &mut Input<'_>) {
        let [mtu, depths, retries, length] = input.array();
        let private_data = [7; 64];
        let length = usize::from(length) % private_data.len();
        let qpn = self.draw_qpn();
        let connect = ConnectParams {
            peer: self.sides[1 - side].address,
            source: SocketAddr::new(self.sides[side].address.ip(), 50_000),
            service_id: if mtu & 0x80 == 0 { SERVICE } else { ServiceId::tcp(9) },
            traffic_class: depths,
            qpn,
            starting_psn: Psn::new(qpn.value() * 1000),
            responder_resources: depths & 15,
            initiator_depth: depths >> 4,
            retry_count: retries & 7,
            rnr_retry_count: retries >> 3 & 7,
            ack_timeout: TimeoutExponent::saturating(retries),
            path_mtu: PathMtu::ALL[usize::from(mtu) % 5],
            udp_source: Some(u16::from_be_bytes([mtu, depths])),
            private_data: &private_data[..length],
        };
        let ConnectionSide { manager, stages, .. } = &mut self.sides[side];
        let room = manager.connections() - manager.half_open() < LIMITS.connections;
        match manager.connect(self.now, &connect) {
            Ok(id) => {
                assert!(room && length <= 56);
                assert_eq!(
                    stages.insert(id, ConnectionStage::Connecting),
                    None,
                    "a name is used again"
                );
            }
            Err(Error::TooManyConnections) => assert!(!room),
            Err(error) => assert_eq!((error, length > 56), (Error::PrivateDataTooLong, true)),
        }
    }

    fn accept(&mut self, side: usize, input: &mut Input<'_>) {
        let Some((id, stage)) = self.pick(side, input) else { return };
        let [depths, length] = input.array();
        let private_data = [8; 200];
        let length = usize::from(length) % private_data.len();
        let qpn = self.draw_qpn();
        let accept = AcceptParams {
            qpn,
            starting_psn: Psn::new(qpn.value() * 1000),
            responder_resources: depths & 15,
            initiator_depth: depths >> 4,
            rnr_retry_count: depths & 7,
            udp_source: None,
            private_data: &private_data[..length],
        };
        match self.sides[side].manager.accept(self.now, id, &accept) {
            Ok(agreement) => {
                assert_eq!((stage, agreement.local_qpn), (ConnectionStage::Requested, qpn));
                self.sides[side].stages.insert(id, ConnectionStage::Granted);
            }
            Err(Error::PrivateDataTooLong) => assert!(length > 196),
            Err(error) => {
                assert_eq!(error, Error::WrongState);
                assert_ne!(stage, ConnectionStage::Requested);
            }
        }
    }

    fn reject(&mut self, side: usize, input: &mut Input<'_>) {
        let Some((id, stage)) = self.pick(side, input) else { return };
        match self.sides[side].manager.reject(self.now, id, b"no") {
            Ok(()) => {
                assert_eq!(stage, ConnectionStage::Requested);
                self.sides[side].stages.remove(&id);
            }
            Err(error) => {
                assert_eq!(error, Error::WrongState);
                assert_ne!(stage, ConnectionStage::Requested);
            }
        }
    }

    fn confirm(&mut self, side: usize, input: &mut Input<'_>) {
        let Some((id, stage)) = self.pick(side, input) else { return };
        match self.sides[side].manager.confirm(id) {
            Ok(()) => {
                assert_eq!(stage, ConnectionStage::Replied);
                self.sides[side].stages.insert(id, ConnectionStage::Established);
            }
            Err(error) => {
                assert_eq!(error, Error::WrongState);
                assert_ne!(stage, ConnectionStage::Replied);
            }
        }
    }

    fn take(&mut self, side: usize, input: &mut Input<'_>) -> Option<Mad> {
        let flying = &mut self.sides[side].flying;
        let index = usize::from(input.u8()).checked_rem(flying.len())?;
        flying.remove(index)
    }

    fn deliver_one(&mut self, side: usize, input: &mut Input<'_>) {
        if let Some(mad) = self.take(side, input) {
            let from = self.sides[1 - side].address;
            self.sides[side].manager.handle_datagram(self.now, from, &mad, |_| None);
        }
    }

    fn deliver_all(&mut self, side: usize) {
        let from = self.sides[1 - side].address;
        while let Some(mad) = self.sides[side].flying.pop_front() {
            self.sides[side].manager.handle_datagram(self.now, from, &mad, |_| None);
            self.collect();
        }
    }

    fn corrupt(&mut self, side: usize, input: &mut Input<'_>) {
        let Some(mut mad) = self.take(side, input) else { return };
        self.honest = false;
        let [value, kind, at] = input.array();
        if kind & 0x80 != 0 {
            // The same names in another kind of message.
            let attribute = Attribute::REQ.0 + u16::from(kind % 7);
            mad[16..18].copy_from_slice(&attribute.to_be_bytes());
        }
        mad[usize::from(at) % MAD_BYTES] ^= value;
        self.sides[side].flying.push_front(mad);
    }

    /// A datagram comes from another address, whose sender has seen a datagram pass.
    fn stranger(&mut self, side: usize, input: &mut Input<'_>) {
        if let Some(mad) = self.take(side, input) {
            self.honest = false;
            let from = SocketAddr::from(([10, 0, 9, input.u8() & 3], 4791));
            self.sides[side].manager.handle_datagram(self.now, from, &mad, |_| None);
        }
    }

    fn pass(&mut self, input: &mut Input<'_>) {
        let exponent = input.u8();
        if exponent & 0x80 == 0 {
            self.now = self.now + Duration::from_micros(1 << (exponent % 24));
        } else {
            let deadlines = self.sides.iter().filter_map(|side| side.manager.deadline());
            self.now = deadlines.min().map_or(self.now, |deadline| deadline.max(self.now));
        }
        for side in &mut self.sides {
            side.handle_deadline(self.now);
        }
    }

    /// Hears all events and sends all datagrams.
    fn collect(&mut self) {
        for side in 0..2 {
            while let Some(event) = self.sides[side].manager.poll_event() {
                self.sides[side].hear(&event);
            }
            let mut sent = 0;
            while let Some(transmit) = self.sides[side].manager.poll_transmit() {
                sent += 1;
                let peer = &mut self.sides[1 - side];
                if transmit.peer == peer.address && peer.flying.len() < FLYING_MAX {
                    peer.flying.push_back(transmit.mad);
                }
            }
            assert!(sent <= LIMITS.outgoing);
            let connections = self.sides[side].manager.connections();
            assert!(connections <= LIMITS.connections + LIMITS.half_open);
        }
        if self.honest {
            self.assert_agreement();
        }
    }

    /// Ends that know of one another see the same connection.
    fn assert_agreement(&self) {
        let [a, b] = self.sides.each_ref().map(ConnectionSide::established);
        for one in &a {
            for other in &b {
                if one.local_qpn == other.remote_qpn {
                    assert_eq!(one.remote_qpn, other.local_qpn);
                    assert_eq!((one.send_psn, one.recv_psn), (other.recv_psn, other.send_psn));
                    assert_eq!(one.path_mtu, other.path_mtu);
                    assert!(one.initiator_depth <= other.responder_resources);
                    assert!(other.initiator_depth <= one.responder_resources);
                }
            }
        }
    }

    fn end(mut self) {
        for side in &mut self.sides {
            for id in std::mem::take(&mut side.stages).into_keys() {
                side.manager.close(self.now, id);
            }
            for _ in 0..DEADLINES_MAX {
                let Some(deadline) = side.manager.deadline() else { break };
                self.now = self.now.max(deadline);
                side.handle_deadline(self.now);
            }
            assert_eq!((side.manager.connections(), side.manager.deadline()), (0, None));
            assert_eq!(side.manager.poll_event(), None);
        }
    }
}

impl ConnectionSide {
    fn handle_deadline(&mut self, now: Time) {
        self.manager.handle_deadline(now);
        assert!(self.manager.deadline().is_none_or(|deadline| deadline > now));
    }

    fn hear(&mut self, event: &ManagerEvent) {
        let id = event.connection();
        let before = self.stages.get(&id).copied();
        let after = match (event, before) {
            (ManagerEvent::Request { .. }, None) => ConnectionStage::Requested,
            (ManagerEvent::Accepted { .. }, Some(ConnectionStage::Connecting)) => {
                ConnectionStage::Replied
            }
            (ManagerEvent::Established { .. }, Some(ConnectionStage::Granted)) => {
                ConnectionStage::Established
            }
            (
                ManagerEvent::Rejected { .. }
                | ManagerEvent::Failed { .. }
                | ManagerEvent::Disconnected { .. },
                Some(
                    ConnectionStage::Connecting
                    | ConnectionStage::Replied
                    | ConnectionStage::Requested
                    | ConnectionStage::Granted
                    | ConnectionStage::Established,
                ),
            ) => ConnectionStage::Ended,
            _ => panic!("{event:?} to a caller that knows {before:?}"),
        };
        self.stages.insert(id, after);
    }

    fn established(&self) -> Vec<roce_proto::cm::Agreement> {
        let established =
            self.stages.iter().filter(|(_, stage)| **stage == ConnectionStage::Established);
        established.filter_map(|(id, _)| self.manager.agreement(*id)).copied().collect()
    }
}
