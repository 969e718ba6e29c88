//! The interface between the engine and a network.
#![expect(unsafe_code, reason = "packets are gathered where their payload lies")]

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use roce_proto::cm::Sender;
use roce_proto::wire::{Ecn, Flow, Identification};

use crate::Time;

/// The UDP port of RoCE v2 (IANA).
pub const ROCE_PORT: u16 = 4791;

/// The sockets of one group or of the connection manager. Index 0 is the connection manager's; a
/// group's index is in the low 8 bits of its queue pair numbers.
pub trait Wire: Send + 'static {
    /// Receives a batch of datagrams and calls `handle` for each.
    fn receive(&mut self, now: Time, handle: impl FnMut(Datagram<'_>)) -> Arrived;

    /// Queues a packet to be sent by [`Wire::flush`].
    ///
    /// # Safety
    /// The pieces of the packet must stay readable until [`Wire::flush`] has returned.
    unsafe fn send(&mut self, now: Time, packet: &Outgoing<'_>);

    /// Sends all queued packets, as far as the system accepts them.
    fn flush(&mut self, now: Time);

    /// Discards queued packets without reading their pieces; the transport retransmits them.
    fn discard(&mut self);

    /// Whether the system accepts no packets now. Queued packets are kept, and [`Wire::flush`]
    /// tries again; no further ones should be queued.
    fn is_blocked(&self) -> bool {
        false
    }

    /// The senders with queued packets for which [`Wire::flush`] should be called when their
    /// descriptor is writable.
    fn awaiting_room(&self) -> SenderSet {
        SenderSet::default()
    }

    /// Time by which [`Wire::receive`] and [`Wire::flush`] must be called even if nothing arrives,
    /// for instance to retry sending.
    fn deadline(&self) -> Option<Time> {
        None
    }

    /// Returns the next peer that an ICMP error reported as unreachable.
    fn next_unreachable(&mut self) -> Option<SocketAddr>;

    /// Checks for such errors on sending sockets that neither `receive` nor `send` would notice.
    fn check_sender(&mut self) {}

    /// Descriptor that is readable when datagrams have arrived; `None` on a simulated network.
    fn receiver(&self) -> Option<BorrowedFd<'_>>;

    /// Descriptor of a sender, which may report errors; `None` if it sends through the receiver.
    fn sender(&self, sender: SenderIndex) -> Option<BorrowedFd<'_>>;

    /// Number of packets dropped because the receive buffer was full, as far as known; wraps
    /// around.
    fn overflows(&self) -> u32 {
        0
    }

    /// Counters since the wire was created.
    fn counters(&self) -> WireCounters;
}

/// Maximum number of senders of a wire.
pub const MAX_SENDERS: usize = 8;

/// Index of a sender of a wire. Each sender has its own UDP source port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderIndex(u8);

impl SenderIndex {
    /// The first sender, which every wire has.
    pub const FIRST: Self = Self(0);

    /// All possible senders, in order.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..MAX_SENDERS as u8).map(Self)
    }

    /// The sender as an index.
    pub fn get(self) -> usize {
        self.0.into()
    }
}

/// A set of senders of a wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderSet(u8);

impl SenderSet {
    /// Whether the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether the set contains the sender.
    pub fn contains(self, sender: SenderIndex) -> bool {
        self.0 & (1 << sender.0) != 0
    }

    /// Adds a sender to the set.
    pub fn insert(&mut self, sender: SenderIndex) {
        self.0 |= 1 << sender.0;
    }

    /// Removes a sender from the set.
    pub fn remove(&mut self, sender: SenderIndex) {
        self.0 &= !(1 << sender.0);
    }

    /// The union of the two sets.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The senders that are in exactly one of the two sets.
    #[must_use]
    pub fn symmetric_difference(self, other: Self) -> Self {
        Self(self.0 ^ other.0)
    }

    /// The senders of the set, in order.
    pub fn iter(self) -> impl Iterator<Item = SenderIndex> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let next = SenderIndex(u8::try_from(rest.trailing_zeros()).ok()?);
            let last = rest.checked_sub(1)?;
            rest &= last;
            Some(next)
        })
    }
}

const _: () = assert!(MAX_SENDERS <= u8::BITS as usize, "a set has a bit for each");

/// The result of a call of [`Wire::receive`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrived {
    /// Number of datagrams passed to `handle`.
    pub datagrams: usize,
    /// Whether more may be waiting in the socket.
    pub more: bool,
}

/// A received UDP payload.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// The sender's address and UDP source port.
    pub from: SocketAddr,
    /// Our address that it was sent to.
    pub to: SocketAddr,
    /// ICRC state of the two addresses; `None` for different address families, which fails the ICRC
    /// check.
    pub flow: Option<Flow>,
    /// The identification in its IPv4 header, as far as known.
    pub ip_id: IpId,
    /// The ECN field of its IP header.
    pub ecn: Ecn,
    /// The bytes from the BTH to the ICRC, inclusive.
    pub bytes: &'a [u8],
}

