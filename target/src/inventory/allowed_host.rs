//! Hosts: who they say they are, and whether they may.

use nvme_proto::{HostId, HostNqn};

use crate::config::HostPolicy;

/// A host as its Connect command names it. All queues of one association must name the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedHost {
    /// Its name, or one made of its identifier if it said none.
    pub nqn: HostNqn,
    /// Whether it said its name. If not it may connect where any host may.
    pub named: bool,
    /// Its identifier.
    pub id: HostId,
}

impl HostPolicy {
    /// Whether a host may connect.
    pub fn allows(&self, host: &NamedHost) -> bool {
        match self {
            Self::Any => true,
            Self::Listed(list) => host.named && list.contains(&host.nqn.0),
        }
    }
}
