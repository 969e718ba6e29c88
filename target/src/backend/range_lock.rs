//! Locks on byte ranges of a file: a write excludes reads and other writes of the same pages.
//!
//! The kernel copies between the page cache and memory without a lock that readers take, so a read
//! can return a block that a write has half changed. Operations lock their range before their first
//! system call and keep it until the last one that touches the range has ended. No thread blocks:
//! an operation that has to wait is told when to try again.
//!
//! Each page has a lock in a table that pages share when there are more of them. An operation takes
//! the locks of its pages in ascending order and keeps those that it has while it waits for the
//! next one, so no operations wait for each other in a circle.
//!
//! An operation that has to wait draws a number, and the lowest number that waits for a lock is
//! stored in the lock. While a number is stored there, the lock is given only to operations with
//! that number or a lower one. So readers cannot keep a writer waiting for ever, nor writers a
//! reader: every operation is overtaken only by those that began to wait before it, and by those
//! that come while such a one has just been served and the others have not tried again yet, which
//! is a millisecond at most each time.
//!
//! A lock is held for as long as storage takes. A read of one block that overlaps a write of 1 MiB
//! waits for the end of all of that write, and a write of a block waits for a read of it that the
//! medium has to serve. A wait may also end late: by as long as it has lasted, and by a millisecond
//! at most.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::sync::{AtomicU64, Ordering};

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;

/// The unit that one lock protects. No logical block is larger, and none lies in two pages.
const PAGE_BYTES: u64 = 4096;
/// Locks of a file, 32 KiB in all. Of two operations with one page each, at different places of a
/// large file, one waits in vain for the other once in this many times. Doubled, that is half as
/// often, and each file takes 64 KiB; not measured.
const MOST_LOCKS: u64 = 4096;
/// The first wait, and the longest one. Each wait is twice as long as the one before. A larger
/// first wait delays short conflicts, a larger longest one the end of long ones; not measured.
const FIRST_WAIT: Duration = Duration::from_micros(1);
const LONGEST_WAIT: Duration = Duration::from_millis(1);

/// A lock: the lowest bits are the number of the operation that is next, 0 if none waits; then
/// there is a count of readers; the highest bit tells that there is a writer.
const WRITER: u64 = 1 << 63;
const READER: u64 = 1 << 48;
const READERS: u64 = WRITER - READER;
/// 2^48 numbers are more than a target can draw in its lifetime.
const NEXT: u64 = READER - 1;

/// The locks of one file. All cores share them.
pub(crate) struct RangeLocks {
    locks: Box<[AtomicU64]>,
    /// The number that was drawn last.
    drawn: AtomicU64,
}

/// The use that an operation makes of its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RangeAccess {
    /// It reads, beside any number of others that read.
    Shared,
    /// It changes the range.
    Exclusive,
}

/// The locks of an operation's range, those that it has and those that it still needs. Dropping it
/// gives up both.
pub(crate) struct RangeLock {
    table: Arc<RangeLocks>,
    access: RangeAccess,
    /// The lock of the first page.
    first: u32,
    /// Locks that are needed, in ascending order and from the beginning of the table again after
    /// its end.
    count: u32,
    /// How many of these it has, lowest first.
    taken: u32,
    /// How often it had to wait.
    waits: u32,
    /// Drawn for its first wait; 0 before.
    number: u64,
}

impl RangeLocks {
    /// For a file of `size_bytes`.
    pub(super) fn new(size_bytes: u64) -> Arc<Self> {
        Self::with(size_bytes.div_ceil(PAGE_BYTES).clamp(1, MOST_LOCKS))
    }

    fn with(locks: u64) -> Arc<Self> {
        let locks = (0..locks).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Self { locks, drawn: AtomicU64::new(0) })
    }

    /// A lock on a range, of which nothing is locked yet.
    pub(super) fn lock(
        self: &Arc<Self>,
        access: RangeAccess,
        offset: u64,
        length: u64,
    ) -> RangeLock {
        let locks = self.locks.len() as u64;
        let (first, end) = (offset / PAGE_BYTES, (offset + length).div_ceil(PAGE_BYTES));
        RangeLock {
            table: Arc::clone(self),
            access,
            first: (first % locks) as u32,
            count: (end - first).min(locks) as u32,
            taken: 0,
            waits: 0,
            number: 0,
        }
    }

    fn draw(&self) -> u64 {
        self.drawn.fetch_add(1, Ordering::Relaxed) + 1
    }
}

