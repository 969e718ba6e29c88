//! Hosts: their identity, their connections to targets, and the RDMA provider underneath.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nvme_proto::{HostId, HostNqn, Nqn};
use rdma::Provider;
use rdma::verbs::VerbsOptions;

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
use crate::driver::host_state::{Inner, OpenDevices};
use crate::driver::{SharedEngines, system_now};
use crate::engine::{HostEngine, HostIdentity};
use crate::memory::plan_region::Region;
use crate::memory::region::RegionSlice;
use crate::types::counters::{HostCounters, ProviderStats};
use crate::types::error::{Error, SubsystemAddress};
use crate::types::host_trace::{HostTrace, TraceInProgress};
use crate::types::options::{BatchOptions, ControllerOptions};
use crate::types::plan::{Entry, PlanError, Submit};
use crate::types::provider::RdmaProvider;
use crate::types::time::MonotonicTime;
use crate::types::turn::EngineTurn;

/// A host: an identity, the RDMA devices that it uses, and the connections that it has.
///
/// Cheap to clone; clones are the same host. Connections end when the last handle of their
/// controller and of its namespaces is dropped. A process that was forked from the one that made it
/// needs a host of its own: [`ErrorKind::Forked`](crate::ErrorKind::Forked).
#[derive(Clone)]
pub struct Host {
    pub(crate) inner: Arc<Inner>,
}

/// How a [`Host`] is to be.
#[derive(Clone, Debug)]
pub struct HostBuilder {
    nqn: Option<HostNqn>,
    id: Option<HostId>,
    provider: RdmaProvider,
    verbs: VerbsOptions,
    source: Option<IpAddr>,
    controller: ControllerOptions,
    polled: bool,
}

impl Host {
    /// A host with the machine's identity and defaults for everything else.
    ///
    /// # Errors
    /// All errors of [`HostBuilder::build`].
    pub fn new() -> Result<Self, Error> {
        Self::builder().build()
    }

    /// A host to be configured.
    pub fn builder() -> HostBuilder {
        HostBuilder {
            nqn: None,
            id: None,
            provider: RdmaProvider::Auto,
            verbs: VerbsOptions::default(),
            source: None,
            controller: ControllerOptions::default(),
            polled: false,
        }
    }

    /// A host without a thread of its own: the caller owes [`Host::turn`] before each deadline that
    /// it returns, and whenever [`Host::fd`] is readable.
    ///
    /// # Errors
    /// All errors of [`HostBuilder::build`].
    pub fn polled() -> Result<Self, Error> {
        Self::builder().polled().build()
    }

    /// NVMe qualified name of the host (HostNQN), which each Connect command carries.
    pub fn nqn(&self) -> HostNqn {
        self.inner.identity.nqn
    }

    /// Host identifier (HOSTID), which each Connect command carries.
    pub fn id(&self) -> HostId {
        self.inner.identity.id
    }

    /// Connects to a subsystem with the host's options.
    pub fn connect(&self, target: SubsystemAddress) -> Pending<Result<Controller, Error>> {
        self.connect_with(target, self.inner.controller.clone())
    }

    /// Connects to a subsystem with other options than the host's.
    ///
    /// # Errors
    /// An option is out of its range, or why the controller is not usable.
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

    /// Reads the discovery log page of the discovery controller at an address, within the host's
    /// time-outs.
    pub fn discover(&self, address: SocketAddr) -> Pending<Result<DiscoveryLog, Error>> {
        let inner = Arc::clone(&self.inner);
        Pending::new(&self.inner, async move { discovery::discover(inner, address).await })
    }

    /// Connects to the discovery service at an address for as long as the result lives, to learn of
    /// changes.
    pub fn connect_discovery(
        &self,
        address: SocketAddr,
    ) -> Pending<Result<DiscoveryController, Error>> {
        let connecting = DiscoveryController::connect(Arc::clone(&self.inner), address);
        Pending::new(&self.inner, connecting)
    }

    /// Connects to a subsystem at all addresses that the discovery service at `service` and those
    /// that it refers to name, as [`Host::find_paths`] and [`Host::connect_paths`]; and to those
    /// that they name later, as long as the result lives.
    ///
    /// # Errors
    /// The service cannot be asked, names none, or none can be reached.
    pub fn follow_paths(
        &self,
        service: SocketAddr,
        nqn: Nqn,
    ) -> Pending<Result<FollowedPaths, Error>> {
        let connecting = FollowedPaths::connect(Arc::clone(&self.inner), service, nqn);
        Pending::new(&self.inner, connecting)
    }

