//! Counts of the entries in a subsystem's error log pages.

use std::sync::atomic::{AtomicU64, Ordering};

use nvme_proto::Status;

/// Errors of a subsystem since the target started, over all its controllers, as reported by the
/// SMART log page.
#[derive(Debug, Default)]
pub(crate) struct ErrorCounts {
    entries: AtomicU64,
    media: AtomicU64,
}

impl ErrorCounts {
    /// Number of entries ever made in an error log.
    pub(crate) fn entries(&self) -> u64 {
        self.entries.load(Ordering::Relaxed)
    }

    /// Number of those entries with media errors.
    pub(crate) fn media(&self) -> u64 {
        self.media.load(Ordering::Relaxed)
    }

    /// Counts an error; returns its number, from 1 on.
    pub(crate) fn add(&self, status: Status) -> u64 {
        self.media.fetch_add(is_media_error(status).into(), Ordering::Relaxed);
        self.entries.fetch_add(1, Ordering::Relaxed) + 1
    }
}

fn is_media_error(status: Status) -> bool {
    [Status::WRITE_FAULT, Status::UNRECOVERED_READ_ERROR].iter().any(|media| media.is(status))
}
