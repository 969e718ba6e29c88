//! Hosts: identity, connections to targets, and RDMA provider.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use nvme_proto::{HostId, HostNqn, Nqn};

use crate::api::batch::{self, ReadRange, WriteRange};
use crate::api::controller::Controller;
use crate::api::discovery::{self, DiscoveryController, DiscoveryLog};
use crate::api::followed_paths::FollowedPaths;
use crate::api::pending::Pending;
use crate::api::plan;
use crate::api::ring::Ring;
use crate::api::shards::Shards;
use crate::api::submit::RangeOutcome;
use crate::api::subsystem_paths::{self, SubsystemPaths};
use crate::api::ticket::{self, Ticket};
use crate::driver::host_state::Inner;
use crate::driver::system_now;
use crate::memory::plan_region::Region;
use crate::memory::region::RegionSlice;
use crate::types::counters::{HostCounters, ProviderStats};
use crate::types::direction::RangeDirection;
use crate::types::error::{Error, SubsystemAddress};
use crate::types::host_trace::{HostTrace, TraceInProgress};
use crate::types::options::{BatchOptions, ControllerOptions};
use crate::types::plan::{Entry, PlanError, Submit};
use crate::types::time::MonotonicTime;
use crate::types::turn::EngineTurn;

/// An NVMe host: an identity, the RDMA devices that it uses, and its connections.
///
/// Cheap to clone; clones are the same host. A connection ends when the last handle of its
/// controller and of its namespaces is dropped. A process that was forked from the one that built
/// the host needs a host of its own: [`ErrorKind::Forked`](crate::ErrorKind::Forked).
#[derive(Clone)]
pub struct Host {
    pub(crate) inner: Arc<Inner>,
}

impl Host {
    /// NVMe qualified name of the host (HostNQN), which each Connect command carries.
    pub fn nqn(&self) -> HostNqn {
        self.inner.identity.nqn
    }

    /// Host identifier (HOSTID), which each Connect command carries.
    pub fn id(&self) -> HostId {
        self.inner.identity.id
    }

    /// Connects to a subsystem, with the options of the host.
    pub fn connect(&self, target: SubsystemAddress) -> Pending<Result<Controller, Error>> {
        self.connect_with(target, self.inner.controller.clone())
    }

    /// Connects to a subsystem, with these options instead of those of the host.
    ///
    /// # Errors
    /// An option is out of range, or the controller cannot be reached, refuses the connection, or
    /// cannot be used.
    pub fn connect_with(
        &self,
        target: SubsystemAddress,
        options: ControllerOptions,
    ) -> Pending<Result<Controller, Error>> {
        let connecting = options
            .checked()
            .map_err(|error| error.of_target(&Arc::new(target)))
            .and_then(|options| Controller::connect(&self.inner, target, options));
        Pending::new(&self.inner, async move { connecting?.await })
    }

    /// Reads the log page of the discovery controller at an address, with the time-outs of the
    /// host, and closes the connection.
    pub fn discover(&self, address: SocketAddr) -> Pending<Result<DiscoveryLog, Error>> {
        let inner = Arc::clone(&self.inner);
        Pending::new(&self.inner, async move { discovery::discover(inner, address).await })
    }

    /// Opens a persistent connection to the discovery service at an address, which reports changes
    /// and lasts as long as the result.
    pub fn connect_discovery(
        &self,
        address: SocketAddr,
    ) -> Pending<Result<DiscoveryController, Error>> {
        let connecting = DiscoveryController::connect(Arc::clone(&self.inner), address);
        Pending::new(&self.inner, connecting)
    }

    /// Connects to a subsystem at all addresses that [`Host::find_paths`] finds, as
    /// [`Host::connect_paths`] does, and follows later changes of the discovery services as long as
    /// the result lives.
    ///
    /// # Errors
    /// The service cannot be reached, reports no port of the subsystem, or none of the ports can be
    /// reached.
    pub fn follow_paths(
        &self,
        service: SocketAddr,
        nqn: Nqn,
    ) -> Pending<Result<FollowedPaths, Error>> {
        let connecting = FollowedPaths::connect(Arc::clone(&self.inner), service, nqn);
        Pending::new(&self.inner, connecting)
    }

