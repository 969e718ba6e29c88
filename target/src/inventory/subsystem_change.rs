//! Adds and removes subsystems and their listeners while hosts are connected.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use nvme_proto::{AsciiField, Nqn};

use crate::config::{HostPolicy, Origin, SubsystemConfig, SubsystemIdentity};
use crate::derived_ids;
use crate::inventory::ana::AnaStates;
use crate::inventory::error::ChangeError;
use crate::inventory::exports::{NamespaceChange, OwnedNamespace};
use crate::inventory::index::SubsystemIndex;
use crate::inventory::port::Port;
use crate::inventory::subsystem::Subsystem;
use crate::inventory::{NextSerials, Registry};
use crate::limits::{MAX_SUBSYSTEMS, NSID_LAST};

#[derive(Clone, Debug)]
pub(crate) struct NewSubsystem {
    pub(crate) nqn: Nqn,
    /// Serial number of up to 20 characters; `None` derives it from this machine and the NQN.
    pub(crate) serial: Option<String>,
    /// Model number of up to 40 characters; `None` for the default of the target.
    pub(crate) model: Option<String>,
    pub(crate) allow_any_host: bool,
    /// Whether hosts may deallocate logical blocks (Dataset Management).
    pub(crate) deallocate: bool,
    /// Highest NSID of a namespace; `None` for the target's limit.
    pub(crate) nsid_last: Option<u32>,
}

/// Returns the index for a new subsystem: the lowest slot that `others` leave free, and a new
/// serial number.
pub(super) fn free_index(others: &[Arc<Subsystem>], serials: &mut NextSerials) -> SubsystemIndex {
    let taken: BTreeSet<_> = others.iter().map(|other| other.index.slot).collect();
    let slot = (0..).find(|slot| !taken.contains(slot)).unwrap_or_default();
    let serial = serials.subsystem;
    serials.subsystem = serial.wrapping_add(1);
    SubsystemIndex { slot, serial }
}

impl Registry {
    /// Adds a subsystem that has no namespaces and is not served at any port yet.
    pub(crate) fn add_subsystem(&self, new: &NewSubsystem) -> Result<Arc<Subsystem>, ChangeError> {
        if self.is_discovery(&new.nqn) {
            return Err(ChangeError::DiscoveryName);
        }
        let identity = SubsystemIdentity::new(&self.machine, new.nqn, None);
        let serial = new.serial.clone().unwrap_or_else(|| identity.serial());
        let model = new.model.clone().unwrap_or_else(|| derived_ids::MODEL.to_owned());
        let is_blank = |text: &String| text.trim().is_empty();
        let fits =
            AsciiField::<20>::new(&serial).is_some() && AsciiField::<40>::new(&model).is_some();
        if !fits || is_blank(&serial) || is_blank(&model) {
            return Err(ChangeError::NotAscii);
        }
        let nsid_last = new.nsid_last.unwrap_or(NSID_LAST);
        if !(1..=NSID_LAST).contains(&nsid_last) {
            return Err(ChangeError::OutOfRange(NSID_LAST));
        }
        let hosts = match new.allow_any_host {
            true => HostPolicy::Any,
            false => HostPolicy::Listed(Vec::new()),
        };
        let config = SubsystemConfig {
            nqn: new.nqn,
            serial,
            model,
            hosts,
            deallocate: new.deallocate,
            identity,
            namespaces: Vec::new(),
            directories: Vec::new(),
            origin: Origin(format!("subsystem {}", new.nqn)),
        };
        let mut serials = self.serials();
        let mut subsystems = self.lock_subsystems();
        if subsystems.iter().any(|other| other.nqn == new.nqn) {
            return Err(ChangeError::SubsystemTaken(new.nqn.to_string()));
        }
        if subsystems.len() >= MAX_SUBSYSTEMS {
            return Err(ChangeError::TooManySubsystems);
        }
        let index = free_index(&subsystems, &mut serials);
        let mut subsystem = Subsystem::new(&config, index, true, self.publication());
        subsystem.nsid_last = nsid_last;
        let subsystem = Arc::new(subsystem);
        subsystems.push(Arc::clone(&subsystem));
        tracing::info!(nqn = %new.nqn, "subsystem added");
        Ok(subsystem)
    }

    /// Removes a subsystem and its namespaces, so that hosts can no longer connect to it. The
    /// caller disconnects its controllers and closes the returned namespaces.
    pub(crate) fn remove_subsystem(&self, nqn: &Nqn) -> Result<Vec<NamespaceChange>, ChangeError> {
        let _one_at_a_time = self.serials();
        let mut subsystems = self.lock_subsystems();
        let found = subsystems.iter().position(|other| other.nqn == *nqn);
        let subsystem = subsystems.remove(found.ok_or_else(|| ChangeError::no_subsystem(nqn))?);
        drop(subsystems);
        for port in self.ports() {
            port.remove(&subsystem);
        }
        let exports = self.publication().exports();
        let owned = |namespace| OwnedNamespace::new(&subsystem, namespace);
        let removed: Vec<_> = exports.list(subsystem.index).iter().map(owned).collect();
        let generation = self.publish_change(&removed, &[]);
        let namespaces: Vec<_> =
            removed.into_iter().map(|one| one.changed_in(generation)).collect();
        self.core_io_stats().iter().for_each(|io_stats| io_stats.close(subsystem.index));
        tracing::info!(%nqn, namespaces = namespaces.len(), "subsystem removed");
        Ok(namespaces)
    }

    /// Serves a subsystem at one more of the addresses that the target listens on.
    pub(crate) fn add_listener(&self, nqn: &Nqn, address: SocketAddr) -> Result<(), ChangeError> {
        let _one_at_a_time = self.serials();
        let subsystem = self.find_subsystem(nqn)?;
        if !self.port_at(address)?.add(&subsystem) {
            return Err(ChangeError::ServedThere { nqn: nqn.to_string(), address });
        }
        tracing::info!(%nqn, %address, "listener added");
        Ok(())
    }

    /// Stops serving a subsystem at an address. Hosts that are connected there stay so.
    pub(crate) fn remove_listener(
        &self,
        nqn: &Nqn,
        address: SocketAddr,
    ) -> Result<(), ChangeError> {
        let _one_at_a_time = self.serials();
        let subsystem = self.find_subsystem(nqn)?;
        if !self.port_at(address)?.remove(&subsystem) {
            return Err(ChangeError::NotServedThere { nqn: nqn.to_string(), address });
        }
        tracing::info!(%nqn, %address, "listener removed");
        Ok(())
    }

    /// ANA states of a subsystem at the port with this address.
    pub(crate) fn ana(
        &self,
        nqn: &Nqn,
        address: SocketAddr,
    ) -> Result<Arc<AnaStates>, ChangeError> {
        let found = self.port_at(address)?.ana(&self.find_subsystem(nqn)?);
        found.ok_or_else(|| ChangeError::NotServedThere { nqn: nqn.to_string(), address })
    }

    /// Whether the target listens at an address.
    pub(crate) fn listens_at(&self, address: SocketAddr) -> bool {
        self.port_at(address).is_ok()
    }

    /// Port that listens at an address.
    fn port_at(&self, address: SocketAddr) -> Result<Arc<Port>, ChangeError> {
        let is_there = |port: &Arc<Port>| port.is_bound() && port.address() == address;
        self.ports().into_iter().find(is_there).ok_or(ChangeError::NoPort(address))
    }
}
