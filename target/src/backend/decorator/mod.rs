//! Backends that wrap backends and inject faults and delays, for tests and experiments.

mod delay;
mod fault;
mod tear;

pub use self::delay::Delay;
pub use self::fault::{Fault, FaultPlan};
pub(crate) use self::tear::Tear;
