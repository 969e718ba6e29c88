//! A subsystem: the namespaces that hosts see under one name.

use std::sync::Arc;

use nvme_proto::{AsciiField, Nqn, Nsid};

use crate::config::{HostPolicy, SubsystemConfig};
use crate::inventory::allowed_host::NamedHost;
use crate::inventory::namespace::Namespace;
use crate::metrics::error_counts::ErrorCounts;

/// A subsystem. Its namespaces do not change while it lives.
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
    hosts: HostPolicy,
    /// Sorted by NSID, each NSID once.
    namespaces: Vec<Arc<Namespace>>,
    /// Commands of its controllers that failed.
    pub(crate) errors: Arc<ErrorCounts>,
}

impl Subsystem {
    /// A subsystem of these namespaces, in any order, whose NSIDs differ.
    pub(crate) fn new(config: &SubsystemConfig, mut namespaces: Vec<Arc<Namespace>>) -> Self {
        namespaces.sort_by_key(|namespace| namespace.nsid);
        Self {
            nqn: config.nqn,
            // The configuration was checked to fit.
            serial: AsciiField::new(&config.serial).unwrap_or_default(),
            model: AsciiField::new(&config.model).unwrap_or_default(),
            deallocate: config.deallocate,
            hosts: config.hosts.clone(),
            namespaces,
            errors: Arc::default(),
        }
    }

    /// Whether a host may connect.
    pub(crate) fn allows(&self, host: &NamedHost) -> bool {
        self.hosts.allows(host)
    }

    /// All namespaces, by NSID.
    pub(crate) fn namespaces(&self) -> &[Arc<Namespace>] {
        &self.namespaces
    }

    /// The namespace with an id.
    pub(crate) fn namespace(&self, nsid: Nsid) -> Option<&Arc<Namespace>> {
        // Ids without gaps, the usual case, are found at once.
        let guess = self.namespaces.get((nsid.0 as usize).wrapping_sub(1));
        if let Some(namespace) = guess.filter(|namespace| namespace.nsid == nsid) {
            return Some(namespace);
        }
        let found = self.namespaces.binary_search_by_key(&nsid, |namespace| namespace.nsid);
        found.ok().map(|at| &self.namespaces[at])
    }

    /// The highest NSID, or 0.
    pub(crate) fn highest_nsid(&self) -> u32 {
        self.namespaces.last().map_or(0, |namespace| namespace.nsid.0)
    }
}
