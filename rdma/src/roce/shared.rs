//! The state shared by the groups and the connection manager of a software RoCE device.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use roce_proto::Qpn;
use roce_proto::rc::ConnectionParams;
use roce_proto::wire::Ecn;

use super::engine::ConnectionRoute;
use super::fabric::Fabric;
use super::mailbox::Mailbox;
use super::numbers::{Numbers, owner_of};
use super::random::{Entropy, Random};
use super::regions::{DomainId, Regions};
use super::wire::{Datagram, IpId};
use crate::Caps;

/// Maximum number of messages in a mailbox. Further forwarded packets are dropped, as by a full
/// socket buffer, and the peer retransmits them. 512 packets take at most about 2 MiB.
pub(super) const MAX_MAIL: usize = 512;

/// Upper bound of the length of a packet with headers, in bytes.
const MAX_PACKET_BYTES: usize = 4096 + 128;

/// A software RoCE device with a protection domain. Clones refer to the same.
pub struct RoceDevice<F: Fabric> {
    pub(super) shared: Arc<DeviceShared<F>>,
    pub(super) domain: DomainId,
}

/// The state that all handles of a device share.
pub(super) struct DeviceShared<F: Fabric> {
    pub(super) fabric: F,
    pub(super) regions: Arc<Regions>,
    pub(super) numbers: Arc<Numbers>,
    /// Mailboxes of the groups; that of the group with index `i` is at `i - 1`.
    pub(super) groups: Box<[Mailbox<GroupMessage>]>,
    pub(super) cm: Mailbox<CmMessage>,
    pub(super) counters: DeviceCounters,
    pub(super) entropy: Mutex<F::Entropy>,
    pub(super) caps: Caps,
}

/// A message to the thread that owns a group.
pub(super) enum GroupMessage {
    /// Connect a queue pair.
    Connect {
        /// Number and serial of the queue pair.
        number: (u32, u64),
        /// Addresses of the packets to and from the peer.
        route: ConnectionRoute,
        /// Whether the first packet must be reported to the connection manager.
        announce: bool,
        /// The parameters that the two connection managers agreed on.
        connection: Box<ConnectionParams>,
    },
    /// Move a queue pair to ERROR.
    Fail {
        /// Number and serial of the queue pair.
        number: (u32, u64),
    },
    /// Process a packet that another thread's socket received.
    Packet(Box<Forwarded>),
}

/// A message to the thread that owns the connection manager.
pub(super) enum CmMessage {
    /// The first packet for this queue pair has arrived, so its peer is connected.
    PeerIsReady {
        /// The queue pair's number.
        qpn: u32,
    },
    /// An ICMP error reported that this endpoint is unreachable.
    Unreachable(SocketAddr),
    /// Process a packet for queue pair 1 that a group's socket received.
    Packet(Box<Forwarded>),
}

/// A datagram that one thread forwards to another.
pub(super) struct Forwarded {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) ecn: Ecn,
    pub(super) bytes: Box<[u8]>,
}

impl Forwarded {
    /// The datagram, without its IPv4 identification, which is not forwarded.
    pub(super) fn datagram(&self) -> Datagram<'_> {
        let Self { from, to, ecn, ref bytes } = *self;
        Datagram { ecn, ..Datagram::new(from, to, IpId::UNKNOWN, bytes) }
    }
}

#[derive(Default)]
pub(super) struct DeviceCounters {
    pub(super) mads_sent: AtomicU64,
    pub(super) mads_received: AtomicU64,
    pub(super) mads_dropped: AtomicU64,
}

impl<F: Fabric> RoceDevice<F> {
    /// Creates a device on `fabric` with room for `groups` groups.
    pub(crate) fn new(
        fabric: F,
        groups: usize,
        caps: Caps,
        mut entropy: F::Entropy,
    ) -> io::Result<Self> {
        let doorbells = fabric.has_doorbells();
        let mailboxes: io::Result<_> = (0..groups).map(|_| Mailbox::new(doorbells)).collect();
        let shared = DeviceShared {
            regions: Arc::new(Regions::new(groups, entropy.stream()?)),
            numbers: Arc::new(Numbers::new(entropy.stream()?)),
            groups: mailboxes?,
            cm: Mailbox::new(doorbells)?,
            counters: DeviceCounters::default(),
            entropy: Mutex::new(entropy),
            caps,
            fabric,
        };
        let domain = shared.regions.new_domain();
        Ok(Self { shared: Arc::new(shared), domain })
    }

    /// Local IP address and UDP port of the device.
    pub fn endpoint(&self) -> SocketAddr {
        self.shared.fabric.endpoint()
    }

    /// The protection domain of this handle.
    pub(super) fn domain(&self) -> DomainId {
        self.domain
    }

    /// The numbers of the queue pairs that exist.
    pub fn queue_pairs(&self) -> Vec<u32> {
        self.shared.numbers.in_use()
    }
}

impl<F: Fabric> DeviceShared<F> {
    /// A new random stream, independent of all others.
    pub(super) fn random(&self) -> io::Result<Random> {
        self.entropy.lock().unwrap_or_else(PoisonError::into_inner).stream()
    }

    /// The mailbox of the group that owns a queue pair number; `None` if there is no such group.
    pub(super) fn group_of(&self, qpn: Qpn) -> Option<&Mailbox<GroupMessage>> {
        self.groups.get(usize::from(owner_of(qpn)).checked_sub(1)?)
    }

    /// Forwards a packet to the thread that owns its queue pair; returns false if there is no such
    /// thread or its mailbox is full.
    pub(super) fn forward(&self, qpn: Qpn, datagram: &Datagram<'_>) -> bool {
        let &Datagram { from, to, ecn, bytes, .. } = datagram;
        if bytes.len() > MAX_PACKET_BYTES {
            return false;
        }
        let packet = Forwarded { from, to, ecn, bytes: bytes.into() };
        if qpn == Qpn::GSI {
            let room = self.cm.len() < MAX_MAIL;
            if room {
                self.cm.send(CmMessage::Packet(Box::new(packet)));
            }
            return room;
        }
        match self.group_of(qpn).filter(|mailbox| mailbox.len() < MAX_MAIL) {
            Some(mailbox) => mailbox.send(GroupMessage::Packet(Box::new(packet))),
            None => return false,
        }
        true
    }
}

impl<F: Fabric> Clone for RoceDevice<F> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), domain: self.domain }
    }
}

/// A reference to a group of a software RoCE device, for the connection manager.
#[derive(Clone, Debug)]
pub struct GroupHandle {
    pub(super) index: u8,
}
