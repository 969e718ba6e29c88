//! Assembly of a target from its parts, which threads or a simulator then drive.

use std::io;
use std::sync::Arc;

use crossbeam::channel;
use rdma::{CmError, Device, Provider};

use crate::controller::Associations;
use crate::core_context::pool::{PoolMemory, PoolPlan};
use crate::doorbell::Doorbell;
use crate::driver::devices::{Acceptors, CoreDoor, DeviceRole, Devices};
use crate::inventory::Inventory;
use crate::inventory::port::Port;
use crate::listen_error::{AddError, ListenError};
use crate::poll_group::{PollGroupBuilder, StopRequest};

/// Parts of a target: a builder for the poll group of each core, the devices and the acceptors.
pub struct Assembly {
    pub(crate) associations: Arc<Associations>,
    pub(crate) seeds: Vec<PollGroupBuilder>,
    pub(crate) devices: Devices,
    pub(crate) acceptors: Acceptors,
    pub(crate) acceptor_bell: Arc<Doorbell>,
    pub(crate) stop_request: Arc<StopRequest>,
}

impl ListenError {
    pub(crate) fn new(port: &Port, error: CmError) -> Self {
        Self { port_id: port.id, address: port.configured_address(), error }
    }
}

impl Assembly {
    /// Creates the parts for `cores` cores that export the namespaces of `inventory`, without
    /// devices.
    ///
    /// # Errors
    /// The memory of the buffer pool or a doorbell cannot be created.
    pub fn new(inventory: Arc<Inventory>, cores: usize) -> io::Result<Self> {
        let associations = Associations::new(inventory);
        let limits = associations.inventory().limits();
        let plan = PoolPlan::new(limits.pool_bytes, cores, limits.block_bytes());
        let memory = PoolMemory::new(plan.memory_bytes(), limits.max_transfer_bytes as usize)?;
        let stop_request = Arc::new(StopRequest::default());
        let mut seeds = Vec::with_capacity(cores);
        let mut doors = Vec::with_capacity(cores);
        for index in 0..cores {
            let (pool, anonymous_pool) = plan.pools(&memory, index);
            let (sender, transports) = channel::unbounded();
            let bell = Doorbell::new()?;
            doors.push(CoreDoor { bell: Arc::clone(&bell), transports: sender });
            seeds.push(PollGroupBuilder {
                associations: Arc::clone(&associations),
                pool,
                anonymous_pool,
                transports,
                bell,
                stop_request: Arc::clone(&stop_request),
            });
        }
        let acceptor_bell = Doorbell::new()?;
        let (devices, acceptors) =
            Devices::new(Arc::clone(&associations), memory, doors, Arc::clone(&acceptor_bell));
        Ok(Self { associations, seeds, devices, acceptors, acceptor_bell, stop_request })
    }

    /// Adds a device and listens on the ports with its address. The device must have been opened
    /// for this number of cores. Returns the ports that cannot be listened on, if at least one can.
    ///
    /// # Errors
    /// The device refuses the memory, a group or its connection manager, or no port can be listened
    /// on. Then the target is unchanged.
    pub fn add<P>(&mut self, device: P::Device) -> Result<Vec<ListenError>, AddError>
    where
        P: Provider,
        P::Group: Send,
        P::Cm: Send,
    {
        let ports = self.associations.inventory().ports_of(device.local_ip());
        self.devices.add::<P>(device, DeviceRole::Main, &ports)
    }
}
