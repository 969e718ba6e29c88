//! Backend of regular files and block devices.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use libc::{FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE};
use rdma::Time;
use rustix::fs::{AtFlags, FileType, StatxFlags};

use super::cache_room::CacheShare;
use super::range_lock::{RangeAccess, RangeLock, RangeLocks};
use super::{Backend, BackendError, Health, Step, claim};
use crate::backend::{
    CachedRead, DeviceId, FileId, FileRef, MappedFile, MemoryPart, Operation, OperationKind,
    OperationStage, ReadPath, SystemCall,
};
use crate::deliberate_bugs::{self, Bug};
use crate::limits::turn::CACHED_READ_BYTES;

/// Consecutive interruptions (`EINTR`, `EAGAIN`) after which an operation fails. A signal or a full
/// device queue seldom causes more than one.
const MOST_INTERRUPTIONS: u32 = 1000;

/// Largest logical block in bytes.
const MAX_BLOCK_BYTES: u64 = 4096;

/// Backend of an open file or block device of fixed length. A resize creates a new one on the same
/// descriptor.
#[derive(Debug)]
pub struct FileBackend {
    file: Arc<OwnedFd>,
    id: FileId,
    device: DeviceId,
    /// Length of the file when it was opened, in bytes. The part of the last block beyond it reads
    /// as zeros.
    exact_bytes: u64,
    /// End of the last block in bytes. No operation reaches beyond it.
    end_bytes: u64,
    /// Lock that keeps other processes from changing the file.
    claim: Arc<Claim>,
    /// Alignment of offsets for direct I/O in bytes; 1 when the page cache is used.
    offset_alignment: u32,
    direct: bool,
    /// Whether a write beyond the end makes the file longer.
    grows: bool,
    /// Time of the last check of the file's length, in nanoseconds.
    looked_at: AtomicU64,
    health: Arc<Health>,
    /// Set if reads try the page cache first.
    cached: Option<CachedReads>,
    /// Set for a file whose reads could return a half-written block.
    locks: Option<Arc<RangeLocks>>,
    /// Set once the file system has refused to zero with `fallocate`.
    cannot_zero: AtomicBool,
    cannot_punch: AtomicBool,
}

/// Lock of a file, held while any of its backends exists.
#[derive(Debug)]
struct Claim {
    file: Arc<OwnedFd>,
    /// Locked file behind a loop device. Closing it ends the lock.
    backing: Option<std::fs::File>,
}

impl Drop for Claim {
    /// Releases the lock explicitly, since an io_uring that is being torn down may keep the file
    /// open.
    fn drop(&mut self) {
        claim::release(&*self.file);
    }
}

/// State of reads from the page cache.
#[derive(Debug)]
struct CachedReads {
    /// Descriptor of the file without direct I/O, if the backend's own descriptor has direct I/O.
    twin: Option<Twin>,
    /// Set once the file system has refused `RWF_NOWAIT`.
    cannot_try: AtomicBool,
}

/// Second descriptor of a file, for reads through the page cache while there is room.
#[derive(Debug)]
struct Twin {
    file: Arc<OwnedFd>,
    id: FileId,
    room: CacheShare,
    /// Mapping of the file with pages locked in memory, where the process may lock memory.
    mapped: Option<Arc<MappedFile>>,
}

impl FileBackend {
    /// Creates the backend of a file of `exact_bytes`. `direct_alignment` is the alignment of
    /// offsets in bytes if `file` was opened for direct I/O, else `None`.
    pub fn new(file: OwnedFd, exact_bytes: u64, direct_alignment: Option<u32>) -> Self {
        let (device, grows) = device_of(&file);
        let file = Arc::new(file);
        Self {
            device,
            claim: Arc::new(Claim { file: Arc::clone(&file), backing: None }),
            file,
            id: next_id(),
            exact_bytes,
            end_bytes: exact_bytes.next_multiple_of(MAX_BLOCK_BYTES),
            offset_alignment: direct_alignment.unwrap_or(1),
            direct: direct_alignment.is_some(),
            grows,
            looked_at: AtomicU64::new(u64::MAX),
            health: Arc::new(Health::new(exact_bytes)),
            cached: None,
            locks: None,
            cannot_zero: AtomicBool::new(false),
            cannot_punch: AtomicBool::new(false),
        }
    }

