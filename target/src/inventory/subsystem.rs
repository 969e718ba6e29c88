//! An NVM subsystem: the namespaces that hosts see under one NQN.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use feedrail_auth::AuthPolicy;
use nvme_proto::{AsciiField, Nqn, Nsid};

use crate::config::{QosLimits, SubsystemConfig, SubsystemIdentity};
use crate::inventory::allowed_host::AllowedHosts;
use crate::inventory::error::ChangeError;
use crate::inventory::host_keys::TransactionTerms;
use crate::inventory::index::SubsystemIndex;
use crate::inventory::left_out::LeftOutSummary;
use crate::inventory::named_host::NamedHost;
use crate::inventory::namespace::Namespace;
use crate::inventory::published::{ExportedList, Publication};
use crate::limits::NSID_LAST;
use crate::metrics::error_counts::ErrorCounts;
use crate::qos::Quota;

/// An NVM subsystem. The latest generation of [`Publication`] has its namespaces.
#[derive(Debug)]
pub(crate) struct Subsystem {
    pub nqn: Nqn,
    /// Serial number (SN), padded with spaces.
    pub serial: AsciiField<20>,
    /// Model number (MN), padded with spaces.
    pub model: AsciiField<40>,
    /// Whether hosts may deallocate logical blocks (Dataset Management).
    pub(crate) deallocate: bool,
    /// Identity that the UUIDs of its namespaces are derived from.
    pub(crate) identity: SubsystemIdentity,
    /// Hosts that may connect. Only the control path takes the lock.
    hosts: Mutex<AllowedHosts>,
    /// Quotas of hosts that are connected, by their NQNs.
    quotas: Mutex<BTreeMap<Nqn, Weak<Quota>>>,
    /// NSIDs of namespaces that were removed while the target ran.
    used_nsids: Mutex<BTreeSet<Nsid>>,
    /// Files of its directories that the last scan did not export.
    left_out_files: Mutex<Arc<LeftOutSummary>>,
    pub(crate) index: SubsystemIndex,
    /// Whether namespaces can be added at run time.
    pub(crate) managed: bool,
    /// Highest NSID that a namespace added at run time may have.
    pub(crate) nsid_last: u32,
    publication: Arc<Publication>,
    /// Counts of error log entries over all its controllers.
    pub(crate) errors: Arc<ErrorCounts>,
}

impl Subsystem {
    /// Creates a subsystem. `publication` has its namespaces under `index`.
    pub(crate) fn new(
        config: &SubsystemConfig,
        hosts: AllowedHosts,
        index: SubsystemIndex,
        managed: bool,
        publication: &Arc<Publication>,
    ) -> Self {
        Self {
            nqn: config.nqn,
            serial: config.serial,
            model: config.model,
            deallocate: config.deallocate,
            identity: config.identity,
            hosts: Mutex::new(hosts),
            quotas: Mutex::default(),
            used_nsids: Mutex::default(),
            left_out_files: Mutex::default(),
            index,
            managed,
            nsid_last: NSID_LAST,
            publication: Arc::clone(publication),
            errors: Arc::default(),
        }
    }

