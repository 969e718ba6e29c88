//! The types that a provider of RDMA is made of.

use crate::{ConnectionManager, Device, Group, MemoryRegion, MemoryWindow};

/// A way to do RDMA: a set of types that belong together. How a device is opened differs between
/// providers and is not part of the interface.
pub trait Provider: Sized + 'static {
    /// Its name as users type it: `verbs`, `soft`, `shm`, `sim`.
    const NAME: &'static str;
    /// A device as seen through one local address.
    type Device: Device<Self>;
    /// Registered memory; dropping it deregisters.
    type Region: MemoryRegion + 'static;
    /// A type-2 memory window.
    type Window: MemoryWindow<Self> + 'static;
    /// A completion queue and its queue pairs.
    type Group: Group<Self>;
    /// Names a group to other threads.
    type GroupHandle: Clone + Send + Sync + 'static;
    /// A queue pair on its way from the connection manager to its group.
    type NewQp: Send + 'static;
    /// The connection manager, one per device.
    type Cm: ConnectionManager<Self>;
}
