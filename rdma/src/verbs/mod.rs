//! The `verbs` provider: RDMA through rdma-core's libibverbs and librdmacm, for RDMA NICs and the
//! kernel's `rdma_rxe`.

mod abi;
mod cm;
mod completion;
mod context;
mod device;
mod domain;
#[cfg(test)]
mod fake;
mod group;
mod handle;
#[cfg(test)]
mod layout;
mod library;
mod lockable;
mod memory;
mod queue_pair;
mod quirks;
mod requests;
mod shared;
#[cfg(test)]
mod tests;

pub use cm::VerbsCm;
pub use context::{DeviceInfo, VerbsError, devices};
pub use device::{ServingPort, device_for};
pub use group::{VerbsGroup, VerbsGroupHandle};
pub use library::{LoadError, available};
pub use memory::{VerbsRegion, VerbsWindow};
pub use queue_pair::VerbsQp;
pub use quirks::{RXE_VENDOR_ID, known_faults};
pub use shared::{Verbs, VerbsDevice, VerbsOptions};
