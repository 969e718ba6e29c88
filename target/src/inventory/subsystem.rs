//! A subsystem: the namespaces that hosts see under one name.

use std::sync::Arc;

use nvme_proto::{AsciiField, Nqn, Nsid};

use crate::config::{HostPolicy, SubsystemConfig, SubsystemIdentity};
use crate::inventory::allowed_host::NamedHost;
use crate::inventory::exports::{ExportedList, Publication};
use crate::inventory::namespace::Namespace;
use crate::limits::NSID_LAST;
use crate::metrics::error_counts::ErrorCounts;

/// A subsystem. Its namespaces are those of the latest generation of exports.
#[derive(Debug)]
pub(crate) struct Subsystem {
    /// NVMe Qualified Name of the subsystem.
    pub nqn: Nqn,
    /// Serial number, padded with spaces as in Identify.
    pub serial: AsciiField<20>,
    /// Model number, padded with spaces as in Identify.
    pub model: AsciiField<40>,
    /// Whether hosts may give space back.
    pub(crate) deallocate: bool,
    /// The identity that the UUIDs of its namespaces are derived from.
    pub(crate) identity: SubsystemIdentity,
    hosts: HostPolicy,
    /// Its place among the subsystems of the target.
    pub(crate) place: usize,
    /// Whether namespaces can be added while it lives.
    pub(crate) managed: bool,
    publication: Arc<Publication>,
    /// Commands of its controllers that failed.
    pub(crate) errors: Arc<ErrorCounts>,
}

impl Subsystem {
    /// The subsystem at a place, whose namespaces are published there.
    pub(crate) fn new(
        config: &SubsystemConfig,
        place: usize,
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
            hosts: config.hosts.clone(),
            place,
            managed,
            publication: Arc::clone(publication),
            errors: Arc::default(),
        }
    }

    /// Whether a host may connect.
    pub(crate) fn allows(&self, host: &NamedHost) -> bool {
        self.hosts.allows(host)
    }

    /// The hosts that may connect.
    pub(crate) fn hosts(&self) -> &HostPolicy {
        &self.hosts
    }

    /// All namespaces, by NSID. For the control path, as are the next ones: they take a lock.
    pub(crate) fn namespaces(&self) -> Arc<ExportedList> {
        Arc::clone(self.publication.exports().list(self.place))
    }

    /// The namespace with an id.
    pub(crate) fn namespace(&self, nsid: Nsid) -> Option<Arc<Namespace>> {
        self.namespaces().get(nsid).cloned()
    }

    /// The highest NSID that a namespace of it may have while a host is connected, or 0.
    pub(crate) fn most_nsid(&self) -> u32 {
        let highest = self.namespaces().highest_nsid();
        if self.managed { highest.max(NSID_LAST) } else { highest }
    }
}
