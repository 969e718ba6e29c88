//! Resources that the transports of one core share: time, storage and buffers.
//!
//! There is a pool of buffers for hosts, and one for anonymous connections. A connection is
//! anonymous until it was admitted to a subsystem: Connect has not succeeded yet, or it is one of
//! the discovery service. Anonymous connections have a small pool of their own, so that unknown
//! peers take no buffers from hosts, and hosts with many buffers keep no other host from
//! connecting.

pub(crate) mod events;
pub(crate) mod pool;
mod request_key;
pub(crate) mod share;
pub(crate) mod throttle;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use nvme_proto::HostNqn;
use rdma::Time;

use self::events::BufferEvent;
use self::pool::{Buffer, Pool};
pub use self::request_key::{OperationOwner, RequestKey, SlotId};
use self::share::{AccountKey, AccountName, Share};
use self::throttle::{MeteredCommand, Throttle};
use crate::backend::{BackendError, Operation};
use crate::controller::command_trace::TracedCommand;
use crate::controller::{Associations, IoWork};
use crate::doorbell::Doorbell;
use crate::inventory::Inventory;
use crate::inventory::index::NamespaceIndex;
use crate::inventory::published::{CoreExports, ExportsNumber};
use crate::limits::peer::PeerOrigin;
use crate::metrics::io_counters::{CoreIoStats, CoreNamespaceIo};
use crate::metrics::latency::Latency;
use crate::metrics::snapshot::PoolStats;
use crate::storage::{Storage, Submitted};

/// Buffers of one core, and the requests that wait for one.
pub(crate) struct CoreBuffers {
    hosts: Share,
    anonymous: Share,
}

/// Accounts in [`CoreBuffers`] to which a connection's buffers are charged.
#[derive(Debug)]
pub(crate) struct Accounts {
    origin: PeerOrigin,
    requests: usize,
    anonymous: AccountKey,
    /// Account of its host, once the connection was admitted to a subsystem.
    host: Option<AccountKey>,
}

/// Resources of one core, which its poll group lends to each transport during a turn.
pub(crate) struct CoreContext {
    /// Time at the start of this turn.
    pub now: Time,
    /// Whether another thread rang the core's doorbell since the previous turn.
    pub(crate) rung: bool,
    /// Ports, subsystems and namespaces of the target.
    pub inventory: Arc<Inventory>,
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
    storage: Storage<RequestKey>,
    buffers: CoreBuffers,
    /// Commands that wait for their quotas.
    pub(crate) throttle: Throttle,
    /// Change of limits, and generation of the exports, to which waiting commands were adapted.
    adapted_to: (u64, ExportsNumber),
    /// Most concurrent requests of all connections together.
    requests: usize,
}

impl CoreContext {
    pub(crate) fn new(
        associations: Arc<Associations>,
        storage: Storage<RequestKey>,
        buffers: CoreBuffers,
        bell: &Arc<Doorbell>,
    ) -> Self {
        let inventory = Arc::clone(associations.inventory());
        let exports = inventory.publication().join(Arc::clone(bell));
        let io_stats = inventory.open_core_io_stats();
        let slow = inventory.limits().slow_command;
        let slow_nanos =
            slow.map_or(u64::MAX, |slow| slow.as_nanos().try_into().unwrap_or(u64::MAX));
        Self {
            now: Time::ZERO,
            rung: false,
            inventory,
            exports,
            associations,
            io_stats,
            namespace_io: CoreNamespaceIo::default(),
            slow_nanos,
            told_nanos: slow_nanos,
            storage,
            buffers,
            throttle: Throttle::default(),
            adapted_to: Default::default(),
            requests: 0,
        }
    }

    pub(crate) fn buffers(&mut self) -> &mut CoreBuffers {
        &mut self.buffers
    }

    pub(crate) fn storage(&mut self) -> &mut Storage<RequestKey> {
        &mut self.storage
    }

    /// Reserves memory in storage for the requests of a new connection.
    pub(crate) fn reserve(&mut self, requests: usize) {
        self.requests += requests;
        self.storage.reserve(self.requests);
        self.throttle.reserve(self.requests);
    }

