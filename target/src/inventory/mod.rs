//! The inventory: exported subsystems, their namespaces, and the ports.

pub(crate) mod allowed_host;
pub(crate) mod ana;
pub(crate) mod apply;
pub(crate) mod close;
pub(crate) mod edit;
pub(crate) mod error;
pub(crate) mod host_keys;
pub(crate) mod index;
pub(crate) mod left_out;
pub(crate) mod listed;
pub(crate) mod named_host;
pub(crate) mod namespace;
pub(crate) mod open;
pub(crate) mod open_warnings;
pub(crate) mod persist;
mod plan;
pub(crate) mod port;
pub(crate) mod published;
pub(crate) mod referral;
pub(crate) mod report;
pub(crate) mod shard_directory;
mod start;
pub(crate) mod subsystem;

use std::cmp::Reverse;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvme_proto::Nqn;

use crate::backend::CacheRoom;
use crate::config::Machine;
use crate::inventory::ana::AnaStates;
use crate::inventory::error::ChangeError;
use crate::inventory::host_keys::{HostKeyring, NegotiableByDefault};
use crate::inventory::index::NamespaceIndex;
use crate::inventory::namespace::Namespace;
use crate::inventory::persist::protection::{ProtectionError, ProtectionWriter};
use crate::inventory::port::Port;
use crate::inventory::published::{Exports, NamespaceChange, OwnedNamespace, Publication};
use crate::inventory::referral::Referrals;
use crate::inventory::subsystem::Subsystem;
use crate::limits::Limits;
use crate::metrics::io_counters::{CoreIoStats, SubsystemIoStats};
use crate::metrics::snapshot::{IoStats, StorageErrors};

/// Ports, subsystems and namespaces of a target. Ports and subsystems change behind locks;
/// namespaces change by publishing a new generation.
#[derive(Debug)]
pub struct Inventory {
    limits: Limits,
    /// Machine identity from which the identifiers of new subsystems are derived.
    machine: Machine,
    discovery_nqn: Nqn,
    /// Keys of hosts that have to authenticate to the discovery service.
    discovery_keyring: Mutex<HostKeyring>,
    /// Hashes and groups that hosts may negotiate whose entries name none.
    negotiable: Mutex<NegotiableByDefault>,
    /// Whether the exports can change at run time.
    managed: bool,
    ports: Mutex<Vec<Arc<Port>>>,
    subsystems: Mutex<Vec<Arc<Subsystem>>>,
    referrals: Referrals,
    publication: Arc<Publication>,
    /// Serial numbers of [`NamespaceIndex`] and subsystem indexes. [`Inventory::edit`] holds the
    /// lock, so that edits follow one another.
    serials: Mutex<NextSerials>,
    /// Removed namespaces that a core still used when [`Inventory::close`] timed out;
    /// [`Inventory::close_idle`] closes them.
    leaving: Mutex<Vec<NamespaceChange>>,
    state_dir: PathBuf,
    /// Limit on the page cache that the files of its namespaces may use.
    cache_room: Arc<CacheRoom>,
    /// Writes the write protections that hosts set to the state folder; `None` if no namespace can
    /// be writable.
    keeper: Option<ProtectionWriter>,
    /// I/O counters, one set per core.
    core_io_stats: Mutex<Vec<Arc<CoreIoStats>>>,
}

/// Serial numbers of the next subsystem and namespace.
#[derive(Clone, Copy, Debug)]
struct NextSerials {
    namespace: u32,
    subsystem: u32,
}

impl Inventory {
    /// Limits on queues, transfers and resources from the configuration.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// NQN of the discovery service: the configured unique one, or else the well-known one.
    pub(crate) fn discovery_nqn(&self) -> Nqn {
        self.discovery_nqn
    }

    /// Whether an NQN is the well-known or the unique NQN of the discovery service.
    pub(crate) fn is_discovery(&self, nqn: &Nqn) -> bool {
        nqn.is_discovery() || *nqn == self.discovery_nqn
    }

    /// Keys of hosts that have to authenticate to the discovery service. Takes a lock, as the
    /// following functions do.
    pub(crate) fn discovery_keyring(&self) -> MutexGuard<'_, HostKeyring> {
        self.discovery_keyring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hashes and groups that hosts may negotiate whose entries name none.
    pub(crate) fn negotiable(&self) -> MutexGuard<'_, NegotiableByDefault> {
        self.negotiable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Discovery services of other targets, which the discovery log lists as referrals.
    pub(crate) fn referrals(&self) -> &Referrals {
        &self.referrals
    }

    /// Ports in the order in which they were added. Takes a lock, as the following functions do, so
    /// only the control path may call them.
    pub fn ports(&self) -> Vec<Arc<Port>> {
        self.lock_ports().clone()
    }

    /// Ports whose configured address has this IP address.
    pub(crate) fn ports_of(&self, ip: IpAddr) -> Vec<Arc<Port>> {
        let ports = self.lock_ports();
        ports.iter().filter(|port| port.configured_address().ip() == ip).cloned().collect()
    }

    pub(crate) fn add_port(&self, port: &Arc<Port>) {
        self.lock_ports().push(Arc::clone(port));
    }

    pub(crate) fn remove_port(&self, port: &Arc<Port>) {
        self.lock_ports().retain(|other| !Arc::ptr_eq(other, port));
    }

