//! I/O counters by subsystem and by namespace, one set per core, so that cores do not share cache
//! lines.

use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam::utils::CachePadded;
use serde::Serialize;

use super::latency::{Latency, LatencyCounters, LatencyStats};
use crate::controller::{IoKind, IoWork};
use crate::inventory::index::{NamespaceIndex, SubsystemIndex};

/// Counters of one core for the commands of one subsystem, or of none. Only that core writes them.
pub(crate) type CoreIoCounters = Arc<CachePadded<SubsystemIo>>;

/// Counters and latencies of one core for one subsystem.
#[derive(Debug, Default)]
pub(crate) struct SubsystemIo {
    pub(crate) commands: IoCounters,
    /// Times from the arrival of a Read command to its response.
    pub(crate) reads: LatencyCounters,
    /// Times from the arrival of a Write command to its response.
    pub(crate) writes: LatencyCounters,
}

/// Values of [`SubsystemIo`], of one core or summed over all.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SubsystemIoStats {
    pub(crate) commands: IoStats,
    pub(crate) reads: LatencyStats,
    pub(crate) writes: LatencyStats,
}

impl SubsystemIo {
    fn snapshot(&self) -> SubsystemIoStats {
        SubsystemIoStats {
            commands: self.commands.snapshot(),
            reads: self.reads.snapshot(),
            writes: self.writes.snapshot(),
        }
    }
}

impl AddAssign for SubsystemIoStats {
    fn add_assign(&mut self, other: Self) {
        self.commands += other.commands;
        self.reads += other.reads;
        self.writes += other.writes;
    }
}

/// I/O counters of one core, by subsystem.
#[derive(Debug, Default)]
pub struct CoreIoStats {
    /// Counters of the discovery subsystem, and of queues before their Connect command.
    pub(crate) unconnected: CoreIoCounters,
    subsystems: Mutex<SubsystemCounters>,
}

#[derive(Debug, Default)]
struct SubsystemCounters {
    open: BTreeMap<SubsystemIndex, CoreIoCounters>,
    /// Sum of the counters of subsystems that were removed.
    closed: IoStats,
}

impl CoreIoStats {
    /// Returns the counters of a subsystem for a new connection on this core.
    pub(crate) fn open(&self, subsystem: SubsystemIndex) -> CoreIoCounters {
        Arc::clone(self.subsystems().open.entry(subsystem).or_default())
    }

    /// Values for a subsystem; `None` if no connection on this core has belonged to it.
    pub(crate) fn of(&self, subsystem: SubsystemIndex) -> Option<SubsystemIoStats> {
        self.subsystems().open.get(&subsystem).map(|counters| counters.snapshot())
    }

    /// Closes the counters of a removed subsystem, whose commands stay in [`CoreIoStats::all`].
    pub(crate) fn close(&self, subsystem: SubsystemIndex) {
        let mut subsystems = self.subsystems();
        if let Some(counters) = subsystems.open.remove(&subsystem) {
            subsystems.closed += counters.commands.snapshot();
        }
    }

    /// Sum over all subsystems, removed ones included, and queues without one.
    pub(crate) fn all(&self) -> IoStats {
        let subsystems = self.subsystems();
        let mut sum = subsystems.closed;
        sum += self.unconnected.commands.snapshot();
        subsystems.open.values().for_each(|counters| sum += counters.commands.snapshot());
        sum
    }