    /// Keeps the locked file behind a loop device open until the claim is dropped.
    #[must_use]
    pub(super) fn with_backing_file(mut self, backing: Option<std::fs::File>) -> Self {
        if let Some(claim) = Arc::get_mut(&mut self.claim) {
            claim.backing = backing;
        }
        self
    }

    /// Creates a backend of the same open file with another length and the same range locks,
    /// without a second descriptor for the page cache.
    pub(super) fn resized(&self, exact_bytes: u64) -> Self {
        let cannot = |flag: &AtomicBool| AtomicBool::new(flag.load(Ordering::Relaxed));
        Self {
            file: Arc::clone(&self.file),
            id: next_id(),
            device: self.device,
            exact_bytes,
            end_bytes: exact_bytes.next_multiple_of(MAX_BLOCK_BYTES),
            claim: Arc::clone(&self.claim),
            offset_alignment: self.offset_alignment,
            direct: self.direct,
            grows: self.grows,
            looked_at: AtomicU64::new(u64::MAX),
            health: Arc::new(self.health.resized(exact_bytes)),
            cached: self
                .cached
                .as_ref()
                .map(|cached| CachedReads { twin: None, cannot_try: cannot(&cached.cannot_try) }),
            locks: self.locks.clone(),
            cannot_zero: cannot(&self.cannot_zero),
            cannot_punch: cannot(&self.cannot_punch),
        }
    }

    /// Sets the logical block size, and with it the end of the last block.
    #[must_use]
    pub(super) fn with_blocks(mut self, lba_shift: u8) -> Self {
        self.end_bytes = self.exact_bytes.next_multiple_of(1 << lba_shift);
        self
    }

    /// Makes each operation lock its range. Needed for a writable file in the page cache, and for
    /// direct I/O with logical blocks that the device does not write atomically.
    #[must_use]
    pub fn with_range_locks(mut self) -> Self {
        self.locks = Some(RangeLocks::new(self.exact_bytes));
        self
    }

    /// Makes reads try the page cache first, for files not opened for direct I/O and for media of
    /// tests.
    #[must_use]
    pub fn with_cached_reads(mut self) -> Self {
        self.cached = Some(CachedReads { twin: None, cannot_try: AtomicBool::new(false) });
        self
    }

    /// Makes reads go through the page cache while `room` is open. `file` is the same file, opened
    /// without direct I/O.
    #[must_use]
    pub(super) fn with_twin(mut self, file: OwnedFd, room: CacheShare) -> Self {
        let file = Arc::new(file);
        let mapped = MappedFile::new(&file, self.exact_bytes, room.room()).map(Arc::new);
        let twin = Some(Twin { file, id: next_id(), room, mapped });
        self.cached = Some(CachedReads { twin, cannot_try: AtomicBool::new(false) });
        self
    }

    /// Descriptor of the file, open as long as an `Arc` of it exists.
    pub(super) fn descriptor(&self) -> &Arc<OwnedFd> {
        &self.file
    }

    /// Numbers under which rings register the file and its twin.
    pub(super) fn ids(&self) -> Vec<FileId> {
        let twin = self.cached.as_ref().and_then(|cached| cached.twin.as_ref());
        twin.map(|twin| twin.id).into_iter().chain([self.id]).collect()
    }

    /// Mapping of the file, which the control path maintains with [`MappedFile::tend`].
    pub(super) fn mapped(&self) -> Option<&Arc<MappedFile>> {
        self.cached.as_ref()?.twin.as_ref()?.mapped.as_ref()
    }

    /// Lasting faults of the medium.
    pub fn health(&self) -> &Arc<Health> {
        &self.health
    }

