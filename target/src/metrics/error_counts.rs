//! Counts of the entries in a subsystem's error log pages.

use std::sync::atomic::{AtomicU64, Ordering};

use nvme_proto::Status;

/// The errors of a whole subsystem since the target started, over all its controllers. The SMART
/// log page tells them.
#[derive(Debug, Default)]
pub(crate) struct ErrorCounts {
    entries: AtomicU64,
    media: AtomicU64,
}

impl ErrorCounts {
    /// Entries ever made in an error log.
    pub(crate) fn entries(&self) -> u64 {
        self.entries.load(Ordering::Relaxed)
    }

    /// Those of them that are the medium's.
    pub(crate) fn media(&self) -> u64 {
        self.media.load(Ordering::Relaxed)
    }

    /// Counts an error; its number, from 1 on.
    pub(crate) fn add(&self, status: Status) -> u64 {
        self.media.fetch_add(is_media_error(status).into(), Ordering::Relaxed);
        self.entries.fetch_add(1, Ordering::Relaxed) + 1
    }
}

fn is_media_error(status: Status) -> bool {
    [Status::WRITE_FAULT, Status::UNRECOVERED_READ_ERROR].iter().any(|media| media.is(status))
}
