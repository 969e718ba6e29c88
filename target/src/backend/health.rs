//! Errors of an open medium, kept until it is opened again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Lasting faults of an open medium, shared by all cores and the control path.
#[derive(Debug)]
pub struct Health {
    /// Shared with the health of the medium at other lengths.
    write_back_failed: Arc<AtomicBool>,
    /// Length of the medium when it was opened, in bytes.
    exact_bytes: u64,
    /// Bytes of the original length that always existed: fewer once the file was found shorter.
    present_bytes: AtomicU64,
    announced: AtomicBool,
}

impl Health {
    /// Health of a medium of `exact_bytes` without known errors.
    pub fn new(exact_bytes: u64) -> Self {
        Self {
            write_back_failed: Arc::default(),
            exact_bytes,
            present_bytes: AtomicU64::new(exact_bytes),
            announced: AtomicBool::new(false),
        }
    }

    /// Health of the same medium with another length.
    pub(super) fn resized(&self, exact_bytes: u64) -> Self {
        let write_back_failed = Arc::clone(&self.write_back_failed);
        Self { write_back_failed, ..Self::new(exact_bytes) }
    }

    /// Records that acknowledged writes were lost. The kernel reports that once per open file and
    /// drops the pages that it could not write, so a later `fsync` succeeds.
    pub(crate) fn write_back_fails(&self) {
        self.write_back_failed.store(true, Ordering::Release);
    }

    /// Whether acknowledged writes were lost.
    pub fn write_back_failed(&self) -> bool {
        self.write_back_failed.load(Ordering::Acquire)
    }

    /// Records that the file was cut to `bytes`.
    pub(super) fn found_bytes(&self, bytes: u64) {
        if bytes < self.exact_bytes {
            self.present_bytes.fetch_min(bytes, Ordering::AcqRel);
        }
    }

    /// Bytes from the start of the file that always existed.
    pub(super) fn present_bytes(&self) -> u64 {
        self.present_bytes.load(Ordering::Acquire)
    }

    /// Whether the file was found shorter than when it was opened.
    pub fn shrank(&self) -> bool {
        self.present_bytes() < self.exact_bytes
    }

    /// Whether the medium has a lasting fault.
    pub fn is_degraded(&self) -> bool {
        self.write_back_failed() || self.shrank()
    }

    /// True for the first caller after the medium became degraded.
    pub(crate) fn announce(&self) -> bool {
        self.is_degraded() && !self.announced.swap(true, Ordering::AcqRel)
    }
}
