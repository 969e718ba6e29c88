//! Configuration of a manager, and parameters of connections.

use core::net::SocketAddr;
use core::time::Duration;

use super::{CommIdKey, Sender, ServiceId, TimeoutExponent};
use crate::{PathMtu, Psn, Qpn};

/// Configuration of a [`super::Manager`].
#[derive(Clone, Debug)]
pub struct ManagerConfig {
    /// GUID of this channel adapter, random per process: a peer that remembers connections of an
    /// earlier process with the same GUID rejects new ones as stale.
    pub ca_guid: u64,
    /// Key of the communication ids: random per process for the same reason, and independent of
    /// `ca_guid`, which every peer sees.
    pub comm_id_key: CommIdKey,
    /// The kind of sender that our datagrams announce.
    pub sender: Sender,
    /// Whether our queue pairs support selective recovery (only missing packets are retransmitted).
    /// Announced only if `sender` is Feedrail, and used if the peer supports it too.
    pub selective_recovery: bool,
    /// The largest path MTU of this side. A REQ with a larger one is rejected (reason 26) with this
    /// value, and a Feedrail peer then repeats the request with it.
    pub path_mtu: PathMtu,
    /// Target ACK delay: how long our queue pairs take to acknowledge a packet; sent to the peer.
    pub ack_delay: TimeoutExponent,
    /// CM response timeout: how long we may take to answer a message, and how long we wait for an
    /// answer; sent to the peer. It also limits the interval between repetitions of a message.
    pub response_timeout: TimeoutExponent,
    /// Service timeout in our MRAs: how long the peer shall wait for the answer of our consumer.
    pub service_timeout: TimeoutExponent,
    /// Interval before the first repetition of a message; it doubles with each further one. Shorter
    /// than `response_timeout`, since a needless repetition costs less than waiting for a lost
    /// datagram.
    pub first_retry: Duration,
    /// Maximum number of repetitions of a REQ or REP, 0..=15.
    pub max_retries: u8,
    /// Maximum number of repetitions of a DREQ.
    pub disconnect_retries: u8,
    /// How long an ended connection is remembered, so that a late duplicate of its REQ does not
    /// create another connection.
    pub time_wait: Duration,
    /// Limits on connections, queued messages and datagrams.
    pub limits: ManagerLimits,
}

/// Limits on the memory of a manager. The source address of a REQ may be forged, so a half-open
/// connection may be evicted, oldest first, until its sender has answered our REP. An established
/// connection is not evicted.
#[derive(Clone, Copy, Debug)]
pub struct ManagerLimits {
    /// Connections of both sides that are not half-open, until the caller closes them. Beyond the
    /// limit, REQs are rejected with "no resources".
    pub connections: usize,
    /// Half-open connections: passive ones that are not established. Beyond it the oldest is
    /// evicted.
    pub half_open: usize,
    /// Half-open connections per peer address, so that one peer cannot use up all. Beyond it the
    /// peer's oldest is evicted.
    pub half_open_per_peer: usize,
    /// Remembered ended connections; beyond it the oldest is forgotten.
    pub time_wait: usize,
    /// Queued outgoing messages; further ones are dropped, as the network may do.
    pub outgoing: usize,
    /// Datagrams per second, in total, to endpoints that have not proved that they receive ours, in
    /// addition to one per datagram from there. All have 256 bytes, so this limits the
    /// amplification of forged requests.
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
    /// The values of the Linux CM, with faster repetition.
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

    /// Whether selective recovery is announced to peers.
    pub(super) const fn offers_selective_recovery(&self) -> bool {
        self.selective_recovery && self.sender.is_feedrail()
    }
}

/// Identifies a connection of one manager; values are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// Identifies a listener of one manager; values are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId(pub u64);

/// Parameters of a connection that the active side requests.
#[derive(Clone, Copy, Debug)]
pub struct ConnectParams<'a> {
    /// The endpoint to which our datagrams go: IP address and RoCE port of the peer.
    pub peer: SocketAddr,
    /// Our IP address, and the source port in the RDMA-CM header of the REQ, an ephemeral port that
    /// is unrelated to UDP ports.
    pub source: SocketAddr,
    /// The service to connect to.
    pub service_id: ServiceId,
    /// Traffic class (type of service) of the packets of the connection.
    pub traffic_class: u8,
    /// Our queue pair number.
    pub qpn: Qpn,
    /// First PSN that the *peer* shall send, and our queue pair expects.
    pub starting_psn: Psn,
    /// RDMA READs that we serve concurrently.
    pub responder_resources: u8,
    /// RDMA READs that we would like to have in flight.
    pub initiator_depth: u8,
    /// Maximum number of retries after an ACK timeout, 0..=7; for both sides.
    pub retry_count: u8,
    /// Maximum number of retries of the *peer* after our RNR NAK, 0..=7 (7: no limit).
    pub rnr_retry_count: u8,
    /// ACK timeout of both sides, to which the peer's ACK delay is added.
    pub ack_timeout: TimeoutExponent,
    /// Requested path MTU. The peer may reduce it.
    pub path_mtu: PathMtu,
    /// UDP source port of our queue pair's packets, if fixed; a Feedrail peer accepts packets from
    /// this port only. Announced only if the configured [`Sender`] is Feedrail.
    pub udp_source: Option<u16>,
    /// Private data: up to 56 bytes with an RDMA-CM service id, else 92.
    pub private_data: &'a [u8],
}

/// Parameters with which the passive side accepts a connection.
#[derive(Clone, Copy, Debug)]
pub struct AcceptParams<'a> {
    /// Our queue pair number.
    pub qpn: Qpn,
    /// First PSN that the *peer* shall send, and our queue pair expects.
    pub starting_psn: Psn,
    /// RDMA READs that we serve concurrently; the peer uses at most what it requested.
    pub responder_resources: u8,
    /// RDMA READs that we may have in flight; limited to what the REQ offers.
    pub initiator_depth: u8,
    /// Maximum number of retries of the *peer* after our RNR NAK, 0..=7 (7: no limit).
    pub rnr_retry_count: u8,
    /// UDP source port of our queue pair's packets: see [`ConnectParams::udp_source`].
    pub udp_source: Option<u16>,
    /// Private data, up to 196 bytes.
    pub private_data: &'a [u8],
}

/// The agreed parameters of a connection, seen from our side, for the queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// The endpoint of the peer: IP address and UDP port.
    pub peer: SocketAddr,
    /// UDP source port of the peer's packets, if it announced one; else they may come from any
    /// port.
    pub peer_udp_source: Option<u16>,
    /// Whether both sides use selective recovery: only missing packets are retransmitted.
    pub selective_recovery: bool,
    /// Our queue pair number.
    pub local_qpn: Qpn,
    /// The peer's queue pair number.
    pub remote_qpn: Qpn,
    /// First PSN that we send.
    pub send_psn: Psn,
    /// First PSN that the peer sends.
    pub recv_psn: Psn,
    /// Path MTU, for both directions.
    pub path_mtu: PathMtu,
    /// RDMA READs that we serve concurrently.
    pub responder_resources: u8,
    /// RDMA READs that we may have in flight.
    pub initiator_depth: u8,
    /// Maximum number of our retries after an ACK timeout, 0..=7.
    pub retry_count: u8,
    /// Maximum number of our retries after an RNR NAK, 0..=7 (7: no limit).
    pub rnr_retry_count: u8,
    /// ACK timeout of our queue pair.
    pub ack_timeout: TimeoutExponent,
    /// Traffic class of our packets.
    pub traffic_class: u8,
}
