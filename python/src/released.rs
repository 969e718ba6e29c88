//! Owners of memory that every device has deregistered.
//!
//! When a thread of the initiator drops a region, it adds the owner to a list without a lock. The
//! next call from Python drops the owner, which runs Python code.
#![expect(
    unsafe_code,
    reason = "a list that threads push to without a lock, so that forks cannot hang it"
)]

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use pyo3::ffi;
use pyo3::prelude::*;

use crate::lingering;
use crate::owner::MemoryExporter;

struct ReleasedOwner {
    exporter: MemoryExporter,
    next: *mut ReleasedOwner,
}

static NEWEST: AtomicPtr<ReleasedOwner> = AtomicPtr::new(ptr::null_mut());

/// Adds an owner. Any thread may call it, attached to the interpreter or not.
pub(crate) fn push(exporter: MemoryExporter) {
    let node = Box::into_raw(Box::new(ReleasedOwner { exporter, next: ptr::null_mut() }));
    let link = |newest| {
        // SAFETY: the node is not in the list yet, so no other thread has it.
        unsafe { (*node).next = newest };
        Some(node)
    };
    // The closure always returns a node, so this cannot fail.
    let _ = NEWEST.fetch_update(Ordering::Release, Ordering::Relaxed, link);
}

/// Owner of a region's memory, which adds the exporter to the list when it is dropped.
pub(crate) struct ReleaseToPython(Option<MemoryExporter>);

impl ReleaseToPython {
    pub(crate) fn new(exporter: MemoryExporter) -> Self {
        Self(Some(exporter))
    }
}

impl Drop for ReleaseToPython {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(push);
    }
}

/// Drops the owners in the list; called at the start of each call from Python.
pub(crate) fn drain(py: Python<'_>) {
    lingering::reap(py);
    if NEWEST.load(Ordering::Relaxed).is_null() {
        return;
    }
    let mut next = NEWEST.swap(ptr::null_mut(), Ordering::Acquire);
    while !next.is_null() {
        // SAFETY: the swap removed the whole list from all other threads, and each node came from
        // `Box::into_raw`.
        let node = unsafe { Box::from_raw(next) };
        next = node.next;
        drop(node.exporter);
    }
}

/// Makes the main thread drain the list soon, between two bytecode instructions. Any thread may
/// call it, attached to the interpreter or not.
pub(crate) fn drain_soon() {
    // SAFETY: these need no attached thread; the function exists as long as the program.
    unsafe {
        if ffi::Py_IsInitialized() != 0 {
            // Fails if too many calls are pending: then one of them is this one, or the next call
            // drains.
            ffi::Py_AddPendingCall(Some(drain_now), ptr::null_mut());
        }
    }
}

extern "C" fn drain_now(_: *mut c_void) -> c_int {
    let _ = Python::try_attach(drain);
    0
}

/// Last field of objects that may hold the last handle of a region. When they are dropped, with the
/// interpreter attached, the region's owner is dropped as well, and not at the next call.
pub(crate) struct DrainOnDrop;

impl Drop for DrainOnDrop {
    fn drop(&mut self) {
        // Fails only after the interpreter has ended.
        let _ = Python::try_attach(drain);
    }
}

/// Releases the arrays whose memory every device has deregistered, which every other call does
/// first.
#[pyfunction]
pub(crate) fn release_forgotten(py: Python<'_>) {
    drain(py);
}
