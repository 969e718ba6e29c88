//! Engine on io_uring, with registered files and buffers, and one `io_uring_enter` per turn.
#![expect(unsafe_code, reason = "hands memory and descriptors to the kernel")]

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::mem;
use std::os::fd::RawFd;
use std::time::Duration;

use io_uring::types::{Fd, Fixed, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};

use super::calls::{CallId, Engine, EngineEvent, EngineStats};
use super::inline;
use super::ring_restrictions;
use super::uring_error::{UringError, refusal};
use crate::backend::MemoryPart;
use crate::backend::{CachedRead, FileId, FileRef, SystemCall};

/// Sizes of a ring's queues in entries. The kernel keeps completions that do not fit.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Sizes {
    submissions: u32,
    completions: u32,
}

/// Sizes of rings to try, the preferred ones first; smaller ones fit a low RLIMIT_MEMLOCK.
const SIZES: [Sizes; 3] = [
    Sizes { submissions: 256, completions: 4096 },
    Sizes { submissions: 64, completions: 512 },
    Sizes { submissions: 16, completions: 64 },
];
/// Most files registered with a ring (128 KiB of memory for each core); further ones work
/// unregistered and cost the kernel a reference count for each call.
const FILES: u32 = 16_384;
/// Largest registered buffer that the kernel accepts, in bytes.
const FIXED_BYTES: usize = 1 << 30;

/// Bit of `user_data` for cancellations; 0 in call ids.
const CANCEL_BIT: u64 = 1 << 31;
const POLL_BIT: u64 = 1 << 30;
/// `user_data` of a cancellation that ends a poll.
const UNWATCH: u64 = CANCEL_BIT | POLL_BIT;
/// Value in place of a descriptor that is no longer watched.
const GONE: RawFd = -1;

/// Engine on io_uring, used by the thread that created it.
pub struct Uring {
    ring: IoUring,
    events: VecDeque<EngineEvent>,
    /// Entries that wait because the submission queue was full.
    backlog: VecDeque<squeue::Entry>,
    in_flight: usize,
    files: BTreeMap<FileId, u32>,
    /// Slots of the file table whose files are no longer registered.
    free_slots: Vec<u32>,
    /// First slot of the file table that was never used.
    next_slot: u32,
    file_slots: u32,
    fixed: Option<FixedRange>,
    watched: Vec<WatchedDescriptor>,
    stats: EngineStats,
}

#[derive(Clone, Copy, Debug)]
struct FixedRange {
    base: usize,
    length: usize,
}

#[derive(Clone, Copy, Debug)]
struct WatchedDescriptor {
    fd: RawFd,
    armed: bool,
    readable: bool,
}

/// Result of registering the buffer pool with the ring.
#[derive(Debug)]
pub enum BufferRegistration {
    /// The pool is registered: its pages are pinned once, not for each operation.
    Registered,
    /// The pool is not registered, for the reason given; operations work at a higher cost.
    Unregistered(String),
}

impl Uring {
    /// Creates a ring with `memory` (address, bytes) registered as fixed buffers if limits allow.
    ///
    /// # Errors
    /// io_uring is not available.
    pub fn new(memory: Option<(*mut u8, usize)>) -> Result<(Self, BufferRegistration), UringError> {
        let ring = build_ring().map_err(UringError::of_setup)?;
        if !ring.params().is_feature_nodrop() || !ring.params().is_feature_ext_arg() {
            return Err(UringError::TooOld);
        }
        let wanted = most_files();
        let file_slots = match ring.submitter().register_files_sparse(wanted) {
            Ok(()) => wanted,
            Err(_) => 0,
        };
        let mut uring = Self {
            ring,
            events: VecDeque::new(),
            backlog: VecDeque::new(),
            in_flight: 0,
            files: BTreeMap::new(),
            free_slots: Vec::new(),
            next_slot: 0,
            file_slots,
            fixed: None,
            watched: Vec::new(),
            stats: EngineStats { registers: 1, ..EngineStats::default() },
        };
        let buffers = uring.register_memory(memory);
        Ok((uring, buffers))
    }

