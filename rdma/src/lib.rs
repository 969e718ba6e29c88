//! One verbs-shaped interface to RDMA, and the providers behind it.
//!
//! The NVMe over Fabrics transports are generic over [`Provider`], so no virtual call is made per
//! work request. A process opens one [`Device`] per local address, registers its memory with each
//! device, makes one [`Group`] per core (a completion queue and everything that drives its queue
//! pairs) and one [`ConnectionManager`] per device.
//!
//! [`soft`] is RoCE v2 in userspace over UDP; [`sim`] runs the same engine on a simulated network,
//! for tests; [`roce`] is the code that these two share. [`shm`] transfers through memory that
//! processes of one machine share. [`verbs`] uses RDMA devices through libibverbs. [`select`]
//! chooses the provider for an address and returns the reason.
//!
//! No call blocks or reads a clock. `poll` does all the work that is ready at `now`; `deadline`
//! returns the time by which it must be called again; `fd` is the descriptor on which an event loop
//! may sleep until then.
//!
//! Not implemented: iWARP, datagram queue pairs, shared receive queues, atomics, sending immediate
//! data, memory of GPUs, and other systems than Linux. [`soft`] and [`shm`] check keys and bounds,
//! and neither authenticates nor encrypts.

mod cm;
mod counters;
mod cpu_contention;
mod deadlines;
#[doc(hidden)]
pub mod deliberate_bugs;
mod device;
mod group;
mod interface;
mod local_peer;
mod memory;
mod registered;
pub mod roce;
mod select;
pub mod shm;
pub mod sim;
pub mod soft;
mod software;
pub mod sysfs;
mod traits;
pub mod verbs;
mod work;
mod write_room;

pub use cm::{
    CmError, CmEvent, ConnId, ConnOptions, ConnParams, ConnectFailure, PrivateData,
    REJECT_CONSUMER_DEFINED,
};
pub use counters::{CounterInfo, CounterSet};
pub use cpu_contention::CpuContention;
pub use deadlines::Deadlines;
pub use device::{Caps, DeviceEvent, DeviceStats};
pub use group::{GroupConfig, GroupStats, PushError, QpConfig, QpKey, WakeFor};
pub use interface::{LocalAddress, local_addresses};
pub use local_peer::LocalPeer;
pub use memory::{Access, Mem, RegionHandle, StillRegistered, WindowHandle};
pub use registered::Registered;
pub use roce_proto::Time;
pub use select::{Choice, ProviderKind, SelectError, Selection, auto_shares_memory, select};
pub use shm::Shm;
pub use software::random::fill_random;
pub use traits::{ConnectionManager, Device, Group, MemoryRegion, MemoryWindow, Provider};
pub use work::{Bind, Op, RecvWr, SendFlags, SendWr, Sge, Wc, WcOpcode, WcStatus};
pub use write_room::WriteRoom;
