//! RoCE v2 in software: the code shared by the `soft` and `sim` providers.
//!
//! A [`RoceDevice`] has one [`Wire`] per group and one for its connection manager. The protocol is
//! in `roce-proto`; this module connects it with memory, threads and a network.

mod cm;
mod convert;
mod device;
mod engine;
mod fabric;
mod group;
mod gsi;
pub(crate) mod icrc;
mod memory;
mod new_qp;
mod paths;
mod receive_watermark;
mod senders;
mod shared;
mod sleep;
pub(crate) mod wire;

use crate::software::{mailbox, numbers, place, qp_table, random, regions};

pub use cm::RoceCm;
pub use fabric::Fabric;
pub use group::RoceGroup;
pub use new_qp::NewQp;
pub use numbers::MAX_GROUPS;
pub(crate) use numbers::owner_of;
pub use random::{Entropy, SeededEntropy, SystemEntropy};
pub use regions::{SoftwareRegion, Window};
pub use shared::{GroupHandle, RoceDevice};
pub use wire::{
    Arrived, Datagram, MAX_SENDERS, Outgoing, ROCE_PORT, SenderIndex, SenderSet, Wire, WireCounters,
};
