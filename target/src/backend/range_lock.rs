//! Locks on byte ranges of a file: a write excludes reads and other writes of the same pages.
//!
//! The kernel copies between the page cache and memory without a lock that readers take, so a read
//! can return a block that a write has half changed. Operations lock their range before their first
//! system call and keep it until the last call on the range has ended. No thread blocks: an
//! operation that has to wait gets the time until its next attempt.
//!
//! Each page maps to a lock of a table; large files share locks between pages. An operation takes
//! the locks of its pages in ascending order and keeps them while it waits for the next one, so
//! there are no deadlocks.
//!
//! An operation that has to wait draws a number, and each lock stores the lowest number waiting for
//! it. While a number is stored there, the lock is given only to operations with that number or a
//! lower one. So neither readers nor writers starve: an operation is overtaken only by those that
//! began to wait before it, and by those that arrive after such a one was served and before the
//! others have tried again, at most a millisecond each time.
//!
//! A lock is held for as long as storage takes. A read of one block that overlaps a write of 1 MiB
//! waits for the end of that whole write, and a write of a block waits for a read of it from the
//! medium. A wait may also end late, by its own length or a millisecond, whichever is less.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::sync::{AtomicU64, Ordering};

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;

/// Bytes protected by one lock. Logical blocks are at most this large and aligned, so that none
/// lies in two pages.
const PAGE_BYTES: u64 = 4096;
/// Most locks of a file (32 KiB). Two operations of one page each in a large file wait for each
/// other without need with a probability of 1 in 4,096.
const MOST_LOCKS: u64 = 4096;
/// First and longest wait between attempts. Each wait is twice as long as the one before.
const FIRST_WAIT: Duration = Duration::from_micros(1);
const LONGEST_WAIT: Duration = Duration::from_millis(1);

/// Layout of a lock: the low bits are the lowest waiting number (0 for none), then follows a count
/// of readers; the highest bit is the writer.
const WRITER: u64 = 1 << 63;
const READER: u64 = 1 << 48;
const READERS: u64 = WRITER - READER;
/// Mask of the lowest waiting number. A target cannot draw 2^48 numbers in its lifetime.
const NEXT: u64 = READER - 1;

/// Locks of one file, shared by all cores.
pub(crate) struct RangeLocks {
    locks: Box<[AtomicU64]>,
    /// Number that [`RangeLocks::draw`] returned last.
    drawn: AtomicU64,
}

/// Whether an operation reads or changes its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RangeAccess {
    /// Reads, concurrently with other reads.
    Shared,
    /// Changes bytes of the range.
    Exclusive,
}

/// Locks of an operation's range, taken or still needed. Dropping it releases them and ends a wait.
pub(crate) struct RangeLock {
    table: Arc<RangeLocks>,
    access: RangeAccess,
    /// Index of the first page's lock.
    first: u32,
    /// Number of locks needed, in ascending order and wrapping at the end of the table.
    count: u32,
    /// Number of locks taken, lowest first.
    taken: u32,
    /// Number of waits so far.
    waits: u32,
    /// Number drawn at the first wait; 0 as long as it has not waited.
    number: u64,
}

impl RangeLocks {
    /// Locks for a file of `size_bytes`.
    pub(super) fn new(size_bytes: u64) -> Arc<Self> {
        Self::with(size_bytes.div_ceil(PAGE_BYTES).clamp(1, MOST_LOCKS))
    }

    fn with(locks: u64) -> Arc<Self> {
        let locks = (0..locks).map(|_| AtomicU64::new(0)).collect();
        Arc::new(Self { locks, drawn: AtomicU64::new(0) })
    }

    /// Creates the lock of a range, without taking any of its locks.
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
    /// Takes the remaining locks of the range.
    ///
    /// # Errors
    /// Another operation holds a lock. The error is the time to wait before the next call.
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

    /// Whether a lock of the range is not taken yet.
    pub(super) fn is_waiting(&self) -> bool {
        self.taken < self.count
    }

    fn wait(&mut self) -> Duration {
        let wait = FIRST_WAIT * (1 << self.waits.min(16));
        self.waits += 1;
        wait.min(LONGEST_WAIT)
    }

    /// Lock at a position in ascending order. For a range that wraps, the part at the beginning of
    /// the table comes first.
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
    /// Value that a holder adds to a lock.
    const fn unit(self) -> u64 {
        match self {
            Self::Shared => READER,
            Self::Exclusive => WRITER,
        }
    }

    /// Whether a lock with this value can be taken in addition to its present holders.
    const fn is_compatible(self, lock: u64) -> bool {
        match self {
            // Up to the largest count of readers.
            Self::Shared => lock & !NEXT < READERS,
            Self::Exclusive => lock & !NEXT == 0,
        }
    }

    /// Takes a lock. Otherwise stores `number` in it, unless a lower one waits or it is 0.
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
