//! The `sim` provider: the RoCE engine on a simulated network with a virtual clock and a seed.
//!
//! The time is the `now` that callers pass to `poll`. Equal seeds and equal calls give equal runs.

mod bottleneck;
mod config;
mod cross_traffic;
mod device;
mod link;
mod network;
mod packet_queue;
mod wire;

pub use bottleneck::BottleneckStats;
pub use config::SimConfig;
pub use cross_traffic::{CrossSource, CrossTrafficStats};
pub use device::{Sim, SimDevice};
pub use link::{LinkConfig, LinkStats, Marking};
pub use network::{SimNetwork, SimNetworkStats};
pub use wire::SimWire;
