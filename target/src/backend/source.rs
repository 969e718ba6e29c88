//! Checks for changes by other programs to the file behind a namespace: changed content, or another
//! file under its name.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{AtFlags, Statx, StatxFlags};

use super::claim::FileKey;
use super::{Content, FilePlace, Health};

/// An open regular file, with its status at the last check. [`OpenedFile::look`] makes system calls
/// that may wait, so only the control path calls it.
#[derive(Debug)]
pub(crate) struct OpenedFile {
    file: Arc<OwnedFd>,
    path: PathBuf,
    root: Option<PathBuf>,
    key: Option<FileKey>,
    /// Whether hosts may write it. Changes of its content are then not reported.
    writable: bool,
    seen: Mutex<Option<FileStatus>>,
    replaced: AtomicBool,
    health: Arc<Health>,
}

/// Change found by a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FileChange {
    /// The bytes of the open file may have changed.
    Content(Content),
    /// The path leads to another file, or to none. The open file has not changed.
    Replaced,
}

/// Attributes that change with the bytes of a file, and those that change the time of its inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileStatus {
    bytes: Stamp,
    inode_changed: (i64, u32),
    rest: (u32, u16, u32, u32),
}

/// Length in bytes, and time of modification in seconds and nanoseconds.
type Stamp = (u64, i64, u32);

impl FileStatus {
    fn of(status: &Statx) -> Self {
        Self {
            bytes: (status.stx_size, status.stx_mtime.tv_sec, status.stx_mtime.tv_nsec),
            inode_changed: (status.stx_ctime.tv_sec, status.stx_ctime.tv_nsec),
            rest: (status.stx_nlink, status.stx_mode, status.stx_uid, status.stx_gid),
        }
    }

    /// Whether the bytes may have changed since an earlier check. A writer can set back the time of
    /// modification, but not the inode's time of change; a change of that is harmless if links,
    /// permissions or names explain it.
    fn may_differ_from(self, earlier: Self, renamed: bool) -> bool {
        let explained = renamed || self.rest != earlier.rest;
        self.bytes != earlier.bytes || (self.inode_changed != earlier.inode_changed && !explained)
    }
}

impl OpenedFile {
    /// Records the status of a file that was just opened.
    pub(super) fn new(
        file: Arc<OwnedFd>,
        place: FilePlace<'_>,
        writable: bool,
        health: Arc<Health>,
    ) -> Self {
        let seen = Mutex::new(status_of(&file).as_ref().map(FileStatus::of));
        let key = FileKey::of_descriptor(&file);
        let (path, root) = (place.path.to_owned(), place.root.map(Path::to_owned));
        Self { file, path, root, key, writable, seen, replaced: AtomicBool::new(false), health }
    }

    /// Checks the file and its path, and returns a change since the last call.
    pub(crate) fn look(&self) -> Option<FileChange> {
        let place = FilePlace { path: &self.path, root: self.root.as_deref() };
        let replaced = FileKey::of_place(place) != self.key;
        let newly_replaced =
            self.replaced.swap(replaced, Ordering::Relaxed) != replaced && replaced;
        let status = status_of(&self.file)?;
        self.health.found_bytes(status.stx_size);
        if !self.writable && self.changed(FileStatus::of(&status), newly_replaced) {
            return Some(FileChange::Content(Content::of_status(&status, false)));
        }
        newly_replaced.then_some(FileChange::Replaced)
    }

    fn changed(&self, now: FileStatus, renamed: bool) -> bool {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.replace(now).is_some_and(|before| now.may_differ_from(before, renamed))
    }
}

fn status_of(file: &OwnedFd) -> Option<Statx> {
    rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS).ok()
}
