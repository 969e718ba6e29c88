//! The live set: what is exported where, and who is connected.

pub mod allowed_host;
pub mod export;
pub mod namespace;
pub mod persist;
pub mod port;
pub mod shard_directory;
pub mod subsystem;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvme_proto::{Cntlid, HostId};
use rdma::Time;

use crate::backend::{BackendError, FileChange};
use crate::controller::{
    CloseReason, Controller, ControllerKind, IoKind, NewController, new_controller,
};
use crate::inventory::namespace::{Namespace, NamespaceIndex};
use crate::inventory::persist::protection::{Keeper, ProtectionError};
use crate::inventory::port::Port;
use crate::inventory::subsystem::Subsystem;
use crate::limits::connection_quota::{Admissions, ConnectionPermit, Full};
use crate::limits::displacing_set::{DisplacingLimits, DisplacingSet};
use crate::limits::log_rate::LogRateLimit;
use crate::limits::{CntlidRange, Limits, MAX_ASSOCIATIONS};
use crate::metrics::io_counters::{Tally, TallyIndex};
use crate::metrics::peer_errors::PeerErrorTable;
use crate::metrics::snapshot::{IoStats, StorageErrors};

/// Everything that exists in a target. What is exported does not change while it lives; who is
/// connected is behind a lock that only the control path takes.
#[derive(Debug)]
pub struct Registry {
    limits: Limits,
    ports: Vec<Arc<Port>>,
    subsystems: Vec<Arc<Subsystem>>,
    /// By [`NamespaceIndex`].
    namespaces: Vec<Arc<Namespace>>,
    /// Of what hosts write protect; nothing where nothing is kept.
    keeper: Option<Keeper>,
    associations: Mutex<Associations>,
    /// One of each core.
    tallies: Mutex<Vec<Arc<Tally>>>,
    stopping: AtomicBool,
    peer_errors: PeerErrorTable,
    keep_alive_losses: AtomicU64,
    admissions: Arc<Admissions>,
    chatter: LogRateLimit,
    storage_chatter: LogRateLimit,
}

#[derive(Debug)]
struct Associations {
    /// With subsystems.
    hosts: Controllers,
    /// With the discovery service, a subsystem of its own, so that its controllers take no ids from
    /// others.
    discovery: Controllers,
    /// Of these, the ones that were not asked to make room.
    discovery_by_age: DisplacingSet<Cntlid>,
}

/// Live controllers by id.
#[derive(Debug)]
struct Controllers {
    live: BTreeMap<u16, Arc<Controller>>,
    ids: CntlidRange,
    next: u16,
}

impl Registry {
    /// The live set of these parts. The namespaces' indices count up from 0.
    pub(crate) fn new(
        limits: Limits,
        ports: Vec<Arc<Port>>,
        subsystems: Vec<Arc<Subsystem>>,
        namespaces: Vec<Arc<Namespace>>,
        keeper: Option<Keeper>,
    ) -> Arc<Self> {
        let in_order = |(at, namespace): (usize, &Arc<Namespace>)| namespace.index.0 as usize == at;
        assert!(namespaces.iter().enumerate().all(in_order), "namespaces are numbered in order");
        let associations = Associations {
            hosts: Controllers::new(limits.cntlids),
            discovery: Controllers::new(CntlidRange::ALL),
            discovery_by_age: DisplacingSet::new(DisplacingLimits {
                all: limits.discovery_controllers(),
                of_address: limits.discovery_controllers_per_address(),
            }),
        };
        Arc::new(Self {
            limits,
            ports,
            subsystems,
            namespaces,
            keeper,
            associations: Mutex::new(associations),
            tallies: Mutex::default(),
            stopping: AtomicBool::new(false),
            peer_errors: PeerErrorTable::default(),
            keep_alive_losses: AtomicU64::new(0),
            admissions: Arc::default(),
            chatter: LogRateLimit::about("hosts"),
            storage_chatter: LogRateLimit::about("storage errors"),
        })
    }

    /// Limits.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Where to listen.
    pub fn ports(&self) -> &[Arc<Port>] {
        &self.ports
    }

    /// What is exported.
    pub fn subsystems(&self) -> &[Arc<Subsystem>] {
        &self.subsystems
    }

    /// All namespaces; a [`NamespaceIndex`] is an index into it.
    pub fn namespaces(&self) -> &[Arc<Namespace>] {
        &self.namespaces
    }

    /// One namespace, by an index that came from here.
    pub fn namespace(&self, index: NamespaceIndex) -> &Arc<Namespace> {
        &self.namespaces[index.0 as usize]
    }

    /// The subsystem that has a namespace.
    pub(crate) fn subsystem_of(&self, namespace: &Namespace) -> Option<&Arc<Subsystem>> {
        let has = |subsystem: &&Arc<Subsystem>| {
            let found = subsystem.namespace(namespace.nsid);
            found.is_some_and(|found| found.index == namespace.index)
        };
        self.subsystems.iter().find(has)
    }

