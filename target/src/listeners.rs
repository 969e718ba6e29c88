//! Listeners of a target: those of its start, and of addresses and devices that appear later.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvme_proto::Nqn;
use rdma::shm::{SharingGroup, Shm, ShmDevice, ShmOptions};
use rdma::soft::{EndpointError, PortChoice, Soft, SoftDevice, SoftOptions};
use rdma::verbs::{Verbs, VerbsDevice, VerbsError, VerbsOptions};
use rdma::{Choice, ProviderKind, Selection};

use crate::applied_config::AppliedConfig;
use crate::config::{Config, PortConfig, ProviderChoice};
use crate::controller::Associations;
use crate::driver::devices::{DeviceRole, Devices};
use crate::inventory::Inventory;
use crate::inventory::error::{ChangeError, ReloadError};
use crate::inventory::open::OpenPurpose;
use crate::inventory::open_warnings::log_unopened;
use crate::inventory::port::{Port, PortState};
use crate::inventory::report::EditReport;
use crate::limits::MAX_PORTS;
use crate::listen_error::{AddError, AddressError, ListenError};
use crate::listen_retries::{MissingAddresses, NetworkState, UnsharedPorts};

/// Address on which a target listens.
#[derive(Clone, Debug)]
pub struct Listening {
    /// Port ID, and the subsystems that are served at the address.
    pub port: Arc<Port>,
    /// Address that hosts connect to.
    pub address: SocketAddr,
    /// Name of the RDMA provider: `verbs`, `soft` or `shm`.
    pub provider: &'static str,
    /// Reason that this provider was selected, for the log.
    pub reason: String,
    /// Whether hosts on this machine can connect through shared memory.
    pub shared_memory: bool,
}

/// Configured address on which a target cannot listen, although it listens on others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotListening {
    /// Address in the configuration.
    pub address: SocketAddr,
    /// Reason and remedy, in one line.
    pub reason: String,
}

/// Options for opening devices.
#[derive(Clone, Debug)]
struct DeviceOptions {
    provider: ProviderChoice,
    /// Number of groups of queue pairs that a device has: one per core.
    groups: usize,
    sharing_group: Option<SharingGroup>,
    send_with_invalidate: bool,
}

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

impl DeviceOptions {
    fn of(config: &Config) -> Self {
        Self {
            provider: config.provider,
            groups: config.cores.count(),
            sharing_group: config.shared_memory_group,
            send_with_invalidate: config.send_with_invalidate,
        }
    }

    fn kind(&self) -> ProviderKind {
        match self.provider {
            ProviderChoice::Auto => ProviderKind::Auto,
            ProviderChoice::Verbs => ProviderKind::Verbs,
            ProviderChoice::Soft => ProviderKind::Soft,
            ProviderChoice::Shm => ProviderKind::Shm,
        }
    }

    fn open_shm(&self, address: IpAddr) -> Result<ShmDevice, AddressError> {
        let options = ShmOptions {
            groups: self.groups,
            sharing_group: self.sharing_group,
            ..ShmOptions::new(address)
        };
        ShmDevice::open(&options).map_err(AddressError::Shm)
    }

    fn open_verbs(&self, address: IpAddr) -> Result<VerbsDevice, VerbsError> {
        let no_send_with_invalidate = !self.send_with_invalidate;
        VerbsDevice::open(
            address,
            VerbsOptions { no_send_with_invalidate, ..VerbsOptions::default() },
        )
    }

    fn open_soft(
        &self,
        address: IpAddr,
        selection: &Selection,
    ) -> Result<SoftDevice, AddressError> {
        let mut options = SoftOptions::new(address, PortChoice::Roce);
        options.groups = self.groups;
        SoftDevice::open(&options).map_err(|error| match error {
            EndpointError::PortTaken { .. } => {
                AddressError::PortTaken { reason: selection.reason.clone(), error }
            }
            _ => AddressError::Soft(error),
        })
    }
}

