//! Computations for authentications, on their way between an engine and the driver.

use std::io;

use feedrail_auth::{HostWork, HostWorkResult};

use crate::engine::arena::{ControllerKey, EngineKey};

/// Exponentiations of an engine's transaction, which take up to 80 ms and are done elsewhere.
#[derive(Debug)]
pub(crate) struct Computation {
    pub(crate) controller: ControllerKey,
    /// Number of the computation, which no other of the engine has.
    pub(crate) number: u64,
    pub(crate) work: HostWork,
}

/// A computation of one of a host's engines.
#[derive(Debug)]
pub(crate) struct DueComputation {
    pub(crate) engine: EngineKey,
    /// Whether it is done on the thread that turns the engine: nothing could wake the owner of a
    /// simulated device.
    pub(crate) in_place: bool,
    pub(crate) computation: Computation,
}

/// Result of a [`Computation`]; an error if it could not be done.
#[derive(Debug)]
pub(crate) struct Computed {
    pub(crate) controller: ControllerKey,
    pub(crate) number: u64,
    pub(crate) result: io::Result<HostWorkResult>,
}
