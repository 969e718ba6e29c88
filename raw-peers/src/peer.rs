//! One device with connections on it.
#![expect(unsafe_code, reason = "posts memory to queue pairs")]

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use rdma::{
    Access, CmError, CmEvent, ConnId, ConnOptions, ConnParams, ConnectionManager, Device, Group,
    GroupConfig, GroupStats, Op, Provider, PushError, QpConfig, QpKey, RecvWr, SendFlags, SendWr,
    Sge, Time, Wc, WcOpcode,
};

use crate::RawMemory;

/// Marks the work request identifiers of receives.
const RECEIVE: u64 = 1 << 63;
/// Completions that are reaped at a time.
const BATCH: usize = 32;

/// One device with its connection manager, one group, and the connections on it.
///
/// Connections are named by the [`ConnId`] of the connection manager. A receive has a place of its
/// own in memory that belongs to the connection.
pub struct RawPeer<P: Provider> {
    device: P::Device,
    cm: P::Cm,
    group: P::Group,
    shape: RawPeerShape,
    queue_pairs: Vec<(ConnId, RawQueuePair<P>)>,
    /// Completions of this turn; `None` while events of the connection manager may be left.
    reaped: Option<VecDeque<Wc>>,
}

/// The sizes of a [`RawPeer`].
#[derive(Clone, Copy, Debug)]
pub struct RawPeerShape {
    /// Connections that have a queue pair at a time.
    pub queue_pairs: u32,
    /// Send requests that each can have posted.
    pub sends: u32,
    /// Receives that each can have posted.
    pub receives: u32,
    /// Bytes that a receive has room for.
    pub receive_bytes: usize,
}

struct RawQueuePair<P: Provider> {
    key: QpKey,
    arrivals: RawMemory<P>,
    /// Places that no receive was posted for.
    free: Vec<usize>,
}

/// Event at a [`RawPeer`].
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one at a time")]
pub enum PeerEvent {
    /// Something about a connection.
    Connection(CmEvent),
    /// A message arrived. Its receive is not posted again.
    Arrived {
        /// The connection that it belongs to.
        conn: ConnId,
        /// The bytes of the message.
        bytes: Vec<u8>,
    },
    /// A send request succeeded.
    Sent {
        /// The connection that it belongs to.
        conn: ConnId,
        /// The identifier that it was pushed with.
        wr_id: u64,
        /// Which kind it was.
        opcode: WcOpcode,
    },
    /// A send request or a receive failed.
    Failed {
        /// The connection that it belongs to.
        conn: ConnId,
    },
    /// A request of a connection that was released has ended.
    Stale,
}

impl<P: Provider> RawPeer<P> {
    /// A peer without connections.
    ///
    /// # Panics
    /// If the device has no room, or has a connection manager already.
    pub fn new(device: P::Device, shape: RawPeerShape) -> Self {
        let completions = (shape.sends + shape.receives).saturating_mul(shape.queue_pairs);
        let config = GroupConfig {
            completions: completions.min(8192),
            queue_pairs: shape.queue_pairs,
            completion_vector: 0,
        };
        Self {
            cm: device.connection_manager().expect("the device has none yet"),
            group: device.group(&config).expect("the device has room"),
            device,
            shape,
            queue_pairs: Vec::new(),
            reaped: None,
        }
    }

    /// The device that it is on.
    pub fn device(&self) -> &P::Device {
        &self.device
    }

    /// Counters of the peer's group.
    pub fn stats(&self) -> GroupStats {
        self.group.stats()
    }

    /// Takes connection requests at an address from now on.
    ///
    /// # Panics
    /// If the system refuses.
    pub fn listen(&mut self, address: SocketAddr) {
        self.cm.listen(address, &ConnOptions::default()).expect("nothing else listens there");
    }

    /// Begins a connection: its route is looked up.
    ///
    /// # Panics
    /// If the system refuses.
    pub fn dial(&mut self, now: Time, to: SocketAddr, timeout: Duration) -> ConnId {
        let conn = self.cm.resolve(now, to, timeout, &ConnOptions::default());
        conn.expect("the network has the address")
    }

    /// Makes the queue pair of a connection. Returns whether the connection is still there.
    pub fn create_queue_pair(&mut self, conn: ConnId) -> bool {
        let RawPeerShape { sends, receives, receive_bytes, .. } = self.shape;
        let config = QpConfig {
            send_wr: sends,
            recv_wr: receives,
            send_sge: 1,
            recv_sge: 1,
            inline_bytes: 0,
        };
        let made = self.cm.create_qp(conn, &self.group.handle(), &self.device, &config);
        let Ok(new) = made else { return false };
        let places = receives as usize;
        let queue_pair = RawQueuePair {
            key: self.group.adopt(new),
            arrivals: RawMemory::new(&self.device, places * receive_bytes, Access::LOCAL_WRITE),
            free: (0..places).rev().collect(),
        };
        self.queue_pairs.push((conn, queue_pair));
        true
    }

    /// Sends the request for a connection whose route is known.
    ///
    /// # Panics
    /// If the connection is at another point.
    pub fn connect(&mut self, now: Time, conn: ConnId, params: &ConnParams) {
        self.cm.connect(now, conn, params).expect("its route was known");
    }

    /// Accepts a connection that has a queue pair.
    ///
    /// # Errors
    /// The other peer has gone.
    pub fn accept(&mut self, now: Time, conn: ConnId, params: &ConnParams) -> Result<(), CmError> {
        self.cm.accept(now, conn, params)
    }

