//! A host that may do anything, and counts its responses.

use std::net::SocketAddr;
use std::time::Duration;

use nvme_proto::{Cntlid, Cqe, Sgl};
use raw_peers::{RawHost, RawHostShape, RawReceives};
use rdma::sim::{Sim, SimDevice};
use rdma::{ConnParams, Op, Time};

/// Capsules in transit; a later one takes the place of the oldest.
const CAPSULES: usize = 16;
pub(super) const CAPSULE_BYTES: usize = 64 + 4096 + 64;
/// Memory that commands point at.
pub(super) const DATA_BYTES: usize = 64 << 10;
/// Connections of one execution.
const LINKS_MAX: usize = 6;

const SHAPE: RawHostShape = RawHostShape {
    queue_pairs: 16,
    sends: 64,
    receives: 64,
    capsules: CAPSULES,
    capsule_bytes: CAPSULE_BYTES,
    data_bytes: DATA_BYTES,
    timeout: Duration::from_secs(5),
};

/// A host whose every command is answered once at the most.
pub(super) struct FuzzHost {
    raw: RawHost<Sim>,
    pub(super) links: Vec<FuzzLink>,
}

/// The state of one connection.
#[derive(Default)]
pub(super) struct FuzzLink {
    /// Commands that were sent and are not answered, by the place of their capsule, which is their
    /// identifier.
    owed: [u8; CAPSULES],
    /// Responses that were not looked at yet.
    pub(super) answers: Vec<Cqe>,
    /// Which identifier the latest Connect had.
    pub(super) connect: Option<u16>,
    /// The controller that Connect led to.
    pub(super) cntlid: Option<Cntlid>,
}

impl FuzzHost {
    pub(super) fn new(device: SimDevice) -> Self {
        Self { raw: RawHost::new(device, SHAPE), links: Vec::new() }
    }

    pub(super) fn device(&self) -> &SimDevice {
        self.raw.device()
    }

    /// Asks for a connection. As many receives are posted as are said, and it may be more or fewer
    /// than it said.
    pub(super) fn connect(
        &mut self,
        now: Time,
        to: SocketAddr,
        params: ConnParams,
        receives: usize,
    ) {
        if self.links.len() < LINKS_MAX {
            self.raw.dial(now, to, params, RawReceives::once(receives));
            self.links.push(FuzzLink::default());
        }
    }

    /// Whether all its connections are there.
    pub(super) fn is_up(&self) -> bool {
        self.raw.links.iter().all(|link| link.is_up())
    }

    /// The identifier of the next command that is sent.
    pub(super) fn next_cid(&self) -> u16 {
        self.raw.next_place() as u16
    }

    /// Sends a capsule, with [`FuzzHost::next_cid`] for its identifier if it is long enough to have
    /// one.
    pub(super) fn send(&mut self, link: usize, capsule: &[&[u8]]) {
        if !self.raw.has_queue_pair(link) {
            return;
        }
        let cid = self.next_cid();
        let mut bytes = capsule.concat();
        if let Some(place) = bytes.get_mut(2..4) {
            place.copy_from_slice(&cid.to_le_bytes());
        }
        if self.raw.send(link, &bytes).is_ok() {
            self.links[link].owed[usize::from(cid)] += 1;
        }
    }

    /// An operation that is no command, with data memory.
    pub(super) fn operate(&mut self, link: usize, op: Op, at: usize, length: usize) {
        if self.raw.has_queue_pair(link) {
            // An operation that finds no room is not done.
            let _ = self.raw.operate(link, op, at, length);
        }
    }

    /// Posts receives for responses.
    pub(super) fn post_receives(&mut self, link: usize, count: usize) {
        self.raw.post_receives(link, count);
    }

    /// Writes to data memory.
    pub(super) fn put(&self, at: usize, bytes: &[u8]) {
        self.raw.put(at, bytes);
    }

    /// Reads the memory that the target reads and writes.
    pub(super) fn get(&self, at: usize, length: usize) -> impl Iterator<Item = u8> + '_ {
        self.raw.get(at, length)
    }

    /// A descriptor of data memory; nothing keeps it from naming bytes that are not there.
    pub(super) fn keyed(&self, at: usize, length: usize) -> Sgl {
        self.raw.keyed(at, length)
    }

    /// Takes the memory away while it may be in use; the new memory has another key.
    pub(super) fn replace_memory(&mut self) {
        self.raw.replace_memory();
    }

    /// Ends a connection in order.
    pub(super) fn disconnect(&mut self, now: Time, link: usize) {
        self.raw.disconnect(now, link);
    }

    /// The queue pair fails without an event.
    pub(super) fn fail(&mut self, link: usize) {
        self.raw.fail(link);
    }

    /// Frees all connections, as if there had been none.
    pub(super) fn forget(&mut self) {
        self.raw.forget();
        self.links.clear();
    }

    /// Does all that is ready; true if there was anything.
    pub(super) fn turn(&mut self, now: Time) -> bool {
        let worked = self.raw.turn(now);
        for (raw, link) in self.raw.links.iter_mut().zip(&mut self.links) {
            raw.responses.drain(..).for_each(|cqe| link.answered(cqe));
        }
        worked
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.raw.deadline()
    }
}

impl FuzzLink {
    fn answered(&mut self, cqe: Cqe) {
        let cid = cqe.cid().0;
        let owed = self.owed.get_mut(usize::from(cid)).filter(|owed| **owed > 0);
        *owed.expect("only a command is answered, and once") -= 1;
        if self.connect == Some(cid) && cqe.status().is_success() {
            self.connect = None;
            self.cntlid = Some(Cntlid(cqe.dw0.get() as u16));
        }
        self.answers.push(cqe);
    }
}
