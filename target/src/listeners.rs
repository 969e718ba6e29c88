//! Listeners of a target: those of its start, and of addresses and devices that appear later.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvme_proto::Nqn;

use crate::applied_config::AppliedConfig;
use crate::config::Config;
use crate::controller::Associations;
use crate::driver::devices::{DeviceRole, Devices};
use crate::inventory::Inventory;
use crate::inventory::error::{ChangeError, ReloadError};
use crate::inventory::open::OpenPurpose;
use crate::inventory::open_warnings::log_unopened;
use crate::inventory::port::{Port, PortState};
use crate::inventory::report::EditReport;
use crate::limits::MAX_PORTS;
use crate::listen_error::{AddError, AddressError};
use crate::listen_retries::{MissingAddresses, NetworkState, UnsharedPorts};
use crate::listening::{
    DeviceOptions, add_device, free_id, listening_by, missing_wildcards, share_memory, taken_ids,
    try_address,
};

/// Listeners of a running target. They change on request, on reload, and when a configured address
/// or its device appears.
pub(crate) struct Listeners {
    associations: Arc<Associations>,
    options: DeviceOptions,
    /// RDMA devices with their listeners, locked while listeners change.
    devices: Mutex<Devices>,
    applied: Arc<AppliedConfig>,
    /// Ports without shared memory. This lock is taken after that of the devices.
    unshared: Mutex<UnsharedPorts>,
}

impl Listeners {
    /// Creates the listeners after the start of the target has listened on `devices`.
    pub(crate) fn new(
        associations: Arc<Associations>,
        config: &Config,
        devices: Devices,
        applied: Arc<AppliedConfig>,
    ) -> Self {
        let options = DeviceOptions::of(config);
        let unshared = Mutex::new(UnsharedPorts::at_start(&devices, associations.inventory()));
        Self { associations, options, devices: Mutex::new(devices), applied, unshared }
    }

    /// Configured address of the metrics page; `None` without a metrics page.
    pub(crate) fn metrics(&self) -> Option<SocketAddr> {
        self.applied.metrics()
    }

    pub(crate) fn config(&self) -> Config {
        self.applied.get()
    }

    /// Associations of hosts with the controllers of this target.
    pub(crate) fn associations(&self) -> &Arc<Associations> {
        &self.associations
    }

    /// Serves a subsystem at an address, and starts to listen there if the target does not yet.
    ///
    /// # Errors
    /// See [`ChangeError`]. Nothing has changed then.
    pub(crate) fn add_listener(&self, nqn: &Nqn, address: SocketAddr) -> Result<(), ChangeError> {
        let mut devices = self.devices();
        let inventory = self.associations.inventory();
        inventory.find_subsystem(nqn)?;
        if !inventory.listens_at(address) {
            let ip = address.ip();
            if ip.is_unspecified() || ip.is_multicast() || address.port() == 0 {
                return Err(AddressError::NoInterface(address).into());
            }
            self.open(&mut devices, &self.unbound_port(address)?)?;
        }
        let added = self.associations.edit(|edit| edit.add_listener(nqn, address));
        if added.is_err() {
            self.close_unwanted(&mut devices);
        }
        added.map(drop)
    }

    /// Stops serving a subsystem at an address and ends the associations there. Also stops
    /// listening if no subsystem is left there and the configuration does not have the port.
    ///
    /// # Errors
    /// See [`ChangeError`]. Nothing has changed then.
    pub(crate) fn remove_listener(
        &self,
        nqn: &Nqn,
        address: SocketAddr,
    ) -> Result<(), ChangeError> {
        let mut devices = self.devices();
        self.associations.edit(|edit| edit.remove_listener(nqn, address))?;
        self.close_unwanted(&mut devices);
        Ok(())
    }

