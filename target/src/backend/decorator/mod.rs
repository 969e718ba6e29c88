//! Backends around backends: faults and delays, for tests and experiments.

mod delay;
mod fault;

pub use self::delay::Delay;
pub use self::fault::{Fault, FaultPlan};