    fn subsystems(&self) -> MutexGuard<'_, SubsystemCounters> {
        self.subsystems.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counter that one thread writes and any thread reads.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, by: u64) {
        // With a single writer, no atomic read-modify-write is needed.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Declares a struct of counters that one core writes, and the struct of their values. The doc
/// comments of the fields are also the help texts of the metrics.
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

shared_counters! {
    /// I/O commands. Engines count direct and bounced transfers.
    #[derive(Serialize)]
    pub struct IoStats of IoCounters {
        /// Read commands completed successfully.
        reads,
        /// Bytes transferred by Read commands.
        read_bytes,
        /// Write commands completed successfully.
        writes,
        /// Bytes transferred by Write commands.
        written_bytes,
        /// Flush commands completed successfully.
        flushes,
        /// Write Zeroes commands completed successfully.
        write_zeroes,
        /// Dataset Management commands completed successfully.
        deallocates,
        /// Compare commands completed successfully.
        compares,
        /// Commands completed with an error status, on admin and I/O queues, rejected Connect
        /// commands that name the subsystem included.
        failed,
        /// Reads and writes of files by direct I/O (`O_DIRECT`).
        direct,
        /// Reads and writes of files by buffered I/O through io_uring.
        bounced,
        /// Page cache hits: reads of files that returned bytes from the page cache without waiting.
        cached,
        /// Page cache misses: reads of files that found nothing in the page cache and went to
        /// io_uring.
        cache_misses,
        /// Bytes of files read from the page cache without waiting.
        cached_read_bytes,
        /// Bytes of files copied from locked (`mlock`) mappings; cached bytes include them.
        mapped_read_bytes,
        /// Bytes of buffered reads of files submitted to io_uring.
        buffered_read_bytes,
        /// Bytes of direct (`O_DIRECT`) reads of files submitted to io_uring.
        direct_read_bytes,
    }
}

shared_counters! {
    /// I/O commands of one namespace.
    pub(crate) struct NamespaceStats of NamespaceCounters {
        /// Read commands completed successfully.
        reads,
        /// Bytes transferred by Read commands.
        read_bytes,
        /// Write commands completed successfully.
        writes,
        /// Bytes transferred by Write commands.
        written_bytes,
        /// Flush commands completed successfully.
        flushes,
        /// Write Zeroes commands completed successfully.
        write_zeroes,
        /// Dataset Management commands completed successfully.
        deallocates,
        /// Compare commands completed successfully.
        compares,
        /// I/O commands completed with an error status.
        failed,
    }
}

/// Counters of one core for one namespace. Only that core writes them.
#[derive(Debug, Default)]
pub(crate) struct NamespaceIo {
    pub(super) counters: NamespaceCounters,
    pub(super) reads: LatencyCounters,
    pub(super) writes: LatencyCounters,
}

/// Counters of one core, at position [`NamespaceIndex::slot`].
#[derive(Debug, Default)]
pub(crate) struct CoreNamespaceIo(Vec<Option<(NamespaceIndex, Arc<NamespaceIo>)>>);

impl NamespaceIo {
    /// Counts a completed command. Latencies are kept for successful Read and Write only.
    #[inline]
    fn count(&self, work: &IoWork, latency: Latency, succeeded: bool) {
        let counters = &self.counters;
        if !succeeded {
            return counters.failed.add(1);
        }
        match work.kind {
            IoKind::Read { .. } | IoKind::ReadZeros => {
                counters.reads.add(1);
                counters.read_bytes.add(work.length_bytes);
                self.reads.count(latency);
            }
            IoKind::ReadRanges { ranges } => {
                counters.reads.add(ranges.into());
                counters.read_bytes.add(work.length_bytes);
                self.reads.count(latency);
            }
            IoKind::Write { .. } => {
                counters.writes.add(1);
                counters.written_bytes.add(work.length_bytes);
                self.writes.count(latency);
            }
            IoKind::Flush => counters.flushes.add(1),
            IoKind::WriteZeroes { .. } => counters.write_zeroes.add(1),
            IoKind::Compare { .. } => counters.compares.add(1),
            IoKind::Deallocate => counters.deallocates.add(1),
        }
    }
}

impl CoreNamespaceIo {
    /// Counts a completed command. `open` returns the counters of its namespace for this core; it
    /// is called only for the core's first command to that namespace.
    #[inline(always)]
    pub(crate) fn count(
        &mut self,
        work: &IoWork,
        latency: Latency,
        succeeded: bool,
        open: impl FnOnce() -> Option<Arc<NamespaceIo>>,
    ) {
        let slot = work.namespace.slot as usize;
        let known = self.0.get(slot).and_then(Option::as_ref);
        if let Some((_, io)) = known.filter(|(index, _)| *index == work.namespace) {
            return io.count(work, latency, succeeded);
        }
        self.count_first(work, latency, succeeded, open());
    }

    /// Counts the core's first command to a namespace, and keeps its counters.
    #[cold]
    fn count_first(
        &mut self,
        work: &IoWork,
        latency: Latency,
        succeeded: bool,
        io: Option<Arc<NamespaceIo>>,
    ) {
        let slot = work.namespace.slot as usize;
        let Some(io) = io else { return };
        if self.0.len() <= slot {
            self.0.resize_with(slot + 1, || None);
        }
        let (_, io) = self.0[slot].insert((work.namespace, io));
        io.count(work, latency, succeeded);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subsystem_that_is_gone_stays_in_the_sum() {
        let io_stats = CoreIoStats::default();
        let [one, other] = [0, 1].map(|serial| SubsystemIndex { slot: 0, serial });
        io_stats.open(one).commands.reads.add(2);
        io_stats.open(one).commands.reads.add(3);
        io_stats.open(other).commands.reads.add(7);
        io_stats.unconnected.commands.failed.add(1);
        let reads = |subsystem| io_stats.of(subsystem).map(|io| io.commands.reads);
        assert_eq!((reads(one), reads(other), io_stats.all().reads), (Some(5), Some(7), 12));
        io_stats.close(one);
        assert_eq!((reads(one), io_stats.all().reads, io_stats.all().failed), (None, 12, 1));
    }
}
