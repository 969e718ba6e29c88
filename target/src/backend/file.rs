//! Backend of regular files and block devices.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use libc::{FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE};
use rdma::Time;

use super::cache_room::CacheShare;
use super::cached_reads::CachedReads;
use super::claim::Claim;
use super::numbered_file::NumberedFile;
use super::range_lock::{RangeAccess, RangeLock, RangeLocks};
use super::{
    Backend, BackendError, CachedRead, FileId, FileRef, Health, MappedFile, MemoryPart, Operation,
    OperationKind, OperationStage, ReadPath, Step, SystemCall,
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
    file: NumberedFile,
    /// Length of the file when it was opened, in bytes. The part of the last block beyond it reads
    /// as zeros.
    exact_bytes: u64,
    /// End of the last block in bytes. No operation reaches beyond it.
    end_bytes: u64,
    /// Lock that keeps other processes from changing the file.
    claim: Arc<Claim>,
    /// Alignment of offsets for direct I/O in bytes; 1 when the page cache is used.
    offset_alignment: u32,
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

impl FileBackend {
    /// Creates the backend of a file of `exact_bytes`. `direct_alignment` is the alignment of
    /// offsets in bytes if `file` was opened for direct I/O, else `None`.
    pub fn new(file: OwnedFd, exact_bytes: u64, direct_alignment: Option<u32>) -> Self {
        let (file, grows) = NumberedFile::open(file, direct_alignment.is_some());
        let claim = Claim { file: Arc::clone(file.descriptor()), backing: None };
        Self {
            file,
            exact_bytes,
            end_bytes: exact_bytes.next_multiple_of(MAX_BLOCK_BYTES),
            claim: Arc::new(claim),
            offset_alignment: direct_alignment.unwrap_or(1),
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
            file: self.file.renumbered(),
            exact_bytes,
            end_bytes: exact_bytes.next_multiple_of(MAX_BLOCK_BYTES),
            claim: Arc::clone(&self.claim),
            offset_alignment: self.offset_alignment,
            grows: self.grows,
            looked_at: AtomicU64::new(u64::MAX),
            health: Arc::new(self.health.resized(exact_bytes)),
            cached: self.cached.as_ref().map(CachedReads::without_twin),
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
        self.cached = Some(CachedReads::default());
        self
    }

    /// Makes reads go through the page cache while `room` is open. `file` is the same file, opened
    /// without direct I/O.
    #[must_use]
    pub(super) fn with_twin(mut self, file: OwnedFd, room: CacheShare) -> Self {
        let (file, _) = NumberedFile::open(file, false);
        self.cached = Some(CachedReads::with_twin(file, self.exact_bytes, room));
        self
    }

    /// Descriptor of the file, open as long as an `Arc` of it exists.
    pub(super) fn descriptor(&self) -> &Arc<OwnedFd> {
        self.file.descriptor()
    }

    /// Numbers under which rings register the file and its twin.
    pub(super) fn ids(&self) -> Vec<FileId> {
        let twin = self.cached.as_ref().and_then(CachedReads::file);
        twin.into_iter().chain([self.file()]).map(|file| file.id).collect()
    }

    /// Mapping of the file, which the control path maintains with [`MappedFile::tend`].
    pub(super) fn mapped(&self) -> Option<&Arc<MappedFile>> {
        self.cached.as_ref()?.mapped()
    }

    /// Lasting faults of the medium.
    pub fn health(&self) -> &Arc<Health> {
        &self.health
    }

    fn file(&self) -> FileRef {
        self.file.reference()
    }

    fn choose_path(&self) -> ReadPath {
        self.cached.as_ref().map_or(ReadPath::Own, CachedReads::choose_path)
    }

    /// File that a read with this path uses.
    fn file_of(&self, path: ReadPath) -> FileRef {
        let twin = self.cached.as_ref().and_then(CachedReads::file);
        let through_cache = matches!(path, ReadPath::Cached | ReadPath::Buffered);
        twin.filter(|_| through_cache).unwrap_or_else(|| self.file())
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
        let is_present = is_inside && end.min(self.exact_bytes) <= self.health.present_bytes();
        is_present.then_some(()).ok_or(BackendError::Shrunk)
    }

    /// Checks whether the file was truncated: a write beyond its end would leave a hole that reads
    /// as zeros. Done once for all writes of a turn, with cached attributes, so that it does not
    /// wait. A truncation between this check and the write is found by a later check.
    fn look_at_length(&self, now: Time) {
        let now = (now - Time::ZERO).as_nanos() as u64;
        if !self.grows || self.looked_at.swap(now, Ordering::Relaxed) == now {
            return;
        }
        if let Some(bytes) = self.file.length_bytes() {
            self.health.found_bytes(bytes);
        }
    }

    /// Records that a read found the end of the file at byte `at` or before.
    fn found_end(&self, at: u64) {
        self.health.found_bytes(self.file.length_bytes().map_or(at, |bytes| bytes.min(at)));
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
        if let Some(cached) = &self.cached {
            cached.returned(operation.offset() + operation.done, asked, result);
        }
        operation.done += u64::from(bytes);
        if bytes < asked {
            operation.path = ReadPath::Buffered;
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
            return if durable && !self.file().direct {
                self.sync(operation)
            } else {
                Step::Done(Ok(()))
            };
        }
        let (offset, part) = (operation.offset() + operation.done, rest(operation));
        let durable = durable && self.file().direct;
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
        let (offset, part) = (operation.offset() + operation.done, MemoryPart::zeros(left));
        Step::Call(SystemCall::Write { file: self.file(), offset, part, durable: false })
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
        Step::Done(match self.health.write_back_failed() {
            true => Err(BackendError::WriteBackFailed),
            false => Ok(()),
        })
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
        self.file.allocated_bytes()
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
