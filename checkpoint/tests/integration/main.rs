//! Volumes on a simulated namespace.

#[path = "../simulator/mod.rs"]
mod simulator;
mod volume;
mod worlds;