    fn file(&self) -> FileRef {
        let (id, device, direct) = (self.id, self.device, self.direct);
        FileRef { fd: self.file.as_raw_fd(), id, device, direct }
    }

    fn choose_path(&self) -> ReadPath {
        let Some(cached) = &self.cached else { return ReadPath::Own };
        if cached.twin.as_ref().is_some_and(|twin| !twin.room.is_open()) {
            return ReadPath::Own;
        }
        match cached.cannot_try.load(Ordering::Relaxed) {
            true => ReadPath::Buffered,
            false => ReadPath::Cached,
        }
    }

    /// Descriptor that a read with this path uses.
    fn file_of(&self, path: ReadPath) -> FileRef {
        let twin = self.cached.as_ref().and_then(|cached| cached.twin.as_ref());
        match (path, twin) {
            (ReadPath::Cached | ReadPath::Buffered, Some(twin)) => {
                let (fd, id, device) = (twin.file.as_raw_fd(), twin.id, self.device);
                FileRef { fd, id, device, direct: false }
            }
            _ => self.file(),
        }
    }

    /// Bytes of a read that lie within the file's length.
    fn present(&self, operation: &Operation) -> u64 {
        self.exact_bytes.saturating_sub(operation.offset()).min(operation.length())
    }

    /// Checks that an operation may change the medium: no write was lost, and its range exists.
    fn allow_change(&self, now: Time, operation: &Operation) -> Result<(), BackendError> {
        if self.health.write_back_failed() {
            return Err(BackendError::WriteBackFailed);
        }
        if operation.kind() == OperationKind::Flush {
            return Ok(());
        }
        self.look_at_length(now);
        self.allow_range(operation)
    }

    /// Checks that the operation's range lies within the smallest length of the file so far. A file
    /// that was truncated and extended again has a hole there.
    fn allow_range(&self, operation: &Operation) -> Result<(), BackendError> {
        let end = operation.offset() + operation.length();
        // The command may have been checked when the file was longer.
        let is_inside = end <= self.end_bytes;
        match is_inside && end.min(self.exact_bytes) <= self.health.present_bytes() {
            true => Ok(()),
            false => Err(BackendError::Shrunk),
        }
    }

    /// Checks whether the file was truncated: a write beyond its end would leave a hole that reads
    /// as zeros. Done once for all writes of a turn, with cached attributes, so that it does not
    /// wait. A truncation between this check and the write is found by a later check.
    fn look_at_length(&self, now: Time) {
        let now = (now - Time::ZERO).as_nanos() as u64;
        if !self.grows || self.looked_at.swap(now, Ordering::Relaxed) == now {
            return;
        }
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        if let Ok(status) = rustix::fs::statx(&*self.file, "", flags, StatxFlags::SIZE) {
            self.health.found_bytes(status.stx_size);
        }
    }

    /// Records that a read found the end of the file at byte `at` or before.
    fn found_end(&self, at: u64) {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let status = rustix::fs::statx(&*self.file, "", flags, StatxFlags::SIZE);
        self.health.found_bytes(status.map_or(at, |status| status.stx_size.min(at)));
    }

    /// Locks an operation's range, or returns the time to wait before the next attempt.
    fn lock_range(&self, operation: &mut Operation) -> Result<(), Duration> {
        let Some(locks) = &self.locks else { return Ok(()) };
        let access = match operation.kind() {
            OperationKind::Read => RangeAccess::Shared,
            OperationKind::Write { .. }
            | OperationKind::WriteZeroes { .. }
            | OperationKind::Deallocate => RangeAccess::Exclusive,
            OperationKind::Flush => return Ok(()),
        };
        let (offset, length) = (operation.offset(), operation.length());
        operation.lock.get_or_insert_with(|| locks.lock(access, offset, length)).advance()
    }