    /// Removes a subsystem with its namespaces and listeners.
    ///
    /// # Errors
    /// See [`ChangeError`]. Nothing has changed then.
    pub(crate) fn remove_subsystem(&self, nqn: &Nqn) -> Result<EditReport, ChangeError> {
        let mut devices = self.devices();
        let (_, report) = self.associations.edit(|edit| edit.remove_subsystem(nqn))?;
        self.close_unwanted(&mut devices);
        Ok(report)
    }

    /// Applies a configuration to exports and listeners; with [`OpenPurpose::Check`], only returns
    /// the changes that it would make.
    ///
    /// # Errors
    /// See [`ReloadError`]. Nothing has changed then.
    pub(crate) fn reload(
        &self,
        config: Config,
        purpose: OpenPurpose,
    ) -> Result<EditReport, ReloadError> {
        let differences = self.applied.differences_at_start(&config);
        if !differences.is_empty() {
            return Err(ReloadError::AtStart(differences));
        }
        let mut devices = self.devices();
        let new = self.new_ports(&config)?;
        if purpose == OpenPurpose::Check {
            for port in &new {
                try_address(&config, port.configured_address().ip())?;
            }
            let inventory = self.associations.inventory();
            let changes = inventory.try_edit(|edit| edit.reload(&config, &new))?;
            return Ok(EditReport { changes, ..EditReport::default() });
        }
        let opened = new.iter().try_for_each(|port| self.open(&mut devices, port));
        let reloaded = opened
            .map_err(ReloadError::from)
            .and_then(|()| self.associations.edit(|edit| edit.reload(&config, &new)));
        if reloaded.is_ok() {
            self.applied.set(config);
        }
        // After a failure, these are the new ports.
        self.close_unwanted(&mut devices);
        let (_, report) = reloaded?;
        log_unopened(&report.unopened);
        Ok(report)
    }

    /// Creates the ports that a configuration adds, except for wildcard addresses.
    fn new_ports(&self, config: &Config) -> Result<Vec<Arc<Port>>, ReloadError> {
        let ports = self.associations.inventory().ports();
        let mut new = Vec::new();
        for wanted in config.ports.iter().filter(|wanted| !wanted.is_wildcard()) {
            if ports.iter().any(|port| port.is_of(wanted)) {
                continue;
            }
            let at_address = |port: &&Arc<Port>| port.configured_address() == wanted.address;
            if let Some(port) = ports.iter().find(at_address).filter(|_| wanted.address.port() != 0)
            {
                return Err(ReloadError::PortId { address: wanted.address, id: port.id });
            }
            new.push(Arc::new(Port::new(wanted)));
        }
        Ok(new)
    }

    /// Returns a port to open at an address: the configured one that could not be listened on so
    /// far, or a new one.
    fn unbound_port(&self, address: SocketAddr) -> Result<Arc<Port>, AddressError> {
        let ports = self.associations.inventory().ports();
        if let Some(port) = ports.iter().find(|port| port.configured_address() == address) {
            return Ok(Arc::clone(port));
        }
        let id = free_id(&taken_ids(&ports, &self.applied.ports())).ok_or(AddressError::TooMany)?;
        Ok(Arc::new(Port::added(id, address)))
    }

    /// Listens on a port and adds it to the inventory, with a new device if the address has none.
    /// The port's state says the result.
    fn open(&self, devices: &mut Devices, port: &Arc<Port>) -> Result<(), AddressError> {
        let opened = self.try_open(devices, port);
        if let Err(error) = &opened {
            port.set_state(PortState::not_listening(error));
        }
        opened
    }

