//! A port: an address that the target listens on, with the subsystems served there.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use nvme_proto::Nqn;
use serde::Serialize;

use crate::config::PortConfig;
use crate::inventory::ana::AnaStates;
use crate::inventory::named_host::NamedHost;
use crate::inventory::subsystem::Subsystem;

/// Port of the NVM subsystems: an address to listen on, and the subsystems served there.
#[derive(Debug)]
pub struct Port {
    /// Port ID (PORTID) in the discovery log.
    pub id: u16,
    configured: SocketAddr,
    /// ID of the configured port with a wildcard address (`0.0.0.0` or `::`) that created this one.
    wildcard: Option<u16>,
    /// Address that the target listens on, once it does.
    bound: OnceLock<SocketAddr>,
    state: Mutex<PortState>,
    /// Subsystems served here, used by the control path only.
    served: Mutex<Vec<ServedSubsystem>>,
}

/// Whether the target listens on a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub(crate) enum PortState {
    /// A device accepts connections on the port.
    Listening {
        /// Name of the device's RDMA provider: `verbs`, `soft` or `shm`.
        provider: &'static str,
        /// Reason that this provider was selected.
        reason: String,
    },
    /// No device accepts connections on the port.
    NotListening {
        /// Error of the last attempt to listen.
        reason: String,
    },
}

/// Address of a port and its state, as the status page and the management methods show them.
#[derive(Debug, Serialize)]
pub(crate) struct PortStatus {
    address: String,
    #[serde(flatten)]
    state: PortState,
}

#[derive(Clone, Debug)]
pub(crate) struct ServedSubsystem {
    pub(crate) subsystem: Arc<Subsystem>,
    /// ANA states of its namespaces at the port.
    pub(crate) ana: Arc<AnaStates>,
}

impl ServedSubsystem {
    /// Creates the entry with all ANA groups Optimized.
    fn new(subsystem: &Arc<Subsystem>) -> Self {
        Self { subsystem: Arc::clone(subsystem), ana: Arc::default() }
    }
}

impl PortState {
    /// State of a port for which an attempt failed, or whose device failed, for this reason.
    pub(crate) fn not_listening(reason: impl ToString) -> Self {
        Self::NotListening { reason: reason.to_string() }
    }
}

impl Port {
    /// Creates a port of the configuration, which serves no subsystem yet.
    pub(crate) fn new(config: &PortConfig) -> Self {
        Self::added(config.id, config.address)
    }

    /// Creates a port for one of the addresses that a configured wildcard stands for. It serves
    /// those of `subsystems` that the wildcard names.
    pub(crate) fn of_wildcard(
        id: u16,
        address: SocketAddr,
        config: &PortConfig,
        subsystems: &[Arc<Subsystem>],
    ) -> Self {
        let served = subsystems.iter().filter(|subsystem| config.serves(&subsystem.nqn));
        let served = served.map(ServedSubsystem::new).collect();
        let wildcard = Some(config.id);
        Self { wildcard, served: Mutex::new(served), ..Self::added(id, address) }
    }

    /// Creates a port at run time, which serves no subsystem yet.
    pub(crate) fn added(id: u16, address: SocketAddr) -> Self {
        Self {
            id,
            configured: address,
            wildcard: None,
            bound: OnceLock::new(),
            state: Mutex::new(PortState::not_listening("no attempt was made yet")),
            served: Mutex::default(),
        }
    }

    /// Whether `config` describes this port, or the wildcard address that it belongs to.
    pub(crate) fn is_of(&self, config: &PortConfig) -> bool {
        match self.wildcard {
            Some(id) => {
                let same_port = self.configured.port() == config.address.port();
                id == config.id && same_port && config.stands_for(self.configured.ip())
            }
            None => self.id == config.id && self.configured == config.address,
        }
    }

    /// Address to listen on. If its port number is 0, the system chooses one.
    pub(crate) fn configured_address(&self) -> SocketAddr {
        self.configured
    }

    /// Sets the address that the target listens on. Later calls have no effect.
    pub(crate) fn set_address(&self, address: SocketAddr) {
        let _ = self.bound.set(address);
    }

    /// Whether the target listens on the port.
    pub(crate) fn is_bound(&self) -> bool {
        self.bound.get().is_some()
    }

    /// State as of the last attempt to listen, or of the last check of the device.
    pub(crate) fn state(&self) -> PortState {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn status(&self) -> PortStatus {
        PortStatus { address: self.address().to_string(), state: self.state() }
    }

    pub(crate) fn set_state(&self, state: PortState) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = state;
    }

    /// Address that hosts connect to; before the target listens, the configured one.
    pub fn address(&self) -> SocketAddr {
        *self.bound.get().unwrap_or(&self.configured)
    }

    pub(crate) fn subsystems(&self) -> Vec<Arc<Subsystem>> {
        self.lock().iter().map(|served| Arc::clone(&served.subsystem)).collect()
    }

    /// Subsystem with this NQN and its ANA states; `None` if the port does not serve it.
    pub(crate) fn find(&self, nqn: &Nqn) -> Option<ServedSubsystem> {
        self.lock().iter().find(|served| served.subsystem.nqn == *nqn).cloned()
    }

    pub(crate) fn serves(&self, subsystem: &Arc<Subsystem>) -> bool {
        self.ana(subsystem).is_some()
    }

    /// ANA states of a subsystem at this port; `None` if the port does not serve it.
    pub(crate) fn ana(&self, subsystem: &Arc<Subsystem>) -> Option<Arc<AnaStates>> {
        let served = self.lock();
        let found = served.iter().find(|one| Arc::ptr_eq(&one.subsystem, subsystem));
        found.map(|one| Arc::clone(&one.ana))
    }

    /// Whether the port has served a subsystem without interruption since [`Port::find`] returned
    /// `ana`: a subsystem that is removed and added again gets new ANA states.
    pub(crate) fn still_serves(&self, subsystem: &Arc<Subsystem>, ana: &Arc<AnaStates>) -> bool {
        self.ana(subsystem).is_some_and(|now| Arc::ptr_eq(&now, ana))
    }

    pub(crate) fn ana_of_all(&self) -> Vec<Arc<AnaStates>> {
        self.lock().iter().map(|served| Arc::clone(&served.ana)).collect()
    }

    /// Starts to serve a subsystem; false if it already did.
    pub(crate) fn add(&self, subsystem: &Arc<Subsystem>) -> bool {
        let mut served = self.lock();
        let is_new = !served.iter().any(|one| Arc::ptr_eq(&one.subsystem, subsystem));
        if is_new {
            served.push(ServedSubsystem::new(subsystem));
        }
        is_new
    }

    /// Stops serving a subsystem; false if it did not. Connected hosts stay.
    pub(crate) fn remove(&self, subsystem: &Arc<Subsystem>) -> bool {
        let mut served = self.lock();
        let before = served.len();
        served.retain(|one| !Arc::ptr_eq(&one.subsystem, subsystem));
        served.len() != before
    }

    /// Subsystems that a host may connect to here.
    pub(crate) fn visible_to(&self, host: &NamedHost) -> Vec<Arc<Subsystem>> {
        self.subsystems().into_iter().filter(|subsystem| subsystem.allows(host)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<ServedSubsystem>> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