/// Listens on all ports of a configuration. Returns an error only if no address can be served.
pub(crate) fn listen_everywhere(
    devices: &mut Devices,
    inventory: &Inventory,
    config: &Config,
) -> Result<(Vec<Listening>, Vec<NotListening>), AddressError> {
    let options = DeviceOptions::of(config);
    for port in missing_wildcards(inventory, &config.ports) {
        inventory.add_port(&port);
    }
    let (mut serves_one, mut first_error) = (false, None);
    let ports = inventory.ports();
    let addresses: BTreeSet<IpAddr> =
        ports.iter().map(|port| port.configured_address().ip()).collect();
    for address in addresses {
        let of_address = inventory.ports_of(address);
        match add_device(devices, &options, address, &of_address) {
            Ok(_) => serves_one = true,
            Err(error) => {
                of_address.iter().for_each(|port| port.set_state(PortState::not_listening(&error)));
                first_error.get_or_insert(error);
            }
        }
    }
    if let Some(error) = first_error.filter(|_| !serves_one) {
        return Err(error);
    }
    // Shared memory comes last, so that it takes no place (`MAX_DEVICES`) from another address.
    let mut unshared = UnsharedPorts::default();
    share_memory(devices, &options, &ports, &mut unshared);
    let (mut listening, mut not_listening) = (Vec::new(), Vec::new());
    for port in ports {
        match port.state() {
            PortState::Listening { provider, reason } => {
                let address = port.address();
                let shared_memory = provider == Choice::Shm.name() || devices.listen_beside(&port);
                listening.push(Listening { port, address, provider, reason, shared_memory });
            }
            PortState::NotListening { reason } => {
                let address = port.configured_address();
                not_listening.push(NotListening { address, reason });
            }
        }
    }
    Ok((listening, not_listening))
}

/// Opens the device that serves an address and listens on its ports. Returns the selected provider
/// and the ports that cannot be listened on although others can.
fn add_device(
    devices: &mut Devices,
    options: &DeviceOptions,
    address: IpAddr,
    ports: &[Arc<Port>],
) -> Result<(Selection, Vec<ListenError>), AddressError> {
    let selection = rdma::select(options.kind(), address)?;
    if let Some(down) = &selection.down {
        tracing::warn!(%address, "no packets get through yet: {down}");
    }
    let role = DeviceRole::Main;
    let refused = match selection.choice {
        Choice::Verbs => devices.add::<Verbs>(options.open_verbs(address)?, role, ports)?,
        Choice::Soft => {
            devices.add::<Soft>(options.open_soft(address, &selection)?, role, ports)?
        }
        Choice::Shm => devices.add::<Shm>(options.open_shm(address)?, role, ports)?,
    };
    for port in ports {
        port.set_state(match refused.iter().find(|error| error.port_id == port.id) {
            Some(error) => PortState::not_listening(error),
            None => listening_by(&selection),
        });
    }
    devices.note_selection(address, selection.clone());
    Ok((selection, refused))
}

/// State of a port on which the device of the selected provider listens.
fn listening_by(selection: &Selection) -> PortState {
    let Selection { choice, reason, .. } = selection;
    PortState::Listening { provider: choice.name(), reason: reason.clone() }
}

/// Listens in shared memory too, for hosts on this machine, on those ports where that is possible
/// and not done yet.
fn share_memory(
    devices: &mut Devices,
    options: &DeviceOptions,
    ports: &[Arc<Port>],
    failures: &mut UnsharedPorts,
) {
    for port in ports {
        let address = port.configured_address();
        let is_wanted = options.provider == ProviderChoice::Auto
            && port.is_bound()
            && !devices.listen_beside(port);
        if !is_wanted || !failures.is_due(address) || !rdma::auto_shares_memory(address.ip()) {
            continue;
        }
        match listen_over_shm(devices, options, port) {
            Ok(()) => failures.shared(address),
            Err(error) => failures.note(address, &error),
        }
    }
}