    /// Returns the addresses of a subsystem that the discovery service at `service` reports to this
    /// host, and those that services of its referrals (at most 15) report.
    ///
    /// # Errors
    /// The service cannot be reached, or no service reports a port of the subsystem.
    pub fn find_paths(
        &self,
        service: SocketAddr,
        nqn: Nqn,
    ) -> Pending<Result<Vec<SubsystemAddress>, Error>> {
        let inner = Arc::clone(&self.inner);
        Pending::new(&self.inner, async move { subsystem_paths::find(inner, service, nqn).await })
    }

    /// Connects to a subsystem at several addresses, with the options of the host. Addresses that
    /// cannot be reached are omitted ([`SubsystemPaths::unreachable`]).
    ///
    /// # Errors
    /// None of them can be reached: the error of the first.
    pub fn connect_paths(
        &self,
        targets: impl IntoIterator<Item = SubsystemAddress>,
    ) -> Pending<Result<SubsystemPaths, Error>> {
        let (inner, targets) = (Arc::clone(&self.inner), targets.into_iter().collect());
        Pending::new(&self.inner, async move { SubsystemPaths::connect(inner, targets).await })
    }

    /// Reads many ranges, of any namespaces of this host, and returns a result for each in the
    /// order given. They are in progress when this returns.
    pub fn read_many(
        &self,
        ranges: impl IntoIterator<Item = ReadRange>,
    ) -> Pending<Vec<RangeOutcome>> {
        batch::read_many(&self.inner, BatchOptions::new(), ranges)
    }

    /// Reads many ranges like [`Host::read_many`], with options.
    pub fn read_many_with(
        &self,
        options: BatchOptions,
        ranges: impl IntoIterator<Item = ReadRange>,
    ) -> Pending<Vec<RangeOutcome>> {
        batch::read_many(&self.inner, options, ranges)
    }

    /// Writes many ranges like [`Host::read_many`]. The order among ranges of a batch that overlap
    /// is unspecified. Writes of parts of blocks are safe only from other writes of this host:
    /// [several writers](crate::Namespace#several-writers).
    pub fn write_many(
        &self,
        ranges: impl IntoIterator<Item = WriteRange>,
    ) -> Pending<Vec<RangeOutcome>> {
        batch::write_many(&self.inner, BatchOptions::new(), ranges)
    }

    /// Writes many ranges like [`Host::write_many`], with options.
    pub fn write_many_with(
        &self,
        options: BatchOptions,
        ranges: impl IntoIterator<Item = WriteRange>,
    ) -> Pending<Vec<RangeOutcome>> {
        batch::write_many(&self.inner, options, ranges)
    }

    /// Starts to read the ranges of a plan, of any shards, into one region. It takes a constant
    /// number of allocations, one lock of the host, and memory for the entries and their outcomes;
    /// commands are sent as the queues of the controllers have room.
    ///
    /// # Errors
    /// The plan is not valid, or the host cannot start it ([`PlanError`]). No command was sent.
    pub fn submit(
        &self,
        shards: &Shards,
        plan: &[Entry],
        into: &Region,
        options: Submit,
    ) -> Result<Ticket, PlanError> {
        plan::submit(&self.inner, RangeDirection::Read, shards, plan, into, options)
    }

    /// Starts to write the ranges of a plan from one region, like [`Host::submit`]: each entry
    /// names the bytes of `from` that are written to its range. Entries may share bytes of the
    /// region. The order among ranges of a plan that overlap in a shard is unspecified, and writes
    /// of parts of blocks are safe only from other writes of this host: [several
    /// writers](crate::Namespace#several-writers).
    ///
    /// Ranges that a lost connection interrupts are written again on the next one. A range that
    /// failed or was cancelled may have been written, in whole or in part.
    ///
    /// # Errors
    /// As [`Host::submit`], and [`PlanError::Replicated`]. No command was sent.
    pub fn submit_write(
        &self,
        shards: &Shards,
        plan: &[Entry],
        from: &Region,
        options: Submit,
    ) -> Result<Ticket, PlanError> {
        let direction = RangeDirection::Write { fua: false };
        plan::submit(&self.inner, direction, shards, plan, from, options)
    }

    /// Starts to write like [`Host::submit_write`], with Force Unit Access: the bytes of a range
    /// are durable if it succeeds.
    ///
    /// # Errors
    /// The plan is not valid, names a shard of several replicas or paths, or the host cannot start
    /// it ([`PlanError`]). No command was sent.
    pub fn submit_write_durable(
        &self,
        shards: &Shards,
        plan: &[Entry],
        from: &Region,
        options: Submit,
    ) -> Result<Ticket, PlanError> {
        let direction = RangeDirection::Write { fua: true };
        plan::submit(&self.inner, direction, shards, plan, from, options)
    }

