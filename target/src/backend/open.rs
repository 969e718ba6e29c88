//! Opens the medium behind a namespace, and determines its size.

use std::fs::{File, Metadata};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

use super::io_mode::{DEFAULT_LBA_SHIFT, IoModeChoice, choose_access};
use super::open_error::OpenError;
use super::place::FoundFile;
use super::{
    Backend, CachePolicy, Content, FileBackend, FileId, FileKey, FilePlace, Health, IoMode,
    MappedFile, MemoryBackend, MemoryRoom, NullBackend, OpenMode, OpenedFile, block, cache_room,
    claim, write_unit,
};

/// Mount point of sysfs.
const SYSFS: &str = "/sys";

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