    /// The live controllers of the subsystem that has a namespace.
    fn controllers_of(&self, namespace: &Namespace) -> Vec<Arc<Controller>> {
        let Some(subsystem) = self.subsystem_of(namespace) else { return Vec::new() };
        let mut controllers = self.controllers();
        controllers.retain(|one| one.subsystem().is_some_and(|of| Arc::ptr_eq(of, subsystem)));
        controllers
    }

    /// Counts an error of a namespace's medium and logs it. `what` says what was to be done where.
    pub(crate) fn storage_failed(
        &self,
        now: Time,
        namespace: NamespaceIndex,
        kind: IoKind,
        what: &dyn fmt::Display,
        error: BackendError,
    ) {
        let namespace = self.namespace(namespace);
        namespace.storage_errors.count(kind);
        self.announce_health(namespace);
        if self.storage_chatter.admit(now) {
            let nqn = self.subsystem_of(namespace).map(|subsystem| subsystem.nqn.to_string());
            tracing::error!(
                nqn, nsid = %namespace.nsid, name = namespace.name, path = ?namespace.path,
                "{what} failed: {error}"
            );
        }
    }

    /// Looks whether others changed the file of a namespace, and tells the hosts that are
    /// connected.
    pub(crate) fn look_at_file(&self, namespace: &Namespace, log: &mut dyn FnMut() -> bool) {
        let change = namespace.look_at_file();
        self.announce_health(namespace);
        if change.is_none() || (change == Some(FileChange::Replaced) && !log()) {
            return;
        }
        let (nsid, name, path) = (namespace.nsid, &namespace.name, &namespace.path);
        if change == Some(FileChange::Replaced) {
            tracing::warn!(
                %nsid, name, ?path,
                "another file has this path, or none: the old one is served until the target is \
                 started again"
            );
            return;
        }
        if log() {
            tracing::warn!(%nsid, name, ?path, "the file was changed while it is served");
        }
        let controllers = self.controllers_of(namespace);
        controllers.iter().for_each(|controller| controller.namespace_changed(nsid));
    }

    /// The namespaces whose media failed, worst first, at most `most`.
    pub(crate) fn storage_errors(&self, most: usize) -> Vec<StorageErrors> {
        let failed = |namespace: &&Arc<Namespace>| {
            namespace.storage_errors.total() > 0 || namespace.health().is_degraded()
        };
        let mut failed: Vec<_> = self.namespaces.iter().filter(failed).collect();
        let total = |namespace: &&Arc<Namespace>| Reverse(namespace.storage_errors.total());
        failed.sort_by_key(total);
        failed.truncate(most);
        let report = |namespace: &Arc<Namespace>| StorageErrors {
            nqn: self.subsystem_of(namespace).map_or_else(String::new, |of| of.nqn.to_string()),
            nsid: namespace.nsid.0,
            name: namespace.name.clone(),
            read_errors: namespace.storage_errors.reads(),
            write_errors: namespace.storage_errors.writes(),
            write_back_failed: namespace.health().write_back_failed(),
            shrank: namespace.health().shrank(),
        };
        failed.into_iter().map(report).collect()
    }

    /// Tells the hosts that are connected that a namespace's medium is degraded, the first time
    /// that it is.
    pub(crate) fn announce_health(&self, namespace: &Namespace) {
        if namespace.health().announce() {
            let controllers = self.controllers_of(namespace);
            controllers.iter().for_each(|controller| controller.reliability_degraded());
        }
    }

    /// Associations that ended because their host was silent for longer than its keep alive
    /// timeout.
    pub fn keep_alive_losses(&self) -> u64 {
        self.keep_alive_losses.load(Ordering::Relaxed)
    }

    pub(crate) fn count_keep_alive_loss(&self) {
        self.keep_alive_losses.fetch_add(1, Ordering::Relaxed);
    }

    /// Makes a controller; `None` when there are too many or the target is stopping. An id is not
    /// used again while its controller lives, and as late as possible after. A discovery controller
    /// may end an older one.
    pub(crate) fn associate(self: &Arc<Self>, new: NewController) -> Option<Arc<Controller>> {
        let mut associations = self.associations();
        if self.is_stopping() {
            return None;
        }
        let (is_discovery, address) =
            (matches!(new.kind, ControllerKind::Discovery), new.peer.ip());
        let controllers = associations.of(is_discovery);
        let controller = controllers.add(|cntlid| new_controller(self, cntlid, new))?;
        if is_discovery {
            let displaced = associations.discovery_by_age.add(controller.cntlid, address);
            let displaced = displaced.and_then(|cntlid| associations.discovery.get(cntlid));
            drop(associations);
            displaced.inspect(|displaced| displaced.end(CloseReason::Displaced));
        }
        Some(controller)
    }

    /// The live controller of a subsystem with an id.
    pub fn controller(&self, cntlid: Cntlid) -> Option<Arc<Controller>> {
        self.associations().hosts.get(cntlid)
    }

