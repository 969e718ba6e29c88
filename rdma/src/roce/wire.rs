//! The network as the engine uses it.
#![expect(unsafe_code, reason = "packets are gathered where their payload lies")]

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use roce_proto::cm::Sender;
use roce_proto::wire::{Ecn, Flow, Identification};

use crate::Time;

/// The UDP port of RoCE v2 (IANA).
pub const ROCE_PORT: u16 = 4791;

/// One way in and out of a network: that of one group or of the connection manager. Index 0 is the
/// connection manager's, a group's is the low bits of its queue pair numbers.
pub trait Wire: Send + 'static {
    /// Hands a batch of what arrived to `handle`.
    fn receive(&mut self, now: Time, handle: impl FnMut(Datagram<'_>)) -> Arrived;

    /// Queues a packet; [`Wire::flush`] sends it.
    ///
    /// # Safety
    /// Its pieces must stay readable until [`Wire::flush`] has returned.
    unsafe fn send(&mut self, now: Time, packet: &Outgoing<'_>);

    /// Sends all that was queued, as far as the system takes it.
    fn flush(&mut self, now: Time);

    /// Forgets what was queued and not sent: the transport sends it again. Its pieces are no longer
    /// read.
    fn discard(&mut self);

    /// The system takes nothing now. Queued packets are kept, and [`Wire::flush`] tries again;
    /// nothing should be added to them.
    fn is_blocked(&self) -> bool {
        false
    }

    /// The senders for which [`Wire::flush`] is worth another try as soon as their descriptor is
    /// writable.
    fn awaiting_room(&self) -> SenderSet {
        SenderSet::default()
    }

    /// When [`Wire::receive`] and [`Wire::flush`] must run again though nothing arrives: something
    /// was held back.
    fn deadline(&self) -> Option<Time> {
        None
    }

    /// The next peer that turned out not to be there.
    fn next_unreachable(&mut self) -> Option<SocketAddr>;

    /// Looks whether word of such a peer came, where neither receiving nor sending would tell.
    fn check_sender(&mut self) {}

    /// A descriptor that is readable when there is something to receive; none where a simulator
    /// drives.
    fn receiver(&self) -> Option<BorrowedFd<'_>>;

    /// The descriptor of a sender, which may have an error to tell; none where the receiver sends.
    fn sender(&self, sender: SenderIndex) -> Option<BorrowedFd<'_>>;

    /// How many packets found the receive buffer full, as far as is known; the count wraps.
    fn overflows(&self) -> u32 {
        0
    }

    /// Counters of the wire so far.
    fn counters(&self) -> WireCounters;
}

/// The most senders that a wire may have.
pub const MAX_SENDERS: usize = 8;

/// One of the ways in which packets leave a wire; each has a UDP source port of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderIndex(u8);

impl SenderIndex {
    /// The one that every wire has.
    pub const FIRST: Self = Self(0);

    /// All that a wire may have, in order.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..MAX_SENDERS as u8).map(Self)
    }

    /// Place of the sender among those of a wire.
    pub fn get(self) -> usize {
        self.0.into()
    }
}

/// Some of the senders of a wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderSet(u8);

impl SenderSet {
    /// Whether none is in it.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether this one is in it.
    pub fn contains(self, sender: SenderIndex) -> bool {
        self.0 & (1 << sender.0) != 0
    }

    /// Adds a sender, if it is not there.
    pub fn insert(&mut self, sender: SenderIndex) {
        self.0 |= 1 << sender.0;
    }

    /// Takes a sender out, if it is there.
    pub fn remove(&mut self, sender: SenderIndex) {
        self.0 &= !(1 << sender.0);
    }

    /// Union of the two sets.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Senders that are in one of the two sets and not in the other.
    #[must_use]
    pub fn symmetric_difference(self, other: Self) -> Self {
        Self(self.0 ^ other.0)
    }

    /// Members of the set, in order.
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
    /// Datagrams that were handed over.
    pub datagrams: usize,
    /// Whether more may be waiting.
    pub more: bool,
}

/// A UDP payload that arrived.
#[derive(Clone, Copy, Debug)]
pub struct Datagram<'a> {
    /// The sender's address and UDP source port.
    pub from: SocketAddr,
    /// The one of our addresses to which it was sent.
    pub to: SocketAddr,
    /// The flow between the two; none between different families, where no packet is genuine.
    pub flow: Option<Flow>,
    /// The identification in its IPv4 header, as far as it is known.
    pub ip_id: IpId,
    /// The ECN field of its IP header: whether a queue on the way was congested.
    pub ecn: Ecn,
    /// The bytes from the BTH to the ICRC, both included.
    pub bytes: &'a [u8],
}

impl<'a> Datagram<'a> {
    /// One of a flow that is not known yet, without ECN.
    pub fn new(from: SocketAddr, to: SocketAddr, ip_id: IpId, bytes: &'a [u8]) -> Self {
        Self { from, to, flow: Flow::new(from, to), ip_id, ecn: Ecn::NotEct, bytes }
    }
}

/// The identification in an IPv4 header, as far as it is known. Over IPv6 it means nothing.
#[derive(Clone, Copy, Debug)]
pub enum IpId {
    /// The network told it.
    Known(Identification),
    /// A socket does not see it. This one is worth trying first.
    Likely(Identification),
}

impl IpId {
    /// Identification of a datagram that came alone: our own kind of sender gives it to those.
    pub const UNKNOWN: Self = Self::Likely(Identification::ZERO);
}

/// A packet to send. The wire adds the invariant CRC, since only it knows the IP header.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// The endpoint of the peer.
    pub to: &'a SocketAddr,
    /// The sender that it leaves from: the same for all packets of a connection.
    pub sender: SenderIndex,
    /// The queue pair there. Packets of one sender to one leave in the order in which they were
    /// queued.
    pub destination_qpn: u32,
    /// BTH and extension headers.
    pub headers: &'a [u8],
    /// The payload, gathered from these pieces in order.
    pub pieces: &'a [&'a [u8]],
    /// Zero bytes behind the payload, 0..=3.
    pub pad_bytes: u8,
    /// The type of service, or traffic class, of its IP header, ECN field included.
    pub traffic_class: u8,
    /// The packet continues the message that the packet before it to this queue pair is part of.
    pub continues: bool,
}

impl Outgoing<'_> {
    /// The UDP payload's length in bytes, CRC included.
    pub fn length(&self) -> usize {
        let payload: usize = self.pieces.iter().map(|piece| piece.len()).sum();
        self.headers.len() + payload + usize::from(self.pad_bytes) + ICRC_BYTES
    }
}

/// Length of the invariant CRC.
pub(crate) const ICRC_BYTES: usize = 4;

/// The counts of a wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireCounters {
    /// System calls that sent.
    pub send_calls: u64,
    /// System calls that received.
    pub receive_calls: u64,
    /// Packets that the system did not take, not even later; the transport repairs that like any
    /// loss.
    pub send_drops: u64,
}

/// The endpoint at which to answer a packet from `source`: at [`ROCE_PORT`], not at its source
/// port, unless its sender says that it is one of ours and has another. The system sends nothing to
/// port 0, so no peer has that.
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
