//! Where a target listens: at the start, and at addresses that come later.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nvme_proto::Nqn;
use rdma::shm::{SharingGroup, Shm, ShmDevice, ShmOptions};
use rdma::soft::{EndpointError, PortChoice, Soft, SoftDevice, SoftOptions};
use rdma::verbs::{Verbs, VerbsDevice, VerbsError, VerbsOptions};
use rdma::{Choice, LocalAddress, ProviderKind, Selection};

use crate::applied_config::AppliedConfig;
use crate::config::{Config, PortConfig, ProviderChoice};
use crate::controller::Associations;
use crate::driver::devices::{DeviceRole, Devices};
use crate::inventory::Registry;
use crate::inventory::error::ChangeError;
use crate::inventory::export::OpenPurpose;
use crate::inventory::port::Port;
use crate::inventory::reload::{ReloadError, ReloadReport};
use crate::limits::MAX_PORTS;
use crate::listen_error::{AddError, AddressError, ListenError};

/// Where a target listens.
#[derive(Clone, Debug)]
pub struct Listening {
    /// The port of the registry.
    pub port: Arc<Port>,
    /// The address that hosts connect to.
    pub address: SocketAddr,
    /// The name of the provider.
    pub provider: &'static str,
    /// The reason for that provider, for the log.
    pub reason: String,
    /// Whether hosts on this machine may connect by shared memory instead.
    pub shared_memory: bool,
}

/// Where a target was to listen and can not, though it does elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotListening {
    /// The address of the configuration.
    pub address: SocketAddr,
    /// The cause, and the remedy.
    pub reason: String,
}

/// How devices are opened.
#[derive(Clone, Debug)]
struct DeviceOptions {
    provider: ProviderChoice,
    /// As many as there are cores.
    groups: usize,
    sharing_group: Option<SharingGroup>,
    send_with_invalidate: bool,
}

/// Where a target that runs listens. It listens at further addresses when it is asked to, and when
/// an address or a device comes that the configuration names.
pub(crate) struct Listeners {
    associations: Arc<Associations>,
    options: DeviceOptions,
    /// Locked while it is changed where the target listens.
    devices: Mutex<Devices>,
    applied: Arc<AppliedConfig>,
    /// Locked after the devices.
    unshared: Mutex<UnsharedPorts>,
}

/// How often an address was tried in vain, and when it is tried again.
#[derive(Debug, Default)]
struct FailedTries {
    count: u32,
    /// Looks until the next try.
    wait: u32,
    /// The error of the last one, which was logged.
    error: String,
}

/// Addresses that could not be listened on, from look to look.
#[derive(Debug, Default)]
pub(crate) struct MissingAddresses {
    failures: BTreeMap<SocketAddr, FailedTries>,
    last: Surroundings,
}

/// Ports that could not be listened for in shared memory, from look to look: another process had
/// the name.
#[derive(Debug, Default)]
struct UnsharedPorts(BTreeMap<SocketAddr, FailedTries>);

/// The facts that decide whether an address can be listened on, of those that cost little to know.
#[derive(Debug, Default, PartialEq, Eq)]
struct Surroundings {
    addresses: Vec<LocalAddress>,
    /// Names of RDMA devices.
    devices: Vec<OsString>,
}

/// The most looks between two tries where nothing is seen to change. Doubled, an address that
/// another process gives up is found up to 32 s later; not measured.
const LOOKS_BETWEEN_TRIES: u32 = 32;

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

