//! RDMA devices of a target, which can be added at run time.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use crossbeam::channel::{self, Receiver, Sender};
use rdma::{CmError, Device, Provider, Selection};

use crate::controller::Associations;
use crate::core_context::pool::PoolMemory;
use crate::doorbell::Doorbell;
use crate::inventory::port::Port;
use crate::limits::MAX_DEVICES;
use crate::listen_error::{AddError, ListenError};
use crate::poll_group::JoiningTransport;
use crate::transport::rdma::{DeviceParts, RdmaAcceptor, RdmaTransport};
use crate::transport::{Acceptor, AcceptorStats, DeviceFailure};

/// Devices of a target, and the channels by which its cores and its acceptor thread receive their
/// transports and acceptors.
pub(crate) struct Devices {
    associations: Arc<Associations>,
    memory: Arc<PoolMemory>,
    cores: Vec<CoreDoor>,
    acceptors: Sender<AcceptorRequest>,
    acceptor_bell: Arc<Doorbell>,
    added: Vec<AddedDevice>,
    /// Provider of the last device with [`DeviceRole::Main`] at each address, with the reason.
    selections: BTreeMap<IpAddr, Selection>,
    /// Ids of ports that devices with [`DeviceRole::Beside`] listen on.
    beside: BTreeSet<u16>,
}

/// Channel by which a core receives transports, and the doorbell that wakes it.
pub(crate) struct CoreDoor {
    pub(crate) bell: Arc<Doorbell>,
    pub(crate) transports: Sender<JoiningTransport>,
}

/// A device that was added. Its index is that of its transport on each core.
struct AddedDevice {
    address: IpAddr,
    role: DeviceRole,
    /// Failure flag, which its transports and its acceptor share as long as they exist.
    failure: Arc<DeviceFailure>,
}

impl AddedDevice {
    /// Whether the device has failed and its transports and acceptor have been dropped.
    fn is_gone(&self) -> bool {
        self.failure.is_noted() && Arc::strong_count(&self.failure) == 1
    }
}

/// Role of a device at its IP address, which two devices can share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceRole {
    /// RDMA device through which hosts of other machines connect.
    Main,
    /// Shared-memory device, for hosts on this machine.
    Beside,
}

pub(crate) enum AcceptorRequest {
    /// Serve a further device with this acceptor.
    Add(DeviceRole, Box<dyn Acceptor>),
    /// Listen on a port at the device that has the port's address and this role.
    Listen {
        /// Port on which the device does not listen yet.
        port: Arc<Port>,
        role: DeviceRole,
        /// Channel to which the result is sent.
        answer: Sender<Result<(), CmError>>,
    },
    /// Stop listening on a port, at all devices.
    Close(Arc<Port>),
}

/// Acceptors of all devices, and the channel of requests to them.
pub(crate) struct Acceptors {
    all: Vec<(DeviceRole, Box<dyn Acceptor>)>,
    orders: Receiver<AcceptorRequest>,
    /// Sum of the counters of acceptors that were dropped.
    gone: AcceptorStats,
}

impl Devices {
    /// Creates the set without devices, and the acceptors that receive its requests.
    pub(crate) fn new(
        associations: Arc<Associations>,
        memory: Arc<PoolMemory>,
        cores: Vec<CoreDoor>,
        acceptor_bell: Arc<Doorbell>,
    ) -> (Self, Acceptors) {
        let (acceptors, orders) = channel::unbounded();
        let devices = Self {
            associations,
            memory,
            cores,
            acceptors,
            acceptor_bell,
            added: Vec::new(),
            selections: BTreeMap::new(),
            beside: BTreeSet::new(),
        };
        (devices, Acceptors { all: Vec::new(), orders, gone: AcceptorStats::default() })
    }

    /// Adds a device and listens on ports with its address. The device must have been opened for
    /// the number of cores. Returns the ports that cannot be listened on, if at least one can.
    ///
    /// # Errors
    /// The device refuses the memory, a group or its connection manager, or can listen on no port.
    /// Then it is not added.
    pub(crate) fn add<P>(
        &mut self,
        device: P::Device,
        role: DeviceRole,
        ports: &[Arc<Port>],
    ) -> Result<Vec<ListenError>, AddError>
    where
        P: Provider,
        P::Group: Send,
        P::Cm: Send,
    {
        let vacant = self.added.iter().position(AddedDevice::is_gone);
        let slot = vacant.unwrap_or(self.added.len());
        if slot >= MAX_DEVICES {
            return Err(AddError::TooMany);
        }
        let address = device.local_ip();
        let refused = |error| AddError::Device { address, error };
        let parts = DeviceParts::<P>::new(device, &self.memory).map_err(refused)?;
        let mut transports = Vec::with_capacity(self.cores.len());
        let mut groups = Vec::with_capacity(self.cores.len());
        for (core, door) in self.cores.iter().enumerate() {
            let bell = Arc::clone(&door.bell);
            let (transport, group) =
                RdmaTransport::<P>::new(&parts, slot as u8, core as u32, bell).map_err(refused)?;
            transports.push(transport);
            groups.push(group);
        }
        let failure = Arc::clone(&parts.failure);
        let associations = Arc::clone(&self.associations);
        let mut acceptor = RdmaAcceptor::new(parts, groups, associations).map_err(refused)?;
        let failed = listen(&mut acceptor, ports)?;
        for (door, transport) in self.cores.iter().zip(transports) {
            // A core that has ended has no connections.
            let _ = door.transports.send(JoiningTransport { slot, transport: Box::new(transport) });
            door.bell.ring();
        }
        self.order(AcceptorRequest::Add(role, Box::new(acceptor)));
        if role == DeviceRole::Beside {
            let is_refused = |port: &Port| failed.iter().any(|error| error.port_id == port.id);
            self.beside.extend(ports.iter().filter(|port| !is_refused(port)).map(|port| port.id));
        }
        let device = AddedDevice { address, role, failure };
        match self.added.get_mut(slot) {
            Some(gone) => *gone = device,
            None => self.added.push(device),
        }
        Ok(failed)
    }

