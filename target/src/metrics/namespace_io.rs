//! I/O counters by namespace. Each core has its own set.

use std::sync::{Arc, Mutex, PoisonError};

use super::io_counters::{Counter, shared_counters};
use super::latency::{LatencyCounters, LatencyStats};
use crate::controller::{IoKind, IoWork};
use crate::inventory::index::NamespaceIndex;

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
    counters: NamespaceCounters,
    reads: LatencyCounters,
    writes: LatencyCounters,
}

/// Counters of one namespace, one set for each core that has executed a command for it.
#[derive(Debug, Default)]
pub(crate) struct NamespaceIoList(Mutex<Vec<Arc<NamespaceIo>>>);

/// Sums over all cores of the counters of one namespace.
#[derive(Clone, Debug, Default)]
pub(crate) struct NamespaceIoStats {
    pub(crate) counters: NamespaceStats,
    /// Times from the arrival of a Read command to its response.
    pub(crate) reads: LatencyStats,
    /// Times from the arrival of a Write command to its response.
    pub(crate) writes: LatencyStats,
}

/// Counters of one core, at position [`NamespaceIndex::slot`].
#[derive(Debug, Default)]
pub(crate) struct CoreNamespaceIo(Vec<Option<(NamespaceIndex, Arc<NamespaceIo>)>>);

impl NamespaceIo {
    /// Counts a completed command. Latencies are kept for successful Read and Write only.
    fn count(&self, work: &IoWork, latency_nanos: u64, succeeded: bool) {
        let counters = &self.counters;
        if !succeeded {
            return counters.failed.add(1);
        }
        match work.kind {
            IoKind::Read { .. } | IoKind::ReadZeros => {
                counters.reads.add(1);
                counters.read_bytes.add(work.length_bytes);
                self.reads.count(latency_nanos);
            }
            IoKind::Write { .. } => {
                counters.writes.add(1);
                counters.written_bytes.add(work.length_bytes);
                self.writes.count(latency_nanos);
            }
            IoKind::Flush => counters.flushes.add(1),
            IoKind::WriteZeroes { .. } => counters.write_zeroes.add(1),
            IoKind::Compare { .. } => counters.compares.add(1),
            IoKind::Deallocate => counters.deallocates.add(1),
        }
    }
}

impl NamespaceIoList {
    /// Adds the counters of one more core.
    fn open(&self) -> Arc<NamespaceIo> {
        let io = Arc::<NamespaceIo>::default();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&io));
        io
    }

    /// Sums over all cores; `None` if there was no I/O command.
    pub(crate) fn stats(&self) -> Option<NamespaceIoStats> {
        let cores = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut sum = NamespaceIoStats::default();
        for core in cores.iter() {
            sum.counters += core.counters.snapshot();
            sum.reads += core.reads.snapshot();
            sum.writes += core.writes.snapshot();
        }
        (!cores.is_empty()).then_some(sum)
    }
}

impl CoreNamespaceIo {
    /// Counts a completed command. `list` returns the list of its namespace; it is called only for
    /// the core's first command to that namespace.
    pub(crate) fn count<'a>(
        &mut self,
        work: &IoWork,
        latency_nanos: u64,
        succeeded: bool,
        list: impl FnOnce() -> Option<&'a NamespaceIoList>,
    ) {
        let slot = work.namespace.slot as usize;
        let known = self.0.get(slot).and_then(Option::as_ref);
        if let Some((_, io)) = known.filter(|(index, _)| *index == work.namespace) {
            return io.count(work, latency_nanos, succeeded);
        }
        let Some(list) = list() else { return };
        if self.0.len() <= slot {
            self.0.resize_with(slot + 1, || None);
        }
        let (_, io) = self.0[slot].insert((work.namespace, list.open()));
        io.count(work, latency_nanos, succeeded);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nvme_proto::Nsid;

    use super::*;

    fn work(slot: u32, serial: u32, kind: IoKind) -> IoWork {
        IoWork {
            namespace: NamespaceIndex { slot, serial },
            nsid: Nsid(1),
            lba_shift: 9,
            size_blocks: 100,
            kind,
            offset_bytes: 0,
            length_bytes: 4096,
        }
    }

    #[test]
    fn cores_count_for_themselves_and_are_summed() {
        let list = NamespaceIoList::default();
        assert!(list.stats().is_none());
        let time = 10_000;
        for _ in 0..2 {
            let mut core = CoreNamespaceIo::default();
            core.count(&work(3, 7, IoKind::ReadZeros), time, true, || Some(&list));
            let never = || -> Option<&NamespaceIoList> { panic!("it is known") };
            core.count(&work(3, 7, IoKind::Write { fua: true }), time, true, never);
            core.count(&work(3, 7, IoKind::Flush), time, false, never);
        }
        let stats = list.stats().expect("there was I/O");
        let expected = NamespaceStats {
            reads: 2,
            read_bytes: 8192,
            writes: 2,
            written_bytes: 8192,
            failed: 2,
            ..NamespaceStats::default()
        };
        assert_eq!(stats.counters, expected);
        assert_eq!((stats.reads.count(), stats.writes.sum()), (2, Duration::from_micros(20)));
    }

    #[test]
    fn a_slot_that_is_used_again_has_new_counters() {
        let [first, second] = [(); 2].map(|()| NamespaceIoList::default());
        let mut core = CoreNamespaceIo::default();
        core.count(&work(0, 0, IoKind::Flush), 0, true, || Some(&first));
        core.count(&work(0, 1, IoKind::Flush), 0, true, || Some(&second));
        core.count(&work(0, 2, IoKind::Flush), 0, true, || None);
        for list in [first, second] {
            assert_eq!(list.stats().map(|stats| stats.counters.flushes), Some(1));
        }
    }
}
