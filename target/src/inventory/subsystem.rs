//! A subsystem: the namespaces that hosts see under one NQN.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvme_proto::{AsciiField, Nqn, Nsid};

use crate::config::{SubsystemConfig, SubsystemIdentity};
use crate::inventory::allowed_host::{AllowedHosts, HostsChange, HostsError, NamedHost};
use crate::inventory::error::ChangeError;
use crate::inventory::exports::{ExportedList, Publication};
use crate::inventory::index::SubsystemIndex;
use crate::inventory::left_out::LeftOutSummary;
use crate::inventory::namespace::Namespace;
use crate::limits::NSID_LAST;
use crate::metrics::error_counts::ErrorCounts;

/// A subsystem. Its namespaces are in the latest generation of exports.
#[derive(Debug)]
pub(crate) struct Subsystem {
    /// NVMe Qualified Name of the subsystem.
    pub nqn: Nqn,
    /// Serial number, padded with spaces as in Identify.
    pub serial: AsciiField<20>,
    /// Model number, padded with spaces as in Identify.
    pub model: AsciiField<40>,
    /// Whether hosts may deallocate blocks.
    pub(crate) deallocate: bool,
    /// Identity that the UUIDs of its namespaces are derived from.
    pub(crate) identity: SubsystemIdentity,
    /// Hosts that may connect, used by the control path only.
    hosts: Mutex<AllowedHosts>,
    /// NSIDs of removed namespaces.
    used_nsids: Mutex<BTreeSet<Nsid>>,
    /// Files of its directories that are no namespaces.
    left_out_files: Mutex<Arc<LeftOutSummary>>,
    /// Its index in this process.
    pub(crate) index: SubsystemIndex,
    /// Whether namespaces can be added at run time.
    pub(crate) managed: bool,
    /// Highest NSID that a namespace may have.
    pub(crate) nsid_last: u32,
    publication: Arc<Publication>,
    /// Counts of failed commands of its controllers.
    pub(crate) errors: Arc<ErrorCounts>,
}

impl Subsystem {
    /// Creates a subsystem whose namespaces are published under its index.
    pub(crate) fn new(
        config: &SubsystemConfig,
        index: SubsystemIndex,
        managed: bool,
        publication: &Arc<Publication>,
    ) -> Self {
        Self {
            nqn: config.nqn,
            // The configuration was checked to fit.
            serial: AsciiField::new(&config.serial).unwrap_or_default(),
            model: AsciiField::new(&config.model).unwrap_or_default(),
            deallocate: config.deallocate,
            identity: config.identity,
            hosts: Mutex::new((&config.hosts).into()),
            used_nsids: Mutex::default(),
            left_out_files: Mutex::default(),
            index,
            managed,
            nsid_last: NSID_LAST,
            publication: Arc::clone(publication),
            errors: Arc::default(),
        }
    }

    /// First fixed key that a configuration changes.
    pub(crate) fn difference(&self, config: &SubsystemConfig) -> Option<&'static str> {
        let keys = [
            ("serial", self.serial == AsciiField::new(&config.serial).unwrap_or_default()),
            ("model", self.model == AsciiField::new(&config.model).unwrap_or_default()),
            ("deallocate", self.deallocate == config.deallocate),
            ("dataset_id", self.identity == config.identity),
        ];
        keys.iter().find(|(_, same)| !same).map(|(key, _)| *key)
    }

    /// Files of its directories that were left out at the last look.
    pub(crate) fn left_out_files(&self) -> Arc<LeftOutSummary> {
        Arc::clone(&self.left_out_files.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn set_left_out_files(&self, files: LeftOutSummary) {
        let mut place = self.left_out_files.lock().unwrap_or_else(PoisonError::into_inner);
        *place = Arc::new(files);
    }

    /// Whether a host may connect.
    pub(crate) fn allows(&self, host: &NamedHost) -> bool {
        self.lock_hosts().allows(host)
    }

    /// Hosts that may currently connect.
    pub(crate) fn hosts(&self) -> AllowedHosts {
        self.lock_hosts().clone()
    }

    /// Changes which hosts may connect. Connected hosts stay.
    ///
    /// # Errors
    /// The change has no effect, or there are too many hosts.
    pub(crate) fn change_hosts(&self, change: HostsChange) -> Result<(), HostsError> {
        self.lock_hosts().change(change)
    }

    /// Replaces the hosts that may connect. Connected hosts stay.
    pub(crate) fn set_hosts(&self, hosts: AllowedHosts) {
        *self.lock_hosts() = hosts;
    }

    fn lock_hosts(&self) -> MutexGuard<'_, AllowedHosts> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a removed namespace had the NSID.
    pub(crate) fn had_namespace(&self, nsid: Nsid) -> bool {
        self.lock_used().contains(&nsid)
    }

    /// Records the NSID of a removed namespace.
    pub(crate) fn note_removed(&self, nsid: Nsid) {
        self.lock_used().insert(nsid);
    }

    fn lock_used(&self) -> MutexGuard<'_, BTreeSet<Nsid>> {
        self.used_nsids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All namespaces by NSID. Takes a lock, as the following functions do, so only the control
    /// path calls them.
    pub(crate) fn namespaces(&self) -> Arc<ExportedList> {
        Arc::clone(self.publication.exports().list(self.index))
    }

    /// Namespace with the NSID.
    pub(crate) fn namespace(&self, nsid: Nsid) -> Option<Arc<Namespace>> {
        self.namespaces().get(nsid).cloned()
    }

    /// Finds a namespace by its NSID, or returns the error that it does not exist.
    pub(crate) fn find_namespace(&self, nsid: Nsid) -> Result<Arc<Namespace>, ChangeError> {
        let none = || ChangeError::NoNamespace { nqn: self.nqn.to_string(), nsid };
        self.namespace(nsid).ok_or_else(none)
    }

    /// Highest NSID that a namespace may get while a host is connected, or 0.
    pub(crate) fn most_nsid(&self) -> u32 {
        let highest = self.namespaces().highest_nsid();
        if self.managed { highest.max(self.nsid_last) } else { highest }
    }
}