impl RangeLock {
    /// Locks the pages of the range that are not locked yet.
    ///
    /// # Errors
    /// Another operation has to end first. The error is how long to wait before this is called
    /// again.
    pub(super) fn advance(&mut self) -> Result<(), Duration> {
        while self.taken < self.count {
            let mut taken = self.access.take(self.at(self.taken), self.number);
            if !taken && self.number == 0 {
                self.number = self.table.draw();
                taken = self.access.take(self.at(self.taken), self.number);
            }
            if !taken {
                return Err(self.wait());
            }
            self.taken += 1;
        }
        Ok(())
    }

    /// Whether something is still missing.
    pub(super) fn is_waiting(&self) -> bool {
        self.taken < self.count
    }

    fn wait(&mut self) -> Duration {
        let wait = FIRST_WAIT * (1 << self.waits.min(16));
        self.waits += 1;
        wait.min(LONGEST_WAIT)
    }

    /// The lock at a place in ascending order. Of a range that goes on at the beginning of the
    /// table, that part is first.
    fn at(&self, place: u32) -> &AtomicU64 {
        let at_beginning = (self.first + self.count).saturating_sub(self.table.locks.len() as u32);
        let index = match place.checked_sub(at_beginning) {
            Some(place) => self.first + place,
            None => place,
        };
        &self.table.locks[index as usize]
    }
}

impl Drop for RangeLock {
    fn drop(&mut self) {
        for place in 0..self.taken {
            self.at(place).fetch_sub(self.access.unit(), Ordering::Release);
        }
        if self.is_waiting() && self.number != 0 {
            withdraw(self.at(self.taken), self.number);
        }
    }
}

impl RangeAccess {
    /// The number that a holder adds to a lock.
    const fn unit(self) -> u64 {
        match self {
            Self::Shared => READER,
            Self::Exclusive => WRITER,
        }
    }

    /// Whether the holders of a lock allow one more.
    const fn is_compatible(self, lock: u64) -> bool {
        match self {
            // As many readers as can be counted.
            Self::Shared => lock & !NEXT < READERS,
            Self::Exclusive => lock & !NEXT == 0,
        }
    }

    /// Takes a lock. Otherwise stores `number` there, unless a lower one waits or it is 0.
    fn take(self, lock: &AtomicU64, number: u64) -> bool {
        let mut before = lock.load(Ordering::Relaxed);
        loop {
            let next = before & NEXT;
            if next != 0 && (number == 0 || next < number) {
                return false;
            }
            let compatible = self.is_compatible(before);
            let after = match compatible {
                true if next == number => before - next + self.unit(),
                true => before + self.unit(),
                false if next == number => return false,
                false => before - next + number,
            };
            let order = (Ordering::Acquire, Ordering::Relaxed);
            match lock.compare_exchange_weak(before, after, order.0, order.1) {
                Ok(_) => return compatible,
                Err(now) => before = now,
            }
        }
    }
}

/// Removes a number from a lock, if it is stored there.
fn withdraw(lock: &AtomicU64, number: u64) {
    let mut before = lock.load(Ordering::Relaxed);
    while before & NEXT == number {
        let order = Ordering::Relaxed;
        match lock.compare_exchange_weak(before, before - number, order, order) {
            Ok(_) => return,
            Err(now) => before = now,
        }
    }
}

impl fmt::Debug for RangeLocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RangeLocks").field("locks", &self.locks.len()).finish_non_exhaustive()
    }
}

impl fmt::Debug for RangeLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { access, first, count, taken, number, .. } = self;
        f.debug_struct("RangeLock")
            .field("access", access)
            .field("first", first)
            .field("count", count)
            .field("taken", taken)
            .field("number", number)
            .finish_non_exhaustive()
    }
}