    /// Returns the first step of an operation that has the lock of its range, if it needs one.
    fn begin(&self, now: Time, operation: &mut Operation) -> Step {
        let allowed = match operation.kind() {
            OperationKind::Read => self.allow_range(operation),
            _ => self.allow_change(now, operation),
        };
        if let Err(error) = allowed {
            return Step::Done(Err(error));
        }
        match operation.kind() {
            OperationKind::Read => {
                if operation.path == ReadPath::Unchosen {
                    operation.path = self.choose_path();
                }
                self.read_on(operation)
            }
            OperationKind::Write { durable } => self.write_on(operation, durable),
            OperationKind::Flush if deliberate_bugs::has(Bug::DropFlush) => Step::Done(Ok(())),
            OperationKind::Flush => self.sync(operation),
            OperationKind::WriteZeroes { deallocate, .. } => self.zero_on(operation, deallocate),
            OperationKind::Deallocate => self.punch(operation),
        }
    }

    fn read_on(&self, operation: &mut Operation) -> Step {
        let present = self.present(operation);
        if operation.done >= present {
            // The tail of the last block reads as zeros, whatever the file or the buffer holds.
            operation.bytes()[present as usize..].fill(0);
            return Step::Done(Ok(()));
        }
        let (file, offset) = (self.file_of(operation.path), operation.offset() + operation.done);
        if operation.path == ReadPath::Cached {
            let part = next_part(operation, CACHED_READ_BYTES);
            let mapped = self.mapped().and_then(|mapped| mapped.place(offset, part.length()));
            return Step::ReadCached(CachedRead { file, offset, part, mapped });
        }
        Step::Call(SystemCall::Read { file, offset, part: rest(operation) })
    }

    /// Continues a read after an attempt at the page cache. Bytes that the cache lacks are read
    /// from the medium, which also reports errors of the file.
    fn cached_read_returned(&self, operation: &mut Operation, result: i32) -> Step {
        let asked = next_part(operation, CACHED_READ_BYTES).length();
        let bytes = u32::try_from(result).unwrap_or(0);
        if let Some(mapped) = self.mapped() {
            let offset = operation.offset() + operation.done;
            if bytes == asked {
                mapped.was_cached(offset, asked);
            } else if mapped.place(offset, asked).is_some() {
                // The extent is locked, yet a page is missing: the file was truncated.
                mapped.give_up();
            }
        }
        operation.done += u64::from(bytes);
        if bytes < asked {
            operation.path = ReadPath::Buffered;
        }
        let refused = matches!(result.wrapping_neg(), libc::EOPNOTSUPP | libc::ENOSYS);
        if let Some(cached) = self.cached.as_ref().filter(|_| refused) {
            cached.cannot_try.store(true, Ordering::Relaxed);
        }
        self.read_on(operation)
    }

    fn read_returned(&self, operation: &mut Operation, bytes: u64) -> Step {
        operation.done += bytes;
        let complete = operation.done >= self.present(operation);
        let alignment = match self.file_of(operation.path).direct {
            true => self.offset_alignment,
            false => 1,
        };
        let at_end = bytes == 0 || !operation.done.is_multiple_of(alignment.into());
        if !complete && at_end {
            self.found_end(operation.offset() + operation.done);
            return Step::Done(Err(BackendError::Shrunk));
        }
        self.read_on(operation)
    }

    fn write_on(&self, operation: &mut Operation, durable: bool) -> Step {
        let durable = durable && !deliberate_bugs::has(Bug::IgnoreFua);
        if operation.done >= operation.length() {
            // With the page cache, a separate sync shows whether the write failed or the
            // write-back.
            return if durable && !self.direct { self.sync(operation) } else { Step::Done(Ok(())) };
        }
        let (offset, part) = (operation.offset() + operation.done, rest(operation));
        let durable = durable && self.direct;
        Step::Call(SystemCall::Write { file: self.file(), offset, part, durable })
    }

    fn write_returned(&self, operation: &mut Operation, bytes: u64, durable: bool) -> Step {
        operation.done += bytes;
        let stuck = !operation.done.is_multiple_of(self.offset_alignment.into());
        if bytes == 0 || (stuck && operation.done < operation.length()) {
            return Step::Done(Err(BackendError::from_errno(libc::EIO)));
        }
        self.write_on(operation, durable)
    }