    fn register_memory(&mut self, memory: Option<(*mut u8, usize)>) -> BufferRegistration {
        let Some((base, length)) = memory else {
            return BufferRegistration::Unregistered("there is no pool".into());
        };
        let slices: Vec<libc::iovec> = (0..length)
            .step_by(FIXED_BYTES)
            .map(|from| libc::iovec {
                iov_base: base.wrapping_add(from).cast(),
                iov_len: FIXED_BYTES.min(length - from),
            })
            .collect();
        self.stats.registers += 1;
        // SAFETY: the kernel pins the pages, and accesses them only for calls with lent parts of
        // them.
        match unsafe { self.ring.submitter().register_buffers(&slices) } {
            Ok(()) => {
                self.fixed = Some(FixedRange { base: base as usize, length });
                BufferRegistration::Registered
            }
            Err(error) => BufferRegistration::Unregistered(refusal(&error, length)),
        }
    }

    /// Index of the registered buffer that contains a part; `None` if none contains all of it.
    fn fixed_index(&self, part: MemoryPart) -> Option<u16> {
        let fixed = self.fixed?;
        let from = (part.address() as usize).checked_sub(fixed.base)?;
        let to = from + part.length() as usize;
        let index = from / FIXED_BYTES;
        (to <= fixed.length && (to - 1) / FIXED_BYTES == index).then_some(index as u16)
    }

    /// Slot in which a file is registered, after registering it if needed; `None` if there is no
    /// room.
    fn file_slot(&mut self, file: FileRef) -> Option<Fixed> {
        if let Some(&slot) = self.files.get(&file.id) {
            return Some(Fixed(slot));
        }
        let slot = match self.free_slots.pop() {
            Some(slot) => slot,
            None if self.next_slot < self.file_slots => {
                self.next_slot += 1;
                self.next_slot - 1
            }
            None => return None,
        };
        self.stats.registers += 1;
        if self.ring.submitter().register_files_update(slot, &[file.fd]).is_err() {
            self.free_slots.push(slot);
            return None;
        }
        self.files.insert(file.id, slot);
        Some(Fixed(slot))
    }

    fn entry(&mut self, what: SystemCall) -> squeue::Entry {
        match what {
            SystemCall::Read { file, offset, part } => self.read_entry(file, offset, part),
            SystemCall::Write { file, offset, part, durable } => {
                let flags = if durable { libc::RWF_DSYNC } else { 0 };
                self.write_entry(file, offset, part, flags)
            }
            SystemCall::Sync { file } => {
                let flags = FsyncFlags::DATASYNC;
                // Does not register the file: the sync may be the last call before it is closed.
                match self.files.get(&file.id).copied().map(Fixed) {
                    Some(slot) => opcode::Fsync::new(slot).flags(flags).build(),
                    None => opcode::Fsync::new(Fd(file.fd)).flags(flags).build(),
                }
            }
            SystemCall::Fallocate { file, mode, offset, length } => {
                opcode::Fallocate::new(Fd(file.fd), length).offset(offset).mode(mode).build()
            }
        }
    }

    fn read_entry(&mut self, file: FileRef, offset: u64, part: MemoryPart) -> squeue::Entry {
        let (address, length) = (part.address(), part.length());
        let fixed = self.fixed_index(part);
        self.stats.fixed += u64::from(fixed.is_some());
        match (self.file_slot(file), fixed) {
            (Some(slot), Some(index)) => {
                opcode::ReadFixed::new(slot, address, length, index).offset(offset).build()
            }
            (Some(slot), None) => opcode::Read::new(slot, address, length).offset(offset).build(),
            (None, Some(index)) => {
                opcode::ReadFixed::new(Fd(file.fd), address, length, index).offset(offset).build()
            }
            (None, None) => opcode::Read::new(Fd(file.fd), address, length).offset(offset).build(),
        }
    }

    fn write_entry(
        &mut self,
        file: FileRef,
        at: u64,
        part: MemoryPart,
        flags: i32,
    ) -> squeue::Entry {
        let (from, length) = (part.address().cast_const(), part.length());
        let fixed = self.fixed_index(part);
        self.stats.fixed += u64::from(fixed.is_some());
        match (self.file_slot(file), fixed) {
            (Some(slot), Some(index)) => {
                let write = opcode::WriteFixed::new(slot, from, length, index);
                write.offset(at).rw_flags(flags).build()
            }
            (Some(slot), None) => {
                opcode::Write::new(slot, from, length).offset(at).rw_flags(flags).build()
            }
            (None, Some(index)) => {
                let write = opcode::WriteFixed::new(Fd(file.fd), from, length, index);
                write.offset(at).rw_flags(flags).build()
            }
            (None, None) => {
                opcode::Write::new(Fd(file.fd), from, length).offset(at).rw_flags(flags).build()
            }
        }
    }

