//! Hosts: who they say they are, and whether they may.

use nvme_proto::{HostId, HostNqn};

use crate::config::HostPolicy;

/// A host as its Connect command names it. All queues of one association must name the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its name.
    pub nqn: HostNqn,
    /// Its identifier.
    pub id: HostId,
}

impl HostPolicy {
    /// Whether a host of this name may connect.
    pub fn allows(&self, host: &HostNqn) -> bool {
        match self {
            Self::Any => true,
            Self::Listed(list) => list.contains(&host.0),
        }
    }
}
