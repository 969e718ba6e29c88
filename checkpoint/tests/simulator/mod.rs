//! A simulated namespace and random users of volumes on it.

mod device;
mod world;

pub(crate) use device::{Ended, SimulatedDevice};
pub(crate) use world::{Tally, format, open, run_world};