    /// The addresses of a subsystem: those that the discovery service at `service` names to this
    /// host, and the services that it refers to (at most 15).
    ///
    /// # Errors
    /// The service cannot be asked, or names none.
    pub fn find_paths(
        &self,
        service: SocketAddr,
        nqn: Nqn,
    ) -> Pending<Result<Vec<SubsystemAddress>, Error>> {
        let inner = Arc::clone(&self.inner);
        Pending::new(&self.inner, async move { subsystem_paths::find(inner, service, nqn).await })
    }

    /// Connects to a subsystem at several addresses, with the host's options. Those that cannot be
    /// reached are left out ([`SubsystemPaths::unreachable`]).
    ///
    /// # Errors
    /// None can be reached: the error of the first.
    pub fn connect_paths(
        &self,
        targets: impl IntoIterator<Item = SubsystemAddress>,
    ) -> Pending<Result<SubsystemPaths, Error>> {
        let (inner, targets) = (Arc::clone(&self.inner), targets.into_iter().collect());
        Pending::new(&self.inner, async move { SubsystemPaths::connect(inner, targets).await })
    }

    /// Reads many ranges together, of any namespaces of this host. Each range gets its own result,
    /// in the order given. They are in progress when this returns, before they are waited for.
    pub fn read_many(
        &self,
        ranges: impl IntoIterator<Item = ReadRange>,
    ) -> Pending<Vec<RangeOutcome>> {
        batch::read_many(&self.inner, BatchOptions::new(), ranges)
    }

    /// Reads many ranges as [`Host::read_many`], with options.
    pub fn read_many_with(
        &self,
        options: BatchOptions,
        ranges: impl IntoIterator<Item = ReadRange>,
    ) -> Pending<Vec<RangeOutcome>> {
        batch::read_many(&self.inner, options, ranges)
    }

    /// Writes many ranges together; as [`Host::read_many`]. Ranges of one batch that share bytes
    /// are written in no particular order. Parts of blocks are safe from other writes of this host
    /// only: [several writers](crate::Namespace#several-writers).
    pub fn write_many(
        &self,
        ranges: impl IntoIterator<Item = WriteRange>,
    ) -> Pending<Vec<RangeOutcome>> {
        batch::write_many(&self.inner, BatchOptions::new(), ranges)
    }

    /// Writes many ranges as [`Host::write_many`], with options.
    pub fn write_many_with(
        &self,
        options: BatchOptions,
        ranges: impl IntoIterator<Item = WriteRange>,
    ) -> Pending<Vec<RangeOutcome>> {
        batch::write_many(&self.inner, options, ranges)
    }

    /// Reads the ranges of a plan, of any shards, into one region. They are in progress when this
    /// returns. Costs a constant number of allocations, one lock of the host, and memory for the
    /// entries and their outcomes; ranges become commands as the controllers take them.
    ///
    /// # Errors
    /// The plan is not one ([`PlanError`]), or nothing can be begun at all. Nothing of it was
    /// begun.
    pub fn submit(
        &self,
        shards: &Shards,
        plan: &[Entry],
        into: &Region,
        options: Submit,
    ) -> Result<Ticket, PlanError> {
        plan::submit(&self.inner, shards, plan, into, options)
    }

    /// Waits until one of these plans has as many ended ranges as its number says (all if it has
    /// fewer), or until `timeout` has passed; drives the host while it waits. For callers that keep
    /// several plans in flight and cannot say which ends first. Takes one lock of the host, and
    /// time in proportion to the number of plans.
    ///
    /// # Panics
    /// A ticket is of another host, or the host uses a simulated device: nothing but the simulator
    /// can drive that.
    pub fn wait_any(&self, plans: &[(&Ticket, usize)], timeout: Option<Duration>) {
        ticket::wait_any(&self.inner, plans, timeout);
    }

    /// A ring of `depth` ranges, for callers that keep as many in flight: at least 1, and at most
    /// [`Ring::MAX_DEPTH`], whatever `depth` says.
    pub fn ring(&self, depth: usize) -> Ring {
        Ring::new(&self.inner, depth, BatchOptions::new())
    }

    /// Makes a ring as [`Host::ring`], with options for all of its ranges.
    pub fn ring_with(&self, depth: usize, options: BatchOptions) -> Ring {
        Ring::new(&self.inner, depth, options)
    }

