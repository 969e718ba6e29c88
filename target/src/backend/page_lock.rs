//! Lock that makes reads and writes of one page of memory atomic.

use std::sync::atomic::{AtomicU32, Ordering, fence};

/// Attempts of a read that concurrent writes disturb, before it takes the lock as a writer does.
const OPTIMISTIC_READS: u32 = 64;
/// Attempts to lock a page between yields, since the holder may need the processor.
const LOOKS: u32 = 256;

/// Sequence lock of one page: the number is odd while the page is locked. Readers do not change it
/// until writers have disturbed them [`OPTIMISTIC_READS`] times.
#[derive(Debug, Default)]
pub(super) struct PageLock(AtomicU32);

impl PageLock {
    /// Calls `copy` to read the page, and calls it again if a write came between.
    pub(super) fn read(&self, mut copy: impl FnMut()) {
        for _ in 0..OPTIMISTIC_READS {
            let before = self.0.load(Ordering::Acquire);
            if before.is_multiple_of(2) {
                copy();
                fence(Ordering::Acquire);
                if self.0.load(Ordering::Relaxed) == before {
                    return;
                }
            }
            std::hint::spin_loop();
        }
        self.write(copy);
    }

    /// Calls `change` to write the page while no other thread reads or writes it.
    pub(super) fn write(&self, mut change: impl FnMut()) {
        let mut looks = 0;
        loop {
            let before = self.0.load(Ordering::Relaxed);
            let free = before.is_multiple_of(2);
            let taken = before.wrapping_add(1);
            let order = (Ordering::Acquire, Ordering::Relaxed);
            if free && self.0.compare_exchange_weak(before, taken, order.0, order.1).is_ok() {
                break;
            }
            looks += 1;
            match looks % LOOKS {
                0 => std::thread::yield_now(),
                _ => std::hint::spin_loop(),
            }
        }
        fence(Ordering::Release);
        change();
        self.0.fetch_add(1, Ordering::Release);
    }
}
