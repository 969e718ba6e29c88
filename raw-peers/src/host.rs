//! A host with its bones showing: queue pairs, hand-made capsules, and no rule that it keeps to.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use nvme_proto::rdma_cm::{ConnectAccept, Reject, RejectStatus};
use nvme_proto::{Cqe, FromBytes, Sgl};
use rdma::{
    Access, CmEvent, ConnId, ConnParams, Op, PrivateData, Provider, PushError,
    REJECT_CONSUMER_DEFINED, Time,
};

use crate::{PeerEvent, RawMemory, RawPeer, RawPeerShape};

/// Bytes of a response capsule.
const RESPONSE_BYTES: usize = size_of::<Cqe>();

/// One device with everything that a host has on it. Its connections are called links, and named by
/// the order in which they were made.
pub struct RawHost<P: Provider> {
    peer: RawPeer<P>,
    /// Connections, in the order in which they were made.
    pub links: Vec<RawLink>,
    shape: RawHostShape,
    /// Places for capsules, then data: all of it is open to targets.
    memory: RawMemory<P>,
    capsules: usize,
}

/// The sizes of a [`RawHost`].
#[derive(Clone, Copy, Debug)]
pub struct RawHostShape {
    /// Connections that have a queue pair at a time.
    pub queue_pairs: u32,
    /// Send requests that each can have posted.
    pub sends: u32,
    /// Receives that each can have posted.
    pub receives: u32,
    /// Capsules on their way; one that is sent later takes the place of the oldest.
    pub capsules: usize,
    /// The longest capsule that it sends.
    pub capsule_bytes: usize,
    /// Memory that commands point at.
    pub data_bytes: usize,
    /// How long an address may take to be resolved.
    pub timeout: Duration,
}

/// One connection of a [`RawHost`].
#[derive(Debug)]
pub struct RawLink {
    conn: ConnId,
    request: ConnParams,
    /// State of the connection.
    pub state: RawLinkState,
    /// Receives for responses that it posts by itself.
    pub receives: RawReceives,
    /// Responses that the user of the host has not taken.
    pub responses: VecDeque<Cqe>,
}

/// Receives that a link posts by itself.
#[derive(Clone, Copy, Debug)]
pub struct RawReceives {
    /// Receives that are posted before the connection request is sent.
    pub at_first: usize,
    /// Receives that are posted later: one after each response, until this many were.
    pub later: usize,
}

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawLinkState {
    /// The target has not answered.
    Pending,
    /// The connection is established. The number is that of receives that the controller says that
    /// it has posted; 0 if it said nothing that can be understood.
    Up(u16),
    /// The target does not want it.
    Rejected(RejectStatus),
    /// The connection manager of the target does not want it.
    Refused,
    /// The connection ended, or the target did not answer.
    Down,
}

impl RawReceives {
    /// Posts this many receives at first, and none later.
    pub const fn once(count: usize) -> Self {
        Self { at_first: count, later: 0 }
    }
}

impl RawLink {
    /// Whether it is there.
    pub const fn is_up(&self) -> bool {
        matches!(self.state, RawLinkState::Up(_))
    }
}

impl<P: Provider> RawHost<P> {
    /// A host without connections.
    ///
    /// # Panics
    /// If the device has no room.
    pub fn new(device: P::Device, shape: RawHostShape) -> Self {
        let RawHostShape { queue_pairs, sends, receives, .. } = shape;
        let receive_bytes = RESPONSE_BYTES;
        Self {
            memory: open_memory::<P>(&device, &shape),
            peer: RawPeer::new(
                device,
                RawPeerShape { queue_pairs, sends, receives, receive_bytes },
            ),
            links: Vec::new(),
            shape,
            capsules: 0,
        }
    }

    /// The device that it is on.
    pub fn device(&self) -> &P::Device {
        self.peer.device()
    }