    fn zero_on(&self, operation: &mut Operation, deallocate: bool) -> Step {
        let punch = deallocate && !self.cannot_punch.load(Ordering::Relaxed);
        if punch {
            operation.stage = OperationStage::Hole;
            return self.fallocate(operation, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE);
        }
        if !self.cannot_zero.load(Ordering::Relaxed) {
            operation.stage = OperationStage::Main;
            return self.fallocate(operation, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE);
        }
        operation.stage = OperationStage::Zeros;
        self.write_zeros_on(operation)
    }

    fn write_zeros_on(&self, operation: &mut Operation) -> Step {
        let left = operation.length() - operation.done;
        if left == 0 {
            return self.finish_zeroing(operation);
        }
        let (file, offset) = (self.file(), operation.offset() + operation.done);
        Step::Call(SystemCall::Write {
            file,
            offset,
            part: MemoryPart::zeros(left),
            durable: false,
        })
    }

    fn finish_zeroing(&self, operation: &mut Operation) -> Step {
        match operation.kind() {
            OperationKind::WriteZeroes { durable: true, .. } => self.sync(operation),
            _ => Step::Done(Ok(())),
        }
    }

    fn sync(&self, operation: &mut Operation) -> Step {
        operation.stage = OperationStage::Sync;
        // The range has its final bytes, so other operations need not wait for the sync.
        operation.lock = None;
        Step::Call(SystemCall::Sync { file: self.file() })
    }

    fn synced(&self) -> Step {
        // The kernel reports a failed write-back once: the sync of another operation may have got
        // the error.
        match self.health.write_back_failed() {
            true => Step::Done(Err(BackendError::WriteBackFailed)),
            false => Step::Done(Ok(())),
        }
    }

    fn punch(&self, operation: &Operation) -> Step {
        if self.cannot_punch.load(Ordering::Relaxed) {
            // Deallocation is advice, so its failure is not an error.
            return Step::Done(Ok(()));
        }
        self.fallocate(operation, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE)
    }

    fn fallocate(&self, operation: &Operation, mode: i32) -> Step {
        let (offset, length) = (operation.offset(), operation.length());
        if length == 0 {
            return Step::Done(Ok(()));
        }
        Step::Call(SystemCall::Fallocate { file: self.file(), mode, offset, length })
    }

    /// Remembers that the file system lacks the `fallocate` mode of the operation's last call, and
    /// returns the step that replaces it.
    fn unsupported(&self, operation: &mut Operation) -> Step {
        // The refused call is the one that this operation made; other operations may have set the
        // flags since.
        match (operation.kind(), operation.stage) {
            (OperationKind::WriteZeroes { deallocate, .. }, OperationStage::Hole) => {
                self.cannot_punch.store(true, Ordering::Relaxed);
                self.zero_on(operation, deallocate)
            }
            (OperationKind::WriteZeroes { deallocate, .. }, OperationStage::Main) => {
                self.cannot_zero.store(true, Ordering::Relaxed);
                self.zero_on(operation, deallocate)
            }
            (OperationKind::Deallocate, _) => {
                self.cannot_punch.store(true, Ordering::Relaxed);
                Step::Done(Ok(()))
            }
            _ => Step::Done(Err(BackendError::from_errno(libc::EOPNOTSUPP))),
        }
    }

    fn failed(&self, now: Time, operation: &mut Operation, errno: i32) -> Step {
        match errno {
            libc::EINTR | libc::EAGAIN => self.again(now, operation),
            libc::EOPNOTSUPP | libc::ENOSYS => self.unsupported(operation),
            _ => {
                // A failed sync means lost writes with direct I/O as well: it flushes the device's
                // cache and the file system's metadata, and the kernel reports their loss once.
                if operation.stage == OperationStage::Sync && errno != libc::ECANCELED {
                    self.health.write_back_fails();
                }
                Step::Done(Err(BackendError::from_errno(errno)))
            }
        }
    }