    /// Subtracts the requests of a connection that has ended. Their memory is kept for later ones.
    pub(crate) fn unreserve(&mut self, requests: usize) {
        self.requests -= requests;
    }

    /// Begins a turn: sets the time, whether commands have quotas, and whether a trace records all
    /// of them.
    pub(crate) fn begin_turn(&mut self, now: Time) {
        if !self.throttle.is_on() && self.exports.limit_changes() > 0 {
            self.throttle.turn_on(self.requests);
        }
        self.now = now;
        self.told_nanos = if self.associations.trace().is_active() { 0 } else { self.slow_nanos };
    }

    /// Nanoseconds from `arrived` to the start of this turn, the latency of a command that ends
    /// now.
    pub(crate) fn latency_nanos(&self, arrived: Time) -> u64 {
        self.now.as_nanos().saturating_sub(arrived.as_nanos())
    }

    /// Traces a command that ends now, and logs it if it was slow. `range` is the number of the
    /// range of a Deallocate.
    #[cold]
    pub(crate) fn tell_of(&self, command: &TracedCommand, range: usize) {
        let trace = self.associations.trace();
        if trace.is_active() {
            trace.add(*command);
        }
        if self.latency_nanos(command.arrived) >= self.slow_nanos {
            self.associations.log_slow(self.now, command, range);
        }
    }

    /// Counts an I/O command that has ended; true if it is to be logged (a slow one) or traced.
    #[inline]
    pub(crate) fn count_io(&mut self, work: &IoWork, latency: Latency, succeeded: bool) -> bool {
        let Self { namespace_io, exports, .. } = self;
        let open = || exports.namespace(work.namespace).map(|namespace| namespace.io.open());
        namespace_io.count(work, latency, succeeded, open);
        latency.nanos >= self.told_nanos
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
        self.storage.submit(self.now, whose, namespace.backend(), operation)
    }

    /// Executes a read of a namespace without waiting, if its bytes are in memory or in the page
    /// cache; returns whether all of them were read.
    pub(crate) fn read_now(&mut self, namespace: NamespaceIndex, operation: Operation) -> bool {
        let Some(namespace) = self.exports.namespace(namespace) else { return false };
        self.storage.read_now(self.now, &**namespace.backend(), operation)
    }

    /// Flushes a namespace's medium. For a namespace that was removed and closed it succeeds, since
    /// the medium was flushed then.
    pub(crate) fn flush(&mut self, whose: RequestKey, namespace: NamespaceIndex) -> Submitted {
        let backend = match self.exports.namespace(namespace) {
            Some(namespace) => Some(Arc::clone(namespace.backend())),
            None => self.exports.draining_backend(namespace),
        };
        let Some(backend) = backend else { return Submitted::Over(Ok(())) };
        self.storage.submit(self.now, whose, &backend, Operation::flush())
    }

