//! Two managers and the wire between them, under a test's control.

use alloc::vec::Vec;
use core::net::SocketAddr;
use core::time::Duration;

use crate::cm::*;
use crate::{PathMtu, Psn, Qpn, Time};

pub(super) const SERVICE: ServiceId = ServiceId::tcp(4420);

pub(super) struct Side {
    pub(super) manager: Manager,
    pub(super) address: SocketAddr,
}

/// An active and a passive side. Time stands still unless a test lets it pass.
pub(super) struct Pair {
    pub(super) now: Time,
    pub(super) host: Side,
    pub(super) target: Side,
}

pub(super) fn host_address() -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 2], 4791))
}

pub(super) fn target_address() -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], 4791))
}

pub(super) fn connect_to(peer: SocketAddr, qpn: u32) -> ConnectParams<'static> {
    ConnectParams {
        peer,
        source: SocketAddr::from(([10, 0, 0, 2], 50_000)),
        service_id: SERVICE,
        traffic_class: 0,
        qpn: Qpn::new(qpn),
        starting_psn: Psn::new(qpn * 1000),
        responder_resources: 16,
        initiator_depth: 4,
        retry_count: 6,
        rnr_retry_count: 5,
        ack_timeout: TimeoutExponent::saturating(17),
        path_mtu: PathMtu::Bytes4096,
        udp_source: None,
        private_data: b"please",
    }
}

pub(super) fn accept_with(qpn: u32) -> AcceptParams<'static> {
    AcceptParams {
        qpn: Qpn::new(qpn),
        starting_psn: Psn::new(qpn * 1000),
        responder_resources: 8,
        initiator_depth: 32,
        rnr_retry_count: 7,
        udp_source: None,
        private_data: b"welcome",
    }
}

impl Side {
    pub(super) fn new(address: SocketAddr, config: ManagerConfig) -> Self {
        Self { manager: Manager::new(config), address }
    }

    /// Everything that it wants to send now.
    pub(super) fn sent(&mut self) -> Vec<MadTransmit> {
        core::iter::from_fn(|| self.manager.poll_transmit()).collect()
    }

    /// The one message that it wants to send now.
    pub(super) fn sent_one(&mut self) -> (MadTransmit, ManagementMessage) {
        let sent = self.sent();
        assert_eq!(sent.len(), 1, "{sent:?}");
        (sent[0], ManagementMessage::parse(&sent[0].mad).unwrap().1)
    }

    pub(super) fn receive(&mut self, now: Time, from: SocketAddr, sent: &[MadTransmit]) {
        for transmit in sent {
            assert_eq!(transmit.peer, self.address);
            self.manager.handle_datagram(now, from, &transmit.mad, |_| None);
        }
    }

    pub(super) fn event(&mut self) -> ManagerEvent {
        self.manager.poll_event().expect("an event")
    }

    /// The connection of the one event, a request.
    pub(super) fn request(&mut self) -> ConnectionId {
        let ManagerEvent::Request { connection, .. } = self.event() else { panic!() };
        connection
    }

    pub(super) fn assert_no_event(&mut self) {
        assert_eq!(self.manager.poll_event(), None);
    }
}

impl Pair {
    pub(super) fn new() -> Self {
        Self::with(ManagerConfig::new(0xA, 1), ManagerConfig::new(0xB, 2))
    }

    pub(super) fn with(host: ManagerConfig, target: ManagerConfig) -> Self {
        let mut target = Side::new(target_address(), target);
        target.manager.listen(SERVICE).unwrap();
        Self { now: Time::ZERO, host: Side::new(host_address(), host), target }
    }

    /// The target receives all datagrams that the host sends.
    pub(super) fn reach_target(&mut self) {
        let sent = self.host.sent();
        self.target.receive(self.now, self.host.address, &sent);
    }

    /// The host receives all datagrams that the target sends.
    pub(super) fn reach_host(&mut self) {
        let sent = self.target.sent();
        self.host.receive(self.now, self.target.address, &sent);
    }

    /// Passes time until the earlier of both deadlines.
    pub(super) fn pass_to_deadline(&mut self) -> Duration {
        let deadlines = [self.host.manager.deadline(), self.target.manager.deadline()];
        let deadline = deadlines.into_iter().flatten().min().expect("a deadline");
        let passed = deadline - self.now;
        self.now = self.now.max(deadline);
        self.host.manager.handle_deadline(self.now);
        self.target.manager.handle_deadline(self.now);
        passed
    }

    /// A request that has reached the target's consumer.
    pub(super) fn requested(&mut self, qpn: u32) -> (ConnectionId, ConnectionId) {
        let host =
            self.host.manager.connect(self.now, &connect_to(self.target.address, qpn)).unwrap();
        self.reach_target();
        (host, self.target.request())
    }

    /// A connection whose reply is on its way.
    pub(super) fn accepted(&mut self, qpn: u32) -> (ConnectionId, ConnectionId) {
        let (host, target) = self.requested(qpn);
        self.target.manager.accept(self.now, target, &accept_with(qpn + 1)).unwrap();
        (host, target)
    }

    /// A connection whose reply has arrived.
    pub(super) fn replied(&mut self, qpn: u32) -> (ConnectionId, ConnectionId) {
        let (host, target) = self.accepted(qpn);
        self.reach_host();
        assert!(matches!(self.host.event(), ManagerEvent::Accepted { .. }));
        (host, target)
    }

    /// A connection as it should be.
    pub(super) fn established(&mut self, qpn: u32) -> (ConnectionId, ConnectionId) {
        let (host, target) = self.replied(qpn);
        self.host.manager.confirm(host).unwrap();
        self.reach_target();
        assert_eq!(self.target.event(), ManagerEvent::Established { connection: target });
        (host, target)
    }
}
