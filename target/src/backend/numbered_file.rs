//! An open file with the number under which rings register it.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, FileType, Statx, StatxFlags};

use super::{DeviceId, FileId, FileRef};

#[derive(Debug)]
pub(super) struct NumberedFile {
    descriptor: Arc<OwnedFd>,
    reference: FileRef,
}

impl NumberedFile {
    /// Gives a file a number that no other has had in this process. Returns whether the file can
    /// grow as well. Files whose `fstat` fails share one device number.
    pub(super) fn open(file: OwnedFd, direct: bool) -> (Self, bool) {
        let (device, grows) = match rustix::fs::fstat(&file) {
            Err(_) => (u64::MAX, false),
            Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
                FileType::BlockDevice => (stat.st_rdev, false),
                other => (stat.st_dev, other == FileType::RegularFile),
            },
        };
        (Self::new(Arc::new(file), DeviceId(device), direct), grows)
    }

    fn new(descriptor: Arc<OwnedFd>, device: DeviceId, direct: bool) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        let id = FileId(NEXT_ID.fetch_add(1, Ordering::Relaxed));
        let fd = descriptor.as_raw_fd();
        Self { descriptor, reference: FileRef { fd, id, device, direct } }
    }

    /// Returns the same open file under another number.
    pub(super) fn renumbered(&self) -> Self {
        let FileRef { device, direct, .. } = self.reference;
        Self::new(Arc::clone(&self.descriptor), device, direct)
    }

    /// Descriptor of the file, open as long as an `Arc` of it exists.
    pub(super) fn descriptor(&self) -> &Arc<OwnedFd> {
        &self.descriptor
    }

    /// Reference for system calls, valid as long as the descriptor.
    pub(super) fn reference(&self) -> FileRef {
        self.reference
    }

    /// Length by cached attributes; `None` if they cannot be read.
    pub(super) fn length_bytes(&self) -> Option<u64> {
        self.status(StatxFlags::SIZE).map(|status| status.stx_size)
    }

    /// Bytes that a regular file occupies on its file system; `None` for other files.
    pub(super) fn allocated_bytes(&self) -> Option<u64> {
        let wanted = StatxFlags::TYPE | StatxFlags::BLOCKS;
        let status = self.status(wanted)?;
        let file_type = FileType::from_raw_mode(status.stx_mode.into());
        let known = status.stx_mask & wanted.bits() == wanted.bits();
        (known && file_type == FileType::RegularFile).then(|| status.stx_blocks * 512)
    }

    /// Cached attributes, since the server of a network file system may not respond.
    fn status(&self, wanted: StatxFlags) -> Option<Statx> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        rustix::fs::statx(&self.descriptor, "", flags, wanted).ok()
    }
}