    /// Registers the memory of a slice for every controller that the host has by now, rather than
    /// when it is first used with it.
    ///
    /// # Errors
    /// The error of the system call, with the limit that it names.
    pub fn register(&self, slice: &RegionSlice) -> Result<(), Error> {
        let state = self.inner.shared.lock()?;
        let scopes: Vec<_> = state.engines.iter().flat_map(|engine| engine.scopes()).collect();
        drop(state);
        scopes.iter().try_for_each(|scope| slice.register(&**scope)).map_err(Error::from)
    }

    /// Does all that is ready at `now` and says when to be called again. Only a polled host needs
    /// it; `now` is [`Host::now`], or the simulator's time.
    pub fn turn(&self, now: MonotonicTime) -> EngineTurn {
        EngineTurn::of(self.inner.shared.turn_as_owner(now.time()))
    }

    /// Prepares for sleeping on [`Host::fd`]: a turn must follow before.
    pub fn arm(&self) {
        self.inner.shared.arm();
    }

    /// Consumes the wake-ups that made [`Host::fd`] readable; a turn must follow.
    pub fn acknowledge(&self) {
        self.inner.shared.acknowledge();
    }

    /// Readable when a turn has something to do, once [`Host::arm`] was called.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.inner.shared.fd()
    }

    /// The time on the clock that the host goes by.
    pub fn now() -> MonotonicTime {
        MonotonicTime::of(system_now())
    }

    /// Counters since the host was made; zeros in a process that was forked from its own.
    pub fn counters(&self) -> HostCounters {
        let Ok(state) = self.inner.shared.lock() else { return HostCounters::default() };
        let own = state.counters;
        state.engines.iter().fold(own, |sum, engine| sum.and(engine.counters()))
    }

    /// Takes down the commands of ranges that are answered from now on, up to `limit` and at most
    /// 1,048,576. A trace that is being taken ends. Room for all is allocated here: 280 bytes for
    /// each.
    pub fn start_trace(&self, limit: usize) {
        let trace = TraceInProgress::new(limit);
        if let Ok(mut state) = self.inner.shared.lock() {
            state.outbox.trace = Some(trace);
        }
    }

    /// Ends the trace that was started; `None` if none was.
    pub fn take_trace(&self) -> Option<HostTrace> {
        let trace = self.inner.shared.lock().ok()?.outbox.trace.take();
        trace.map(TraceInProgress::into_trace)
    }

    /// Counters of its providers, one for each device.
    pub fn provider_stats(&self) -> Vec<ProviderStats> {
        let Ok(state) = self.inner.shared.lock() else { return Vec::new() };
        state.engines.iter().map(|engine| ProviderStats::of(engine.group_stats())).collect()
    }

    /// Which providers it uses, and why: one line for each device.
    pub fn providers(&self) -> Vec<String> {
        let Ok(state) = self.inner.shared.lock() else { return Vec::new() };
        state.reasons.iter().filter(|reason| !reason.is_empty()).cloned().collect()
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("nqn", &self.nqn()).finish_non_exhaustive()
    }
}

impl HostBuilder {
    /// The host's name. Default: `/etc/nvme/hostnqn` if it can be read, else one made from the
    /// identifier.
    #[must_use]
    pub fn host_nqn(mut self, nqn: HostNqn) -> Self {
        self.nqn = Some(nqn);
        self
    }

    /// The host's identifier. Default: `/etc/nvme/hostid` if it can be read, else a random one.
    #[must_use]
    pub fn host_id(mut self, id: HostId) -> Self {
        self.id = Some(id);
        self
    }

    /// The RDMA provider. Default: the best that the machine has for each target's address.
    #[must_use]
    pub fn provider(mut self, provider: RdmaProvider) -> Self {
        self.provider = provider;
        self
    }

    /// Whether memory windows of RDMA devices are used, which
    /// [`Grant::PerCommand`](crate::Grant::PerCommand) needs; off for a device that has them and
    /// fails at them. Default: on.
    #[must_use]
    pub fn memory_windows(mut self, used: bool) -> Self {
        self.verbs.no_memory_windows = !used;
        self
    }

    /// The local address to connect from. Default: the one that the route to each target has.
    #[must_use]
    pub fn source(mut self, address: IpAddr) -> Self {
        self.source = Some(address);
        self
    }

    /// Sets all options of connections.
    #[must_use]
    pub fn controller_options(mut self, options: ControllerOptions) -> Self {
        self.controller = options;
        self
    }

    /// I/O queues of a connection, at least 1.
    #[must_use]
    pub fn io_queues(mut self, queues: u16) -> Self {
        self.controller.io_queues = queues;
        self
    }

