//! A regular file or a block device as a medium.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use libc::{FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE};
use rdma::Time;
use rustix::fs::FileType;

use super::{Backend, BackendError, Step};
use crate::deliberate_bugs::{self, Bug};
use crate::storage::{DeviceId, FileId, FileRef, Kind, Operation, Part, Stage, SystemCall};

/// Interruptions in a row after which a file is taken for one that can not be used. A signal or a full queue of a device
/// seldom causes more than one.
const MOST_INTERRUPTIONS: u32 = 1000;

/// An open file of fixed length.
#[derive(Debug)]
pub struct FileBackend {
    file: OwnedFd,
    id: FileId,
    device: DeviceId,
    /// The length that the file had when it was opened, in bytes. What a block holds beyond it is zeros.
    exact_bytes: u64,
    /// Offsets of direct I/O are multiples of it; 1 when the page cache is used.
    offset_alignment: u32,
    direct: bool,
    /// What the file system turned out not to do.
    cannot_zero: AtomicBool,
    cannot_punch: AtomicBool,
}

impl FileBackend {
    /// On a file of `exact_bytes`. `direct_alignment` is what direct I/O asks of offsets, if it is used.
    pub fn new(file: OwnedFd, exact_bytes: u64, direct_alignment: Option<u32>) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        Self {
            device: device_of(&file),
            file,
            id: FileId(NEXT_ID.fetch_add(1, Ordering::Relaxed)),
            exact_bytes,
            offset_alignment: direct_alignment.unwrap_or(1),
            direct: direct_alignment.is_some(),
            cannot_zero: AtomicBool::new(false),
            cannot_punch: AtomicBool::new(false),
        }
    }

    fn file(&self) -> FileRef {
        let (id, device, direct) = (self.id, self.device, self.direct);
        FileRef { fd: self.file.as_raw_fd(), id, device, direct }
    }

    /// How many of a read's bytes the file has.
    fn present(&self, operation: &Operation) -> u64 {
        self.exact_bytes.saturating_sub(operation.offset()).min(operation.length())
    }

    fn read_on(&self, operation: &mut Operation) -> Step {
        let present = self.present(operation);
        if operation.done >= present {
            // The tail of the last block, whatever the file or the buffer holds there.
            operation.bytes()[present as usize..].fill(0);
            return Step::Done(Ok(()));
        }
        let (offset, part) = (operation.offset() + operation.done, rest(operation));
        Step::Call(SystemCall::Read { file: self.file(), offset, part })
    }

    fn read_returned(&self, operation: &mut Operation, bytes: u64) -> Step {
        operation.done += bytes;
        let complete = operation.done >= self.present(operation);
        let at_end = bytes == 0 || !operation.done.is_multiple_of(self.offset_alignment.into());
        if !complete && at_end {
            return Step::Done(Err(BackendError::Shrunk));
        }
        self.read_on(operation)
    }

    fn write_on(&self, operation: &mut Operation, durable: bool) -> Step {
        if operation.done >= operation.length() {
            return Step::Done(Ok(()));
        }
        let (offset, part) = (operation.offset() + operation.done, rest(operation));
        let durable = durable && !deliberate_bugs::has(Bug::ForgetFua);
        Step::Call(SystemCall::Write { file: self.file(), offset, part, durable })
    }

    fn write_returned(&self, operation: &mut Operation, bytes: u64, durable: bool) -> Step {
        operation.done += bytes;
        let stuck = !operation.done.is_multiple_of(self.offset_alignment.into());
        if bytes == 0 || (stuck && operation.done < operation.length()) {
            return Step::Done(Err(BackendError::Medium));
        }
        self.write_on(operation, durable)
    }

    fn zero_on(&self, operation: &mut Operation, deallocate: bool) -> Step {
        let punch = deallocate && !self.cannot_punch.load(Ordering::Relaxed);
        if punch {
            return self.fallocate(operation, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE);
        }
        if !self.cannot_zero.load(Ordering::Relaxed) {
            return self.fallocate(operation, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE);
        }
        operation.stage = Stage::Zeros;
        self.write_zeros_on(operation)
    }

    fn write_zeros_on(&self, operation: &mut Operation) -> Step {
        let left = operation.length() - operation.done;
        if left == 0 {
            return self.finish_zeroing(operation);
        }
        let (file, offset) = (self.file(), operation.offset() + operation.done);
        Step::Call(SystemCall::Write { file, offset, part: Part::zeros(left), durable: false })
    }

    fn finish_zeroing(&self, operation: &mut Operation) -> Step {
        match operation.kind() {
            Kind::WriteZeroes { durable: true, .. } => {
                operation.stage = Stage::Sync;
                Step::Call(SystemCall::Sync { file: self.file() })
            }
            _ => Step::Done(Ok(())),
        }
    }

    fn punch(&self, operation: &Operation) -> Step {
        if self.cannot_punch.load(Ordering::Relaxed) {
            // Giving space back is advice.
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

    /// A file system that does not know a mode is remembered and the next best way taken.
    fn unsupported(&self, operation: &mut Operation) -> Step {
        match operation.kind() {
            Kind::WriteZeroes { deallocate, .. } if operation.stage == Stage::Main => {
                let punched = deallocate && !self.cannot_punch.swap(true, Ordering::Relaxed);
                if !punched {
                    self.cannot_zero.store(true, Ordering::Relaxed);
                }
                self.zero_on(operation, deallocate)
            }
            Kind::Deallocate => {
                self.cannot_punch.store(true, Ordering::Relaxed);
                Step::Done(Ok(()))
            }
            _ => Step::Done(Err(BackendError::Unsupported)),
        }
    }

    fn failed(&self, now: Time, operation: &mut Operation, errno: i32) -> Step {
        match errno {
            libc::EINTR | libc::EAGAIN => self.again(now, operation),
            libc::EOPNOTSUPP | libc::ENOSYS => self.unsupported(operation),
            _ => Step::Done(Err(BackendError::from_errno(errno))),
        }
    }

    /// The step that was interrupted, once more, unless it always is.
    fn again(&self, now: Time, operation: &mut Operation) -> Step {
        operation.interruptions += 1;
        if operation.interruptions > MOST_INTERRUPTIONS {
            return Step::Done(Err(BackendError::Medium));
        }
        match operation.stage {
            Stage::Main => self.start(now, operation),
            Stage::Zeros => self.write_zeros_on(operation),
            Stage::Sync => Step::Call(SystemCall::Sync { file: self.file() }),
        }
    }
}

impl Backend for FileBackend {
    fn start(&self, _now: Time, operation: &mut Operation) -> Step {
        match operation.kind() {
            Kind::Read => self.read_on(operation),
            Kind::Write { durable } => self.write_on(operation, durable),
            Kind::Flush if deliberate_bugs::has(Bug::DropFlush) => Step::Done(Ok(())),
            Kind::Flush => Step::Call(SystemCall::Sync { file: self.file() }),
            Kind::WriteZeroes { deallocate, .. } => self.zero_on(operation, deallocate),
            Kind::Deallocate => self.punch(operation),
        }
    }

    fn resume(&self, now: Time, operation: &mut Operation, result: i32) -> Step {
        let Ok(bytes) = u64::try_from(result) else {
            return self.failed(now, operation, result.wrapping_neg());
        };
        operation.interruptions = 0;
        match (operation.kind(), operation.stage) {
            (Kind::Read, _) => self.read_returned(operation, bytes),
            (Kind::Write { durable }, _) => self.write_returned(operation, bytes, durable),
            (Kind::WriteZeroes { .. }, Stage::Main) => self.finish_zeroing(operation),
            (Kind::WriteZeroes { .. }, Stage::Zeros) if bytes == 0 => {
                Step::Done(Err(BackendError::Medium))
            }
            (Kind::WriteZeroes { .. }, Stage::Zeros) => {
                operation.done += bytes;
                self.write_zeros_on(operation)
            }
            (Kind::WriteZeroes { .. }, Stage::Sync) | (Kind::Flush | Kind::Deallocate, _) => {
                Step::Done(Ok(()))
            }
        }
    }
}

/// The device that a file is on. A file that does not tell, which none does, shares a number with others like it.
fn device_of(file: &OwnedFd) -> DeviceId {
    match rustix::fs::fstat(file) {
        Ok(stat) if FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice => {
            DeviceId(stat.st_rdev)
        }
        Ok(stat) => DeviceId(stat.st_dev),
        Err(_) => DeviceId(u64::MAX),
    }
}

/// The part of the operation's span that is not done.
fn rest(operation: &Operation) -> Part {
    let span = operation.span().expect("reads and writes have memory");
    span.part(operation.done as u32, u32::MAX)
}
