//! A simulated namespace and random users of volumes on it.

mod device;
mod files;
mod model;
mod repairs;
mod replicas;
mod world;
mod writers;

pub(crate) use device::{Ended, SimulatedDevice};
pub(crate) use replicas::{ReplicaTally, run_replicas};
pub(crate) use world::{Tally, format, open, run_world};
