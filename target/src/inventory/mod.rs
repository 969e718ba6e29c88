//! The inventory: exported subsystems, their namespaces, and the ports.

pub(crate) mod allowed_host;
pub(crate) mod ana;
pub(crate) mod change;
pub(crate) mod error;
pub(crate) mod export;
pub(crate) mod exports;
pub(crate) mod index;
pub(crate) mod left_out;
pub(crate) mod namespace;
pub(crate) mod persist;
pub(crate) mod port;
pub(crate) mod referral;
pub(crate) mod refresh;
pub(crate) mod reload;
pub(crate) mod shard_directory;
pub(crate) mod subsystem;
pub(crate) mod subsystem_change;

use std::cmp::Reverse;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvme_proto::Nqn;

use crate::backend::CacheRoom;
use crate::config::Machine;
use crate::inventory::error::ChangeError;
use crate::inventory::exports::{ExportedList, Exports, NamespaceChange, Publication};
use crate::inventory::index::NamespaceIndex;
use crate::inventory::namespace::Namespace;
use crate::inventory::persist::protection::{Keeper, ProtectionError};
use crate::inventory::port::Port;
use crate::inventory::referral::Referrals;
use crate::inventory::subsystem::Subsystem;
use crate::limits::Limits;
use crate::metrics::io_counters::{SubsystemIoStats, Tally};
use crate::metrics::snapshot::{IoStats, StorageErrors};

/// The inventory of a target. Ports and subsystems come and go while it runs, and namespaces do in
/// generations.
#[derive(Debug)]
pub struct Registry {
    limits: Limits,
    /// What ids of new subsystems follow from.
    machine: Machine,
    discovery_nqn: Nqn,
    ports: Mutex<Vec<Arc<Port>>>,
    subsystems: Mutex<Vec<Arc<Subsystem>>>,
    referrals: Referrals,
    publication: Arc<Publication>,
    /// Locked while the exports change.
    serials: Mutex<NextSerials>,
    /// Namespaces that were removed and are not idle yet.
    leaving: Mutex<Vec<NamespaceChange>>,
    state_dir: PathBuf,
    /// The room of the files of its namespaces in the page cache.
    cache_room: Arc<CacheRoom>,
    /// Keeps the write protections of hosts; none where no namespace is writable.
    keeper: Option<Keeper>,
    /// One of each core.
    tallies: Mutex<Vec<Arc<Tally>>>,
}

/// The serial numbers of what is added next.
#[derive(Clone, Copy, Debug)]
struct NextSerials {
    namespace: u32,
    subsystem: u32,
}

/// The parts of a [`Registry`].
struct RegistryParts {
    limits: Limits,
    machine: Machine,
    discovery_nqn: Nqn,
    ports: Vec<Arc<Port>>,
    subsystems: Vec<Arc<Subsystem>>,
    publication: Arc<Publication>,
    state_dir: PathBuf,
    cache_room: Arc<CacheRoom>,
    keeper: Option<Keeper>,
}

impl Registry {
    /// The registry of these parts, which exports `lists`: the namespaces of each subsystem. Their
    /// serial numbers count up from 0.
    fn new(parts: RegistryParts, lists: Vec<ExportedList>) -> Arc<Self> {
        let opened: usize = lists.iter().map(|list| list.len()).sum();
        parts.publication.publish(Exports::first(lists));
        // There are at most as many as NSIDs, and fewer subsystems.
        let serial = |count| u32::try_from(count).unwrap_or(u32::MAX);
        let serials =
            NextSerials { namespace: serial(opened), subsystem: serial(parts.subsystems.len()) };
        Arc::new(Self {
            limits: parts.limits,
            machine: parts.machine,
            discovery_nqn: parts.discovery_nqn,
            ports: Mutex::new(parts.ports),
            subsystems: Mutex::new(parts.subsystems),
            referrals: Referrals::default(),
            publication: parts.publication,
            serials: Mutex::new(serials),
            leaving: Mutex::default(),
            state_dir: parts.state_dir,
            cache_room: parts.cache_room,
            keeper: parts.keeper,
            tallies: Mutex::default(),
        })
    }

    /// The limits of the configuration.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The name of the discovery service that no other one has, if it was given one.
    pub(crate) fn discovery_nqn(&self) -> Nqn {
        self.discovery_nqn
    }

    /// Whether a name is one of the discovery service.
    pub(crate) fn is_discovery(&self, nqn: &Nqn) -> bool {
        nqn.is_discovery() || *nqn == self.discovery_nqn
    }

    /// The discovery services of others that hosts are told of.
    pub(crate) fn referrals(&self) -> &Referrals {
        &self.referrals
    }

    /// The ports, in the order in which they came. For the control path, as are the next ones: they
    /// take a lock.
    pub fn ports(&self) -> Vec<Arc<Port>> {
        self.lock_ports().clone()
    }

    /// The ports that are to listen at a local address.
    pub(crate) fn ports_of(&self, ip: IpAddr) -> Vec<Arc<Port>> {
        let ports = self.lock_ports();
        ports.iter().filter(|port| port.configured_address().ip() == ip).cloned().collect()
    }

    /// Has a further port.
    pub(crate) fn add_port(&self, port: &Arc<Port>) {
        self.lock_ports().push(Arc::clone(port));
    }

