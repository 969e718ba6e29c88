//! The configuration of a manager, and the parameters of its connections.

use core::net::SocketAddr;
use core::time::Duration;

use super::{CommIdKey, Sender, ServiceId, TimeoutExponent};
use crate::{PathMtu, Psn, Qpn};

/// How a [`super::Manager`] behaves.
#[derive(Clone, Debug)]
pub struct ManagerConfig {
    /// Names this channel adapter. Random per process: a peer that remembers connections of an
    /// earlier process under the same name rejects new ones as stale.
    pub ca_guid: u64,
    /// Source of communication ids: random per process, for the same reason, and independent of
    /// `ca_guid`, which every peer sees.
    pub comm_id_key: CommIdKey,
    /// The sender mark of our datagrams.
    pub sender: Sender,
    /// Our queue pairs send again only what is missing, to peers whose queue pairs do so too. Told
    /// only by a marked [`Sender`].
    pub selective_recovery: bool,
    /// The longest payload that our side of the path carries. A request with a longer one is
    /// rejected (reason 26) with this value as the offer, which a Feedrail peer takes up by itself.
    pub path_mtu: PathMtu,
    /// How long our queue pairs take to acknowledge a packet; told to the peer.
    pub ack_delay: TimeoutExponent,
    /// How long we may take to answer a message and how long we allow a peer to; told to the peer.
    /// It is also the longest interval between two sendings of a message.
    pub response_timeout: TimeoutExponent,
    /// Time that an MRA asks the peer to wait while our consumer has not answered.
    pub service_timeout: TimeoutExponent,
    /// Interval between the first sending of a message and the second; it doubles from then on.
    /// Shorter than `response_timeout`, since a datagram that was sent twice costs less than a wait
    /// for a lost one.
    pub first_retry: Duration,
    /// How often a REQ or a REP is sent again, 0..=15.
    pub max_retries: u8,
    /// How often a DREQ is sent again.
    pub disconnect_retries: u8,
    /// How long the end of a connection is remembered, so that a late duplicate of its request does
    /// not start another connection.
    pub time_wait: Duration,
    /// Bounds on connections, messages and datagrams.
    pub limits: ManagerLimits,
}

/// Bounds on the memory of a manager. A request is only a claim until its sender has answered our
/// reply, since its address may be forged: the oldest such claim is given up for a new one. A
/// connection that both sides have agreed on is not given up.
#[derive(Clone, Copy, Debug)]
pub struct ManagerLimits {
    /// Connections but the half-open ones, both sides together, until the caller closes them.
    /// Beyond it a request is rejected with "no resources".
    pub connections: usize,
    /// Passive connections that are not established yet. The oldest makes way.
    pub half_open: usize,
    /// Same limit for each peer address, so that one peer cannot use up the share of all. Beyond it
    /// the peer's oldest half-open connection is evicted.
    pub half_open_per_peer: usize,
    /// Ended connections that are remembered; the oldest is forgotten first.
    pub time_wait: usize,
    /// Messages that wait to be transmitted; more are dropped, as the network would drop them.
    pub outgoing: usize,
    /// Datagrams in each second for endpoints that have not shown that they receive, beyond one for
    /// each datagram that came from there. All of them have 256 bytes, so this bounds the bytes
    /// that forged requests draw beyond their own.
    pub unsolicited_per_second: u32,
}

impl Default for ManagerLimits {
    fn default() -> Self {
        Self {
            connections: 16_384,
            half_open: 2_048,
            half_open_per_peer: 512,
            time_wait: 1_024,
            outgoing: 1_024,
            unsolicited_per_second: 32,
        }
    }
}

impl ManagerConfig {
    /// The values of a Linux peer, with faster retries.
    pub fn new(ca_guid: u64, comm_id_key: u128) -> Self {
        Self {
            ca_guid,
            comm_id_key: CommIdKey(comm_id_key),
            sender: Sender::Unmarked,
            selective_recovery: true,
            path_mtu: PathMtu::Bytes4096,
            ack_delay: TimeoutExponent::saturating(15),
            response_timeout: TimeoutExponent::saturating(20),
            service_timeout: TimeoutExponent::saturating(20),
            first_retry: Duration::from_millis(200),
            max_retries: 15,
            disconnect_retries: 4,
            time_wait: Duration::from_secs(10),
            limits: ManagerLimits::default(),
        }
    }

