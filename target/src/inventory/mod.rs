//! The inventory: exported subsystems, their namespaces, and the ports.

pub(crate) mod allowed_host;
pub(crate) mod export;
pub(crate) mod namespace;
pub(crate) mod persist;
pub(crate) mod port;
pub(crate) mod shard_directory;
pub(crate) mod subsystem;

use std::cmp::Reverse;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::backend::CacheRoom;
use crate::inventory::namespace::{Namespace, NamespaceIndex};
use crate::inventory::persist::protection::{Keeper, ProtectionError};
use crate::inventory::port::Port;
use crate::inventory::subsystem::Subsystem;
use crate::limits::Limits;
use crate::metrics::io_counters::{Tally, TallyIndex};
use crate::metrics::snapshot::{IoStats, StorageErrors};

/// The inventory of a target. It does not change while the target runs, except for its counters and
/// the namespaces that hosts write protect.
#[derive(Debug)]
pub struct Registry {
    limits: Limits,
    ports: Vec<Arc<Port>>,
    subsystems: Vec<Arc<Subsystem>>,
    /// Every namespace of every subsystem, by [`NamespaceIndex`].
    namespaces: Vec<Arc<Namespace>>,
    /// The room of their files in the page cache.
    cache_room: Arc<CacheRoom>,
    /// Keeps the write protections of hosts; none where no namespace is writable.
    keeper: Option<Keeper>,
    /// One of each core.
    tallies: Mutex<Vec<Arc<Tally>>>,
}

impl Registry {
    /// The registry of these parts. The namespaces' indices count up from 0.
    pub(crate) fn new(
        limits: Limits,
        ports: Vec<Arc<Port>>,
        subsystems: Vec<Arc<Subsystem>>,
        namespaces: Vec<Arc<Namespace>>,
        cache_room: Arc<CacheRoom>,
        keeper: Option<Keeper>,
    ) -> Arc<Self> {
        let in_order = |(at, namespace): (usize, &Arc<Namespace>)| namespace.index.0 as usize == at;
        assert!(namespaces.iter().enumerate().all(in_order), "namespaces are numbered in order");
        let tallies = Mutex::default();
        Arc::new(Self { limits, ports, subsystems, namespaces, cache_room, keeper, tallies })
    }

    /// The limits of the configuration.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The ports, in the order of the configuration.
    pub fn ports(&self) -> &[Arc<Port>] {
        &self.ports
    }

    /// The subsystems, in the order of the configuration.
    pub(crate) fn subsystems(&self) -> &[Arc<Subsystem>] {
        &self.subsystems
    }

    /// All namespaces; a [`NamespaceIndex`] is an index into it.
    pub(crate) fn namespaces(&self) -> &[Arc<Namespace>] {
        &self.namespaces
    }

    /// The room of the files of its namespaces in the page cache.
    pub(crate) fn cache_room(&self) -> &CacheRoom {
        &self.cache_room
    }

    /// One namespace, by an index that came from here.
    pub(crate) fn namespace(&self, index: NamespaceIndex) -> &Arc<Namespace> {
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

    /// Opens the I/O counters of one core.
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
}