    /// Has a port no more.
    pub(crate) fn remove_port(&self, port: &Arc<Port>) {
        self.lock_ports().retain(|other| !Arc::ptr_eq(other, port));
    }

    fn lock_ports(&self) -> MutexGuard<'_, Vec<Arc<Port>>> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The subsystems, in the order in which they came.
    pub(crate) fn subsystems(&self) -> Vec<Arc<Subsystem>> {
        self.lock_subsystems().clone()
    }

    /// The subsystem of a name.
    pub(crate) fn subsystem(&self, nqn: &Nqn) -> Option<Arc<Subsystem>> {
        self.lock_subsystems().iter().find(|subsystem| subsystem.nqn == *nqn).cloned()
    }

    /// The same, or the error that there is none.
    pub(crate) fn find_subsystem(&self, nqn: &Nqn) -> Result<Arc<Subsystem>, ChangeError> {
        self.subsystem(nqn).ok_or_else(|| ChangeError::no_subsystem(nqn))
    }

    fn lock_subsystems(&self) -> MutexGuard<'_, Vec<Arc<Subsystem>>> {
        self.subsystems.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serials(&self) -> MutexGuard<'_, NextSerials> {
        self.serials.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where cores find the latest exports.
    pub(crate) fn publication(&self) -> &Arc<Publication> {
        &self.publication
    }

    /// The latest exports. For the control path: it takes a lock.
    pub(crate) fn exports(&self) -> Arc<Exports> {
        self.publication.exports()
    }

    /// All namespaces of the latest exports.
    pub(crate) fn namespaces(&self) -> Vec<Arc<Namespace>> {
        self.exports().namespaces().cloned().collect()
    }

    /// A namespace, unless it was removed.
    pub(crate) fn namespace(&self, index: NamespaceIndex) -> Option<Arc<Namespace>> {
        self.exports().namespace(index).cloned()
    }

    /// The room of the files of its namespaces in the page cache.
    pub(crate) fn cache_room(&self) -> &Arc<CacheRoom> {
        &self.cache_room
    }

    /// The subsystem that has a namespace.
    pub(crate) fn subsystem_of(&self, namespace: &Namespace) -> Option<Arc<Subsystem>> {
        let has = |subsystem: &&Arc<Subsystem>| {
            let found = subsystem.namespace(namespace.nsid);
            found.is_some_and(|found| found.index == namespace.index)
        };
        self.lock_subsystems().iter().find(has).cloned()
    }

    /// Errors of the namespaces whose media failed, most errors first, at most `most` namespaces.
    pub fn storage_errors(&self, most: usize) -> Vec<StorageErrors> {
        let failed = |namespace: &&Arc<Namespace>| {
            namespace.storage_errors.total() > 0 || namespace.health().is_degraded()
        };
        let exports = self.exports();
        let mut failed: Vec<_> = exports.namespaces().filter(failed).collect();
        let total = |namespace: &&Arc<Namespace>| Reverse(namespace.storage_errors.total());
        failed.sort_by_key(total);
        failed.truncate(most);
        let report = |namespace: &Arc<Namespace>| StorageErrors {
            nqn: self.subsystem_of(namespace).map_or_else(String::new, |of| of.nqn.to_string()),
            nsid: namespace.nsid.0,
            name: namespace.name().to_owned(),
            read_errors: namespace.storage_errors.reads(),
            write_errors: namespace.storage_errors.writes(),
            write_back_failed: namespace.health().write_back_failed(),
            shrank: namespace.health().shrank(),
        };
        failed.into_iter().map(report).collect()
    }

    /// Opens the I/O counters of one core.
    pub fn open_tally(&self) -> Arc<Tally> {
        let tally = Arc::<Tally>::default();
        self.tallies().push(Arc::clone(&tally));
        tally
    }

    /// Keeps the write protection of a namespace for later runs, and then calls `done` on another
    /// thread. False where nothing is kept.
    pub(crate) fn keep_protection(
        &self,
        subsystem: &Subsystem,
        namespace: &Namespace,
        protected: bool,
        done: impl FnOnce(Result<(), ProtectionError>) + Send + 'static,
    ) -> bool {
        let Some(keeper) = &self.keeper else { return false };
        keeper.keep(subsystem.nqn, namespace.uuid(), protected, done);
        true
    }

    /// I/O commands since the start.
    pub fn io_stats(&self) -> IoStats {
        let mut sum = IoStats::default();
        self.tallies().iter().for_each(|tally| sum += tally.all());
        sum
    }

    /// I/O commands of each core since the start.
    pub(crate) fn io_stats_by_core(&self) -> Vec<IoStats> {
        self.tallies().iter().map(|tally| tally.all()).collect()
    }

    /// I/O commands of one subsystem since the start.
    pub(crate) fn io_stats_of(&self, subsystem: &Subsystem) -> IoStats {
        self.io_of(subsystem).unwrap_or_default().commands
    }

    /// The same with latencies; nothing if no Connect has named the subsystem yet.
    pub(crate) fn io_of(&self, subsystem: &Subsystem) -> Option<SubsystemIoStats> {
        let tallies = self.tallies();
        tallies.iter().filter_map(|tally| tally.of(subsystem.index)).reduce(|mut sum, one| {
            sum += one;
            sum
        })
    }

    fn tallies(&self) -> MutexGuard<'_, Vec<Arc<Tally>>> {
        self.tallies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