    /// Begins a connection with this request, and returns its link.
    ///
    /// # Panics
    /// If the system refuses.
    pub fn dial(
        &mut self,
        now: Time,
        to: SocketAddr,
        request: ConnParams,
        receives: RawReceives,
    ) -> usize {
        let conn = self.peer.dial(now, to, self.shape.timeout);
        let (state, responses) = (RawLinkState::Pending, VecDeque::new());
        self.links.push(RawLink { conn, request, state, receives, responses });
        self.links.len() - 1
    }

    /// Parameters of a decent host's request, with this private data.
    ///
    /// # Panics
    /// If that is too long.
    pub fn request(private: &[u8]) -> ConnParams {
        ConnParams {
            responder_resources: 4,
            initiator_depth: 0,
            retry_count: 7,
            rnr_retry_count: 7,
            private_data: PrivateData::new(private).expect("it fits a request"),
        }
    }

    /// The place in memory of the next capsule that is sent, counted from 0.
    pub fn next_place(&self) -> usize {
        self.capsules % self.shape.capsules
    }

    /// Sends any bytes as a capsule.
    ///
    /// # Errors
    /// There is no room for one request more.
    ///
    /// # Panics
    /// If the link has no queue pair yet, or the capsule is longer than the longest.
    pub fn send(&mut self, link: usize, bytes: &[u8]) -> Result<(), PushError> {
        assert!(bytes.len() <= self.shape.capsule_bytes, "as long as capsules may be");
        let at = self.next_place() * self.shape.capsule_bytes;
        self.capsules += 1;
        self.memory.put(at, bytes);
        self.peer.push(self.links[link].conn, 0, Op::Send, &self.memory, at, bytes.len())
    }

    /// An operation that is no command, with `length` bytes of data memory from `at` on.
    ///
    /// # Errors
    /// There is no room for one request more.
    ///
    /// # Panics
    /// If the link has no queue pair yet.
    pub fn operate(
        &mut self,
        link: usize,
        op: Op,
        at: usize,
        length: usize,
    ) -> Result<(), PushError> {
        let at = self.shape.data_at() + at;
        self.peer.push(self.links[link].conn, 0, op, &self.memory, at, length)
    }

    /// Whether a link has a queue pair, so that it can send.
    pub fn has_queue_pair(&self, link: usize) -> bool {
        self.peer.has_queue_pair(self.links[link].conn)
    }

    /// Posts receives for responses, as far as the queue has room.
    pub fn post_receives(&mut self, link: usize, count: usize) {
        self.peer.post_receives(self.links[link].conn, count);
    }

    /// Writes to data memory.
    pub fn put(&self, at: usize, bytes: &[u8]) {
        self.memory.put(self.shape.data_at() + at, bytes);
    }

    /// Writes one byte to `length` bytes of data memory.
    pub fn fill(&self, at: usize, length: usize, byte: u8) {
        self.memory.fill(self.shape.data_at() + at, length, byte);
    }