    /// First configuration key with another value in `config` than this subsystem has, among those
    /// that are fixed while it exists.
    pub(crate) fn difference(&self, config: &SubsystemConfig) -> Option<&'static str> {
        let keys = [
            ("serial", self.serial == config.serial),
            ("model", self.model == config.model),
            ("deallocate", self.deallocate == config.deallocate),
            ("dataset_id", self.identity == config.identity),
        ];
        keys.iter().find(|(_, same)| !same).map(|(key, _)| *key)
    }

    /// Files of its directories that the last scan did not export.
    pub(crate) fn left_out_files(&self) -> Arc<LeftOutSummary> {
        Arc::clone(&self.left_out_files.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn set_left_out_files(&self, files: LeftOutSummary) {
        let mut place = self.left_out_files.lock().unwrap_or_else(PoisonError::into_inner);
        *place = Arc::new(files);
    }

    pub(crate) fn allows(&self, host: &NamedHost) -> bool {
        self.lock_hosts().allows(host)
    }

    /// Whether a host has to authenticate.
    pub(crate) fn demands_authentication(&self, host: &NamedHost) -> bool {
        self.lock_hosts().keyring.demands(host)
    }

    /// Keys and parameters for the next authentication of a host.
    pub(crate) fn transaction_terms(
        &self,
        host: &NamedHost,
        target: &AuthPolicy,
    ) -> TransactionTerms {
        self.lock_hosts().keyring.terms(host, &self.nqn, target)
    }

    pub(crate) fn hosts(&self) -> AllowedHosts {
        self.lock_hosts().clone()
    }

    /// Replaces the hosts that may connect. Hosts that are connected stay so, and get the new
    /// limits.
    pub(crate) fn set_hosts(&self, hosts: AllowedHosts) {
        let before = std::mem::replace(&mut *self.lock_hosts(), hosts.clone());
        if before.limits == hosts.limits {
            return;
        }
        for (host, quota) in self.lock_quotas().iter() {
            if let Some(quota) = quota.upgrade() {
                self.limit(&quota, &hosts.limits.of(host));
            }
        }
        self.publication.limits_set();
        self.publication.wake_cores();
    }

    /// Quota of a host, the same for all of its associations.
    pub(crate) fn quota_of(&self, host: &Nqn) -> Arc<Quota> {
        // Under the lock, so that later changes of the hosts find the quota.
        let mut quotas = self.lock_quotas();
        if let Some(quota) = quotas.get(host).and_then(Weak::upgrade) {
            return quota;
        }
        quotas.retain(|_, quota| quota.strong_count() > 0);
        let quota = Arc::new(Quota::default());
        self.limit(&quota, &self.lock_hosts().limits.of(host));
        quotas.insert(*host, Arc::downgrade(&quota));
        quota
    }

    /// Limits of a host.
    pub(crate) fn limits_of(&self, host: &NamedHost) -> QosLimits {
        self.lock_hosts().limits.of(&host.nqn.0)
    }

    fn limit(&self, quota: &Quota, limits: &QosLimits) {
        quota.set(limits);
        if quota.is_limited() {
            self.publication.limits_set();
        }
    }

    fn lock_quotas(&self) -> MutexGuard<'_, BTreeMap<Nqn, Weak<Quota>>> {
        self.quotas.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_hosts(&self) -> MutexGuard<'_, AllowedHosts> {
        self.hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a namespace with this NSID was removed while the target ran.
    pub(crate) fn had_namespace(&self, nsid: Nsid) -> bool {
        self.lock_used().contains(&nsid)
    }

    /// Records the NSID of a removed namespace for [`Subsystem::had_namespace`].
    pub(crate) fn note_removed(&self, nsid: Nsid) {
        self.lock_used().insert(nsid);
    }

    fn lock_used(&self) -> MutexGuard<'_, BTreeSet<Nsid>> {
        self.used_nsids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Namespaces in order of NSID. Takes a lock, as the following functions do, so only the
    /// control path may call them.
    pub(crate) fn namespaces(&self) -> Arc<ExportedList> {
        Arc::clone(self.publication.exports().list(self.index))
    }

    pub(crate) fn namespace(&self, nsid: Nsid) -> Option<Arc<Namespace>> {
        self.namespaces().get(nsid).cloned()
    }

    pub(crate) fn find_namespace(&self, nsid: Nsid) -> Result<Arc<Namespace>, ChangeError> {
        let none = || ChangeError::NoNamespace { nqn: self.nqn.to_string(), nsid };
        self.namespace(nsid).ok_or_else(none)
    }

    /// Highest NSID that a namespace has, or may get at run time (NN); 0 without namespaces.
    pub(crate) fn most_nsid(&self) -> u32 {
        let highest = self.namespaces().highest_nsid();
        if self.managed { highest.max(self.nsid_last) } else { highest }
    }
}