/// Listens on all ports of a configuration whose address can be served; an error only if there is
/// none.
pub(crate) fn listen_everywhere(
    devices: &mut Devices,
    registry: &Registry,
    config: &Config,
) -> Result<(Vec<Listening>, Vec<NotListening>), AddressError> {
    let options = DeviceOptions::of(config);
    for port in missing_wildcards(registry, &config.ports) {
        registry.add_port(&port);
    }
    let mut served = BTreeMap::new();
    let mut failed: BTreeMap<u16, String> = BTreeMap::new();
    let mut first_error = None;
    let ports = registry.ports();
    let addresses: BTreeSet<IpAddr> =
        ports.iter().map(|port| port.configured_address().ip()).collect();
    for address in addresses {
        let of_address = registry.ports_of(address);
        match add_device(devices, &options, address, &of_address) {
            Ok((selection, refused)) => {
                failed.extend(
                    refused.into_iter().map(|refused| (refused.port_id, refused.to_string())),
                );
                served.insert(address, selection);
            }
            Err(error) => {
                failed.extend(of_address.iter().map(|port| (port.id, error.to_string())));
                first_error.get_or_insert(error);
            }
        }
    }
    if let Some(error) = first_error.filter(|_| served.is_empty()) {
        return Err(error);
    }
    // After all of them, so that it takes no other address the place.
    let mut unshared = UnsharedPorts::default();
    share_memory(devices, &options, &ports, &mut unshared);
    let (lost, kept): (Vec<_>, Vec<_>) =
        ports.into_iter().partition(|port| failed.contains_key(&port.id));
    let listening = |port: Arc<Port>| {
        let Selection { choice, reason, .. } = served[&port.configured_address().ip()].clone();
        let (address, provider) = (port.address(), choice.name());
        let shared_memory = choice == Choice::Shm || devices.listen_beside(&port);
        Listening { port, address, provider, reason, shared_memory }
    };
    let not_listening = |port: Arc<Port>| {
        let address = port.configured_address();
        NotListening { address, reason: failed[&port.id].clone() }
    };
    Ok((kept.into_iter().map(listening).collect(), lost.into_iter().map(not_listening).collect()))
}

/// Opens the device that serves an address and listens on its ports. Says which device, and which
/// ports can not be listened on although others can.
fn add_device(
    devices: &mut Devices,
    options: &DeviceOptions,
    address: IpAddr,
    ports: &[Arc<Port>],
) -> Result<(Selection, Vec<ListenError>), AddressError> {
    let selection = rdma::select(options.kind(), address)?;
    if let Some(down) = &selection.down {
        tracing::warn!(%address, "nothing gets through yet: {down}");
    }
    let role = DeviceRole::Main;
    let refused = match selection.choice {
        Choice::Verbs => devices.add::<Verbs>(options.open_verbs(address)?, role, ports)?,
        Choice::Soft => {
            devices.add::<Soft>(options.open_soft(address, &selection)?, role, ports)?
        }
        Choice::Shm => devices.add::<Shm>(options.open_shm(address)?, role, ports)?,
    };
    Ok((selection, refused))
}

/// Listens in shared memory too, for hosts on this machine, where it does not yet and that is
/// possible.
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
        match share_port(devices, options, port) {
            Ok(()) => failures.shared(address),
            Err(error) => failures.note(address, &error),
        }
    }
}

/// Listens for a port in shared memory, by the device of its address or a new one.
fn share_port(
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

/// Ports at the addresses of this machine for which wildcard addresses stand, as far as there are
/// none yet.
fn missing_wildcards(registry: &Registry, configs: &[PortConfig]) -> Vec<Arc<Port>> {
    let mut wildcards = configs.iter().filter(|config| config.is_wildcard()).peekable();
    if wildcards.peek().is_none() {
        return Vec::new();
    }
    let local = rdma::local_addresses().unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot list the addresses of this machine");
        Vec::new()
    });
    let ports = registry.ports();
    let mut taken: BTreeSet<_> = ports.iter().map(|port| port.configured_address()).collect();
    let mut ids = taken_ids(&ports, configs);
    let mut missing = Vec::new();
    for config in wildcards {
        // Changes at run time hold for addresses that come later, too.
        let sibling = ports.iter().find(|port| port.is_of(config));
        let served = sibling.map_or_else(|| registry.subsystems(), |port| port.subsystems());
        for ip in local.iter().map(|local| local.ip).filter(|ip| config.stands_for(*ip)) {
            let address = SocketAddr::new(ip, config.address.port());
            let Some(id) = free_id(&ids).filter(|_| taken.insert(address)) else { continue };
            ids.insert(id);
            missing.push(Arc::new(Port::of_wildcard(id, address, config, &served)));
        }
    }
    missing
}

