//! Opens the medium behind a namespace: determines its size, its block size, and the use of direct
//! I/O and the page cache.
#![expect(unsafe_code, reason = "probes direct I/O with a system call that takes an address")]

use std::fmt;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, StatxFlags};

use super::FileId;
use super::open_error::OpenError;
use super::place::FoundFile;
use super::{
    Backend, CacheRoom, Content, FileBackend, FileKey, FilePlace, Health, MappedFile,
    MemoryBackend, MemoryRoom, NullBackend, OpenedFile, block, cache_room, claim, write_unit,
};

/// Default logical block size as a power of two (512 bytes), unless direct I/O needs a larger one.
const DEFAULT_LBA_SHIFT: u8 = 9;
/// Largest logical block size as a power of two (4 KiB), which hosts with 4 KiB pages accept.
const MAX_LBA_SHIFT: u8 = 12;
/// Mount point of sysfs.
const SYSFS: &str = "/sys";
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

/// An open medium and the properties that its namespace reports.
#[derive(Clone, Debug)]
pub(crate) struct OpenedBackend {
    /// Backend that executes its operations.
    pub backend: Arc<dyn Backend>,
    /// Length in bytes; the last block may extend beyond it.
    pub exact_bytes: u64,
    /// Bytes per logical block as a power of two.
    pub lba_shift: u8,
    /// Whether its I/O is direct or goes through the page cache.
    pub access: IoMode,
    /// Bytes that its device writes atomically across power failures, if known.
    pub write_unit_bytes: Option<u32>,
    /// Lasting faults of the medium, updated by its backend and by checks.
    pub health: Arc<Health>,
    /// Identity of its bytes, from which the generation of its namespace is derived.
    pub content: Content,
    /// Numbers under which io_uring rings register its files.
    pub files: Vec<FileId>,
    /// Mapping of the file, which the control path maintains; `None` if it is not mapped.
    pub mapped: Option<Arc<MappedFile>>,
    /// Regular file, which the control path checks for changes by other programs; `None` for other
    /// media.
    pub source: Option<Arc<OpenedFile>>,
    /// Backend of a file or device, for [`measure_again`]; `None` for other media.
    pub file: Option<Arc<FileBackend>>,
    /// Identity of the file or device; `None` for other media.
    pub key: Option<FileKey>,
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

/// Opens a regular file.
///
/// # Errors
/// The path is no regular file, is in use, is empty, or its length or blocks do not fit `mode`.
pub(crate) fn open_file(
    place: FilePlace<'_>,
    mode: OpenMode<'_>,
) -> Result<OpenedBackend, OpenError> {
    open(place, mode, "regular file", |metadata| metadata.file_type().is_file())
}

/// Opens a block device.
///
/// # Errors
/// The path is no block device, is in use, is empty, or its blocks do not fit `mode`.
pub(crate) fn open_block(path: &Path, mode: OpenMode<'_>) -> Result<OpenedBackend, OpenError> {
    open(FilePlace::named(path), mode, "block device", |metadata| {
        metadata.file_type().is_block_device()
    })
}

/// Creates a medium that reads zeros and discards writes.
///
/// # Errors
/// The size is not a whole number of blocks.
pub(crate) fn open_null(size_bytes: u64, mode: OpenMode<'_>) -> Result<OpenedBackend, OpenError> {
    synthetic(size_bytes, mode, Content::zeros(), || Ok(Arc::new(NullBackend)))
}

/// Creates a medium of anonymous memory, filled with zeros.
///
/// # Errors
/// The size is not a whole number of blocks, or exceeds the available memory.
pub(crate) fn open_memory(size_bytes: u64, mode: OpenMode<'_>) -> Result<OpenedBackend, OpenError> {
    synthetic(size_bytes, mode, Content::new_memory(), || {
        let left_bytes = MemoryRoom::of_process().look();
        let no_memory = || OpenError::NoMemory { bytes: size_bytes, left_bytes };
        if size_bytes > left_bytes {
            return Err(no_memory());
        }
        Ok(Arc::new(MemoryBackend::new(size_bytes).map_err(|_| no_memory())?))
    })
}

fn synthetic(
    size_bytes: u64,
    mode: OpenMode<'_>,
    content: Content,
    backend: impl FnOnce() -> Result<Arc<dyn Backend>, OpenError>,
) -> Result<OpenedBackend, OpenError> {
    let lba_shift = mode.lba_shift.unwrap_or(DEFAULT_LBA_SHIFT);
    let lba_bytes = 1u64 << lba_shift;
    if size_bytes == 0 || !size_bytes.is_multiple_of(lba_bytes) {
        return Err(OpenError::Size { bytes: size_bytes, lba_bytes });
    }
    let backend = backend()?;
    let access = IoMode::Synthetic;
    let health = Arc::new(Health::new(size_bytes));
    Ok(OpenedBackend {
        backend,
        exact_bytes: size_bytes,
        lba_shift,
        access,
        write_unit_bytes: None,
        health,
        content,
        files: Vec::new(),
        mapped: None,
        source: None,
        file: None,
        key: None,
    })
}

fn open(
    place: FilePlace<'_>,
    mode: OpenMode<'_>,
    wanted: &'static str,
    is_wanted: impl Fn(&Metadata) -> bool,
) -> Result<OpenedBackend, OpenError> {
    let path = place.path;
    let io = |error| OpenError::Io { path: path.to_owned(), error };
    let check = |metadata: &Metadata| match metadata {
        metadata if metadata.is_dir() => Err(OpenError::Directory { path: path.to_owned() }),
        metadata if !is_wanted(metadata) => {
            Err(OpenError::WrongType { path: path.to_owned(), wanted })
        }
        _ => Ok(()),
    };
    // Checked before opening, since opening a FIFO would wait for its other end.
    let found = place.find().map_err(io)?;
    let metadata = found.metadata().map_err(io)?;
    check(&metadata)?;
    let file = found.open(mode.writable, 0).map_err(io)?;
    let metadata = file.metadata().map_err(io)?;
    let block = metadata.file_type().is_block_device();
    let exact_bytes = length(&file, path, &metadata)?;
    let (direct, choice) = choose_access(&found, mode, &file);
    let (file, buffered) = match direct {
        Some(direct) => (direct, Some(file)),
        None => (file, None),
    };
    let file = claim_alone((path, &found), mode, block, file, &choice)?;
    let backing = match block {
        true => claim::lock_backing_file(&file, mode.writable)
            .map_err(|user| OpenError::Busy { path: path.to_owned(), user })?,
        false => None,
    };
    if block && choice.alignment > 1 << choice.lba_shift {
        return Err(OpenError::SmallBlocks {
            path: path.to_owned(),
            device_bytes: choice.alignment,
        });
    }
    check_writable(path, mode, exact_bytes, choice.lba_shift)?;
    let content = Content::of_file(&file, mode.writable).map_err(io)?;
    let write_unit_bytes = write_unit::of_file(&file, Path::new(SYSFS));
    let backend = FileBackend::new(OwnedFd::from(file), exact_bytes, choice.direct_alignment())
        .with_backing_file(backing);
    let (backend, access) =
        with_cache(backend, exact_bytes, mode, block, buffered, choice.access.clone());
    let backend = match mode.writable && !choice.writes_blocks_as_one(write_unit_bytes) {
        true => backend.with_range_locks(),
        false => backend,
    };
    let measured = Measured { exact_bytes, lba_shift: choice.lba_shift, content };
    let opened = opened(backend, place, mode, block, measured);
    Ok(OpenedBackend { access, write_unit_bytes, ..opened })
}

/// Length of a file or device in bytes; an error if it is 0.
fn length(file: &File, path: &Path, metadata: &Metadata) -> Result<u64, OpenError> {
    let bytes = match metadata.file_type().is_block_device() {
        true => block::size_bytes(file)
            .map_err(|error| OpenError::Io { path: path.to_owned(), error })?,
        false => metadata.len(),
    };
    match bytes {
        0 => Err(OpenError::Empty { path: path.to_owned() }),
        bytes => Ok(bytes),
    }
}

/// Length, block size and identity of an open file or device.
struct Measured {
    exact_bytes: u64,
    lba_shift: u8,
    content: Content,
}

fn opened(
    backend: FileBackend,
    place: FilePlace<'_>,
    mode: OpenMode<'_>,
    block: bool,
    measured: Measured,
) -> OpenedBackend {
    let Measured { exact_bytes, lba_shift, content } = measured;
    let backend = Arc::new(backend.with_blocks(lba_shift));
    let source = (!block).then(|| {
        let (file, health) = (Arc::clone(backend.descriptor()), Arc::clone(backend.health()));
        Arc::new(OpenedFile::new(file, place, mode.writable, health))
    });
    OpenedBackend {
        source,
        files: backend.ids(),
        mapped: backend.mapped().cloned(),
        health: Arc::clone(backend.health()),
        backend: Arc::clone(&backend) as Arc<dyn Backend>,
        exact_bytes,
        lba_shift,
        access: IoMode::Synthetic,
        write_unit_bytes: None,
        content,
        key: FileKey::of_descriptor(backend.descriptor()),
        file: Some(backend),
    }
}

/// Measures the length of a writable file or device again, and returns it as a medium of that
/// length, with the same descriptor and range locks.
///
/// # Errors
/// The file cannot be examined, is empty, or its length does not fit the blocks.
pub(crate) fn measure_again(
    file: &FileBackend,
    place: FilePlace<'_>,
    lba_shift: u8,
) -> Result<OpenedBackend, OpenError> {
    let path = place.path;
    let io = |error| OpenError::Io { path: path.to_owned(), error };
    let descriptor = File::from(file.descriptor().try_clone().map_err(io)?);
    let metadata = descriptor.metadata().map_err(io)?;
    let block = metadata.file_type().is_block_device();
    let exact_bytes = length(&descriptor, path, &metadata)?;
    let mode = OpenMode { writable: true, lba_shift: Some(lba_shift), cache: CachePolicy::Bypass };
    check_writable(path, mode, exact_bytes, lba_shift)?;
    let content = Content::of_file(&descriptor, true).map_err(io)?;
    let measured = Measured { exact_bytes, lba_shift, content };
    Ok(opened(file.resized(exact_bytes), place, mode, block, measured))
}

/// Enables reads from the page cache where the policy allows. `buffered` is the file without direct
/// I/O if `backend` has direct I/O.
fn with_cache(
    backend: FileBackend,
    bytes: u64,
    mode: OpenMode<'_>,
    block: bool,
    buffered: Option<File>,
    access: IoMode,
) -> (FileBackend, IoMode) {
    match (mode.cache, buffered) {
        (CachePolicy::Bypass, _) => (backend, access),
        (CachePolicy::Use | CachePolicy::WhileRoom(_), None) => {
            (backend.with_cached_reads(), access)
        }
        // Two ways to a written medium would have to be kept coherent, and a device has a page
        // cache apart from that of its files.
        (CachePolicy::WhileRoom(room), Some(file))
            if !mode.writable && !block && cache_room::is_local(&file) =>
        {
            match room.give(bytes) {
                Some(share) => {
                    let backend = backend.with_twin(OwnedFd::from(file), share);
                    (backend, IoMode::CachedReads)
                }
                None => (backend, access),
            }
        }
        (CachePolicy::Use | CachePolicy::WhileRoom(_), Some(_)) => (backend, access),
    }
}

/// Claims the medium: no other process may write it, and if it is to be written, no other process
/// may use it.
fn claim_alone(
    (path, found): (&Path, &FoundFile),
    mode: OpenMode<'_>,
    block: bool,
    file: File,
    choice: &IoModeChoice,
) -> Result<File, OpenError> {
    let busy = |user| OpenError::Busy { path: path.to_owned(), user };
    if !block {
        claim::lock(&file, path, mode.writable).map_err(busy)?;
        return Ok(file);
    }
    if !mode.writable || choice.access == IoMode::Direct {
        // A writable device was opened exclusively together with direct I/O.
        return Ok(file);
    }
    claim::open_alone(found, 0).map_err(|error| match error.raw_os_error() {
        Some(libc::EBUSY) => busy(claim::user_of_device(&file)),
        _ => OpenError::Io { path: path.to_owned(), error },
    })
}

fn check_writable(
    path: &Path,
    mode: OpenMode<'_>,
    bytes: u64,
    lba_shift: u8,
) -> Result<(), OpenError> {
    let lba_bytes = 1u64 << lba_shift;
    if !mode.writable || bytes.is_multiple_of(lba_bytes) {
        return Ok(());
    }
    let rounded = bytes.next_multiple_of(lba_bytes);
    Err(OpenError::PartialBlock { path: path.to_owned(), bytes, lba_bytes, rounded })
}

struct IoModeChoice {
    access: IoMode,
    lba_shift: u8,
    /// Alignment of offsets for direct I/O in bytes, even where direct I/O is not used.
    alignment: u32,
}

impl IoModeChoice {
    fn direct_alignment(&self) -> Option<u32> {
        (self.access == IoMode::Direct).then_some(self.alignment)
    }

    /// Whether a read can never return a half-written logical block. File systems without a known
    /// block device, such as `tmpfs`, accept direct I/O and use the page cache all the same.
    fn writes_blocks_as_one(&self, write_unit_bytes: Option<u32>) -> bool {
        let lba_bytes = 1 << self.lba_shift;
        self.access == IoMode::Direct && write_unit_bytes.is_some_and(|unit| unit >= lba_bytes)
    }
}

/// Opens the file for direct I/O where the file supports that for the block size and the policy
/// wants it. The choice of block size does not depend on the policy.
fn choose_access(
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
    let mut error = io::Error::from(io::ErrorKind::Unsupported);
    for length in [512u32, 4096] {
        // SAFETY: the page is ours, and as long as the call may write.
        let read = unsafe {
            libc::pread(direct.as_raw_fd(), page.0.as_mut_ptr().cast(), length as usize, 0)
        };
        if read >= 0 {
            return Ok(length);
        }
        error = io::Error::last_os_error();
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