    /// All live controllers.
    pub fn controllers(&self) -> Vec<Arc<Controller>> {
        let associations = self.associations();
        let all = [&associations.hosts, &associations.discovery];
        all.iter().flat_map(|controllers| controllers.live.values().cloned()).collect()
    }

    /// A place for one more queue from an address, on any device and of any association with a
    /// subsystem, unless there are too many.
    pub(crate) fn admit(&self, address: IpAddr) -> Result<ConnectionPermit, Full> {
        self.admissions.admit(address, &self.limits)
    }

    /// Whether [`Registry::admit`] would have a place now.
    pub(crate) fn may_admit(&self, address: IpAddr) -> Result<(), Full> {
        self.admissions.check(address, &self.limits)
    }

    pub(crate) fn forget(&self, controller: &Controller) {
        let mut associations = self.associations();
        associations.of(controller.is_discovery()).live.remove(&controller.cntlid.0);
        if controller.is_discovery() {
            associations.discovery_by_age.remove(&controller.cntlid);
        }
    }

    /// Whether what a host asked of a subsystem over connections that have ended may still change
    /// the medium. That could undo what the host writes next, so its next association has to wait.
    pub(crate) fn has_unfinished(&self, host: HostId, subsystem: &Arc<Subsystem>) -> bool {
        self.controllers().iter().any(|controller| {
            let same = controller.subsystem().is_some_and(|other| Arc::ptr_eq(other, subsystem));
            same && controller.host.id == host && controller.may_surprise()
        })
    }

    /// Ends every association and admits no new one.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        for controller in self.controllers() {
            controller.end(CloseReason::Stopping);
        }
    }

    /// Whether [`Registry::stop`] was called.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// What one core will count in.
    pub fn open_tally(&self) -> Arc<Tally> {
        let tally = Arc::new(Tally::new(self.subsystems.len()));
        self.tallies().push(Arc::clone(&tally));
        tally
    }

    /// Keeps the write protection of a namespace for later runs, and then calls `done` on another
    /// thread. False where nothing is kept.
    pub(crate) fn keep_protection(
        &self,
        subsystem: &Arc<Subsystem>,
        namespace: &Namespace,
        protected: bool,
        done: impl FnOnce(Result<(), ProtectionError>) + Send + 'static,
    ) -> bool {
        let index = self.subsystems.iter().position(|other| Arc::ptr_eq(other, subsystem));
        let (Some(keeper), Some(index)) = (&self.keeper, index) else { return false };
        keeper.keep(index, namespace.uuid, protected, done);
        true
    }

    /// Where the commands of a subsystem are counted.
    pub(crate) fn account_of(&self, subsystem: &Arc<Subsystem>) -> TallyIndex {
        let place = self.subsystems.iter().position(|other| Arc::ptr_eq(other, subsystem));
        place.map_or(TallyIndex::NONE, TallyIndex::of_subsystem)
    }

    /// I/O commands since the start.
    pub fn io_stats(&self) -> IoStats {
        let mut sum = IoStats::default();
        self.tallies().iter().for_each(|tally| sum += tally.all());
        sum
    }

    /// I/O commands of one subsystem since the start.
    pub(crate) fn io_stats_of(&self, subsystem: &Arc<Subsystem>) -> IoStats {
        let account = self.account_of(subsystem);
        let mut sum = IoStats::default();
        self.tallies().iter().for_each(|tally| sum += tally.of(account).snapshot());
        sum
    }

    fn tallies(&self) -> MutexGuard<'_, Vec<Arc<Tally>>> {
        self.tallies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What peers did wrong.
    pub fn peer_errors(&self) -> &PeerErrorTable {
        &self.peer_errors
    }

    /// Asked before a message that peers can cause.
    pub(crate) fn chatter(&self) -> &LogRateLimit {
        &self.chatter
    }

    fn associations(&self) -> MutexGuard<'_, Associations> {
        self.associations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Associations {
    fn of(&mut self, is_discovery: bool) -> &mut Controllers {
        if is_discovery { &mut self.discovery } else { &mut self.hosts }
    }
}

impl Controllers {
    fn new(ids: CntlidRange) -> Self {
        Self { live: BTreeMap::new(), ids, next: ids.first }
    }

    fn get(&self, cntlid: Cntlid) -> Option<Arc<Controller>> {
        self.live.get(&cntlid.0).cloned()
    }

    /// Adds one, unless there are too many.
    fn add(&mut self, make: impl FnOnce(Cntlid) -> Controller) -> Option<Arc<Controller>> {
        if self.live.len() >= MAX_ASSOCIATIONS.min(self.ids.count()) {
            return None;
        }
        let id = self.free_id();
        let controller = Arc::new(make(Cntlid(id)));
        self.live.insert(id, Arc::clone(&controller));
        Some(controller)
    }

    /// The next id in turn that no live controller has. Fewer controllers live than there are ids.
    fn free_id(&mut self) -> u16 {
        loop {
            let id = self.next;
            self.next = self.ids.next(id);
            if !self.live.contains_key(&id) {
                return id;
            }
        }
    }
}
