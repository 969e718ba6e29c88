//! Subsystems, their hosts and their listeners, as operators change them.

use std::net::SocketAddr;
use std::sync::Arc;

use nvme_proto::Nqn;

use super::{Edit, StepKind};
use crate::config::{Origin, SubsystemConfig, SubsystemSpec};
use crate::inventory::allowed_host::{AllowedHosts, HostsChange};
use crate::inventory::error::ChangeError;
use crate::inventory::subsystem::Subsystem;
use crate::limits::{MAX_SUBSYSTEMS, NSID_LAST};

impl Edit<'_> {
    /// Adds a subsystem that has no namespaces and is served at no port yet.
    /// `nsid_last` is the highest NSID of its namespaces, or `None` for the target's limit.
    pub(crate) fn add_subsystem(
        &mut self,
        spec: SubsystemSpec,
        nsid_last: Option<u32>,
    ) -> Result<(), ChangeError> {
        let nqn = spec.nqn;
        if self.inventory.is_discovery(&nqn) {
            return Err(ChangeError::DiscoveryName);
        }
        let nsid_last = nsid_last.unwrap_or(NSID_LAST);
        if !(1..=NSID_LAST).contains(&nsid_last) {
            return Err(ChangeError::OutOfRange(NSID_LAST));
        }
        if self.subsystems.iter().any(|other| other.nqn == nqn) {
            return Err(ChangeError::SubsystemTaken(nqn.to_string()));
        }
        if self.subsystems.len() >= MAX_SUBSYSTEMS {
            return Err(ChangeError::TooManySubsystems);
        }
        let origin = Origin(format!("subsystem {nqn}"));
        let config = spec.resolve(&self.inventory.machine, origin);
        let hosts = AllowedHosts::from(&config.hosts);
        self.create_subsystem(&config, hosts, nsid_last);
        Ok(())
    }

    pub(super) fn create_subsystem(
        &mut self,
        config: &SubsystemConfig,
        hosts: AllowedHosts,
        nsid_last: u32,
    ) -> Arc<Subsystem> {
        let (index, inventory) = (self.free_index(), self.inventory);
        let publication = inventory.publication();
        let mut subsystem = Subsystem::new(config, hosts, index, inventory.managed, publication);
        subsystem.nsid_last = nsid_last;
        let subsystem = Arc::new(subsystem);
        self.subsystems.push(Arc::clone(&subsystem));
        self.step(&subsystem, StepKind::Add);
        subsystem
    }

    /// Removes a subsystem with its namespaces and listeners.
    pub(crate) fn remove_subsystem(&mut self, nqn: &Nqn) -> Result<(), ChangeError> {
        let subsystem = self.subsystem(nqn)?;
        self.remove(&subsystem);
        Ok(())
    }

    /// Changes which hosts may connect to a subsystem.
    pub(crate) fn change_hosts(
        &mut self,
        nqn: &Nqn,
        change: HostsChange,
    ) -> Result<(), ChangeError> {
        let subsystem = self.subsystem(nqn)?;
        let mut hosts = subsystem.hosts();
        hosts.change(change)?;
        self.step(&subsystem, StepKind::Allow(hosts));
        Ok(())
    }

    /// Serves a subsystem at one more of the addresses that the target listens on.
    pub(crate) fn add_listener(
        &mut self,
        nqn: &Nqn,
        address: SocketAddr,
    ) -> Result<(), ChangeError> {
        let subsystem = self.subsystem(nqn)?;
        let port = self.inventory.port_at(address)?;
        if port.serves(&subsystem) {
            return Err(ChangeError::ServedThere { nqn: nqn.to_string(), address });
        }
        self.step(&subsystem, StepKind::Serve(port));
        Ok(())
    }

    /// Stops serving a subsystem at an address.
    pub(crate) fn remove_listener(
        &mut self,
        nqn: &Nqn,
        address: SocketAddr,
    ) -> Result<(), ChangeError> {
        let subsystem = self.subsystem(nqn)?;
        let port = self.inventory.port_at(address)?;
        if !port.serves(&subsystem) {
            return Err(ChangeError::NotServedThere { nqn: nqn.to_string(), address });
        }
        self.step(&subsystem, StepKind::Unserve(port));
        Ok(())
    }
}
