//! Lasting faults of an open medium, kept until it is opened again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Lasting faults of an open medium: lost writes, or a truncated file. All cores and the control
/// path share it.
#[derive(Debug)]
pub struct Health {
    /// Whether the kernel has lost acknowledged writes. Shared with the `Health` of the same medium
    /// at other lengths.
    write_back_failed: Arc<AtomicBool>,
    /// Length of the medium when it was opened, in bytes.
    exact_bytes: u64,
    /// Smallest length found since the medium was opened, at most `exact_bytes`.
    present_bytes: AtomicU64,
    announced: AtomicBool,
}

impl Health {
    /// Creates the state of a medium of `exact_bytes` without faults.
    pub fn new(exact_bytes: u64) -> Self {
        Self {
            write_back_failed: Arc::default(),
            exact_bytes,
            present_bytes: AtomicU64::new(exact_bytes),
            announced: AtomicBool::new(false),
        }
    }

    /// Creates the state of the same medium with another length.
    pub(super) fn resized(&self, exact_bytes: u64) -> Self {
        let write_back_failed = Arc::clone(&self.write_back_failed);
        Self { write_back_failed, ..Self::new(exact_bytes) }
    }

    /// Records that acknowledged writes were lost. The kernel reports that once per open file and
    /// drops the pages that it could not write, so a later `fsync` succeeds although they are lost.
    pub(crate) fn write_back_fails(&self) {
        self.write_back_failed.store(true, Ordering::Release);
    }

    /// Whether acknowledged writes were lost.
    pub fn write_back_failed(&self) -> bool {
        self.write_back_failed.load(Ordering::Acquire)
    }

    /// Records that the file has `bytes` now. No effect unless it is shorter than when it was
    /// opened.
    pub(super) fn found_bytes(&self, bytes: u64) {
        if bytes < self.exact_bytes {
            self.present_bytes.fetch_min(bytes, Ordering::AcqRel);
        }
    }

    /// Smallest length of the file found so far, in bytes. Bytes beyond it were lost when the file
    /// was truncated.
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

    /// Returns true once: to the first caller after the medium became degraded, which reports it.
    pub(crate) fn announce(&self) -> bool {
        self.is_degraded() && !self.announced.swap(true, Ordering::AcqRel)
    }
}
