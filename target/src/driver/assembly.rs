//! Assembles a target from its parts; threads or a simulator drive it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crossbeam::channel;
use rdma::{CmError, Device, Provider};

use crate::controller::Associations;
use crate::core_context::pool::{PoolMemory, PoolPlan};
use crate::doorbell::Doorbell;
use crate::driver::devices::{CoreDoor, DeviceRole, Devices, Receptions};
use crate::inventory::Registry;
use crate::inventory::port::Port;
use crate::poll_group::{PollGroup, PollGroupBuilder, StopRequest};

/// The parts of a target: a seed for each core's poll group, and the devices.
pub struct Assembly {
    pub(crate) associations: Arc<Associations>,
    pub(crate) seeds: Vec<PollGroupBuilder>,
    pub(crate) devices: Devices,
    pub(crate) receptions: Receptions,
    /// Wakes whoever drives the receptions.
    pub(crate) reception_bell: Arc<Doorbell>,
    pub(crate) orders: Arc<StopRequest>,
}

/// Why a device can not be added.
#[derive(Debug, thiserror::Error)]
pub enum AddError {
    /// No port can be listened on.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Memory, a group or the connection manager is refused.
    #[error("the device at {address} refuses resources: {error}")]
    Device {
        /// The local address of the device.
        address: IpAddr,
        /// The error of the device or of the system.
        error: io::Error,
    },
    /// More devices than a poll group serves.
    #[error("more than {} devices", PollGroup::MAX_TRANSPORTS)]
    TooMany,
    /// The target is about to end.
    #[error("the target is stopping")]
    Stopping,
}

/// A port can not be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {error}")]
pub struct ListenError {
    /// Port id of the configuration.
    pub port_id: u16,
    /// The address that it was to listen on.
    pub address: SocketAddr,
    /// The error of the connection manager.
    pub error: CmError,
}

impl ListenError {
    pub(crate) fn new(port: &Port, error: CmError) -> Self {
        Self { port_id: port.id, address: port.configured_address(), error }
    }
}

impl Assembly {
    /// The parts for `cores` cores that export the namespaces of `registry`, without a device yet.
    ///
    /// # Errors
    /// The pool's memory is not to be had.
    pub fn new(registry: Arc<Registry>, cores: usize) -> io::Result<Self> {
        let associations = Associations::new(registry);
        let limits = associations.registry().limits();
        let plan = PoolPlan::new(limits.pool_bytes, cores, limits.block_bytes());
        let memory = PoolMemory::new(plan.memory_bytes(), limits.max_transfer_bytes as usize)?;
        let orders = Arc::new(StopRequest::default());
        let mut seeds = Vec::with_capacity(cores);
        let mut doors = Vec::with_capacity(cores);
        for index in 0..cores {
            let (pool, guest_pool) = plan.pools(&memory, index);
            let (sender, transports) = channel::unbounded();
            let bell = Doorbell::new()?;
            doors.push(CoreDoor { bell: Arc::clone(&bell), transports: sender });
            seeds.push(PollGroupBuilder {
                associations: Arc::clone(&associations),
                pool,
                guest_pool,
                transports,
                bell,
                orders: Arc::clone(&orders),
            });
        }
        let reception_bell = Doorbell::new()?;
        let (devices, receptions) =
            Devices::new(Arc::clone(&associations), memory, doors, Arc::clone(&reception_bell));
        Ok(Self { associations, seeds, devices, receptions, reception_bell, orders })
    }

    /// Adds a device, which must have been opened for as many groups as there are cores, and
    /// listens on the ports with its address. Returns the ports that can not be listened on, if
    /// there are others.
    ///
    /// # Errors
    /// The device refuses memory, a group or its connection manager, or no port can be listened on.
    /// Then the parts are as they were.
    pub fn add<P>(&mut self, device: P::Device) -> Result<Vec<ListenError>, AddError>
    where
        P: Provider,
        P::Group: Send,
        P::Cm: Send,
    {
        let ports = self.associations.registry().ports_of(device.local_ip());
        self.devices.add::<P>(device, DeviceRole::Main, &ports)
    }
}