    /// Rejects a connection, with any private data.
    ///
    /// # Errors
    /// The other peer has gone.
    pub fn reject(&mut self, now: Time, conn: ConnId, private: &[u8]) -> Result<(), CmError> {
        self.cm.reject(now, conn, private)
    }

    /// Ends a connection in order.
    pub fn disconnect(&mut self, now: Time, conn: ConnId) {
        self.cm.disconnect(now, conn);
    }

    /// Forgets a connection, but not its queue pair.
    pub fn close(&mut self, conn: ConnId) {
        self.cm.close(conn);
    }

    /// Forgets a connection, and frees its queue pair.
    pub fn release(&mut self, conn: ConnId) {
        if let Some(at) = self.position(conn) {
            let (_, queue_pair) = self.queue_pairs.swap_remove(at);
            self.group.release(queue_pair.key);
        }
        self.cm.close(conn);
    }

    /// The queue pair of a connection fails, and the other peer is not told.
    pub fn fail(&mut self, conn: ConnId) {
        if let Some(at) = self.position(conn) {
            self.group.fail(self.queue_pairs[at].1.key);
        }
    }

    /// Whether a connection has a queue pair.
    pub fn has_queue_pair(&self, conn: ConnId) -> bool {
        self.position(conn).is_some()
    }

    /// Posts up to `count` receives, until all places are used.
    pub fn post_receives(&mut self, conn: ConnId, count: usize) {
        let Some(at) = self.position(conn) else { return };
        let RawQueuePair { key, arrivals, free } = &mut self.queue_pairs[at].1;
        let length = self.shape.receive_bytes;
        for _ in 0..count {
            let Some(&place) = free.last() else { return };
            let sge = Sge {
                addr: arrivals.address(place * length),
                length: length as u32,
                lkey: arrivals.lkey(),
            };
            let wr = RecvWr { wr_id: RECEIVE | place as u64, sges: &[sge] };
            // SAFETY: the memory is registered and freed after the queue pair. It consists of
            // cells, which are read only once the receive has completed.
            if unsafe { self.group.push_recv(*key, &wr) }.is_err() {
                return;
            }
            free.pop();
        }
    }

    /// Does something with `length` bytes of `memory` from `at` on; that they are there is for the
    /// device to find out. `wr_id` is for the caller, and below 2^63.
    ///
    /// # Errors
    /// There is no room for one request more.
    ///
    /// # Panics
    /// If the connection has no queue pair.
    pub fn push(
        &mut self,
        conn: ConnId,
        wr_id: u64,
        op: Op,
        memory: &RawMemory<P>,
        at: usize,
        length: usize,
    ) -> Result<(), PushError> {
        let key = self.queue_pairs[self.position(conn).expect("it has a queue pair")].1.key;
        let sge = Sge { addr: memory.address(at), length: length as u32, lkey: memory.lkey() };
        let wr = SendWr { wr_id, op, flags: SendFlags::SIGNALED, sges: &[sge] };
        // SAFETY: the device takes no bytes but those of the region behind the key, which is
        // dropped before them. They are cells, so they may change at any time: a peer that changes
        // what it sends only spoils its own message.
        unsafe { self.group.push_send(key, &wr) }
    }

    /// Returns the next event. `None` ends the turn: call [`RawPeer::flush`] then.
    pub fn poll(&mut self, now: Time) -> Option<PeerEvent> {
        if self.reaped.is_none() {
            if let Some(event) = self.cm.poll(now) {
                return Some(PeerEvent::Connection(event));
            }
            let mut wcs = [Wc::default(); BATCH];
            let count = self.group.poll(now, &mut wcs);
            self.reaped = Some(wcs[..count].iter().copied().collect());
        }
        let wc = self.reaped.as_mut().and_then(VecDeque::pop_front);
        if wc.is_none() {
            self.reaped = None;
        }
        wc.map(|wc| self.completed(&wc))
    }

    /// Hands all that was posted to the device.
    pub fn flush(&mut self, now: Time) {
        self.group.flush(now);
    }

    /// When it must be polled again at the latest.
    pub fn deadline(&self) -> Option<Time> {
        self.cm.deadline().into_iter().chain(self.group.deadline()).min()
    }

    fn completed(&mut self, wc: &Wc) -> PeerEvent {
        let group = &self.group;
        let mut all = self.queue_pairs.iter_mut();
        let found = all.find(|(_, queue_pair)| group.qpn(queue_pair.key) == wc.qpn);
        let Some((conn, queue_pair)) = found else { return PeerEvent::Stale };
        let conn = *conn;
        let place = (wc.wr_id & !RECEIVE) as usize;
        let received = wc.wr_id & RECEIVE != 0;
        if received {
            queue_pair.free.push(place);
        }
        match (wc.is_success(), received) {
            (false, _) => PeerEvent::Failed { conn },
            (true, false) => PeerEvent::Sent { conn, wr_id: wc.wr_id, opcode: wc.opcode },
            (true, true) => {
                let at = place * self.shape.receive_bytes;
                let bytes = queue_pair.arrivals.get(at, wc.byte_len as usize).collect();
                PeerEvent::Arrived { conn, bytes }
            }
        }
    }

    fn position(&self, conn: ConnId) -> Option<usize> {
        self.queue_pairs.iter().position(|(other, _)| *other == conn)
    }
}
