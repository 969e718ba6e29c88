//! Assembles a target from its parts; threads or a simulator drive it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use rdma::{CmError, Device, Provider};

use crate::controller::Associations;
use crate::core_context::pool::{PoolMemory, PoolPlan};
use crate::doorbell::Doorbell;
use crate::inventory::Registry;
use crate::inventory::port::Port;
use crate::poll_group::{PollGroup, PollGroupBuilder, StopRequest};
use crate::transport::rdma::{DeviceParts, RdmaReception, RdmaTransport};
use crate::transport::{Reception, Transport};

/// The parts of a target: a seed for each core's poll group, and a reception for each device.
pub struct Assembly {
    pub(crate) associations: Arc<Associations>,
    pub(crate) seeds: Vec<PollGroupBuilder>,
    pub(crate) receptions: Vec<Box<dyn Reception>>,
    pub(crate) orders: Arc<StopRequest>,
    memory: Arc<PoolMemory>,
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
    #[error("more than {} addresses", PollGroup::MAX_TRANSPORTS)]
    TooMany,
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
        let seed = |index| -> io::Result<PollGroupBuilder> {
            let (pool, guest_pool) = plan.pools(&memory, index);
            Ok(PollGroupBuilder {
                associations: Arc::clone(&associations),
                pool,
                guest_pool,
                transports: Vec::new(),
                bell: Doorbell::new()?,
                orders: Arc::clone(&orders),
            })
        };
        let seeds = (0..cores).map(seed).collect::<io::Result<_>>()?;
        Ok(Self { associations, seeds, receptions: Vec::new(), orders, memory })
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
        self.add_for::<P>(device, |_| true)
    }

    /// Adds a device beside the one that serves its address, and listens on the ports where that
    /// one does. Otherwise as [`Assembly::add`].
    ///
    /// # Errors
    /// The same as those of [`Assembly::add`].
    pub(crate) fn add_beside<P>(&mut self, device: P::Device) -> Result<Vec<ListenError>, AddError>
    where
        P: Provider,
        P::Group: Send,
        P::Cm: Send,
    {
        self.add_for::<P>(device, Port::is_bound)
    }

    fn add_for<P>(
        &mut self,
        device: P::Device,
        is_wanted: fn(&Port) -> bool,
    ) -> Result<Vec<ListenError>, AddError>
    where
        P: Provider,
        P::Group: Send,
        P::Cm: Send,
    {
        let index = self.receptions.len();
        if index >= PollGroup::MAX_TRANSPORTS {
            return Err(AddError::TooMany);
        }
        let address = device.local_ip();
        let refused = |error| AddError::Device { address, error };
        let parts = DeviceParts::<P>::new(device, &self.memory).map_err(refused)?;
        let mut transports = Vec::with_capacity(self.seeds.len());
        let mut ports = Vec::with_capacity(self.seeds.len());
        for (core, seed) in self.seeds.iter().enumerate() {
            let bell = Arc::clone(&seed.bell);
            let (transport, port) =
                RdmaTransport::<P>::new(&parts, index as u8, core as u32, bell).map_err(refused)?;
            transports.push(Box::new(transport) as Box<dyn Transport>);
            ports.push(port);
        }
        let associations = Arc::clone(&self.associations);
        let reception = RdmaReception::new(parts, ports, associations).map_err(refused)?;
        let mut reception: Box<dyn Reception> = Box::new(reception);
        let failed = self.listen(&mut *reception, is_wanted)?;
        self.receptions.push(reception);
        for (seed, transport) in self.seeds.iter_mut().zip(transports) {
            seed.transports.push(transport);
        }
        Ok(failed)
    }

    /// Listens on the wanted ports with the address of a device; an error only if all of them fail.
    fn listen(
        &self,
        reception: &mut dyn Reception,
        is_wanted: fn(&Port) -> bool,
    ) -> Result<Vec<ListenError>, ListenError> {
        let ip = reception.local_ip();
        let mut failed = Vec::new();
        let mut listening = false;
        let ports = self.associations.registry().ports().iter();
        let ports = ports.filter(|port| port.configured_address().ip() == ip && is_wanted(port));
        for port in ports {
            match reception.listen(Arc::clone(port)) {
                Ok(_) => listening = true,
                Err(error) => {
                    let address = port.configured_address();
                    failed.push(ListenError { port_id: port.id, address, error });
                }
            }
        }
        match failed.pop() {
            Some(last) if !listening => Err(last),
            last => Ok(failed.into_iter().chain(last).collect()),
        }
    }
}
