//! A target with its bones showing: it takes every command, and sends what it is told to.

use std::net::SocketAddr;

use rdma::{Access, CmEvent, ConnId, ConnParams, Op, Provider, PushError, Time, WcOpcode};

use crate::{PeerEvent, RawMemory, RawPeer, RawPeerShape};

/// One device with everything that a target has on it.
pub struct RawTarget<P: Provider> {
    peer: RawPeer<P>,
    shape: RawTargetShape,
    /// Places for what is on its way, then data. None of it is open to hosts.
    memory: RawMemory<P>,
    staged: usize,
}

/// The sizes of a [`RawTarget`].
#[derive(Clone, Copy, Debug)]
pub struct RawTargetShape {
    /// Connections that have a queue pair at a time.
    pub queue_pairs: u32,
    /// Send requests that each can have posted.
    pub sends: u32,
    /// Receives that each can have posted.
    pub receives: u32,
    /// The longest capsule that it takes.
    pub capsule_bytes: usize,
    /// Places for responses and pages that are on their way; the oldest is used again.
    pub places: usize,
    /// The longest of them.
    pub place_bytes: usize,
    /// Memory that RDMA operations move to and from hosts.
    pub data_bytes: usize,
}

/// Bytes of a target's memory that an RDMA operation takes. They need not be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawPiece {
    at: usize,
    length: usize,
}

/// Event at a [`RawTarget`].
#[derive(Debug)]
pub enum RawTargetEvent {
    /// A host asks for a connection.
    Request {
        /// The connection that it asks for.
        conn: ConnId,
        /// Parameters and private data of the request.
        params: ConnParams,
    },
    /// A connection has ended.
    Gone {
        /// The connection, whose queue pair is gone.
        conn: ConnId,
    },
    /// A command capsule came. Its receive is posted again.
    Capsule {
        /// The connection that it came on.
        conn: ConnId,
        /// The bytes of the capsule.
        bytes: Vec<u8>,
    },
    /// The bytes that were read from a host have arrived.
    Fetched {
        /// The connection that the RDMA READ was pushed to.
        conn: ConnId,
        /// The identifier of the RDMA READ.
        wr_id: u64,
    },
    /// Nothing that a target looks at.
    Other,
}

impl<P: Provider> RawTarget<P> {
    /// A target that listens.
    ///
    /// # Panics
    /// If the device has no room, or something else listens there.
    pub fn new(device: P::Device, address: SocketAddr, shape: RawTargetShape) -> Self {
        let RawTargetShape { queue_pairs, sends, receives, capsule_bytes, .. } = shape;
        let length = shape.data_at() + shape.data_bytes;
        let memory = RawMemory::new(&device, length, Access::LOCAL_WRITE);
        let receive_bytes = capsule_bytes;
        let shape_of_peer = RawPeerShape { queue_pairs, sends, receives, receive_bytes };
        let mut peer = RawPeer::new(device, shape_of_peer);
        peer.listen(address);
        Self { peer, shape, memory, staged: 0 }
    }

    /// The device that it is on.
    pub fn device(&self) -> &P::Device {
        self.peer.device()
    }

    /// Returns the next event. `None` ends the turn: call [`RawTarget::flush`] then.
    pub fn poll(&mut self, now: Time) -> Option<RawTargetEvent> {
        Some(match self.peer.poll(now)? {
            PeerEvent::Connection(CmEvent::ConnectRequest { conn, params, .. }) => {
                RawTargetEvent::Request { conn, params }
            }
            PeerEvent::Connection(
                CmEvent::Disconnected { conn, .. } | CmEvent::ConnectFailed { conn, .. },
            ) => {
                self.peer.release(conn);
                RawTargetEvent::Gone { conn }
            }
            PeerEvent::Arrived { conn, bytes } => {
                self.peer.post_receives(conn, 1);
                RawTargetEvent::Capsule { conn, bytes }
            }
            PeerEvent::Sent { conn, wr_id, opcode: WcOpcode::RDMA_READ } => {
                RawTargetEvent::Fetched { conn, wr_id }
            }
            PeerEvent::Connection(_)
            | PeerEvent::Sent { .. }
            | PeerEvent::Failed { .. }
            | PeerEvent::Stale => RawTargetEvent::Other,
        })
    }

