//! A host whose capsules are built by hand.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use nvme_proto::rdma_cm::ConnectRequest;
use nvme_proto::{Cntlid, Cqe, IntoBytes, Qid, Sgl, Sqe};
pub(crate) use raw_peers::RawLinkState as Link;
use raw_peers::{RawHost, RawHostShape, RawReceives};
use rdma::{Provider, Time};

const SHAPE: RawHostShape = RawHostShape {
    queue_pairs: 64,
    sends: 256,
    receives: 256,
    capsules: 256,
    capsule_bytes: 64 + 8192,
    data_bytes: 8 << 20,
    timeout: Duration::from_secs(5),
};

/// One device with everything that a host has on it.
pub(crate) struct Host<P: Provider> {
    raw: RawHost<P>,
    pub(crate) queues: Vec<Queue>,
}

/// The state of one connection.
pub(crate) struct Queue {
    pub(crate) qid: Qid,
    pub(crate) cntlid: Cntlid,
}

impl<P: Provider> Host<P> {
    pub(crate) fn new(device: &P::Device) -> Self {
        Self { raw: RawHost::new(device.clone(), SHAPE), queues: Vec::new() }
    }

    /// Starts a connection with well-formed private data.
    pub(crate) fn connect(&mut self, now: Time, to: SocketAddr, qid: u16, entries: u16) -> usize {
        let request = ConnectRequest::new(Qid(qid), Cntlid(0), entries, entries.into());
        self.connect_with(now, to, qid, entries, request.as_bytes())
    }

    pub(crate) fn connect_with(
        &mut self,
        now: Time,
        to: SocketAddr,
        qid: u16,
        entries: u16,
        private: &[u8],
    ) -> usize {
        let receives = RawReceives { at_first: entries.into(), later: usize::MAX };
        self.queues.push(Queue { qid: Qid(qid), cntlid: Cntlid(0) });
        self.raw.dial(now, to, RawHost::<P>::request(private), receives)
    }

    pub(crate) fn state(&self, queue: usize) -> Link {
        self.raw.links[queue].state
    }

    /// Whether all of its connections are in this state.
    pub(crate) fn all_are(&self, state: Link) -> bool {
        self.raw.links.iter().all(|link| link.state == state)
    }

    /// Responses that no test has taken.
    pub(crate) fn responses(&mut self, queue: usize) -> &mut VecDeque<Cqe> {
        &mut self.raw.links[queue].responses
    }

    /// Sends a command capsule; the descriptor must already be in the entry.
    pub(crate) fn send(&mut self, queue: usize, sqe: &Sqe, in_capsule: &[u8]) {
        self.send_bytes(queue, &[sqe.as_bytes(), in_capsule].concat());
    }

    pub(crate) fn send_bytes(&mut self, queue: usize, bytes: &[u8]) {
        self.raw.send(queue, bytes).unwrap();
    }

    /// Writes to data memory, which commands refer to.
    pub(crate) fn put(&self, offset: usize, bytes: &[u8]) {
        self.raw.put(offset, bytes);
    }

    /// Fills a part of data memory with one byte.
    pub(crate) fn fill(&self, offset: usize, length: usize, byte: u8) {
        self.raw.fill(offset, length, byte);
    }

    /// Reads the memory that the target reads and writes.
    pub(crate) fn get(&self, offset: usize, length: usize) -> Vec<u8> {
        self.raw.get(offset, length).collect()
    }

    /// Descriptor of data memory.
    pub(crate) fn keyed(&self, offset: usize, length: usize) -> Sgl {
        self.raw.keyed(offset, length)
    }

    pub(crate) fn disconnect(&mut self, now: Time, queue: usize) {
        self.raw.disconnect(now, queue);
    }

    /// Frees all connections, as a host that restarts.
    pub(crate) fn forget(&mut self) {
        self.queues.clear();
        self.raw.forget();
    }

    /// Does everything that is due; true if there was anything.
    pub(crate) fn turn(&mut self, now: Time) -> bool {
        self.raw.turn(now)
    }

    pub(crate) fn deadline(&self) -> Option<Time> {
        self.raw.deadline()
    }

    /// Stops posting receives: accepts responses for the present receives only.
    pub(crate) fn post_no_more(&mut self, queue: usize) {
        self.raw.links[queue].receives.later = 0;
    }

    /// Accepts one more response on a queue that has stopped posting receives.
    pub(crate) fn take_one_more(&mut self, queue: usize) {
        self.raw.post_receives(queue, 1);
    }
}
