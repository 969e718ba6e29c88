//! Parts of a pool's memory, each leased to one buffer at a time.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::process::HomeProcess;

/// Granularity of a pool's parts in bytes: a page, so that arrays of any type are aligned.
const GRAIN_BYTES: usize = 4096;

/// Free bytes of a region.
#[derive(Debug)]
pub(crate) struct Arena {
    home: HomeProcess,
    /// Lengths of the free parts by offset; adjacent free parts are merged.
    free: Mutex<BTreeMap<usize, usize>>,
    returned: Condvar,
}

/// A part of an arena, which is returned to it when this is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    arena: Arc<Arena>,
    pub(crate) at: usize,
    length: usize,
}

impl Arena {
    /// Returns the length of an arena for a part of `length` bytes; `None` if it overflows.
    pub(crate) fn length_for(length: usize) -> Option<usize> {
        length.max(1).checked_next_multiple_of(GRAIN_BYTES)
    }

    /// Returns an arena of `length` bytes, all free.
    pub(crate) fn new(length: usize) -> Arc<Self> {
        let free = Mutex::new(BTreeMap::from([(0, length)]));
        Arc::new(Self { home: HomeProcess::current(), free, returned: Condvar::new() })
    }

    /// Leases the first free part that is long enough, waiting for one for up to `at_most`.
    pub(crate) fn take(self: &Arc<Self>, length: usize, at_most: Duration) -> Option<Lease> {
        let length = Self::length_for(length)?;
        let mut found = None;
        let search = |free: &mut BTreeMap<usize, usize>| {
            found = cut(free, length);
            found.is_none()
        };
        drop(self.returned.wait_timeout_while(self.lock(), at_most, search));
        found.map(|at| Lease { arena: Arc::clone(self), at, length })
    }

    /// Returns the number of free bytes, in parts of any length.
    pub(crate) fn free_bytes(&self) -> usize {
        self.lock().values().sum()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, usize>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // In a forked child the lock is not taken, since a thread of the parent may have held it.
        if self.arena.home.is_current() {
            give_back(&mut self.arena.lock(), self.at, self.length);
            self.arena.returned.notify_all();
        }
    }
}

/// Takes `length` bytes from the first free part that is long enough, and returns their offset.
fn cut(free: &mut BTreeMap<usize, usize>, length: usize) -> Option<usize> {
    let (&at, &room) = free.iter().find(|&(_, &room)| room >= length)?;
    free.remove(&at);
    if room > length {
        free.insert(at + length, room - length);
    }
    Some(at)
}

/// Adds a free part, merged with adjacent ones.
fn give_back(free: &mut BTreeMap<usize, usize>, mut at: usize, mut length: usize) {
    if let Some(after) = free.remove(&(at + length)) {
        length += after;
    }
    if let Some((&before, &room)) = free.range(..at).next_back()
        && before + room == at
    {
        at = before;
        length += room;
    }
    free.insert(at, length);
}
