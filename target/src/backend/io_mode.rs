//! How a medium is read and written: direct I/O, the page cache, and the size of logical blocks.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileTypeExt;
use std::sync::Arc;

use rustix::fs::{AtFlags, StatxFlags};
use rustix::io::Errno;

use super::place::FoundFile;
use super::{CacheRoom, claim};

/// Default logical block size as a power of two (512 bytes), unless direct I/O needs a larger one.
pub(super) const DEFAULT_LBA_SHIFT: u8 = 9;
/// Largest logical block size as a power of two (4 KiB), which hosts with 4 KiB pages accept.
const MAX_LBA_SHIFT: u8 = 12;
/// Alignment of every buffer passed to a backend, in bytes.
pub(crate) const MEMORY_ALIGNMENT: u32 = 4096;

/// Options for opening a medium.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OpenMode<'a> {
    /// Whether hosts may write the medium.
    pub writable: bool,
    /// Bytes per logical block as a power of two; `None` chooses 9, or more if direct I/O needs it.
    pub lba_shift: Option<u8>,
    /// Use of the page cache.
    pub cache: CachePolicy<'a>,
}

/// Use of the page cache for files and block devices, from the key `direct_io`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum CachePolicy<'a> {
    /// Direct I/O where it is available (`always`).
    #[default]
    Bypass,
    /// Reads of a read-only file go through the page cache if this budget has room for the file;
    /// everything else as with [`CachePolicy::Bypass`] (`auto`).
    WhileRoom(&'a Arc<CacheRoom>),
    /// All I/O through the page cache (`never`).
    Use,
}

/// Use of direct I/O and the page cache for an open medium, as log messages show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum IoMode {
    /// All I/O is direct: it bypasses the page cache.
    Direct,
    /// Reads go through the page cache while there is memory for them, writes past it.
    CachedReads,
    /// All I/O goes through the page cache, as configured with `direct_io`.
    Cached,
    /// All I/O goes through the page cache, since direct I/O is not possible for the reason given.
    Buffered(String),
    /// Null or memory namespace, without a file.
    Synthetic,
}

impl fmt::Display for IoMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Direct => f.write_str("direct"),
            Self::CachedReads => f.write_str("reads through the page cache"),
            Self::Cached => f.write_str("page cache"),
            Self::Buffered(reason) => write!(f, "buffered ({reason})"),
            Self::Synthetic => f.write_str("synthetic"),
        }
    }
}

/// Use of direct I/O for a medium, and its logical blocks.
pub(super) struct IoModeChoice {
    pub(super) access: IoMode,
    /// Bytes per logical block as a power of two.
    pub(super) lba_shift: u8,
    /// Alignment of offsets for direct I/O in bytes, even where direct I/O is not used.
    pub(super) alignment: u32,
}

impl IoModeChoice {
    pub(super) fn direct_alignment(&self) -> Option<u32> {
        (self.access == IoMode::Direct).then_some(self.alignment)
    }

    /// Whether a read can never return a half-written logical block. File systems without a known
    /// block device, such as `tmpfs`, accept direct I/O and use the page cache all the same.
    pub(super) fn writes_blocks_as_one(&self, write_unit_bytes: Option<u32>) -> bool {
        let lba_bytes = 1 << self.lba_shift;
        self.access == IoMode::Direct && write_unit_bytes.is_some_and(|unit| unit >= lba_bytes)
    }
}

/// Opens the file for direct I/O where the file supports that for the block size and the policy
/// wants it. The choice of block size does not depend on the policy.
pub(super) fn choose_access(
    found: &FoundFile,
    mode: OpenMode<'_>,
    buffered: &File,
) -> (Option<File>, IoModeChoice) {
    let (direct, choice) = probe_access(found, mode, buffered);
    match mode.cache {
        CachePolicy::Use => (None, IoModeChoice { access: IoMode::Cached, ..choice }),
        CachePolicy::Bypass | CachePolicy::WhileRoom(_) => (direct, choice),
    }
}

