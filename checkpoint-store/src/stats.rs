//! Counters of saves and reads.

use std::time::Duration;

/// Saves and reads of a store since it was opened. Of several replicas each has its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreStats {
    /// Number of committed saves.
    pub saves: u64,
    /// Bytes of their entries, those that other processes wrote included.
    pub saved_bytes: u64,
    /// Time from the beginning of each of these saves to the end of its commit.
    pub save_time: Duration,
    /// Number of reads that ended without an error.
    pub reads: u64,
    /// Bytes that these reads returned.
    pub read_bytes: u64,
    /// Time that these reads took; of concurrent ones the sum.
    pub read_time: Duration,
    /// Number of reads that found damaged bytes, or failed at the target. The store then reads the
    /// bytes from the next current replica, if it has one.
    pub failed_reads: u64,
}

impl StoreStats {
    pub(crate) fn count_save(&mut self, bytes: u64, time: Duration) {
        self.saves += 1;
        self.saved_bytes += bytes;
        self.save_time += time;
    }

    pub(crate) fn count_read(&mut self, bytes: u64, time: Duration) {
        self.reads += 1;
        self.read_bytes += bytes;
        self.read_time += time;
    }
}
