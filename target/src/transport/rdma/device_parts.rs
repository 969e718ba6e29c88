//! Parts from which the transports and the acceptor of one device are created.

use std::sync::Arc;

use ::rdma::{Access, Mem, Provider, Registered};
use crossbeam::channel::{Receiver, Sender, unbounded};

use super::message::{ToAcceptor, ToGroup};
use crate::core_context::pool::PoolMemory;
use crate::doorbell::Doorbell;
use crate::transport::DeviceFailure;

/// Sender to the inbox of a poll group, used by the acceptor.
pub(crate) struct GroupInbox<P: Provider> {
    pub(super) handle: P::GroupHandle,
    pub(super) inbox: Sender<ToGroup<P>>,
    pub(super) bell: Arc<Doorbell>,
}

/// Buffer pool that is registered with a device.
pub(crate) type RegisteredPool<P> = Registered<P, Arc<PoolMemory>>;

/// Shared parts from which the transports of one device are created.
pub(crate) struct DeviceParts<P: Provider> {
    /// Device with one local IP address.
    pub device: P::Device,
    /// Buffer pool, registered with the device.
    pub pool: Arc<RegisteredPool<P>>,
    /// Flag that the device was removed or has failed.
    pub failure: Arc<DeviceFailure>,
    pub(super) acceptor: Sender<ToAcceptor>,
    pub(super) acceptor_bell: Arc<Doorbell>,
    pub(super) inbox: Receiver<ToAcceptor>,
}

impl<P: Provider> DeviceParts<P> {
    /// Registers the buffer pool with a device, and creates the inbox of its acceptor.
    ///
    /// # Errors
    /// The error of the memory registration or of the eventfd.
    #[expect(unsafe_code, reason = "registers the pool's memory")]
    pub(crate) fn new(device: P::Device, memory: &Arc<PoolMemory>) -> std::io::Result<Self> {
        let host = Mem::Host { addr: memory.address(), length: memory.registered_length() };
        // SAFETY: the place is that of the memory, which is reached through buffers only.
        let pool = unsafe { Registered::new(&device, memory.clone(), host, Access::LOCAL_WRITE) }?;
        let pool = Arc::new(pool);
        let (acceptor, inbox) = unbounded();
        Ok(Self {
            device,
            pool,
            failure: Arc::default(),
            acceptor,
            acceptor_bell: Doorbell::new()?,
            inbox,
        })
    }
}

impl<P: Provider> GroupInbox<P> {
    pub(super) fn send(&self, message: ToGroup<P>) {
        // A group that has ended has no connections to notify.
        let _ = self.inbox.send(message);
        self.bell.ring();
    }
}