    /// Waits until one of these plans has at least as many ended ranges as the number beside it
    /// (all if it has fewer), or until `timeout` has passed; drives the host until then. For
    /// callers with several plans in flight. Takes one lock of the host, and time in proportion to
    /// the number of plans.
    ///
    /// # Panics
    /// A ticket is of another host, or the host uses a simulated device, which only the simulator
    /// can drive.
    pub fn wait_any(&self, plans: &[(&Ticket, usize)], timeout: Option<Duration>) {
        ticket::wait_any(&self.inner, plans, timeout);
    }

    /// Builds a ring for `depth` ranges in flight, a number that is raised to 1 or lowered to
    /// [`Ring::MAX_DEPTH`] if it is out of range.
    pub fn ring(&self, depth: usize) -> Ring {
        Ring::new(&self.inner, depth, BatchOptions::new())
    }

    /// Builds a ring like [`Host::ring`], with options for all of its ranges.
    pub fn ring_with(&self, depth: usize, options: BatchOptions) -> Ring {
        Ring::new(&self.inner, depth, options)
    }

    /// Registers the memory of a slice with the devices of all current controllers, instead of at
    /// its first use with each.
    ///
    /// # Errors
    /// The error of the registration, with the resource limit that it exceeded.
    pub fn register(&self, slice: &RegionSlice) -> Result<(), Error> {
        let state = self.inner.shared.lock()?;
        let scopes: Vec<_> =
            state.host.engines.values().flat_map(|engine| engine.scopes()).collect();
        drop(state);
        scopes.iter().try_for_each(|scope| slice.register(&**scope)).map_err(Error::from)
    }

    /// Does all work that is ready at `now`, and returns when to call it again. Only for polled
    /// hosts; `now` is [`Host::now`], or the time of the simulator.
    pub fn turn(&self, now: MonotonicTime) -> EngineTurn {
        EngineTurn::of(self.inner.shared.turn_as_owner(now.time()))
    }

    /// Enables wake-ups through [`Host::fd`]; call it after a turn, before sleeping.
    pub fn arm(&self) {
        self.inner.shared.arm();
    }

    /// Clears the wake-ups that made [`Host::fd`] readable; call it before the next turn.
    pub fn acknowledge(&self) {
        self.inner.shared.acknowledge();
    }

    /// Returns a descriptor that becomes readable when a turn has work, once [`Host::arm`] was
    /// called.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.inner.shared.fd()
    }

    /// Returns the present time of the clock that hosts use (`CLOCK_MONOTONIC`).
    pub fn now() -> MonotonicTime {
        MonotonicTime::of(system_now())
    }

    /// Returns the counters since the host was built; zeros in a process that was forked since.
    pub fn counters(&self) -> HostCounters {
        let Ok(state) = self.inner.shared.lock() else { return HostCounters::default() };
        state.host.counters()
    }

    /// Starts to record commands of ranges as they complete, up to `limit` and at most 1,048,576. A
    /// trace in progress is discarded. Memory for `limit` commands of 280 bytes is allocated here.
    pub fn start_trace(&self, limit: usize) {
        let trace = TraceInProgress::new(limit);
        if let Ok(mut state) = self.inner.shared.lock() {
            state.host.outbox.trace = Some(trace);
        }
    }

    /// Ends the trace in progress and returns it; `None` without a trace.
    pub fn take_trace(&self) -> Option<HostTrace> {
        let trace = self.inner.shared.lock().ok()?.host.outbox.trace.take();
        trace.map(TraceInProgress::into_trace)
    }

    /// Returns the counters of the RDMA provider of each device in use.
    pub fn provider_stats(&self) -> Vec<ProviderStats> {
        let Ok(state) = self.inner.shared.lock() else { return Vec::new() };
        state.host.engines.values().map(|engine| ProviderStats::of(engine.group_stats())).collect()
    }

    /// Returns one line for each device in use: its provider and the reason for that choice.
    pub fn providers(&self) -> Vec<String> {
        let Ok(state) = self.inner.shared.lock() else { return Vec::new() };
        state.host.reasons.iter().filter(|reason| !reason.is_empty()).cloned().collect()
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("nqn", &self.nqn()).finish_non_exhaustive()
    }
}
