//! The I/O counters of each core.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam::utils::CachePadded;
use serde::Serialize;

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
    /// Counters for `subsystems` subsystems.
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

/// A number with one writer and many readers.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, by: u64) {
        // One writer: no read-modify-write needed.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Declares counters that one core counts and others read, and the struct of their values.
macro_rules! shared_counters {
    (
        $(#[$attribute:meta])*
        $visibility:vis struct $stats:ident of $shared:ident {
            $($(#[doc = $help:literal])+ $field:ident,)+
        }
    ) => {
        rdma::counters! {
            $(#[$attribute])*
            $visibility struct $stats {
                $($(#[doc = $help])+ $field,)+
            }
        }

        /// Counters with one writer.
        #[derive(Debug, Default)]
        pub(crate) struct $shared {
            $(pub(crate) $field: Counter,)+
        }

        impl $shared {
            pub(crate) fn snapshot(&self) -> $stats {
                $stats { $($field: self.$field.get(),)+ }
            }
        }
    };
}

pub(crate) use shared_counters;

shared_counters! {
    /// I/O commands. Engines count direct and bounced transfers.
    #[derive(Serialize)]
    pub struct IoStats of IoCounters {
        /// Read commands that succeeded.
        reads,
        /// Bytes that Read commands moved.
        read_bytes,
        /// Write commands that succeeded.
        writes,
        /// Bytes that Write commands moved.
        written_bytes,
        /// Flush commands that succeeded.
        flushes,
        /// Write Zeroes commands that succeeded.
        write_zeroes,
        /// Dataset Management commands that succeeded.
        deallocates,
        /// Compare commands that succeeded.
        compares,
        /// Commands that failed, on admin queues too and also because of storage, and refused
        /// Connects.
        failed,
        /// Reads and writes of files that bypassed the page cache.
        direct,
        /// Reads and writes of files that io_uring made through the page cache.
        bounced,
        /// Reads of files that the page cache answered at once, in part or whole.
        cached,
        /// Bytes of files that the page cache answered at once.
        cached_read_bytes,
        /// Bytes of those that were copied from a mapping, without a system call.
        mapped_read_bytes,
        /// Bytes of files that io_uring read through the page cache.
        buffered_read_bytes,
        /// Bytes of files that io_uring read past the page cache.
        direct_read_bytes,
    }
}