impl<'a> Datagram<'a> {
    /// Creates a datagram without ECN, and computes the ICRC state of its addresses.
    pub fn new(from: SocketAddr, to: SocketAddr, ip_id: IpId, bytes: &'a [u8]) -> Self {
        Self { from, to, flow: Flow::new(from, to), ip_id, ecn: Ecn::NotEct, bytes }
    }
}

/// The identification in an IPv4 header, as far as known. Ignored over IPv6.
#[derive(Clone, Copy, Debug)]
pub enum IpId {
    Known(Identification),
    /// The value is not visible to a socket; this one is tried first in the ICRC check.
    Likely(Identification),
}

impl IpId {
    /// The likely identification of a datagram that was not part of a UDP GSO batch: that of a
    /// Feedrail sender.
    pub const UNKNOWN: Self = Self::Likely(Identification::ZERO);
}

/// A packet to send. The wire adds the ICRC, which covers fields of the IP header.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// The peer's IP address and UDP port.
    pub to: &'a SocketAddr,
    /// The sender to use: always the same for one connection.
    pub sender: SenderIndex,
    /// The destination queue pair. Packets of one sender to one queue pair keep their order.
    pub destination_qpn: u32,
    /// BTH and extension headers.
    pub headers: &'a [u8],
    /// The payload, in pieces that are sent in this order.
    pub pieces: &'a [&'a [u8]],
    /// Number of zero bytes after the payload, 0..=3.
    pub pad_bytes: u8,
    /// Type of service or traffic class of its IP header, ECN field included.
    pub traffic_class: u8,
    /// True if the packet continues the message of the preceding packet to this queue pair.
    pub continues: bool,
}

impl Outgoing<'_> {
    /// Length of the UDP payload in bytes, ICRC included.
    pub fn length(&self) -> usize {
        let payload: usize = self.pieces.iter().map(|piece| piece.len()).sum();
        self.headers.len() + payload + usize::from(self.pad_bytes) + ICRC_BYTES
    }
}

pub(crate) const ICRC_BYTES: usize = 4;

/// Counters of a wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireCounters {
    /// Number of system calls that sent packets.
    pub send_calls: u64,
    /// Number of system calls that received packets.
    pub receive_calls: u64,
    /// Packets that the system refused for good; the transport retransmits them like any loss.
    pub send_drops: u64,
}

/// The endpoint to which answers to a packet from `source` are sent: port [`ROCE_PORT`], not its
/// source port, unless it is a Feedrail sender that receives at its source port. Port 0 is never
/// used, since the system cannot send to it.
pub(crate) fn endpoint_of(source: SocketAddr, sender: Sender) -> SocketAddr {
    let at_source = sender == Sender::FeedrailAtSource && source.port() != 0;
    let port = if at_source { source.port() } else { ROCE_PORT };
    let mut endpoint = source;
    endpoint.set_port(port);
    endpoint
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(source: &str, sender: Sender) -> String {
        endpoint_of(source.parse().unwrap(), sender).to_string()
    }

    /// Adapters send these datagrams from 36049 or from port 0.
    #[test]
    fn answers_go_to_the_roce_port() {
        for sender in [Sender::Unmarked, Sender::Feedrail] {
            for port in [0, 1024, 36_049, 49_151, 49_152, 65_535] {
                assert_eq!(answer(&format!("10.0.0.1:{port}"), sender), "10.0.0.1:4791");
            }
            assert_eq!(answer("[fe80::1%3]:60000", sender), "[fe80::1%3]:4791");
        }
    }

    #[test]
    fn a_peer_of_ours_may_have_another_port() {
        let sender = Sender::FeedrailAtSource;
        assert_eq!(answer("10.0.0.1:36049", sender), "10.0.0.1:36049");
        assert_eq!(answer("10.0.0.1:0", sender), "10.0.0.1:4791");
    }

    #[test]
    fn a_set_has_what_was_added() {
        let mut set = SenderSet::default();
        assert!(set.is_empty() && set.iter().next().is_none());
        SenderIndex::all().for_each(|sender| set.insert(sender));
        assert!(set.iter().eq(SenderIndex::all()));
        let kept = |sender: &SenderIndex| sender.get().is_multiple_of(3);
        SenderIndex::all().filter(|sender| !kept(sender)).for_each(|sender| set.remove(sender));
        assert!(set.iter().eq(SenderIndex::all().filter(kept)));
        assert!(SenderIndex::all().all(|sender| set.contains(sender) == kept(&sender)));
        let mut first = SenderSet::default();
        first.insert(SenderIndex::FIRST);
        assert_eq!(set.or(first), set);
        assert!(!set.symmetric_difference(first).contains(SenderIndex::FIRST));
    }
}
