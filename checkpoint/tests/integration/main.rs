//! Volumes on a simulated namespace.

mod reader;
#[path = "../simulator/mod.rs"]
mod simulator;
mod volume;
mod worlds;
