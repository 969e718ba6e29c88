//! Opening of the devices of addresses, and the listening on their ports.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;

use rdma::shm::{SharingGroup, Shm, ShmDevice, ShmOptions};
use rdma::soft::{EndpointError, PortChoice, Soft, SoftDevice, SoftOptions};
use rdma::verbs::{Verbs, VerbsDevice, VerbsError, VerbsOptions};
use rdma::{Choice, ProviderKind, Selection};

use crate::config::{Config, PortConfig, ProviderChoice};
use crate::driver::devices::{DeviceRole, Devices};
use crate::inventory::Inventory;
use crate::inventory::port::{Port, PortState};
use crate::listen_error::{AddressError, ListenError};
use crate::listen_retries::UnsharedPorts;

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

#[derive(Clone, Debug)]
pub(crate) struct DeviceOptions {
    provider: ProviderChoice,
    /// Number of groups of queue pairs that a device has: one per core.
    groups: usize,
    sharing_group: Option<SharingGroup>,
    send_with_invalidate: bool,
}

impl DeviceOptions {
    pub(crate) fn of(config: &Config) -> Self {
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
pub(crate) fn add_device(
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
pub(crate) fn listening_by(selection: &Selection) -> PortState {
    let Selection { choice, reason, .. } = selection;
    PortState::Listening { provider: choice.name(), reason: reason.clone() }
}

/// Listens in shared memory too, for hosts on this machine, on those ports where that is possible
/// and not done yet.
pub(crate) fn share_memory(
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
pub(crate) fn missing_wildcards(inventory: &Inventory, configs: &[PortConfig]) -> Vec<Arc<Port>> {
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
pub(crate) fn taken_ids(ports: &[Arc<Port>], configs: &[PortConfig]) -> BTreeSet<u16> {
    let of_ports = ports.iter().map(|port| port.id);
    of_ports.chain(configs.iter().map(|config| config.id)).collect()
}

/// Returns the highest free port ID, since configurations use low ones.
pub(crate) fn free_id(taken: &BTreeSet<u16>) -> Option<u16> {
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