    fn push(&mut self, entry: squeue::Entry) {
        self.in_flight += 1;
        if !self.backlog.is_empty() || !self.try_push(&entry) {
            self.backlog.push_back(entry);
        }
    }

    fn try_push(&mut self, entry: &squeue::Entry) -> bool {
        // SAFETY: `start`'s contract covers the memory of calls; polls and cancellations have none.
        unsafe { self.ring.submission().push(entry) }.is_ok()
    }

    fn fill_from_backlog(&mut self) {
        while let Some(entry) = self.backlog.pop_front() {
            if !self.try_push(&entry) {
                self.backlog.push_front(entry);
                break;
            }
        }
    }

    /// Calls `io_uring_enter` once if there is anything to submit or reap.
    fn enter(&mut self) {
        let submission = self.ring.submission();
        if submission.is_empty() && !submission.taskrun() && !submission.cq_overflow() {
            return;
        }
        drop(submission);
        self.stats.enters += 1;
        check(self.ring.submit());
    }

    fn reap(&mut self) {
        let mut completions = self.ring.completion();
        completions.sync();
        for completion in completions {
            self.in_flight -= 1;
            let (id, result) = (completion.user_data(), completion.result());
            if id & UNWATCH == UNWATCH {
                // The result of a poll's cancellation is not needed: the poll has its own
                // completion.
            } else if id & POLL_BIT != 0 {
                let watch = &mut self.watched[(id & !POLL_BIT) as usize];
                watch.armed = false;
                watch.readable = true;
            } else if id & CANCEL_BIT == 0 {
                self.events.push_back(EngineEvent::Ended { call: CallId(id), result });
            } else if result != 0 {
                self.events.push_back(EngineEvent::NotCancelled { call: CallId(id & !CANCEL_BIT) });
            }
        }
    }

    fn watch(&mut self, fd: RawFd) {
        let position = |fd| self.watched.iter().position(|watch| watch.fd == fd);
        let unused = || self.watched.iter().position(|watch| watch.fd == GONE && !watch.armed);
        let index = match position(fd).or_else(unused) {
            Some(index) => index,
            None => {
                self.watched.push(WatchedDescriptor { fd, armed: false, readable: false });
                self.watched.len() - 1
            }
        };
        if self.watched[index].fd != fd {
            self.watched[index] = WatchedDescriptor { fd, armed: false, readable: false };
        }
        if !self.watched[index].armed {
            self.watched[index].armed = true;
            let poll = opcode::PollAdd::new(Fd(fd), libc::POLLIN as u32).build();
            self.push(poll.user_data(POLL_BIT | index as u64));
        }
    }

    fn cancel_id(&mut self, id: u64, user_data: u64) {
        self.push(opcode::AsyncCancel::new(id).build().user_data(user_data));
    }
}

impl Engine for Uring {
    unsafe fn start(&mut self, call: CallId, what: SystemCall) {
        assert!(call.0 & (CANCEL_BIT | POLL_BIT) == 0, "at most 2^30 operations");
        self.stats.count(&what);
        let entry = self.entry(what).user_data(call.0);
        self.push(entry);
    }

    unsafe fn read_cached(&mut self, read: CachedRead) -> i32 {
        // SAFETY: the caller's promise.
        let result = unsafe { inline::read_cached(read) };
        self.stats.count_cached(&read, result);
        result
    }

    fn cancel(&mut self, call: CallId) {
        self.cancel_id(call.0, call.0 | CANCEL_BIT);
    }

    fn turn(&mut self) {
        self.fill_from_backlog();
        self.enter();
        self.reap();
    }

    fn next_event(&mut self) -> Option<EngineEvent> {
        self.events.pop_front()
    }

