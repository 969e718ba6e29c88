//! Resources that the transports of one core share: time, storage and buffers.

pub(crate) mod buffers;
pub(crate) mod events;
pub(crate) mod pool;
mod request_key;
pub(crate) mod share;

use std::sync::Arc;

use rdma::Time;

use self::buffers::CoreBuffers;
pub use self::request_key::RequestKey;
use crate::backend::{BackendError, Operation};
use crate::controller::{Associations, IoWork};
use crate::doorbell::Doorbell;
use crate::inventory::Registry;
use crate::inventory::index::NamespaceIndex;
use crate::inventory::published::CoreExports;
use crate::metrics::io_counters::CoreIoStats;
use crate::metrics::namespace_io::CoreNamespaceIo;
use crate::storage::{Storage, Submitted, Tag};

/// Resources of one core, which its poll group lends to each transport during a turn.
pub(crate) struct CoreContext {
    /// Time at the start of this turn.
    pub now: Time,
    /// Whether another thread rang the core's doorbell since the previous turn.
    pub(crate) rung: bool,
    /// Ports, subsystems and namespaces of the target.
    pub registry: Arc<Registry>,
    /// Exported namespaces as this core uses them in this turn.
    pub(crate) exports: CoreExports,
    /// Controllers of the target, one for each association.
    pub associations: Arc<Associations>,
    /// I/O counters of this core.
    pub io_stats: Arc<CoreIoStats>,
    namespace_io: CoreNamespaceIo,
    /// Latency from which on commands are slow (`slow_command_ms`), in nanoseconds.
    slow_nanos: u64,
    /// Latency from which on commands are logged or traced in this turn, in nanoseconds; 0 while a
    /// trace is running.
    told_nanos: u64,
    // Dropped before the buffers: its drop waits for operations that use them.
    storage: Storage,
    buffers: CoreBuffers,
    /// Most concurrent requests of all connections together.
    requests: usize,
}

impl CoreContext {
    pub(crate) fn new(
        associations: Arc<Associations>,
        storage: Storage,
        buffers: CoreBuffers,
        bell: &Arc<Doorbell>,
    ) -> Self {
        let registry = Arc::clone(associations.registry());
        let exports = registry.publication().join(Arc::clone(bell));
        let io_stats = registry.open_core_io_stats();
        let slow = registry.limits().slow_command;
        let slow_nanos =
            slow.map_or(u64::MAX, |slow| slow.as_nanos().try_into().unwrap_or(u64::MAX));
        Self {
            now: Time::ZERO,
            rung: false,
            registry,
            exports,
            associations,
            io_stats,
            namespace_io: CoreNamespaceIo::default(),
            slow_nanos,
            told_nanos: slow_nanos,
            storage,
            buffers,
            requests: 0,
        }
    }

    pub(crate) fn buffers(&mut self) -> &mut CoreBuffers {
        &mut self.buffers
    }

    pub(crate) fn storage(&mut self) -> &mut Storage {
        &mut self.storage
    }

    /// Reserves memory in storage for the requests of a new connection.
    pub(crate) fn reserve(&mut self, requests: usize) {
        self.requests += requests;
        self.storage.reserve(self.requests);
    }

    /// Subtracts the requests of a connection that has ended. Their memory is kept for later ones.
    pub(crate) fn unreserve(&mut self, requests: usize) {
        self.requests -= requests;
    }

    /// Begins a turn: sets the time, and whether a trace records all commands.
    pub(crate) fn begin_turn(&mut self, now: Time) {
        self.now = now;
        self.told_nanos = if self.associations.trace().is_active() { 0 } else { self.slow_nanos };
    }

    /// Nanoseconds from `arrived` to the start of this turn, the latency of a command that ends
    /// now.
    pub(crate) fn latency_nanos(&self, arrived: Time) -> u64 {
        self.now.as_nanos().saturating_sub(arrived.as_nanos())
    }

    /// Whether a command that ends now was slow.
    pub(crate) fn is_slow(&self, arrived: Time) -> bool {
        self.latency_nanos(arrived) >= self.slow_nanos
    }

    /// Counts an I/O command that has ended; true if it is to be logged (a slow one) or traced.
    pub(crate) fn count_io(&mut self, work: &IoWork, latency_nanos: u64, succeeded: bool) -> bool {
        let Self { namespace_io, exports, .. } = self;
        let list = || exports.namespace(work.namespace).map(|namespace| &*namespace.io);
        namespace_io.count(work, latency_nanos, succeeded, list);
        latency_nanos >= self.told_nanos
    }

    /// Starts an operation of a request on a namespace's medium, unless the namespace was removed.
    pub(crate) fn submit(
        &mut self,
        whose: RequestKey,
        namespace: NamespaceIndex,
        operation: Operation,
    ) -> Submitted {
        let Some(namespace) = self.exports.namespace(namespace) else {
            return Submitted::Over(Err(BackendError::Removed));
        };
        self.storage.submit(self.now, Tag(whose.to_bits()), namespace.backend(), operation)
    }

    /// Flushes a namespace's medium. For a namespace that was removed and closed it succeeds, since
    /// the medium was flushed then.
    pub(crate) fn flush(&mut self, whose: RequestKey, namespace: NamespaceIndex) -> Submitted {
        let backend = match self.exports.namespace(namespace) {
            Some(namespace) => Some(Arc::clone(namespace.backend())),
            None => self.exports.draining_backend(namespace),
        };
        let Some(backend) = backend else { return Submitted::Over(Ok(())) };
        self.storage.submit(self.now, Tag(whose.to_bits()), &backend, Operation::flush())
    }

    /// Adopts the latest exports, and reports when no operation of this core uses the namespaces
    /// removed from them. Called in each turn; cheap while nothing changes.
    pub(crate) fn follow_exports(&mut self) {
        if !self.exports.follow() {
            return;
        }
        let mut idle = true;
        for draining in self.exports.draining() {
            idle &= self.storage.release_if_idle(&draining.medium);
        }
        if idle {
            self.exports.report_idle();
        }
    }
}
