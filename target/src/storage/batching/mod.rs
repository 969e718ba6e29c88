//! Batching: controls the number of concurrent system calls on a device.

pub(crate) mod gate;
pub(crate) mod trial;