    /// Repeats the interrupted step, up to a limit.
    fn again(&self, now: Time, operation: &mut Operation) -> Step {
        operation.interruptions += 1;
        if operation.interruptions > MOST_INTERRUPTIONS {
            return Step::Done(Err(BackendError::from_errno(libc::EIO)));
        }
        match operation.stage {
            OperationStage::Main | OperationStage::Hole => self.begin(now, operation),
            OperationStage::Zeros => self.write_zeros_on(operation),
            OperationStage::Sync => Step::Call(SystemCall::Sync { file: self.file() }),
        }
    }
}

impl Backend for FileBackend {
    fn start(&self, now: Time, operation: &mut Operation) -> Step {
        match self.lock_range(operation) {
            Ok(()) => self.begin(now, operation),
            Err(wait) => Step::WaitUntil(now + wait),
        }
    }

    fn resume(&self, now: Time, operation: &mut Operation, result: i32) -> Step {
        if operation.lock.as_ref().is_some_and(RangeLock::is_waiting) {
            return self.start(now, operation);
        }
        if operation.path == ReadPath::Cached {
            return self.cached_read_returned(operation, result);
        }
        let Ok(bytes) = u64::try_from(result) else {
            return self.failed(now, operation, result.wrapping_neg());
        };
        operation.interruptions = 0;
        match (operation.kind(), operation.stage) {
            (OperationKind::Read, _) => self.read_returned(operation, bytes),
            (_, OperationStage::Sync) => self.synced(),
            (OperationKind::Write { durable }, _) => self.write_returned(operation, bytes, durable),
            (OperationKind::WriteZeroes { .. }, OperationStage::Main | OperationStage::Hole) => {
                self.finish_zeroing(operation)
            }
            (OperationKind::WriteZeroes { .. }, OperationStage::Zeros) if bytes == 0 => {
                Step::Done(Err(BackendError::from_errno(libc::EIO)))
            }
            (OperationKind::WriteZeroes { .. }, OperationStage::Zeros) => {
                operation.done += bytes;
                self.write_zeros_on(operation)
            }
            (OperationKind::Flush | OperationKind::Deallocate, _) => Step::Done(Ok(())),
        }
    }

    fn may_read_now(&self) -> bool {
        self.choose_path() == ReadPath::Cached
    }

    fn allocated_bytes(&self) -> Option<u64> {
        // Answered from cached attributes, since the server of a network file system may not
        // respond.
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let wanted = StatxFlags::TYPE | StatxFlags::BLOCKS;
        let status = rustix::fs::statx(&self.file, "", flags, wanted).ok()?;
        let file_type = FileType::from_raw_mode(status.stx_mode.into());
        let known = status.stx_mask & wanted.bits() == wanted.bits();
        (known && file_type == FileType::RegularFile).then(|| status.stx_blocks * 512)
    }
}

/// Device that a file is on, and whether the file can grow. Files whose `fstat` fails share one
/// number.
fn device_of(file: &OwnedFd) -> (DeviceId, bool) {
    let Ok(stat) = rustix::fs::fstat(file) else { return (DeviceId(u64::MAX), false) };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::BlockDevice => (DeviceId(stat.st_rdev), false),
        other => (DeviceId(stat.st_dev), other == FileType::RegularFile),
    }
}

/// Remaining part of the operation's span.
fn rest(operation: &Operation) -> MemoryPart {
    next_part(operation, u32::MAX)
}

/// Next part of the span, at most `length` bytes.
fn next_part(operation: &Operation, length: u32) -> MemoryPart {
    let span = operation.span().expect("reads and writes have memory");
    span.part(operation.done as u32, length)
}

/// Returns a number that no open file of this process had before.
fn next_id() -> FileId {
    static NEXT_ID: AtomicU64 = AtomicU64::new(0);
    FileId(NEXT_ID.fetch_add(1, Ordering::Relaxed))
}
