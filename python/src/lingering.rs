//! Batches that were dropped in flight, whose memory a target may still write to.
//!
//! The memory, such as that of a pool, is kept until the batch has ended, which later calls from
//! Python check.

use std::sync::{Arc, Mutex, PoisonError};

use feedrail_initiator::Ticket;
use pyo3::prelude::*;

use crate::buffer::BufferMemory;

struct Dropped {
    ticket: Ticket,
    _memory: Arc<BufferMemory>,
}

/// Locked only while the interpreter is attached, so that no other thread holds the lock at a fork.
static ALL: Mutex<Vec<Dropped>> = Mutex::new(Vec::new());

/// Cancels a batch, and keeps its memory until it has ended.
pub(crate) fn cancel(_py: Python<'_>, ticket: Ticket, memory: &Arc<BufferMemory>) {
    ticket.cancel();
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    all.push(Dropped { ticket, _memory: Arc::clone(memory) });
}

/// Drops the batches that have ended, with their memory.
pub(crate) fn reap(_py: Python<'_>) {
    ALL.lock().unwrap_or_else(PoisonError::into_inner).retain(|batch| !batch.ticket.is_done());
}