/// Opens the file for direct I/O with the configured block size, or with the smallest possible one.
/// If that is not possible, the choice has the reason.
fn probe_access(
    found: &FoundFile,
    mode: OpenMode<'_>,
    buffered: &File,
) -> (Option<File>, IoModeChoice) {
    let (direct, alignment) = match open_direct(found, mode, buffered) {
        Ok(found) => found,
        Err(reason) => {
            let lba_shift = mode.lba_shift.unwrap_or(DEFAULT_LBA_SHIFT);
            let choice = IoModeChoice { access: IoMode::Buffered(reason), lba_shift, alignment: 1 };
            return (None, choice);
        }
    };
    let needed = alignment.trailing_zeros() as u8;
    let lba_shift = mode.lba_shift.unwrap_or(needed.max(DEFAULT_LBA_SHIFT));
    if lba_shift < needed {
        let reason = format!(
            "direct I/O needs blocks of {alignment} bytes and the namespace has {}",
            1 << lba_shift
        );
        return (None, IoModeChoice { access: IoMode::Buffered(reason), lba_shift, alignment });
    }
    (Some(direct), IoModeChoice { access: IoMode::Direct, lba_shift, alignment })
}

/// Opens the file for direct I/O and returns the alignment of offsets, or the reason that it is not
/// available.
fn open_direct(found: &FoundFile, mode: OpenMode<'_>, file: &File) -> Result<(File, u32), String> {
    let stated = stated_alignment(file);
    if stated == Some((0, 0)) {
        return Err("the file system has no direct I/O for it".into());
    }
    let exclusive = file.metadata().is_ok_and(|of| of.file_type().is_block_device());
    let direct = match exclusive && mode.writable {
        true => claim::open_alone(found, libc::O_DIRECT),
        false => found.open(mode.writable, libc::O_DIRECT),
    };
    let direct = direct.map_err(|error| format!("direct I/O is refused: {error}"))?;
    let alignment = match stated {
        Some((memory, _)) if memory > MEMORY_ALIGNMENT => {
            return Err(format!("direct I/O needs memory aligned to {memory} bytes"));
        }
        Some((_, offset)) => offset.max(1),
        None => probe_alignment(&direct)?,
    };
    if !alignment.is_power_of_two() || alignment > 1 << MAX_LBA_SHIFT {
        return Err(format!("direct I/O needs offsets aligned to {alignment} bytes"));
    }
    Ok((direct, alignment))
}

/// Alignment of memory and of offsets for direct I/O by `statx`; zeros if there is no direct I/O.
fn stated_alignment(file: &File) -> Option<(u32, u32)> {
    let status = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    (status.stx_mask & StatxFlags::DIOALIGN.bits() != 0)
        .then_some((status.stx_dio_mem_align, status.stx_dio_offset_align))
}

/// Determines the alignment by direct reads, for kernels before 6.1 and file systems that do not
/// report it.
fn probe_alignment(direct: &File) -> Result<u32, String> {
    #[repr(align(4096))]
    struct Page([u8; 4096]);
    let mut page = Page([0; 4096]);
    let mut error = Errno::NOTSUP;
    for length in [512, 4096] {
        match rustix::io::pread(direct, &mut page.0[..length], 0) {
            Ok(_) => return Ok(length as u32),
            Err(refused) => error = refused,
        }
    }
    Err(format!("direct I/O is refused: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_aligned_direct_io_needs_no_locks() {
        let choice = |access: IoMode, lba_shift| IoModeChoice { access, lba_shift, alignment: 512 };
        for (lba_shift, unit, as_one) in
            [(9, 512, true), (9, 4096, true), (12, 4096, true), (12, 512, false), (12, 2048, false)]
        {
            let direct = choice(IoMode::Direct, lba_shift);
            assert_eq!(direct.writes_blocks_as_one(Some(unit)), as_one, "{lba_shift} {unit}");
            assert!(!direct.writes_blocks_as_one(None));
            let buffered = choice(IoMode::Buffered("a test".into()), lba_shift);
            assert!(!buffered.writes_blocks_as_one(Some(unit)));
        }
    }
}
