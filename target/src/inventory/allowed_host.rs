//! Hosts: the names that they send, and whether those may connect.

use nvme_proto::{HostId, HostNqn};

use crate::config::HostPolicy;

/// A host as its Connect command names it. All queues of one association must name the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedHost {
    /// Its name, or one made of its identifier if it said none.
    pub nqn: HostNqn,
    /// Whether it said its name. If not it may connect where any host may.
    pub named: bool,
    /// Host Identifier of its Connect command, 16 bytes.
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
