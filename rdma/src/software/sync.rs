//! Synchronisation primitives of this module, replaced by loom's in this crate's loom tests only.

#[cfg(not(all(loom, test)))]
pub(crate) use std::{
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence},
    thread::yield_now,
};

#[cfg(all(loom, test))]
pub(crate) use loom::{
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence},
    thread::yield_now,
};
