//! I/O counters by namespace, summed over all cores.

use std::sync::{Arc, Mutex, PoisonError};

use super::io_counters::NamespaceIo;
pub(crate) use super::io_counters::NamespaceStats;
use super::latency::LatencyStats;

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

impl NamespaceIoList {
    /// Adds the counters of one more core.
    pub(crate) fn open(&self) -> Arc<NamespaceIo> {
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nvme_proto::Nsid;

    use super::super::io_counters::CoreNamespaceIo;
    use super::super::latency::Latency;
    use super::*;
    use crate::controller::{IoKind, IoWork};
    use crate::inventory::index::NamespaceIndex;

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
        let time = Latency::from_nanos(10_000);
        for _ in 0..2 {
            let mut core = CoreNamespaceIo::default();
            core.count(&work(3, 7, IoKind::ReadZeros), time, true, || Some(list.open()));
            let never = || -> Option<Arc<NamespaceIo>> { panic!("it is known") };
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
        let (mut core, none) = (CoreNamespaceIo::default(), Latency::from_nanos(0));
        core.count(&work(0, 0, IoKind::Flush), none, true, || Some(first.open()));
        core.count(&work(0, 1, IoKind::Flush), none, true, || Some(second.open()));
        core.count(&work(0, 2, IoKind::Flush), none, true, || None);
        for list in [first, second] {
            assert_eq!(list.stats().map(|stats| stats.counters.flushes), Some(1));
        }
    }
}