    /// Entries of an I/O queue, 2 to 1,024.
    #[must_use]
    pub fn queue_entries(mut self, entries: u16) -> Self {
        self.controller.queue_entries = entries;
        self
    }

    /// Keep alive timeout in milliseconds, 0 for none.
    #[must_use]
    pub fn keep_alive_ms(mut self, timeout_ms: u32) -> Self {
        self.controller.keep_alive_ms = timeout_ms;
        self
    }

    /// Type of service of the packets, in both directions.
    #[must_use]
    pub fn type_of_service(mut self, type_of_service: u8) -> Self {
        self.controller.type_of_service = Some(type_of_service);
        self
    }

    /// How long either side waits for an acknowledgement: 4.096 us times two to the power of
    /// `exponent`, 1 to 31.
    #[must_use]
    pub fn ack_timeout_exponent(mut self, exponent: u8) -> Self {
        self.controller.ack_timeout_exponent = Some(exponent);
        self
    }

    /// Longest pause between attempts to reconnect, at least 1 ms.
    #[must_use]
    pub fn reconnect_delay(mut self, delay: Duration) -> Self {
        self.controller.reconnect_delay = delay;
        self
    }

    /// Time without a connection after which a target is given up.
    #[must_use]
    pub fn loss_timeout(mut self, timeout: Duration) -> Self {
        self.controller.loss_timeout = timeout;
        self
    }

    /// Time without progress after which a range fails, more than zero:
    /// [`ControllerOptions::io_timeout`].
    #[must_use]
    pub fn io_timeout(mut self, timeout: Duration) -> Self {
        self.controller.io_timeout = timeout;
        self
    }

    /// Builds the host without a thread: see [`Host::polled`].
    #[must_use]
    pub fn polled(mut self) -> Self {
        self.polled = true;
        self
    }

    /// Makes the host. Devices are opened as targets need them.
    ///
    /// # Errors
    /// An option of [`ControllerOptions`] is out of its range, or the system has no descriptor or
    /// thread for the host.
    pub fn build(self) -> Result<Host, Error> {
        let host = self.build_polled()?;
        if host.inner.shared.threaded {
            host.inner.start_thread()?;
        }
        Ok(host)
    }

    /// Makes a host that uses this device and no other: for simulated devices, and for devices that
    /// the caller opened himself. It is meant for the simulator and the benchmarks, and is exempt
    /// from the stability that the version number promises: it changes with `rdma`.
    ///
    /// # Errors
    /// The error of the device.
    #[doc(hidden)]
    pub fn build_on<P: Provider>(mut self, device: P::Device) -> Result<Host, Error> {
        self.source = None;
        let threaded = !self.polled;
        self.polled = true;
        let mut host = self.build_polled()?;
        let engine = HostEngine::<P>::new(device, host.inner.identity)?;
        host.inner.shared.add(Box::new(engine), String::new())?;
        let inner = Arc::get_mut(&mut host.inner).expect("nobody else has it yet");
        inner.fixed_device = true;
        if threaded && inner.can_wait() {
            let shared = Arc::get_mut(&mut inner.shared).expect("nobody else has it yet");
            shared.threaded = true;
            inner.start_thread()?;
        }
        Ok(host)
    }

    fn build_polled(self) -> Result<Host, Error> {
        let controller = self.controller.checked()?;
        let identity = identity(self.nqn, self.id);
        let shared = Arc::new(SharedEngines::new(!self.polled)?);
        Ok(Host {
            inner: Arc::new(Inner {
                shared,
                identity,
                provider: self.provider,
                verbs: self.verbs,
                source: self.source,
                controller,
                fixed_device: false,
                devices: Mutex::new(OpenDevices::default()),
                thread: Mutex::new(None),
            }),
        })
    }
}

/// The machine's identity, where it has one.
fn identity(nqn: Option<HostNqn>, id: Option<HostId>) -> HostIdentity {
    let read = |path| std::fs::read_to_string(path).ok();
    let id = id
        .or_else(|| HostId::from_str(read("/etc/nvme/hostid")?.trim()).ok())
        .unwrap_or_else(|| HostId(*uuid::Uuid::new_v4().as_bytes()));
    let nqn = nqn
        .or_else(|| HostNqn::from_str(read("/etc/nvme/hostnqn")?.trim()).ok())
        .unwrap_or_else(|| HostNqn::from_host_id(id));
    HostIdentity { nqn, id }
}
