//! Read-only mapping of a local file.
#![expect(unsafe_code, reason = "maps a file")]

use core::ptr;
use std::fs::File;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

pub(crate) struct FileMap {
    base: *const u8,
    bytes: usize,
}

// SAFETY: the mapping is only read, and stays until this is dropped.
unsafe impl Send for FileMap {}
// SAFETY: likewise.
unsafe impl Sync for FileMap {}

impl FileMap {
    /// Opens a file and maps it whole.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let about = || format!("cannot map {}", path.display());
        Self::of(&File::open(path).with_context(about)?).with_context(about)
    }

    /// Maps an open file whole; the mapping stays when the file is closed.
    pub(crate) fn of(file: &File) -> Result<Self> {
        let bytes = usize::try_from(file.metadata()?.len())?;
        ensure!(bytes > 0, "the file is empty");
        // SAFETY: a new mapping, which no other code uses.
        let base =
            unsafe { mmap(ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, file, 0) };
        Ok(Self { base: base?.cast::<u8>().cast_const(), bytes })
    }

    /// Address of the first byte.
    pub(crate) fn base(&self) -> *const u8 {
        self.base
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn copy(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let offset = usize::try_from(offset)?;
        let end = offset.checked_add(into.len());
        ensure!(end.is_some_and(|end| end <= self.bytes), "the file ends within the range");
        // SAFETY: within the mapping, and the buffer is not in it. Another process may change the
        // bytes during the copy, and nothing depends on their values; if it shortens the file, this
        // process ends by SIGBUS.
        unsafe { ptr::copy_nonoverlapping(self.base.add(offset), into.as_mut_ptr(), into.len()) };
        Ok(())
    }
}

impl Drop for FileMap {
    fn drop(&mut self) {
        // SAFETY: our mapping, which is no longer read.
        let _ = unsafe { munmap(self.base.cast_mut().cast(), self.bytes) };
    }
}
