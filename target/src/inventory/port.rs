//! A port: an address that the target listens on.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use nvme_proto::Nqn;

use crate::config::PortConfig;
use crate::inventory::allowed_host::NamedHost;
use crate::inventory::ana::AnaStates;
use crate::inventory::subsystem::Subsystem;

/// An address to listen on, and the subsystems that it offers.
#[derive(Debug)]
pub struct Port {
    /// The port id of the discovery log.
    pub id: u16,
    configured: SocketAddr,
    /// The id of the configured port with the wildcard address that stands for this one.
    wildcard: Option<u16>,
    bound: OnceLock<SocketAddr>,
    /// For the control path only.
    served: Mutex<Vec<ServedSubsystem>>,
}

/// A subsystem at a port.
#[derive(Clone, Debug)]
pub(crate) struct ServedSubsystem {
    pub(crate) subsystem: Arc<Subsystem>,
    /// How its namespaces can be reached there.
    pub(crate) ana: Arc<AnaStates>,
}

impl ServedSubsystem {
    /// A subsystem all of whose namespaces can be reached well.
    fn new(subsystem: &Arc<Subsystem>) -> Self {
        Self { subsystem: Arc::clone(subsystem), ana: Arc::default() }
    }
}

impl Port {
    /// A port that serves those of `subsystems` that the configuration names.
    pub(crate) fn new(config: &PortConfig, subsystems: &[Arc<Subsystem>]) -> Self {
        let served = |subsystem: &&Arc<Subsystem>| config.serves(&subsystem.nqn);
        let served = subsystems.iter().filter(served).map(ServedSubsystem::new).collect();
        Self { served: Mutex::new(served), ..Self::added(config.id, config.address) }
    }

    /// A port at one of the addresses for which a configured one stands.
    pub(crate) fn of_wildcard(
        id: u16,
        address: SocketAddr,
        config: &PortConfig,
        subsystems: &[Arc<Subsystem>],
    ) -> Self {
        let port = Self::new(config, subsystems);
        Self { id, configured: address, wildcard: Some(config.id), ..port }
    }

    /// A port that no configuration has, and that serves nothing yet.
    pub(crate) fn added(id: u16, address: SocketAddr) -> Self {
        Self {
            id,
            configured: address,
            wildcard: None,
            bound: OnceLock::new(),
            served: Mutex::default(),
        }
    }

    /// Whether it is the port that a configuration names, or one of those for which that stands.
    pub(crate) fn is_of(&self, config: &PortConfig) -> bool {
        match self.wildcard {
            Some(id) => {
                let same_port = self.configured.port() == config.address.port();
                id == config.id && same_port && config.stands_for(self.configured.ip())
            }
            None => self.id == config.id && self.configured == config.address,
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
        self.lock().iter().map(|served| Arc::clone(&served.subsystem)).collect()
    }

    /// The subsystem of that name, if this port serves it.
    pub(crate) fn find(&self, nqn: &Nqn) -> Option<ServedSubsystem> {
        self.lock().iter().find(|served| served.subsystem.nqn == *nqn).cloned()
    }

    /// Whether it serves a subsystem.
    pub(crate) fn serves(&self, subsystem: &Arc<Subsystem>) -> bool {
        self.ana(subsystem).is_some()
    }

    /// How the namespaces of a subsystem can be reached here; `None` where it is not served.
    pub(crate) fn ana(&self, subsystem: &Arc<Subsystem>) -> Option<Arc<AnaStates>> {
        let served = self.lock();
        let found = served.iter().find(|one| Arc::ptr_eq(&one.subsystem, subsystem));
        found.map(|one| Arc::clone(&one.ana))
    }

    /// Whether it serves a subsystem, and has since these states were its own: one that was removed
    /// and added again has others.
    pub(crate) fn still_serves(&self, subsystem: &Arc<Subsystem>, ana: &Arc<AnaStates>) -> bool {
        self.ana(subsystem).is_some_and(|now| Arc::ptr_eq(&now, ana))
    }

    /// The states of all subsystems that it serves.
    pub(crate) fn ana_of_all(&self) -> Vec<Arc<AnaStates>> {
        self.lock().iter().map(|served| Arc::clone(&served.ana)).collect()
    }

    /// Serves a subsystem from now on; false if it did already.
    pub(crate) fn add(&self, subsystem: &Arc<Subsystem>) -> bool {
        let mut served = self.lock();
        let is_new = !served.iter().any(|one| Arc::ptr_eq(&one.subsystem, subsystem));
        if is_new {
            served.push(ServedSubsystem::new(subsystem));
        }
        is_new
    }

    /// Does not serve a subsystem any more; false if it did not. Those who are connected stay.
    pub(crate) fn remove(&self, subsystem: &Arc<Subsystem>) -> bool {
        let mut served = self.lock();
        let before = served.len();
        served.retain(|one| !Arc::ptr_eq(&one.subsystem, subsystem));
        served.len() != before
    }

    /// Serves only those of its subsystems that are to stay. Those who are connected stay.
    pub(crate) fn retain(&self, stays: impl Fn(&Arc<Subsystem>) -> bool) {
        self.lock().retain(|served| stays(&served.subsystem));
    }

    /// The subsystems that a host may connect to here.
    pub(crate) fn visible_to(&self, host: &NamedHost) -> Vec<Arc<Subsystem>> {
        self.subsystems().into_iter().filter(|subsystem| subsystem.allows(host)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<ServedSubsystem>> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
