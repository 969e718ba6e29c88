//! The errors of an open medium, kept until it is opened again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The lasting faults of an open medium. All cores and the control path share it.
#[derive(Debug)]
pub struct Health {
    /// The same for all lengths that the medium has had.
    write_back_failed: Arc<AtomicBool>,
    /// The length that the medium was opened with, in bytes.
    exact_bytes: u64,
    /// Bytes of the original length that still exist: fewer once the file was found shorter.
    present_bytes: AtomicU64,
    announced: AtomicBool,
}

impl Health {
    /// The health of a medium of `exact_bytes` bytes without known errors.
    pub fn new(exact_bytes: u64) -> Self {
        Self {
            write_back_failed: Arc::default(),
            exact_bytes,
            present_bytes: AtomicU64::new(exact_bytes),
            announced: AtomicBool::new(false),
        }
    }

    /// The health of the same medium, which is to have another length from now on.
    pub(super) fn resized(&self, exact_bytes: u64) -> Self {
        let write_back_failed = Arc::clone(&self.write_back_failed);
        Self { write_back_failed, ..Self::new(exact_bytes) }
    }

    /// Acknowledged writes did not reach the medium. The kernel reports that once per open file and
    /// drops the pages that it could not write, so that a later `fsync` succeeds.
    pub(crate) fn write_back_fails(&self) {
        self.write_back_failed.store(true, Ordering::Release);
    }

    /// Whether acknowledged writes were lost.
    pub fn write_back_failed(&self) -> bool {
        self.write_back_failed.load(Ordering::Acquire)
    }

    /// The file was found to have been cut to `bytes` bytes.
    pub(super) fn found_bytes(&self, bytes: u64) {
        if bytes < self.exact_bytes {
            self.present_bytes.fetch_min(bytes, Ordering::AcqRel);
        }
    }

    /// How many bytes of the file have been there all the time.
    pub(super) fn present_bytes(&self) -> u64 {
        self.present_bytes.load(Ordering::Acquire)
    }

    /// Whether the file was found shorter than it was when it was opened.
    pub fn shrank(&self) -> bool {
        self.present_bytes() < self.exact_bytes
    }

    /// Whether anything is wrong that lasts.
    pub fn is_degraded(&self) -> bool {
        self.write_back_failed() || self.shrank()
    }

    /// Whether the medium is degraded and the caller is the first to ask.
    pub(crate) fn announce(&self) -> bool {
        self.is_degraded() && !self.announced.swap(true, Ordering::AcqRel)
    }
}
