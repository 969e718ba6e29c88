//! Reads of a file from the page cache.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::cache_room::CacheShare;
use super::numbered_file::NumberedFile;
use super::{FileRef, MappedFile, ReadPath};

/// State of reads from the page cache.
#[derive(Debug, Default)]
pub(super) struct CachedReads {
    /// Descriptor of the file without direct I/O, if the backend's own descriptor has direct I/O.
    twin: Option<Twin>,
    /// Set once the file system has refused `RWF_NOWAIT`.
    cannot_try: AtomicBool,
}

/// Second descriptor of a file, for reads through the page cache while there is room.
#[derive(Debug)]
struct Twin {
    file: NumberedFile,
    room: CacheShare,
    /// Mapping of the file with pages locked in memory, where the process may lock memory.
    mapped: Option<Arc<MappedFile>>,
}

impl CachedReads {
    /// Reads by a second descriptor of a file of `exact_bytes`, while `room` is open.
    pub(super) fn with_twin(file: NumberedFile, exact_bytes: u64, room: CacheShare) -> Self {
        let mapped = MappedFile::new(file.descriptor(), exact_bytes, room.room()).map(Arc::new);
        let twin = Some(Twin { file, room, mapped });
        Self { twin, cannot_try: AtomicBool::new(false) }
    }

    /// Copies the state for the same file with another length.
    pub(super) fn without_twin(&self) -> Self {
        let cannot_try = AtomicBool::new(self.cannot_try.load(Ordering::Relaxed));
        Self { twin: None, cannot_try }
    }

    /// Second descriptor of the file, if there is one.
    pub(super) fn file(&self) -> Option<FileRef> {
        self.twin.as_ref().map(|twin| twin.file.reference())
    }

    pub(super) fn mapped(&self) -> Option<&Arc<MappedFile>> {
        self.twin.as_ref()?.mapped.as_ref()
    }

    pub(super) fn choose_path(&self) -> ReadPath {
        if self.twin.as_ref().is_some_and(|twin| !twin.room.is_open()) {
            return ReadPath::Own;
        }
        match self.cannot_try.load(Ordering::Relaxed) {
            true => ReadPath::Buffered,
            false => ReadPath::Cached,
        }
    }

    /// Records the result of an attempt to read `asked` bytes at `offset`: the bytes that were in
    /// the page cache, or a negated `errno`.
    pub(super) fn returned(&self, offset: u64, asked: u32, result: i32) {
        if let Some(mapped) = self.mapped() {
            if u32::try_from(result) == Ok(asked) {
                mapped.was_cached(offset, asked);
            } else if mapped.place(offset, asked).is_some() {
                // The extent is locked, yet a page is missing: the file was truncated.
                mapped.give_up();
            }
        }
        if matches!(result.wrapping_neg(), libc::EOPNOTSUPP | libc::ENOSYS) {
            self.cannot_try.store(true, Ordering::Relaxed);
        }
    }
}