    /// ANA states of a subsystem at the port with this address.
    pub(crate) fn ana(
        &self,
        nqn: &Nqn,
        address: SocketAddr,
    ) -> Result<Arc<AnaStates>, ChangeError> {
        let found = self.port_at(address)?.ana(&self.find_subsystem(nqn)?);
        found.ok_or_else(|| ChangeError::NotServedThere { nqn: nqn.to_string(), address })
    }

    pub(crate) fn listens_at(&self, address: SocketAddr) -> bool {
        self.port_at(address).is_ok()
    }

    fn port_at(&self, address: SocketAddr) -> Result<Arc<Port>, ChangeError> {
        let is_there = |port: &Arc<Port>| port.is_bound() && port.address() == address;
        self.ports().into_iter().find(is_there).ok_or(ChangeError::NoPort(address))
    }

    fn lock_ports(&self) -> MutexGuard<'_, Vec<Arc<Port>>> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Subsystems in the order in which they were added.
    pub(crate) fn subsystems(&self) -> Vec<Arc<Subsystem>> {
        self.lock_subsystems().clone()
    }

    pub(crate) fn subsystem(&self, nqn: &Nqn) -> Option<Arc<Subsystem>> {
        self.lock_subsystems().iter().find(|subsystem| subsystem.nqn == *nqn).cloned()
    }

    /// Published namespaces with their subsystems.
    pub(crate) fn owned(&self) -> impl Iterator<Item = OwnedNamespace> {
        self.subsystems().into_iter().flat_map(|subsystem| {
            let list = subsystem.namespaces();
            let owned: Vec<_> =
                list.iter().map(|one| OwnedNamespace::new(&subsystem, one)).collect();
            owned
        })
    }

    pub(crate) fn find_subsystem(&self, nqn: &Nqn) -> Result<Arc<Subsystem>, ChangeError> {
        self.subsystem(nqn).ok_or_else(|| ChangeError::no_subsystem(nqn))
    }

    fn lock_subsystems(&self) -> MutexGuard<'_, Vec<Arc<Subsystem>>> {
        self.subsystems.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serials(&self) -> MutexGuard<'_, NextSerials> {
        self.serials.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publication from which cores adopt the latest exports.
    pub(crate) fn publication(&self) -> &Arc<Publication> {
        &self.publication
    }

    /// Latest exports. Takes a lock, so only the control path may call this.
    pub(crate) fn exports(&self) -> Arc<Exports> {
        self.publication.exports()
    }

    /// All namespaces of the latest exports.
    pub(crate) fn namespaces(&self) -> Vec<Arc<Namespace>> {
        self.exports().namespaces().cloned().collect()
    }

    /// Namespace with this index; `None` if it was removed.
    pub(crate) fn namespace(&self, index: NamespaceIndex) -> Option<Arc<Namespace>> {
        self.exports().namespace(index).cloned()
    }

    /// Limit on the page cache that the files of its namespaces may use.
    pub(crate) fn cache_room(&self) -> &Arc<CacheRoom> {
        &self.cache_room
    }

    /// Subsystem that exports a namespace; `None` if the namespace was removed.
    pub(crate) fn subsystem_of(&self, namespace: &Namespace) -> Option<Arc<Subsystem>> {
        let has = |subsystem: &&Arc<Subsystem>| {
            let found = subsystem.namespace(namespace.nsid);
            found.is_some_and(|found| found.index == namespace.index)
        };
        self.lock_subsystems().iter().find(has).cloned()
    }

    /// Error counts of the namespaces whose media failed, highest total first, at most `most` of
    /// them.
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

    /// Creates the I/O counters of one core and adds them to the sums of the following functions.
    pub fn open_core_io_stats(&self) -> Arc<CoreIoStats> {
        let io_stats = Arc::<CoreIoStats>::default();
        self.core_io_stats().push(Arc::clone(&io_stats));
        io_stats
    }

    /// Writes the write protection of a namespace to the state folder, then calls `done` on another
    /// thread. Returns false, without a call, if the target keeps no protections.
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

    /// I/O counters since the start of the target, summed over all cores.
    pub fn io_stats(&self) -> IoStats {
        let mut sum = IoStats::default();
        self.core_io_stats().iter().for_each(|io_stats| sum += io_stats.all());
        sum
    }

    /// Ends the I/O counters of a subsystem that was removed.
    fn close_io_stats(&self, subsystem: &Subsystem) {
        self.core_io_stats().iter().for_each(|io_stats| io_stats.close(subsystem.index));
    }

    /// I/O counters since the start of the target, for each core.
    pub(crate) fn io_stats_by_core(&self) -> Vec<IoStats> {
        self.core_io_stats().iter().map(|io_stats| io_stats.all()).collect()
    }

    /// I/O counters of one subsystem since the start of the target, summed over all cores.
    pub(crate) fn io_stats_of(&self, subsystem: &Subsystem) -> IoStats {
        self.io_of(subsystem).unwrap_or_default().commands
    }

    /// I/O counters and latencies of one subsystem; `None` before the first Connect command for it.
    pub(crate) fn io_of(&self, subsystem: &Subsystem) -> Option<SubsystemIoStats> {
        let core_io_stats = self.core_io_stats();
        core_io_stats.iter().filter_map(|io_stats| io_stats.of(subsystem.index)).reduce(
            |mut sum, one| {
                sum += one;
                sum
            },
        )
    }

    fn core_io_stats(&self) -> MutexGuard<'_, Vec<Arc<CoreIoStats>>> {
        self.core_io_stats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
