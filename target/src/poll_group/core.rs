//! What the transports of one core share: time, storage and buffers.

use std::collections::VecDeque;
use std::sync::Arc;

use rdma::Time;

use crate::namespace::NamespaceIndex;
use crate::pool::{Buffer, Pool};
use crate::registry::Registry;
use crate::storage::{Operation, OperationKey, Storage, Tag};
use crate::transport::RequestKey;

/// One core's resources.
pub struct Core {
    /// The time of this turn.
    pub now: Time,
    /// Whether another thread rang before this turn.
    pub(crate) rung: bool,
    /// What the target exports.
    pub registry: Arc<Registry>,
    // Before the buffers: it waits for operations that use them.
    storage: Storage,
    buffers: Buffers,
}

impl Core {
    pub(crate) fn new(registry: Arc<Registry>, storage: Storage, pool: Pool) -> Self {
        let buffers = Buffers { pool, waiting: VecDeque::new(), requests: 0, waits: 0 };
        Self { now: Time::ZERO, rung: false, registry, storage, buffers }
    }

    /// The buffers.
    pub fn buffers(&mut self) -> &mut Buffers {
        &mut self.buffers
    }

    /// The storage engine.
    pub fn storage(&mut self) -> &mut Storage {
        &mut self.storage
    }

    /// Makes room for the requests of a new connection.
    pub(crate) fn reserve(&mut self, requests: usize) {
        self.buffers.requests += requests;
        let requests = self.buffers.requests;
        self.storage.reserve(requests);
        let waiting = &mut self.buffers.waiting;
        waiting.reserve(requests.saturating_sub(waiting.len()));
    }

    /// The requests of a connection are gone.
    pub(crate) fn unreserve(&mut self, requests: usize) {
        self.buffers.requests -= requests;
    }

    /// Starts an operation on a namespace's medium.
    pub(crate) fn submit(
        &mut self,
        whose: RequestKey,
        namespace: NamespaceIndex,
        operation: Operation,
    ) -> OperationKey {
        let backend = self.registry.namespace(namespace).backend();
        self.storage.submit(self.now, Tag(whose.to_bits()), backend, operation)
    }
}

/// The buffers of one core, and the requests that stand in line for one.
pub struct Buffers {
    pool: Pool,
    /// In order of arrival. Nobody overtakes: a large request would otherwise never find its room.
    waiting: VecDeque<(RequestKey, u32)>,
    requests: usize,
    waits: u64,
}

impl Buffers {
    /// A buffer for a request, or a place in the line.
    pub(crate) fn allocate(&mut self, whose: RequestKey, length: u32) -> Option<Buffer> {
        let buffer = if self.waiting.is_empty() { self.pool.allocate(length) } else { None };
        if buffer.is_none() {
            self.waits += 1;
            self.waiting.push_back((whose, length));
        }
        buffer
    }

    /// A request has to wait before it may stand in line.
    pub(crate) fn count_wait(&mut self) {
        self.waits += 1;
    }

    /// The first in line and its buffer, if there is enough room now.
    pub(crate) fn grant(&mut self) -> Option<(RequestKey, Buffer)> {
        let &(whose, length) = self.waiting.front()?;
        let buffer = self.pool.allocate(length)?;
        self.waiting.pop_front();
        Some((whose, buffer))
    }

    /// Whether a request stands in line.
    pub(crate) fn is_waited_for(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Takes a request out of the line; returns the bytes that it waited for, 0 if it was not in it.
    pub(crate) fn leave(&mut self, whose: RequestKey) -> u64 {
        let Some(at) = self.waiting.iter().position(|(other, _)| *other == whose) else { return 0 };
        self.waiting.remove(at).map_or(0, |(_, length)| length.into())
    }

    /// Takes a buffer back.
    pub(crate) fn release(&mut self, buffer: Buffer) {
        self.pool.release(buffer);
    }

    /// The pool.
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// How often a request had to stand in line.
    pub(crate) fn waits(&self) -> u64 {
        self.waits
    }
}