    /// Adapts waiting commands to changed limits. Those on removed namespaces wait no longer, so
    /// that they fail. Cheap while nothing changes.
    pub(crate) fn follow_limits(&mut self) {
        let Self { throttle, exports, .. } = self;
        let present = (exports.limit_changes(), exports.generation());
        if std::mem::replace(&mut self.adapted_to, present) == present {
            return;
        }
        throttle.follow_changes(self.now);
        let is_gone = |command: &MeteredCommand| exports.namespace(command.namespace).is_none();
        throttle.release(self.now, is_gone);
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

impl CoreBuffers {
    pub(crate) fn new(hosts: Pool, anonymous: Pool) -> Self {
        Self { hosts: Share::new(hosts), anonymous: Share::new(anonymous) }
    }

    /// Adds an anonymous connection with at most `requests` concurrent requests.
    pub(crate) fn join(&mut self, origin: PeerOrigin, requests: usize) -> Accounts {
        let anonymous = self.anonymous.join(origin, AccountName::Unsaid, requests);
        Accounts { origin, requests, anonymous, host: None }
    }

    /// Moves a connection to the account of the host that was admitted to a subsystem; its later
    /// requests count there.
    pub(crate) fn recognise(&mut self, accounts: &mut Accounts, name: HostNqn) {
        if accounts.host.is_none() {
            let host = self.hosts.join(accounts.origin, AccountName::Said(name), accounts.requests);
            accounts.host = Some(host);
        }
    }

    /// Removes a connection that has neither buffers nor waiting requests.
    pub(crate) fn part(&mut self, accounts: Accounts) {
        self.anonymous.part(accounts.anonymous, accounts.requests);
        if let Some(host) = accounts.host {
            self.hosts.part(host, accounts.requests);
        }
    }

    /// Allocates a buffer for a request. `None`: the request waits for [`CoreBuffers::grant`].
    pub(crate) fn allocate(
        &mut self,
        accounts: &Accounts,
        whose: RequestKey,
        length: u32,
    ) -> Option<Buffer> {
        match accounts.host {
            Some(host) => self.hosts.allocate(host, whose, length),
            None => self.anonymous.allocate(accounts.anonymous, whose, length),
        }
    }

    /// Allocates a buffer for the next waiting request; `None` if none can get one now.
    pub(crate) fn grant(&mut self) -> Option<(RequestKey, Buffer)> {
        self.hosts.grant().or_else(|| self.anonymous.grant())
    }

    pub(crate) fn release(&mut self, accounts: &Accounts, buffer: Buffer) {
        let (share, account) = self.owner(accounts, &buffer);
        share.release(account, buffer);
    }

    /// Marks a buffer that storage still uses after its connection has ended.
    pub(crate) fn orphan(&mut self, accounts: &Accounts, buffer: &Buffer) {
        let (share, account) = self.owner(accounts, buffer);
        share.orphan(account, buffer);
    }

    /// Returns a buffer marked with [`CoreBuffers::orphan`] to its pool.
    pub(crate) fn release_orphan(&mut self, accounts: &Accounts, buffer: Buffer) {
        let (share, account) = self.owner(accounts, &buffer);
        share.release_orphan(account, buffer);
    }

    /// Share that a connection's buffer came from, and the account there.
    fn owner(&mut self, accounts: &Accounts, buffer: &Buffer) -> (&mut Share, AccountKey) {
        match accounts.host {
            Some(host) if !self.anonymous.pool().owns(buffer) => (&mut self.hosts, host),
            _ => (&mut self.anonymous, accounts.anonymous),
        }
    }

    /// Whether a request waits for a buffer.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.hosts.is_waited_for() || self.anonymous.is_waited_for()
    }

    /// Ends the wait of a request for a buffer. No effect if it does not wait.
    pub(crate) fn leave(&mut self, accounts: &Accounts, whose: RequestKey) {
        self.anonymous.leave(accounts.anonymous, whose);
        if let Some(host) = accounts.host {
            self.hosts.leave(host, whose);
        }
    }

    /// Removes all waiting requests of a connection, in one pass.
    pub(crate) fn leave_all(&mut self, accounts: &Accounts, connection: RequestKey) {
        self.anonymous.leave_all(accounts.anonymous, connection);
        if let Some(host) = accounts.host {
            self.hosts.leave_all(host, connection);
        }
    }

    /// Pool of hosts. It also resolves the addresses of anonymous connections' buffers, which lie
    /// in the same memory.
    pub(crate) fn pool(&self) -> &Pool {
        self.hosts.pool()
    }

    /// Size and use of both pools together.
    pub(crate) fn stats(&self) -> PoolStats {
        let mut stats = self.hosts.stats();
        stats += self.anonymous.stats();
        stats
    }

    /// Events of the pools of hosts and of anonymous connections since the last call. Events are
    /// recorded from the first call on, which comes before all connections.
    pub(crate) fn take_events(&mut self) -> [Vec<BufferEvent>; 2] {
        [self.hosts.take_events(), self.anonymous.take_events()]
    }

    /// Records [`BufferEvent::Rested`], for the simulator.
    pub(crate) fn note_rest(&mut self) {
        self.hosts.note_rest();
        self.anonymous.note_rest();
    }
}