/// Listens on a port with the shared-memory provider: on the device that serves its address
/// already, or on a new one.
fn listen_over_shm(
    devices: &mut Devices,
    options: &DeviceOptions,
    port: &Arc<Port>,
) -> Result<(), AddressError> {
    let ip = port.configured_address().ip();
    if devices.serve(ip, DeviceRole::Beside) {
        return Ok(devices.listen(port, DeviceRole::Beside)?);
    }
    let device = options.open_shm(ip)?;
    devices.add::<Shm>(device, DeviceRole::Beside, std::slice::from_ref(port))?;
    Ok(())
}

/// Creates ports for those addresses of this machine that a wildcard address stands for and that
/// have no port yet.
fn missing_wildcards(inventory: &Inventory, configs: &[PortConfig]) -> Vec<Arc<Port>> {
    let mut wildcards = configs.iter().filter(|config| config.is_wildcard()).peekable();
    if wildcards.peek().is_none() {
        return Vec::new();
    }
    let local = rdma::local_addresses().unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot list the addresses of this machine");
        Vec::new()
    });
    let ports = inventory.ports();
    let mut taken: BTreeSet<_> = ports.iter().map(|port| port.configured_address()).collect();
    let mut ids = taken_ids(&ports, configs);
    let mut missing = Vec::new();
    for config in wildcards {
        // Subsystems added or removed at a wildcard address apply to addresses that appear later
        // too.
        let sibling = ports.iter().find(|port| port.is_of(config));
        let served = sibling.map_or_else(|| inventory.subsystems(), |port| port.subsystems());
        for ip in local.iter().map(|local| local.ip).filter(|ip| config.stands_for(*ip)) {
            let address = SocketAddr::new(ip, config.address.port());
            let Some(id) = free_id(&ids).filter(|_| taken.insert(address)) else { continue };
            ids.insert(id);
            missing.push(Arc::new(Port::of_wildcard(id, address, config, &served)));
        }
    }
    missing
}

/// Port IDs in use: those of existing ports, and those in the configuration.
fn taken_ids(ports: &[Arc<Port>], configs: &[PortConfig]) -> BTreeSet<u16> {
    let of_ports = ports.iter().map(|port| port.id);
    of_ports.chain(configs.iter().map(|config| config.id)).collect()
}

/// Returns the highest free port ID, since configurations use low ones.
fn free_id(taken: &BTreeSet<u16>) -> Option<u16> {
    (1..=u16::MAX).rev().find(|id| !taken.contains(id))
}

/// Result of [`try_address`], which does not disturb a target that serves the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reachable {
    /// The UDP port is free, or the verbs device was opened.
    Free,
    /// The UDP port is in use, perhaps by a running target.
    InUse,
}

/// Checks that an address can be served, and releases it immediately.
///
/// # Errors
/// The address cannot be served; see [`AddressError`].
pub(crate) fn try_address(config: &Config, address: IpAddr) -> Result<Reachable, AddressError> {
    let options = DeviceOptions::of(config);
    let selection = rdma::select(options.kind(), address)?;
    match selection.choice {
        Choice::Verbs => {
            options.open_verbs(address)?;
            return Ok(Reachable::Free);
        }
        // In shared memory, only the name of a listener can be in use, and listening does not
        // happen here.
        Choice::Shm => return Ok(Reachable::Free),
        Choice::Soft => {}
    }
    // This socket does not share the port, as those of a target do, since it would then receive
    // packets for a running target.
    match UdpSocket::bind((address, rdma::soft::ROCE_PORT)) {
        Ok(_) => Ok(Reachable::Free),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(Reachable::InUse),
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
            Err(rdma::SelectError::NotLocal(address).into())
        }
        Err(error) => Err(AddressError::System { address, error }),
    }
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

    /// Configuration that is in force.
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