    /// Hands all that was posted to the device.
    pub fn flush(&mut self, now: Time) {
        self.peer.flush(now);
    }

    /// When it must be polled again at the latest.
    pub fn deadline(&self) -> Option<Time> {
        self.peer.deadline()
    }

    /// Accepts a connection, with so many receives. Returns whether the host is still there.
    pub fn accept(
        &mut self,
        now: Time,
        conn: ConnId,
        params: &ConnParams,
        receives: usize,
    ) -> bool {
        if !self.peer.create_queue_pair(conn) {
            return false;
        }
        self.peer.post_receives(conn, receives);
        let accepted = self.peer.accept(now, conn, params).is_ok();
        if !accepted {
            self.peer.release(conn);
        }
        accepted
    }

    /// Rejects a connection with any private data. The host may already have gone.
    pub fn reject(&mut self, now: Time, conn: ConnId, private: &[u8]) {
        let _ = self.peer.reject(now, conn, private);
    }

    /// Ends a connection in order.
    pub fn disconnect(&mut self, now: Time, conn: ConnId) {
        self.peer.disconnect(now, conn);
    }

    /// Sends any bytes, with `op` for the operation: SEND, with or without invalidation, or an RDMA
    /// WRITE.
    ///
    /// # Errors
    /// There is no room for one request more.
    ///
    /// # Panics
    /// If the connection has ended, or the bytes are more than fit a place.
    pub fn send(&mut self, conn: ConnId, op: Op, bytes: &[u8]) -> Result<(), PushError> {
        let piece = self.stage(bytes);
        self.push(conn, 0, op, piece)
    }

    /// Does something with a piece of memory. `wr_id` is what [`RawTargetEvent::Fetched`] tells of
    /// an RDMA READ.
    ///
    /// # Errors
    /// There is no room for one request more.
    ///
    /// # Panics
    /// If the connection has ended.
    pub fn push(
        &mut self,
        conn: ConnId,
        wr_id: u64,
        op: Op,
        piece: RawPiece,
    ) -> Result<(), PushError> {
        self.peer.push(conn, wr_id, op, &self.memory, piece.at, piece.length)
    }

    /// Puts bytes where they can be sent from.
    ///
    /// # Panics
    /// If they are more than fit a place.
    pub fn stage(&mut self, bytes: &[u8]) -> RawPiece {
        assert!(bytes.len() <= self.shape.place_bytes, "as much as fits a place");
        let at = self.staged % self.shape.places * self.shape.place_bytes;
        self.staged += 1;
        self.memory.put(at, bytes);
        RawPiece { at, length: bytes.len() }
    }

    /// A piece of the data.
    pub const fn data(&self, at: usize, length: usize) -> RawPiece {
        RawPiece { at: self.shape.data_at() + at, length }
    }

    /// Writes to the data.
    pub fn put(&self, at: usize, bytes: &[u8]) {
        self.memory.put(self.shape.data_at() + at, bytes);
    }

    /// Reads `length` bytes of the data.
    pub fn get(&self, at: usize, length: usize) -> impl Iterator<Item = u8> + '_ {
        self.memory.get(self.shape.data_at() + at, length)
    }
}

impl RawPiece {
    /// How many bytes it has.
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Whether it has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Changes the length and keeps the beginning.
    #[must_use]
    pub const fn with_len(self, length: usize) -> Self {
        Self { length, ..self }
    }
}

impl RawTargetShape {
    /// Where data begins in memory.
    const fn data_at(&self) -> usize {
        self.places * self.place_bytes
    }
}