    /// Whether an address has a device with this role that has not failed.
    pub(crate) fn serve(&self, address: IpAddr, role: DeviceRole) -> bool {
        let is_it = |device: &AddedDevice| device.address == address && device.role == role;
        self.added.iter().any(|device| is_it(device) && !device.failure.is_noted())
    }

    /// Records the provider that serves an address.
    pub(crate) fn note_selection(&mut self, address: IpAddr, selection: Selection) {
        self.selections.insert(address, selection);
    }

    /// Provider that serves an address; `None` for an address that no provider was selected for.
    pub(crate) fn selection(&self, address: IpAddr) -> Option<&Selection> {
        self.selections.get(&address)
    }

    /// Whether a device with [`DeviceRole::Beside`] listens on a port.
    pub(crate) fn listen_beside(&self, port: &Port) -> bool {
        self.beside.contains(&port.id)
    }

    /// Listens on a port at the device that has its address and this role.
    ///
    /// # Errors
    /// The device cannot listen there, or the target is stopping.
    pub(crate) fn listen(&mut self, port: &Arc<Port>, role: DeviceRole) -> Result<(), AddError> {
        let (answer, answered) = channel::bounded(1);
        self.order(AcceptorRequest::Listen { port: Arc::clone(port), role, answer });
        let result = answered.recv().map_err(|_| AddError::Stopping)?;
        result.map_err(|error| ListenError::new(port, error))?;
        if role == DeviceRole::Beside {
            self.beside.insert(port.id);
        }
        Ok(())
    }

    /// Stops listening on a port, at all devices. The devices stay.
    pub(crate) fn close(&mut self, port: &Arc<Port>) {
        self.beside.remove(&port.id);
        self.order(AcceptorRequest::Close(Arc::clone(port)));
    }

    fn order(&self, order: AcceptorRequest) {
        // The acceptors have been dropped if the target is stopping.
        let _ = self.acceptors.send(order);
        self.acceptor_bell.ring();
    }
}

/// Listens on ports. Returns those that failed; an error if there are ports and all of them failed.
fn listen(
    acceptor: &mut dyn Acceptor,
    ports: &[Arc<Port>],
) -> Result<Vec<ListenError>, ListenError> {
    let mut failed = Vec::new();
    for port in ports {
        let result = acceptor.listen(Arc::clone(port));
        failed.extend(result.err().map(|error| ListenError::new(port, error)));
    }
    match failed.pop() {
        Some(last) if failed.len() + 1 == ports.len() => Err(last),
        last => Ok(failed.into_iter().chain(last).collect()),
    }
}

impl Acceptors {
    /// Executes the requests that have arrived; true if there were any.
    pub(crate) fn obey(&mut self) -> bool {
        let mut progress = false;
        while let Ok(order) = self.orders.try_recv() {
            progress = true;
            match order {
                AcceptorRequest::Add(role, acceptor) => self.all.push((role, acceptor)),
                AcceptorRequest::Listen { port, role, answer } => {
                    let _ = answer.send(self.listen(port, role));
                }
                AcceptorRequest::Close(port) => {
                    self.iter_mut().for_each(|acceptor| acceptor.close_port(&port));
                }
            }
        }
        progress
    }

    fn listen(&mut self, port: Arc<Port>, role: DeviceRole) -> Result<(), CmError> {
        let ip = port.configured_address().ip();
        let none = || io::Error::from(io::ErrorKind::AddrNotAvailable);
        let device = self.live(ip, role).next().ok_or_else(none)?;
        device.listen(port).map(drop)
    }

    /// Drops the acceptors of failed devices whose connections have ended, so that the system can
    /// release the devices.
    pub(crate) fn drop_gone(&mut self) {
        let Self { all, gone, .. } = self;
        all.retain(|(_, acceptor)| {
            let is_over = acceptor.is_over();
            if is_over {
                *gone += acceptor.stats();
            }
            !is_over
        });
    }

    /// Sum of the counters of all acceptors since the start.
    pub(crate) fn stats(&self) -> AcceptorStats {
        let mut sum = self.gone;
        self.iter().for_each(|acceptor| sum += acceptor.stats());
        sum
    }

    fn live(
        &mut self,
        ip: IpAddr,
        role: DeviceRole,
    ) -> impl Iterator<Item = &mut Box<dyn Acceptor>> {
        let of_role = self.all.iter_mut().filter(move |(is, _)| *is == role);
        of_role.map(|(_, one)| one).filter(move |one| one.local_ip() == ip && !one.has_failed())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &dyn Acceptor> {
        self.all.iter().map(|(_, acceptor)| &**acceptor)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Box<dyn Acceptor>> {
        self.all.iter_mut().map(|(_, acceptor)| acceptor)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}
