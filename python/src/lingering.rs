//! Batches without a waiter, whose memory a target may still write to.
//!
//! A buffer of a pool goes back only when its batch has ended, which for a batch that was dropped
//! the next calls from Python find out.

use std::sync::{Arc, Mutex, PoisonError};

use feedrail_initiator::Ticket;
use pyo3::prelude::*;

use crate::buffer::BufferMemory;

struct Dropped {
    ticket: Ticket,
    _memory: Arc<BufferMemory>,
}

/// Locked only while the interpreter is attached, so that no other thread holds it at a fork.
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