    fn reserve(&mut self, calls: usize) {
        // A call may have a cancellation, and both have a completion.
        let room = 2 * calls + self.watched.len();
        self.events.reserve(room.saturating_sub(self.events.len()));
        self.backlog.reserve(room.saturating_sub(self.backlog.len()));
    }

    fn sleep(&mut self, watched: &[RawFd], timeout: Option<Duration>) {
        for &fd in watched {
            self.watch(fd);
        }
        self.fill_from_backlog();
        let timespec = timeout.map(Timespec::from);
        let mut args = SubmitArgs::new();
        if let Some(timespec) = &timespec {
            args = args.timespec(timespec);
        }
        self.stats.waits += 1;
        check(self.ring.submitter().submit_with_args(1, &args));
        self.reap();
    }

    fn was_readable(&mut self, watched: RawFd) -> bool {
        let watch = self.watched.iter_mut().find(|watch| watch.fd == watched);
        watch.is_some_and(|watch| mem::take(&mut watch.readable))
    }

    fn unwatch(&mut self, watched: RawFd) {
        let Some(index) = self.watched.iter().position(|watch| watch.fd == watched) else { return };
        // Another descriptor with the same number gets a new entry.
        self.watched[index].fd = GONE;
        if self.watched[index].armed {
            self.cancel_id(POLL_BIT | index as u64, UNWATCH);
        }
    }

    fn forget(&mut self, file: FileId) {
        let Some(slot) = self.files.remove(&file) else { return };
        self.stats.registers += 1;
        match self.ring.submitter().register_files_update(slot, &[-1]) {
            Ok(_) => self.free_slots.push(slot),
            Err(error) => tracing::warn!(%error, "a removed file stays open in an io_uring"),
        }
    }

    fn stats(&self) -> EngineStats {
        self.stats
    }
}

impl Drop for Uring {
    /// Waits for all calls in flight, since the memory lent to them may be freed afterwards.
    fn drop(&mut self) {
        for index in 0..self.watched.len() {
            if self.watched[index].armed {
                self.cancel_id(POLL_BIT | index as u64, UNWATCH);
            }
        }
        while self.in_flight > 0 {
            self.fill_from_backlog();
            check(self.ring.submit_and_wait(1));
            self.reap();
        }
    }
}

/// Panics on errors of `io_uring_enter`, which would leave operations hanging silently, except
/// those that only interrupt or postpone it.
fn check(entered: io::Result<usize>) {
    let Err(error) = entered else { return };
    match error.raw_os_error() {
        Some(libc::EINTR | libc::EAGAIN | libc::EBUSY | libc::ETIME) => {}
        _ => panic!("io_uring_enter: {error}"),
    }
}

/// Builds a ring as large as RLIMIT_MEMLOCK allows; kernels since 6.14 count the queues of all
/// processes of a user against it.
fn build_ring() -> io::Result<IoUring> {
    let mut last = io::Error::from_raw_os_error(libc::ENOMEM);
    for sizes in SIZES {
        match build_ring_of(sizes) {
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => last = error,
            Ok(ring) if sizes != SIZES[0] => {
                tracing::warn!(
                    "io_uring gets queues of {} instead of {} entries, the most that RLIMIT_MEMLOCK allows; \
                     raise it with `ulimit -l` or LimitMEMLOCK= of the service",
                    sizes.submissions,
                    SIZES[0].submissions
                );
                return Ok(ring);
            }
            ring => return ring,
        }
    }
    Err(last)
}

fn build_ring_of(sizes: Sizes) -> io::Result<IoUring> {
    let cooperative = IoUring::builder()
        .setup_r_disabled()
        .setup_cqsize(sizes.completions)
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .build(sizes.submissions);
    let ring = match cooperative {
        // Kernels before 6.1 do not know these flags.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            let builder = &mut IoUring::builder();
            builder.setup_r_disabled().setup_cqsize(sizes.completions).build(sizes.submissions)
        }
        ring => ring,
    };
    let ring = ring?;
    ring_restrictions::restrict(&ring)?;
    Ok(ring)
}

/// Most files to register: the kernel accepts at most as many as a process may have open.
fn most_files() -> u32 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(FILES, |limit| FILES.min(u32::try_from(limit).unwrap_or(FILES)))
}
