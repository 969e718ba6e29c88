//! The `sim` provider: the RoCE engine on a simulated network with a virtual clock and a seed.
//!
//! Time is what the callers of `poll` say it is. The same seed and the same calls give the same
//! run.

mod config;
mod device;
mod network;
mod wire;

pub use config::SimConfig;
pub use device::{Sim, SimDevice};
pub use network::{SimNetwork, SimNetworkStats};
pub use wire::SimWire;
