//! What each core counts of I/O commands.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam::utils::CachePadded;

use crate::metrics::snapshot::IoStats;

/// The I/O commands of one core, by subsystem. Only that core writes; others read whenever they
/// like.
#[derive(Debug)]
pub struct Tally(Box<[CachePadded<IoCounters>]>);

/// Whose commands are counted: those of a subsystem, by its place in the registry, or those of
/// none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TallyIndex(usize);

impl TallyIndex {
    /// The discovery subsystem, and queues that are not connected.
    pub(crate) const NONE: Self = Self(0);

    /// A subsystem, by its place in the registry.
    pub(crate) fn of_subsystem(place: usize) -> Self {
        Self(place + 1)
    }
}

impl Tally {
    /// For so many subsystems.
    pub(crate) fn new(subsystems: usize) -> Self {
        Self((0..=subsystems).map(|_| CachePadded::default()).collect())
    }

    pub(crate) fn of(&self, account: TallyIndex) -> &IoCounters {
        &self.0[account.0]
    }

    /// The sum over all subsystems.
    pub(crate) fn all(&self) -> IoStats {
        let mut sum = IoStats::default();
        self.0.iter().for_each(|counters| sum += counters.snapshot());
        sum
    }
}

/// Counters with one writer.
#[derive(Debug, Default)]
pub(crate) struct IoCounters {
    pub(crate) reads: Counter,
    pub(crate) read_bytes: Counter,
    pub(crate) writes: Counter,
    pub(crate) written_bytes: Counter,
    pub(crate) flushes: Counter,
    pub(crate) write_zeroes: Counter,
    pub(crate) deallocates: Counter,
    pub(crate) compares: Counter,
    pub(crate) failed: Counter,
}

impl IoCounters {
    pub(crate) fn snapshot(&self) -> IoStats {
        IoStats {
            reads: self.reads.get(),
            read_bytes: self.read_bytes.get(),
            writes: self.writes.get(),
            written_bytes: self.written_bytes.get(),
            flushes: self.flushes.get(),
            write_zeroes: self.write_zeroes.get(),
            deallocates: self.deallocates.get(),
            compares: self.compares.get(),
            failed: self.failed.get(),
            // Engines count these.
            direct: 0,
            bounced: 0,
        }
    }
}

/// A number with one writer and many readers.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, by: u64) {
        // One writer: no read-modify-write needed.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