/// The ids of ports that there are, and of those that a configuration names.
fn taken_ids(ports: &[Arc<Port>], configs: &[PortConfig]) -> BTreeSet<u16> {
    let of_ports = ports.iter().map(|port| port.id);
    of_ports.chain(configs.iter().map(|config| config.id)).collect()
}

/// The highest id that no port has: those of configurations are low.
fn free_id(taken: &BTreeSet<u16>) -> Option<u16> {
    (1..=u16::MAX).rev().find(|id| !taken.contains(id))
}

/// Whether an address can be served, as far as can be told beside a target that serves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reachable {
    /// Its UDP port is free, or the verbs device there opened.
    Free,
    /// Its UDP port has an owner, which may be a target that runs.
    InUse,
}

/// Tries an address of a configuration, and gives it back at once.
///
/// # Errors
/// It can not be served.
pub(crate) fn try_address(config: &Config, address: IpAddr) -> Result<Reachable, AddressError> {
    let options = DeviceOptions::of(config);
    let selection = rdma::select(options.kind(), address)?;
    match selection.choice {
        Choice::Verbs => {
            options.open_verbs(address)?;
            return Ok(Reachable::Free);
        }
        // Listeners have names there, and no more than that can be taken.
        Choice::Shm => return Ok(Reachable::Free),
        Choice::Soft => {}
    }
    // A socket that shared the port, as those of a target do, would get packets that are for them.
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
    /// The listeners of a target that has begun to listen.
    pub(crate) fn new(
        associations: Arc<Associations>,
        config: &Config,
        devices: Devices,
        applied: Arc<AppliedConfig>,
    ) -> Self {
        let options = DeviceOptions::of(config);
        let unshared = Mutex::new(UnsharedPorts::at_start(&devices, associations.registry()));
        Self { associations, options, devices: Mutex::new(devices), applied, unshared }
    }

    /// Address of the counters as an HTTP page.
    pub(crate) fn metrics(&self) -> Option<SocketAddr> {
        self.applied.metrics()
    }

    /// The associations that hosts make at the listeners.
    pub(crate) fn associations(&self) -> &Arc<Associations> {
        &self.associations
    }

    /// Serves a subsystem at an address, which the target begins to listen on if it does not yet.
    ///
    /// # Errors
    /// See [`ChangeError`]. Nothing changes then.
    pub(crate) fn add_listener(&self, nqn: &Nqn, address: SocketAddr) -> Result<(), ChangeError> {
        let mut devices = self.devices();
        let registry = self.associations.registry();
        registry.find_subsystem(nqn)?;
        if !registry.listens_at(address) {
            let ip = address.ip();
            if ip.is_unspecified() || ip.is_multicast() || address.port() == 0 {
                return Err(AddressError::NoInterface(address).into());
            }
            self.open(&mut devices, &self.unbound_port(address)?)?;
        }
        let added = self.associations.add_listener(nqn, address);
        if added.is_err() {
            self.close_unwanted(&mut devices);
        }
        added
    }

    /// Does not serve a subsystem at an address any more, ends the associations there, and stops
    /// listening where nothing is left to serve and the configuration has no port.
    ///
    /// # Errors
    /// See [`ChangeError`]. Nothing changes then.
    pub(crate) fn remove_listener(
        &self,
        nqn: &Nqn,
        address: SocketAddr,
    ) -> Result<(), ChangeError> {
        let mut devices = self.devices();
        self.associations.remove_listener(nqn, address)?;
        self.close_unwanted(&mut devices);
        Ok(())
    }

    /// Removes a subsystem with its namespaces and listeners. The result has a line for each
    /// namespace that did not end well.
    ///
    /// # Errors
    /// See [`ChangeError`]. Nothing changes then.
    pub(crate) fn remove_subsystem(&self, nqn: &Nqn) -> Result<Vec<String>, ChangeError> {
        let mut devices = self.devices();
        let warnings = self.associations.remove_subsystem(nqn)?;
        self.close_unwanted(&mut devices);
        Ok(warnings)
    }

    /// Exports what a configuration says, and listens where it says. With [`OpenPurpose::Check`]
    /// nothing changes.
    ///
    /// # Errors
    /// See [`ReloadError`]. Nothing changes then.
    pub(crate) fn reload(
        &self,
        config: Config,
        purpose: OpenPurpose,
    ) -> Result<ReloadReport, ReloadError> {
        let differences = self.applied.differences_at_start(&config);
        if !differences.is_empty() {
            return Err(ReloadError::AtStart(differences));
        }
        let mut devices = self.devices();
        let new = self.new_ports(&config)?;
        match purpose {
            OpenPurpose::Check => {
                for port in &new {
                    try_address(&config, port.configured_address().ip())?;
                }
                return self.associations.reload(&config, &new, purpose);
            }
            OpenPurpose::Serve => {}
        }
        let opened = new.iter().try_for_each(|port| self.open(&mut devices, port));
        let reloaded = opened
            .map_err(ReloadError::from)
            .and_then(|()| self.associations.reload(&config, &new, purpose));
        if reloaded.is_ok() {
            self.applied.set(config);
        }
        // The new ones, if it failed.
        self.close_unwanted(&mut devices);
        reloaded
    }

    /// The ports that a configuration adds, wildcard addresses apart.
    fn new_ports(&self, config: &Config) -> Result<Vec<Arc<Port>>, ReloadError> {
        let ports = self.associations.registry().ports();
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
            new.push(Arc::new(Port::new(wanted, &[])));
        }
        Ok(new)
    }

    /// A port at an address that the configuration does not name, or whose own port could not be
    /// listened on yet.
    fn unbound_port(&self, address: SocketAddr) -> Result<Arc<Port>, AddressError> {
        let ports = self.associations.registry().ports();
        if let Some(port) = ports.iter().find(|port| port.configured_address() == address) {
            return Ok(Arc::clone(port));
        }
        let id = free_id(&taken_ids(&ports, &self.applied.ports())).ok_or(AddressError::TooMany)?;
        Ok(Arc::new(Port::added(id, address)))
    }

    /// Listens for a port, and has it from then on.
    fn open(&self, devices: &mut Devices, port: &Arc<Port>) -> Result<(), AddressError> {
        let registry = self.associations.registry();
        let ip = port.configured_address().ip();
        let others = registry.ports_of(ip);
        let is_known = others.iter().any(|other| Arc::ptr_eq(other, port));
        if !is_known && registry.ports().len() >= MAX_PORTS {
            return Err(AddressError::TooMany);
        }
        if devices.serve(ip, DeviceRole::Main) {
            devices.listen(port, DeviceRole::Main)?;
        } else {
            // With those of a device that has failed.
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
            registry.add_port(port);
        }
        tracing::info!(address = %port.address(), "listening");
        Ok(())
    }

    /// Stops listening where nothing is served and the configuration has no port.
    fn close_unwanted(&self, devices: &mut Devices) {
        let registry = self.associations.registry();
        let configs = self.applied.ports();
        let is_configured = |port: &Port| configs.iter().any(|config| port.is_of(config));
        for port in registry.ports() {
            if !is_configured(&port) && port.subsystems().is_empty() {
                registry.remove_port(&port);
                devices.close(&port);
                self.associations.end_discovery_at(&port);
                tracing::info!(address = %port.address(), "not listening any more");
            }
        }
    }

    /// Listens where an address or a device has come since the last look. To be called once in each
    /// second.
    pub(crate) fn look(&self, missing: &mut MissingAddresses) {
        let mut devices = self.devices();
        let registry = self.associations.registry();
        let is_missing = |devices: &Devices, port: &Port| {
            !port.is_bound() || !devices.serve(port.configured_address().ip(), DeviceRole::Main)
        };
        let mut ports = missing_wildcards(registry, &self.applied.ports());
        let known = registry.ports();
        share_memory(&mut devices, &self.options, &known, &mut self.unshared());
        ports.extend(known.into_iter().filter(|port| is_missing(&devices, port)));
        if ports.is_empty() {
            return;
        }
        let surroundings = Surroundings::look();
        ports.retain(|port| surroundings.have(port.configured_address().ip()));
        missing.note_surroundings(surroundings);
        let mut opened = false;
        for port in ports {
            let address = port.configured_address();
            // Another port may have brought the device of both.
            if !is_missing(&devices, &port) || !missing.is_due(address) {
                continue;
            }
            match self.open(&mut devices, &port) {
                Ok(()) => {
                    missing.failures.remove(&address);
                    opened = true;
                }
                Err(error) => missing.note(address, error.to_string()),
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

impl fmt::Debug for Listeners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Listeners")
    }
}

impl Surroundings {
    fn look() -> Self {
        let devices = fs::read_dir("/sys/class/infiniband").into_iter().flatten().flatten();
        let mut devices: Vec<_> = devices.map(|entry| entry.file_name()).collect();
        devices.sort();
        Self { addresses: rdma::local_addresses().unwrap_or_default(), devices }
    }

    fn have(&self, ip: IpAddr) -> bool {
        ip.is_loopback() || self.addresses.iter().any(|local| local.ip == ip)
    }
}

impl MissingAddresses {
    /// Has all of them tried at once where something has changed.
    fn note_surroundings(&mut self, now: Surroundings) {
        if self.last != now {
            self.last = now;
            self.failures.values_mut().for_each(|failures| failures.wait = 0);
        }
    }

    /// Whether an address is to be tried in this look.
    fn is_due(&mut self, address: SocketAddr) -> bool {
        self.failures.get_mut(&address).is_none_or(FailedTries::is_due)
    }

    /// An address was tried in vain.
    fn note(&mut self, address: SocketAddr, error: String) {
        if self.failures.entry(address).or_default().note(&error) {
            tracing::warn!(%address, "still not listening: {error}");
        }
    }
}

impl UnsharedPorts {
    /// Those that the start of the target logged.
    fn at_start(devices: &Devices, registry: &Registry) -> Self {
        let ports = registry.ports().into_iter().filter(|port| !devices.listen_beside(port));
        let tried = |port: Arc<Port>| {
            (port.configured_address(), FailedTries { count: 1, wait: 2, error: String::new() })
        };
        Self(ports.map(tried).collect())
    }

    fn is_due(&mut self, address: SocketAddr) -> bool {
        self.0.get_mut(&address).is_none_or(FailedTries::is_due)
    }

    fn note(&mut self, address: SocketAddr, error: &AddressError) {
        let is_known = self.0.contains_key(&address);
        self.0.entry(address).or_default().note(&error.to_string());
        if !is_known {
            tracing::warn!(%address, "hosts on this machine use the network: {error}");
        }
    }

    fn shared(&mut self, address: SocketAddr) {
        if self.0.remove(&address).is_some() {
            tracing::info!(%address, "hosts on this machine may share memory again");
        }
    }
}

impl FailedTries {
    /// Whether the address is to be tried in this look.
    fn is_due(&mut self) -> bool {
        self.wait = self.wait.saturating_sub(1);
        self.wait == 0
    }

    /// Counts a try that failed. Returns whether the error differs from the last one.
    fn note(&mut self, error: &str) -> bool {
        self.count = self.count.saturating_add(1);
        self.wait = 1_u32.checked_shl(self.count).unwrap_or(LOOKS_BETWEEN_TRIES);
        self.wait = self.wait.min(LOOKS_BETWEEN_TRIES);
        let is_new = self.error != error;
        self.error = error.to_owned();
        is_new
    }
}
