//! How many system calls on one device are under way at once.

pub(crate) mod gate;
pub(crate) mod trial;
