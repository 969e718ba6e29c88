//! Counts of the entries in the Error Information log pages of a subsystem.

use std::sync::atomic::{AtomicU64, Ordering};

use nvme_proto::Status;

/// Errors of a subsystem since the target started, over all its controllers, for the SMART / Health
/// Information log page.
#[derive(Debug, Default)]
pub(crate) struct ErrorCounts {
    entries: AtomicU64,
    media: AtomicU64,
}

impl ErrorCounts {
    /// Number of Error Information Log Entries (field of the SMART log page).
    pub(crate) fn entries(&self) -> u64 {
        self.entries.load(Ordering::Relaxed)
    }

    /// Number of Media and Data Integrity Errors (field of the SMART log page).
    pub(crate) fn media(&self) -> u64 {
        self.media.load(Ordering::Relaxed)
    }

    /// Counts an error. Returns its number, from 1, for the Error Count of its log entry.
    pub(crate) fn add(&self, status: Status) -> u64 {
        self.media.fetch_add(is_media_error(status).into(), Ordering::Relaxed);
        self.entries.fetch_add(1, Ordering::Relaxed) + 1
    }
}

fn is_media_error(status: Status) -> bool {
    [Status::WRITE_FAULT, Status::UNRECOVERED_READ_ERROR].iter().any(|media| media.is(status))
}