    fn try_open(&self, devices: &mut Devices, port: &Arc<Port>) -> Result<(), AddressError> {
        let inventory = self.associations.inventory();
        let ip = port.configured_address().ip();
        let others = inventory.ports_of(ip);
        let is_known = others.iter().any(|other| Arc::ptr_eq(other, port));
        if !is_known && inventory.ports().len() >= MAX_PORTS {
            return Err(AddressError::TooMany);
        }
        if devices.serve(ip, DeviceRole::Main) {
            devices.listen(port, DeviceRole::Main)?;
            if let Some(selection) = devices.selection(ip) {
                port.set_state(listening_by(selection));
            }
        } else {
            // If a device has failed, its other ports are listened on again too.
            let mut ports = others;
            ports.extend((!is_known).then(|| Arc::clone(port)));
            let (selection, refused) = add_device(devices, &self.options, ip, &ports)?;
            tracing::info!(address = %ip, provider = selection.choice.name(), reason = selection.reason, "device opened");
            for error in &refused {
                tracing::error!("not listening: {error}");
            }
            if let Some(error) = refused.into_iter().find(|error| error.port_id == port.id) {
                return Err(AddError::Listen(error).into());
            }
        }
        share_memory(devices, &self.options, std::slice::from_ref(port), &mut self.unshared());
        if !is_known {
            inventory.add_port(port);
        }
        tracing::info!(address = %port.address(), "listening");
        Ok(())
    }

    /// Stops listening on ports without subsystems that the configuration does not have.
    fn close_unwanted(&self, devices: &mut Devices) {
        let inventory = self.associations.inventory();
        let configs = self.applied.ports();
        let is_configured = |port: &Port| configs.iter().any(|config| port.is_of(config));
        for port in inventory.ports() {
            if !is_configured(&port) && port.subsystems().is_empty() {
                inventory.remove_port(&port);
                devices.close(&port);
                self.associations.end_discovery_at(&port);
                tracing::info!(address = %port.address(), "no longer listening");
            }
        }
    }

    /// Listens on configured addresses that could not be listened on so far. A thread calls this
    /// once a second.
    pub(crate) fn look(&self, missing: &mut MissingAddresses) {
        let mut devices = self.devices();
        let inventory = self.associations.inventory();
        let is_missing = |devices: &Devices, port: &Port| {
            !port.is_bound() || !devices.serve(port.configured_address().ip(), DeviceRole::Main)
        };
        let mut ports = missing_wildcards(inventory, &self.applied.ports());
        let known = inventory.ports();
        share_memory(&mut devices, &self.options, &known, &mut self.unshared());
        ports.extend(known.into_iter().filter(|port| is_missing(&devices, port)));
        if ports.is_empty() {
            return;
        }
        let network = NetworkState::look();
        ports.retain(|port| {
            let ip = port.configured_address().ip();
            let is_local = network.have(ip);
            if !is_local {
                port.set_state(PortState::not_listening(rdma::SelectError::NotLocal(ip)));
            } else if matches!(port.state(), PortState::Listening { .. }) {
                port.set_state(PortState::not_listening("its RDMA device failed or was removed"));
            }
            is_local
        });
        missing.note_network(network);
        let mut opened = false;
        for port in ports {
            let address = port.configured_address();
            // An earlier port in this loop may have opened the device of both.
            if !is_missing(&devices, &port) || !missing.is_due(address) {
                continue;
            }
            match self.open(&mut devices, &port) {
                Ok(()) => {
                    missing.forget(address);
                    opened = true;
                }
                Err(error) => {
                    missing.note(address, error.to_string());
                    show_failed(inventory, &port);
                }
            }
        }
        if opened {
            self.associations.announce_discovery();
        }
    }

    fn unshared(&self) -> MutexGuard<'_, UnsharedPorts> {
        self.unshared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn devices(&self) -> MutexGuard<'_, Devices> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds a port that a wildcard address stands for to the inventory, so that it is shown although
/// the target cannot listen on it yet.
fn show_failed(inventory: &Inventory, port: &Arc<Port>) {
    let ports = inventory.ports();
    let is_known = ports.iter().any(|known| Arc::ptr_eq(known, port));
    if !is_known && ports.len() < MAX_PORTS {
        inventory.add_port(port);
    }
}

impl fmt::Debug for Listeners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Listeners")
    }
}
