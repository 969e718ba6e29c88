//! The synchronisation primitives of this module, which loom replaces when it checks them. Where
//! this crate is a dependency of a crate that is checked, it is as ever.

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
