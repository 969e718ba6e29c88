//! A host that always has as much in flight: what it gets done tells of the network.

use feedrail_initiator::{Grant, Namespace, RangeCompletion, RegionSlice, Ring};

use super::HostNode;

/// Direction of a flow's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BulkDirection {
    /// The target sends RDMA WRITEs.
    Read,
    /// The target asks for the bytes with RDMA READs.
    Write,
}

/// Ranges of one length, one after the other through a namespace; each that ends is followed by
/// another.
pub struct BulkFlow {
    namespace: Namespace,
    ring: Ring,
    direction: BulkDirection,
    length: usize,
    next_offset: u64,
    /// Memory of the ranges that are to be started.
    idle: Vec<RegionSlice>,
    ended: Vec<RangeCompletion>,
    bytes: u64,
}

impl BulkFlow {
    /// `depth` ranges of `length` bytes. The namespace must be as long as one of them, at least.
    pub fn new(
        host: &HostNode,
        namespace: Namespace,
        direction: BulkDirection,
        (length, depth): (usize, usize),
    ) -> Self {
        let memory = || RegionSlice::from_vec(vec![0x5A; length], Grant::Persistent);
        Self {
            ring: host.host.ring(depth),
            namespace,
            direction,
            length,
            next_offset: 0,
            idle: (0..depth).map(|_| memory()).collect(),
            ended: Vec::with_capacity(depth),
            bytes: 0,
        }
    }

    /// Bytes of the ranges that have ended.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes results, and starts the next ranges.
    ///
    /// # Panics
    /// If a range failed.
    pub fn turn(&mut self) {
        self.ring.reap(&mut self.ended);
        for RangeCompletion { slice, result, .. } in self.ended.drain(..) {
            result.expect("such a network fails no range");
            self.bytes += self.length as u64;
            self.idle.push(slice);
        }
        while let Some(slice) = self.idle.pop() {
            self.start(slice);
        }
    }

    fn start(&mut self, slice: RegionSlice) {
        let length = self.length as u64;
        if self.next_offset + length > self.namespace.size_bytes() {
            self.next_offset = 0;
        }
        let offset = self.next_offset;
        self.next_offset += length;
        let full = match self.direction {
            BulkDirection::Read => self.ring.read(&self.namespace, offset, slice, 0),
            BulkDirection::Write => self.ring.write(&self.namespace, offset, slice, 0),
        };
        full.expect("no more in flight than the ring has room for");
    }
}
