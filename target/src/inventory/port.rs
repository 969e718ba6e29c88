//! A port: an address that the target listens on.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use nvme_proto::Nqn;

use crate::config::PortConfig;
use crate::inventory::allowed_host::NamedHost;
use crate::inventory::subsystem::Subsystem;

/// An address to listen on, and the subsystems that it offers.
#[derive(Debug)]
pub struct Port {
    /// The port id of the discovery log.
    pub id: u16,
    configured: SocketAddr,
    bound: OnceLock<SocketAddr>,
    subsystems: Vec<Arc<Subsystem>>,
}

impl Port {
    /// A port that serves those of `subsystems` that the configuration names.
    pub(crate) fn new(config: &PortConfig, subsystems: &[Arc<Subsystem>]) -> Self {
        let served = |subsystem: &&Arc<Subsystem>| match &config.subsystems {
            None => true,
            Some(list) => list.contains(&subsystem.nqn),
        };
        Self {
            id: config.id,
            configured: config.address,
            bound: OnceLock::new(),
            subsystems: subsystems.iter().filter(served).cloned().collect(),
        }
    }

    /// The address to listen on, whose port may be 0.
    pub(crate) fn configured_address(&self) -> SocketAddr {
        self.configured
    }

    /// Says which address is listened on; only the first call counts.
    pub(crate) fn set_address(&self, address: SocketAddr) {
        let _ = self.bound.set(address);
    }

    /// Whether it is listened on.
    pub(crate) fn is_bound(&self) -> bool {
        self.bound.get().is_some()
    }

    /// The address that hosts connect to.
    pub fn address(&self) -> SocketAddr {
        *self.bound.get().unwrap_or(&self.configured)
    }

    /// All subsystems that it serves.
    pub(crate) fn subsystems(&self) -> &[Arc<Subsystem>] {
        &self.subsystems
    }

    /// The subsystem of that name, if this port serves it.
    pub(crate) fn subsystem(&self, nqn: &Nqn) -> Option<&Arc<Subsystem>> {
        self.subsystems.iter().find(|subsystem| subsystem.nqn == *nqn)
    }

    /// The subsystems that a host may connect to here.
    pub(crate) fn visible_to(&self, host: NamedHost) -> impl Iterator<Item = &Arc<Subsystem>> {
        self.subsystems.iter().filter(move |subsystem| subsystem.allows(&host))
    }
}