    /// Whether peers are told that our queue pairs recover selectively.
    pub(super) const fn offers_selective_recovery(&self) -> bool {
        self.selective_recovery && self.sender.is_feedrail()
    }
}

/// Names a connection of one manager; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// Names a listener of one manager; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId(pub u64);

/// The connection that the active side asks for.
#[derive(Clone, Copy, Debug)]
pub struct ConnectParams<'a> {
    /// The endpoint to which our datagrams go: IP address and RoCE port of the peer.
    pub peer: SocketAddr,
    /// Our IP address, and the port that the request names as its source (the ephemeral port of
    /// RDMA-CM, which has nothing to do with the RoCE port).
    pub source: SocketAddr,
    /// The service to connect to.
    pub service_id: ServiceId,
    /// Traffic class (type of service) of the packets of the connection.
    pub traffic_class: u8,
    /// Number of our queue pair.
    pub qpn: Qpn,
    /// The PSN with which the *peer* shall begin: the first that our queue pair receives.
    pub starting_psn: Psn,
    /// RDMA READs that we serve concurrently.
    pub responder_resources: u8,
    /// RDMA READs that we want to have in flight.
    pub initiator_depth: u8,
    /// Retries after an acknowledge time-out, 0..=7; for both sides.
    pub retry_count: u8,
    /// Retries of the *peer* after our receiver-not-ready, 0..=7 (7: no limit).
    pub rnr_retry_count: u8,
    /// Acknowledge time-out of both sides, before the peer's delay is added.
    pub ack_timeout: TimeoutExponent,
    /// Payload of a full packet. The peer may make it smaller.
    pub path_mtu: PathMtu,
    /// The UDP port that the packets of our queue pair come from, if it is always the same; a peer
    /// of ours takes packets from no other. Told only by a marked [`Sender`].
    pub udp_source: Option<u16>,
    /// Private data: up to 56 bytes with an RDMA-CM service id, else 92.
    pub private_data: &'a [u8],
}

/// The parameters that the passive side grants.
#[derive(Clone, Copy, Debug)]
pub struct AcceptParams<'a> {
    /// Number of our queue pair.
    pub qpn: Qpn,
    /// The PSN with which the *peer* shall begin: the first that our queue pair receives.
    pub starting_psn: Psn,
    /// RDMA READs that we serve concurrently; the peer uses no more than its request asks for.
    pub responder_resources: u8,
    /// RDMA READs that we have in flight; not more than the request offers.
    pub initiator_depth: u8,
    /// Retries of the *peer* after our receiver-not-ready, 0..=7 (7: no limit).
    pub rnr_retry_count: u8,
    /// The UDP port that the packets of our queue pair come from: see
    /// [`ConnectParams::udp_source`].
    pub udp_source: Option<u16>,
    /// Private data, up to 196 bytes.
    pub private_data: &'a [u8],
}

/// The parameters that the two sides have agreed on, seen from our side: all that the queue pair
/// needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// The endpoint of the peer.
    pub peer: SocketAddr,
    /// The UDP port that the packets of the peer's queue pair come from, if it is one of ours; else
    /// they come from any.
    pub peer_udp_source: Option<u16>,
    /// Both sides send again only what is missing.
    pub selective_recovery: bool,
    /// Number of our queue pair.
    pub local_qpn: Qpn,
    /// The peer's queue pair.
    pub remote_qpn: Qpn,
    /// First PSN that we send.
    pub send_psn: Psn,
    /// First PSN that the peer sends.
    pub recv_psn: Psn,
    /// Payload of a full packet, both ways.
    pub path_mtu: PathMtu,
    /// RDMA READs that we serve concurrently.
    pub responder_resources: u8,
    /// RDMA READs that we may have in flight.
    pub initiator_depth: u8,
    /// Our retries after an acknowledge time-out, 0..=7.
    pub retry_count: u8,
    /// Our retries after receiver-not-ready, 0..=7 (7: no limit).
    pub rnr_retry_count: u8,
    /// Acknowledge time-out of our queue pair.
    pub ack_timeout: TimeoutExponent,
    /// Traffic class of our packets.
    pub traffic_class: u8,
}
