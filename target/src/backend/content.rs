//! Identity of a medium's bytes, to detect that they may have changed since an earlier open.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use rustix::fs::{AtFlags, FileType, Statx, StatxFlags, StatxTimestamp};
use uuid::Uuid;

/// Name space of the UUIDs that are derived from content.
const CONTENT: Uuid = Uuid::from_u128(0x5b1f_0d6e_93a7_5c28_8f41_7d90_2e6c_b35a);

/// Properties that identify a medium's bytes without reading them. Equal contents mean equal bytes,
/// as far as the system can tell; hosts may have changed those of a writable medium.
///
/// - A read-only file: inode, length, time of modification, and time of change, which no process
///   can set back. The device number is left out, since it may differ after a reboot.
/// - A writable file: inode and time of birth, since each write of a host changes the times. Writes
///   by other programs are not noticed.
/// - A block device: number, length and sequence number (the kernel's counter that differs for a
///   disk that took over the name since boot), since a device keeps no time of writes.
/// - Memory: a random identity for each open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Content(Vec<u8>);

impl Content {
    /// Determines the content of an open file or block device. `writable` says whether hosts may
    /// write it.
    ///
    /// # Errors
    /// The error of `statx`.
    pub(crate) fn of_file(file: &File, writable: bool) -> io::Result<Self> {
        let status = status(file)?;
        if FileType::from_raw_mode(status.stx_mode.into()) == FileType::BlockDevice {
            return Ok(Self::of_device(&status, super::block::size_bytes(file)?));
        }
        Ok(Self::of_status(&status, writable))
    }

    /// Content of a regular file with this `statx` result.
    pub(super) fn of_status(status: &Statx, writable: bool) -> Self {
        let mut known = b"file".to_vec();
        known.extend(status.stx_ino.to_le_bytes());
        if writable {
            known.extend(bytes_of(status.stx_btime));
        } else {
            known.extend(status.stx_size.to_le_bytes());
            known.extend(bytes_of(status.stx_mtime));
            known.extend(bytes_of(status.stx_ctime));
        }
        Self(known)
    }

    /// Content of a medium that always reads as zeros.
    pub(super) fn zeros() -> Self {
        Self(b"zeros".to_vec())
    }

    /// Random content, since the bytes of a memory namespace do not outlive the process.
    pub(super) fn new_memory() -> Self {
        Self(Uuid::new_v4().as_bytes().to_vec())
    }

    fn of_device(status: &Statx, size_bytes: u64) -> Self {
        let (major, minor) = (status.stx_rdev_major, status.stx_rdev_minor);
        // The file exists since Linux 5.15.
        let sequence = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/diskseq"));
        let sequence = sequence.unwrap_or_default();
        Self(format!("device {major}:{minor} {size_bytes} {}", sequence.trim()).into_bytes())
    }

    /// Generation of a namespace with this content: a hash of the operator's `content_id` if given,
    /// else of the content.
    pub(crate) fn generation(&self, content_id: Option<&str>) -> u64 {
        match content_id {
            Some(id) => generation_of(id.as_bytes()),
            None => generation_of(&self.0),
        }
    }

    /// Generation after the file changed while it was served: a hash of `content_id` and the
    /// content, since `content_id` alone no longer identifies the bytes.
    pub(crate) fn generation_after_change(&self, content_id: Option<&str>) -> u64 {
        match content_id {
            Some(id) => generation_of(&[id.as_bytes(), &self.0].concat()),
            None => generation_of(&self.0),
        }
    }
}

fn generation_of(known: &[u8]) -> u64 {
    Uuid::new_v5(&CONTENT, known).as_u64_pair().0
}

fn status(file: impl AsFd) -> io::Result<Statx> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    Ok(rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, wanted)?)
}

fn bytes_of(time: StatxTimestamp) -> [u8; 12] {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&time.tv_sec.to_le_bytes());
    bytes[8..].copy_from_slice(&time.tv_nsec.to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::FileExt as _;
    use std::path::Path;

    use super::*;

    fn generation(path: &Path, writable: bool) -> u64 {
        let file = File::open(path).expect("opened");
        Content::of_file(&file, writable).expect("known").generation(None)
    }

    #[test]
    fn a_file_keeps_its_generation_until_it_changes() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("shard");
        std::fs::write(&path, "one").expect("written");
        let first = generation(&path, false);
        assert_eq!(first, generation(&path, false));
        let file = File::options().write(true).open(&path).expect("opened");
        // The clock of inodes may stand still for some milliseconds.
        let mut changed = first;
        while changed == first {
            file.write_all_at(b"two", 0).expect("written");
            changed = generation(&path, false);
        }
        // Another file under the name, with the times of the first.
        let times = std::fs::FileTimes::new()
            .set_modified(file.metadata().expect("status").modified().expect("a time"));
        let mut other = File::create(folder.path().join("other")).expect("created");
        other.write_all(b"six").expect("written");
        other.set_times(times).expect("set");
        std::fs::rename(folder.path().join("other"), &path).expect("renamed");
        assert_ne!(generation(&path, false), changed);
    }

    #[test]
    fn writes_leave_a_writable_file_its_generation() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("disk");
        std::fs::write(&path, "one").expect("written");
        let first = generation(&path, true);
        std::fs::write(&path, "two, and longer").expect("written");
        assert_eq!(generation(&path, true), first);
        std::fs::write(folder.path().join("other"), "one").expect("written");
        std::fs::rename(folder.path().join("other"), &path).expect("renamed");
        assert_ne!(generation(&path, true), first);
    }

    #[test]
    fn an_operators_name_makes_replicas_alike() {
        let (one, other) = (Content::new_memory(), Content::new_memory());
        assert_ne!(one.generation(None), other.generation(None));
        assert_eq!(one.generation(Some("v1")), other.generation(Some("v1")));
        assert_ne!(one.generation(Some("v1")), one.generation(Some("v2")));
    }
}
