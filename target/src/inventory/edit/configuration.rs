//! The subsystems, listeners and namespaces of a configuration.

use std::sync::Arc;

use super::{Edit, StepKind};
use crate::config::{Config, Discovery, SubsystemConfig};
use crate::inventory::allowed_host::AllowedHosts;
use crate::inventory::error::{ExportError, ReloadError};
use crate::inventory::host_keys::HostKeyring;
use crate::inventory::listed::ListedNamespaces;
use crate::inventory::port::Port;
use crate::inventory::subsystem::Subsystem;
use crate::limits::{MAX_SUBSYSTEMS, NSID_LAST};

/// Function that gets each error of opening a configuration, and ends the opening with an error or
/// lets it continue without what is wrong.
pub(crate) type Refuse<'a> = &'a mut dyn FnMut(ExportError) -> Result<(), ExportError>;

impl Edit<'_> {
    /// Makes the exports what a configuration says, at the ports of the target and at `new_ports`.
    ///
    /// # Errors
    /// The first [`ReloadError`] that was found.
    pub(crate) fn reload(
        &mut self,
        config: &Config,
        new_ports: &[Arc<Port>],
    ) -> Result<(), ReloadError> {
        for of_file in &config.subsystems {
            let known = self.inventory.subsystem(&of_file.nqn);
            if let Some(key) = known.and_then(|known| known.difference(of_file)) {
                return Err(ReloadError::OfSubsystem { nqn: of_file.nqn.to_string(), key });
            }
        }
        if config.subsystems.len() > MAX_SUBSYSTEMS.max(self.subsystems.len()) {
            return Err(ReloadError::TooManySubsystems);
        }
        Ok(self.take_configuration(config, new_ports, &mut Err)?)
    }

    /// Does the same as [`Edit::reload`], also before there are any exports.
    pub(crate) fn take_configuration(
        &mut self,
        config: &Config,
        new_ports: &[Arc<Port>],
        refuse: Refuse<'_>,
    ) -> Result<(), ExportError> {
        let Discovery { authentication, host_entries, origin } = &config.discovery;
        match HostKeyring::read(*authentication, host_entries, origin) {
            Ok(keyring) => self.discovery_keyring = Some(keyring),
            Err(error) => refuse(error)?,
        }
        let known = self.inventory.ports();
        let is_new = |port: &&Arc<Port>| !known.iter().any(|other| Arc::ptr_eq(other, port));
        let mut ports = Vec::new();
        for port in known.iter().chain(new_ports.iter().filter(is_new)) {
            ports.push((port, config.ports.iter().find(|of_file| port.is_of(of_file))));
        }
        let is_gone = |one: &&Arc<Subsystem>| !config.subsystems.iter().any(|of| of.nqn == one.nqn);
        let gone: Vec<_> = self.subsystems.iter().filter(is_gone).cloned().collect();
        gone.iter().for_each(|subsystem| self.remove(subsystem));
        let mut in_order = Vec::with_capacity(config.subsystems.len());
        for of_file in &config.subsystems {
            let hosts = match AllowedHosts::of(of_file) {
                Ok(hosts) => hosts,
                Err(error) => {
                    refuse(error)?;
                    AllowedHosts::from(&of_file.hosts)
                }
            };
            let subsystem = self.take_subsystem(of_file, hosts);
            for (port, of_file) in &ports {
                // A port that the configuration lacks serves no subsystem.
                let wanted = of_file.is_some_and(|of_file| of_file.serves(&subsystem.nqn));
                match (port.serves(&subsystem), wanted) {
                    (false, true) => self.step(&subsystem, StepKind::Serve(Arc::clone(port))),
                    (true, false) => self.step(&subsystem, StepKind::Unserve(Arc::clone(port))),
                    (true, true) | (false, false) => {}
                }
            }
            if let Err(error) = self.take_namespaces(config, of_file, &subsystem) {
                refuse(error)?;
            }
            in_order.push(subsystem);
        }
        self.subsystems = in_order;
        Ok(())
    }

    /// Creates a subsystem, or changes the hosts of the existing one.
    fn take_subsystem(&mut self, of_file: &SubsystemConfig, hosts: AllowedHosts) -> Arc<Subsystem> {
        let known = self.subsystems.iter().find(|known| known.nqn == of_file.nqn).cloned();
        let Some(subsystem) = known else {
            return self.create_subsystem(of_file, hosts, NSID_LAST);
        };
        if hosts != subsystem.hosts() {
            self.step(&subsystem, StepKind::Allow(hosts));
        }
        subsystem
    }

    fn take_namespaces(
        &mut self,
        config: &Config,
        of_file: &SubsystemConfig,
        subsystem: &Arc<Subsystem>,
    ) -> Result<(), ExportError> {
        let listed = ListedNamespaces::of(config, of_file)?;
        listed.check_save()?;
        let exports = Arc::clone(&self.exports);
        let exported = exports.list(subsystem.index);
        self.follow(subsystem, exported, listed.configs().to_vec());
        self.listed.push((Arc::clone(subsystem), listed));
        Ok(())
    }
}
