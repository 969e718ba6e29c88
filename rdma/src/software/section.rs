//! Sections: the periods in which a group may access registered memory.
//!
//! A thread that deregisters a region clears its key first and then waits until every open section
//! has ended; a section that begins later sees the cleared key. No section is open while code of
//! the provider's user runs, so a thread that drops a region never waits for itself.

use crossbeam::utils::CachePadded;

use super::sync::{AtomicU64, Ordering, fence, yield_now};

/// One counter per group: odd while its section is open.
pub(crate) struct Sections {
    slots: Box<[CachePadded<AtomicU64>]>,
}

/// An open section. It ends when this is dropped.
pub(crate) struct Section<'a> {
    slot: &'a AtomicU64,
    open: u64,
}

impl Sections {
    pub(crate) fn new(count: usize) -> Self {
        Self { slots: (0..count).map(|_| CachePadded::new(AtomicU64::new(0))).collect() }
    }

    /// Opens the section of group `index`, which only one thread at a time may do.
    pub(crate) fn enter(&self, index: usize) -> Section<'_> {
        let slot = &*self.slots[index];
        let open = slot.load(Ordering::Relaxed) + 1;
        assert!(open % 2 == 1, "a group opens one section at a time");
        slot.store(open, Ordering::Relaxed);
        // Pairs with the fence in `wait`: either `wait` sees this section, or the section sees
        // whatever was retired before `wait`.
        fence(Ordering::SeqCst);
        Section { slot, open }
    }

    /// Returns when every section that was open at the call has ended.
    pub(crate) fn wait(&self) {
        fence(Ordering::SeqCst);
        for slot in &self.slots {
            let seen = slot.load(Ordering::Acquire);
            while seen % 2 == 1 && slot.load(Ordering::Acquire) == seen {
                yield_now();
            }
        }
    }
}

impl Drop for Section<'_> {
    fn drop(&mut self) {
        self.slot.store(self.open + 1, Ordering::Release);
    }
}
