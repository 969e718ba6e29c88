//! A port: an address that the target listens on.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

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
    /// For the control path only.
    subsystems: Mutex<Vec<Arc<Subsystem>>>,
}

impl Port {
    /// A port that serves those of `subsystems` that the configuration names.
    pub(crate) fn new(config: &PortConfig, subsystems: &[Arc<Subsystem>]) -> Self {
        let served = |subsystem: &&Arc<Subsystem>| config.serves(&subsystem.nqn);
        Self {
            id: config.id,
            configured: config.address,
            bound: OnceLock::new(),
            subsystems: Mutex::new(subsystems.iter().filter(served).cloned().collect()),
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
    pub(crate) fn subsystems(&self) -> Vec<Arc<Subsystem>> {
        self.lock().clone()
    }

    /// The subsystem of that name, if this port serves it.
    pub(crate) fn subsystem(&self, nqn: &Nqn) -> Option<Arc<Subsystem>> {
        self.lock().iter().find(|subsystem| subsystem.nqn == *nqn).cloned()
    }

    /// Whether it serves a subsystem.
    pub(crate) fn serves(&self, subsystem: &Arc<Subsystem>) -> bool {
        self.lock().iter().any(|other| Arc::ptr_eq(other, subsystem))
    }

    /// Serves a subsystem from now on; false if it did already.
    pub(crate) fn add(&self, subsystem: &Arc<Subsystem>) -> bool {
        let mut subsystems = self.lock();
        let is_new = !subsystems.iter().any(|other| Arc::ptr_eq(other, subsystem));
        if is_new {
            subsystems.push(Arc::clone(subsystem));
        }
        is_new
    }

    /// Does not serve a subsystem any more; false if it did not. Those who are connected stay.
    pub(crate) fn remove(&self, subsystem: &Arc<Subsystem>) -> bool {
        let mut subsystems = self.lock();
        let before = subsystems.len();
        subsystems.retain(|other| !Arc::ptr_eq(other, subsystem));
        subsystems.len() != before
    }

    /// Serves only those of its subsystems that are to stay. Those who are connected stay.
    pub(crate) fn retain(&self, stays: impl Fn(&Arc<Subsystem>) -> bool) {
        self.lock().retain(stays);
    }

    /// The subsystems that a host may connect to here.
    pub(crate) fn visible_to(&self, host: &NamedHost) -> Vec<Arc<Subsystem>> {
        self.lock().iter().filter(|subsystem| subsystem.allows(host)).cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Subsystem>>> {
        self.subsystems.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