    /// Reads `length` bytes of data memory.
    pub fn get(&self, at: usize, length: usize) -> impl Iterator<Item = u8> + '_ {
        self.memory.get(self.shape.data_at() + at, length)
    }

    /// A descriptor of data memory; nothing keeps it from naming bytes that are not there.
    pub fn keyed(&self, at: usize, length: usize) -> Sgl {
        self.memory.keyed(self.shape.data_at() + at, length)
    }

    /// Takes the memory away under whatever is using it: from here on every key of it is void. What
    /// replaces it has another key.
    pub fn replace_memory(&mut self) {
        self.memory = open_memory::<P>(self.peer.device(), &self.shape);
    }

    /// Ends a connection in order.
    pub fn disconnect(&mut self, now: Time, link: usize) {
        self.peer.disconnect(now, self.links[link].conn);
    }

    /// The queue pair fails, and the target is not told.
    pub fn fail(&mut self, link: usize) {
        self.peer.fail(self.links[link].conn);
    }

    /// Frees all connections, as if there had been none.
    pub fn forget(&mut self) {
        for link in self.links.drain(..) {
            self.peer.release(link.conn);
        }
        self.capsules = 0;
    }

    /// Does all that is ready; true if there was anything.
    ///
    /// # Panics
    /// If a response does not have the length of one.
    pub fn turn(&mut self, now: Time) -> bool {
        let mut worked = false;
        while let Some(event) = self.peer.poll(now) {
            worked = true;
            self.handle(now, event);
        }
        self.peer.flush(now);
        worked
    }

    /// Sends the requests of all links that were only dialled, once their routes are known. What
    /// comes back after that is not looked at before the next turn.
    pub fn knock(&mut self, now: Time) {
        let dialled = |link: &&RawLink| !self.peer.has_queue_pair(link.conn);
        let count = self.links.iter().filter(dialled).count();
        let mut resolved = Vec::new();
        while resolved.len() < count
            && let Some(event) = self.peer.poll(now)
        {
            match event {
                PeerEvent::Connection(CmEvent::Resolved { conn }) => resolved.push(conn),
                other => self.handle(now, other),
            }
        }
        resolved.into_iter().for_each(|conn| self.resolved(now, conn));
    }

    /// When it must have a turn again at the latest.
    pub fn deadline(&self) -> Option<Time> {
        self.peer.deadline()
    }

    fn handle(&mut self, now: Time, event: PeerEvent) {
        match event {
            PeerEvent::Connection(event) => self.handle_connection(now, event),
            PeerEvent::Arrived { conn, bytes } => self.arrived(conn, &bytes),
            PeerEvent::Failed { conn } => {
                // Receives of a connection that was rejected fail as well, and say less.
                if let Some(link) = self.link_of(conn).filter(|link| link.is_up()) {
                    link.state = RawLinkState::Down;
                }
            }
            PeerEvent::Sent { .. } | PeerEvent::Stale => {}
        }
    }

    fn handle_connection(&mut self, now: Time, event: CmEvent) {
        let (conn, state) = match event {
            CmEvent::Resolved { conn } => return self.resolved(now, conn),
            CmEvent::Established { conn, params } => {
                let accept = ConnectAccept::parse(params.private_data.as_slice());
                let entries = accept.map_or(0, |accept| accept.receive_entries());
                (conn, RawLinkState::Up(entries))
            }
            CmEvent::Rejected { conn, reason, private_data } => {
                let ours = reason == REJECT_CONSUMER_DEFINED;
                let said = Reject::parse(private_data.as_slice()).filter(|_| ours);
                let state = said.map(|reject| RawLinkState::Rejected(reject.status()));
                (conn, state.unwrap_or(RawLinkState::Refused))
            }
            CmEvent::Disconnected { conn, .. } | CmEvent::ConnectFailed { conn, .. } => {
                self.peer.close(conn);
                (conn, RawLinkState::Down)
            }
            other => panic!("{other:?}"),
        };
        if let Some(link) = self.link_of(conn) {
            link.state = state;
        }
    }

    fn resolved(&mut self, now: Time, conn: ConnId) {
        let Some(link) = self.link_of(conn) else { return };
        let (request, receives) = (link.request, link.receives.at_first);
        assert!(self.peer.create_queue_pair(conn), "a route that is known stays known");
        self.peer.post_receives(conn, receives);
        self.peer.connect(now, conn, &request);
    }

    fn arrived(&mut self, conn: ConnId, bytes: &[u8]) {
        let Some(link) = self.link_of(conn) else { return };
        let cqe = Cqe::read_from_bytes(bytes).expect("a response capsule has 16 bytes");
        link.responses.push_back(cqe);
        if let Some(later) = link.receives.later.checked_sub(1) {
            link.receives.later = later;
            self.peer.post_receives(conn, 1);
        }
    }

    fn link_of(&mut self, conn: ConnId) -> Option<&mut RawLink> {
        self.links.iter_mut().find(|link| link.conn == conn)
    }
}

impl RawHostShape {
    /// Where data begins in memory.
    const fn data_at(&self) -> usize {
        self.capsules * self.capsule_bytes
    }
}

fn open_memory<P: Provider>(device: &P::Device, shape: &RawHostShape) -> RawMemory<P> {
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
    RawMemory::new(device, shape.data_at() + shape.data_bytes, access)
}
