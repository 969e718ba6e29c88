//! Assembly of a target's parts, which threads or a simulator then drive.

use std::io;
use std::sync::Arc;

use crossbeam::channel;
use rdma::{CmError, Device, Provider};

use crate::controller::Associations;
use crate::core_context::pool::{PoolMemory, PoolPlan};
use crate::doorbell::Doorbell;
use crate::driver::devices::{Acceptors, CoreDoor, DeviceRole, Devices};
use crate::inventory::Registry;
use crate::inventory::port::Port;
use crate::listen_error::{AddError, ListenError};
use crate::poll_group::{PollGroupBuilder, StopRequest};

/// Parts of a target: a builder for each core's poll group, and the devices.
pub struct Assembly {
    pub(crate) associations: Arc<Associations>,
    pub(crate) seeds: Vec<PollGroupBuilder>,
    pub(crate) devices: Devices,
    pub(crate) acceptors: Acceptors,
    /// Wakes the driver of the acceptors.
    pub(crate) acceptor_bell: Arc<Doorbell>,
    pub(crate) stop_request: Arc<StopRequest>,
}

impl ListenError {
    pub(crate) fn new(port: &Port, error: CmError) -> Self {
        Self { port_id: port.id, address: port.configured_address(), error }
    }
}

impl Assembly {
    /// Creates the parts for `cores` cores that export the namespaces of `registry`, without a
    /// device.
    ///
    /// # Errors
    /// Memory for the pool is not available.
    pub fn new(registry: Arc<Registry>, cores: usize) -> io::Result<Self> {
        let associations = Associations::new(registry);
        let limits = associations.registry().limits();
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

    /// Adds a device, which must have been opened with a group for each core, and
    /// listens on the ports with its address. Returns the ports that cannot be listened on, if at
    /// least one can.
    ///
    /// # Errors
    /// The device refuses memory, a group or its connection manager, or no port can be listened on.
    /// Then the parts are unchanged.
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
