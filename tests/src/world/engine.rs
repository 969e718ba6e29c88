//! A storage engine whose files are simulated disks: system calls take their time, fail, do half
//! their work, and end out of order.
#![expect(unsafe_code, reason = "reads and writes memory that was lent to system calls")]

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::os::fd::RawFd;
use std::rc::Rc;
use std::time::Duration;

use feedrail_target::backend::{CachedRead, FileRef, MemoryPart, SystemCall};
use feedrail_target::stepped::{CallId, Engine, EngineEvent, EngineStats};
use rdma::Time;

use super::Random;
use super::medium::{Mark, Medium, SECTOR_BYTES};

/// When calls end that hang.
const NEVER: Time = Time::from_nanos(u64::MAX);

/// A medium that a disk and the engines of several cores share.
pub(super) type SharedMedium = Rc<RefCell<Medium>>;

/// How simulated disks behave; may change while they run. Probabilities are per million system
/// calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskConfig {
    /// Each call takes at least this long.
    pub latency: Duration,
    /// Added to it, evenly distributed from nothing to this: calls overtake each other.
    pub jitter: Duration,
    /// Calls that take `stall` more.
    pub stall_ppm: u32,
    /// Time that such a call takes more. The disk gets the call at the end of that time, whether or
    /// not the host that asked for it still exists by then.
    pub stall: Duration,
    /// Calls that fail with EIO; a write may have changed some of its sectors.
    pub error_ppm: u32,
    /// Writes and allocations that find no space.
    pub no_space_ppm: u32,
    /// Reads and writes that do only part of their bytes.
    pub short_ppm: u32,
    /// Reads that find only their first bytes in the page cache of a disk; other reads find nothing
    /// there.
    pub cached_ppm: u32,
}

/// Counters of simulated disks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// System calls handed to the disks.
    pub calls: u64,
    /// Calls that took long.
    pub stalls: u64,
    /// Reads that never ended.
    pub hung: u64,
    /// Calls that failed with EIO.
    pub errors: u64,
    /// Calls that found no space.
    pub no_space: u64,
    /// Calls that did part of their bytes.
    pub short: u64,
    /// Reads that found only some of their bytes in a page cache.
    pub cached: u64,
    /// Calls that were cancelled.
    pub cancelled: u64,
    /// Calls that the end of their process interrupted.
    pub interrupted: u64,
    /// Sectors whose latest contents a power loss took.
    pub sectors_lost: u64,
}

/// The disks of one node, and the calls on them. Clones are the same.
#[derive(Clone)]
pub(super) struct SimDisks {
    inner: Rc<RefCell<Inner>>,
}

struct Inner {
    now: Time,
    random: Random,
    config: DiskConfig,
    stats: DiskStats,
    files: BTreeMap<RawFd, SharedMedium>,
    /// Engines made until now, which number their calls.
    engines: u64,
    /// Calls by the time when they end; a serial number tells calls apart that end at the same
    /// time.
    calls: BTreeMap<(Time, u64), Call>,
    serial: u64,
    /// This many reads to come never end.
    hangs: u32,
    /// Name under which each call and its end is printed.
    verbose: Option<String>,
}

#[derive(Clone, Copy)]
struct Call {
    engine: u64,
    id: CallId,
    what: SystemCall,
    fault: Option<Fault>,
    /// When it began, as its medium sees it.
    began: Mark,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Error,
    NoSpace,
    Short,
}

/// The engine of one core.
pub(super) struct DiskEngine {
    sim_disks: SimDisks,
    number: u64,
    events: VecDeque<EngineEvent>,
    stats: EngineStats,
}

impl SimDisks {
    pub(super) fn new(seed: u64) -> Self {
        let inner = Inner {
            now: Time::ZERO,
            random: Random::new(seed),
            config: DiskConfig::default(),
            stats: DiskStats::default(),
            files: BTreeMap::new(),
            engines: 0,
            calls: BTreeMap::new(),
            serial: 0,
            hangs: 0,
            verbose: None,
        };
        Self { inner: Rc::new(RefCell::new(inner)) }
    }

    /// The medium of a file that the process has opened. Descriptors are reused: the latest counts.
    pub(super) fn insert(&self, file: RawFd, medium: SharedMedium) {
        self.inner.borrow_mut().files.insert(file, medium);
    }

    pub(super) fn engine(&self) -> DiskEngine {
        let mut inner = self.inner.borrow_mut();
        inner.engines += 1;
        let number = inner.engines;
        drop(inner);
        DiskEngine {
            sim_disks: self.clone(),
            number,
            events: VecDeque::new(),
            stats: EngineStats::default(),
        }
    }

    pub(super) fn set_time(&self, now: Time) {
        self.inner.borrow_mut().now = now;
    }

    /// When the next call ends. An ended call waits for its core.
    pub(super) fn next_end(&self) -> Option<Time> {
        let inner = self.inner.borrow();
        let mut later = inner.calls.range((inner.now, u64::MAX)..);
        later.next().map(|(&(at, _), _)| at).filter(|&at| at < NEVER)
    }

    /// The next `count` reads end with their process only.
    pub(super) fn hang_reads(&self, count: u32) {
        self.inner.borrow_mut().hangs = count;
    }

    /// Where the bytes of reads go that hang.
    pub(super) fn hung(&self) -> Vec<usize> {
        let inner = self.inner.borrow();
        let hung = inner.calls.range((NEVER, 0)..);
        let part = |call: &Call| match call.what {
            SystemCall::Read { part, .. } => Some(part.address().addr()),
            _ => None,
        };
        hung.filter_map(|(_, call)| part(call)).collect()
    }

    pub(super) fn set_config(&self, config: DiskConfig) {
        self.inner.borrow_mut().config = config;
    }

    pub(super) fn set_verbose(&self, name: String) {
        self.inner.borrow_mut().verbose = Some(name);
    }

    pub(super) fn stats(&self) -> DiskStats {
        self.inner.borrow_mut().stats
    }

    /// The power goes: every disk loses an arbitrary part of the data that is not durable.
    pub(super) fn lose_power(&self) {
        let mut inner = self.inner.borrow_mut();
        let Inner { files, random, stats, .. } = &mut *inner;
        for medium in files.values() {
            stats.sectors_lost += medium.borrow_mut().lose_power(random);
        }
    }
}

impl Inner {
    fn start(&mut self, engine: u64, id: CallId, what: SystemCall) {
        self.stats.calls += 1;
        let fault = self.fault(&what);
        let began = self.files[&file(&what).fd].borrow().mark();
        let mut takes = self.config.latency;
        let jitter = self.config.jitter.as_nanos() as u64;
        takes += Duration::from_nanos(self.random.within(0..jitter + 1));
        if self.random.ppm(self.config.stall_ppm) {
            self.stats.stalls += 1;
            takes += self.config.stall;
        }
        self.serial += 1;
        let hangs = self.hangs > 0 && matches!(what, SystemCall::Read { .. });
        if hangs {
            self.hangs -= 1;
            self.stats.hung += 1;
            self.print_event(&what, || "begins and hangs".into());
        } else {
            self.print_event(&what, || format!("begins and takes {takes:?}, fault: {fault:?}"));
        }
        let key = (if hangs { NEVER } else { self.now + takes }, self.serial);
        self.calls.insert(key, Call { engine, id, what, fault, began });
    }

    /// Reads what the page cache has of a disk.
    fn read_cached(&mut self, read: CachedRead) -> i32 {
        let CachedRead { file, offset, part, .. } = read;
        if !self.random.ppm(self.config.cached_ppm) {
            return -libc::EAGAIN;
        }
        self.stats.cached += 1;
        let all = part.length() as usize;
        let length = match all.is_multiple_of(SECTOR_BYTES) {
            true => {
                let sectors = (all / SECTOR_BYTES) as u64;
                self.random.within(1..sectors + 1) as usize * SECTOR_BYTES
            }
            // Mostly whole, since few lists of ranges would be.
            false if self.random.percent(97) => all,
            false => self.random.within(1..all as u64 + 1) as usize,
        };
        let medium = self.files[&file.fd].borrow();
        let from = &medium.bytes()[offset as usize..][..length];
        // SAFETY: the part is lent to the call, and is at least as long.
        unsafe { part.address().copy_from_nonoverlapping(from.as_ptr(), length) };
        length as i32
    }

    fn fault(&mut self, what: &SystemCall) -> Option<Fault> {
        let DiskConfig { error_ppm, no_space_ppm, short_ppm, .. } = self.config;
        let takes_space = matches!(what, SystemCall::Write { .. } | SystemCall::Fallocate { .. });
        let moves = matches!(what, SystemCall::Write { .. } | SystemCall::Read { .. });
        if self.random.ppm(error_ppm) {
            self.stats.errors += 1;
            Some(Fault::Error)
        } else if takes_space && self.random.ppm(no_space_ppm) {
            self.stats.no_space += 1;
            Some(Fault::NoSpace)
        } else if moves && self.random.ppm(short_ppm) {
            self.stats.short += 1;
            Some(Fault::Short)
        } else {
            None
        }
    }

    /// The calls of an engine that end now.
    fn take_due(&mut self, engine: u64) -> Option<Call> {
        let due = self.calls.range(..=(self.now, u64::MAX));
        let key = due.filter(|(_, call)| call.engine == engine).map(|(&key, _)| key).next()?;
        self.calls.remove(&key)
    }

    /// Takes a call back that has not begun for good. Half of them have, and those that hang.
    fn take_back(&mut self, engine: u64, id: CallId) -> bool {
        let mut calls = self.calls.iter();
        let Some((&key, _)) = calls.find(|(_, call)| call.engine == engine && call.id == id) else {
            return false;
        };
        let taken = key.0 < NEVER && self.random.percent(50);
        if taken {
            self.stats.cancelled += 1;
            if let Some(call) = self.calls.remove(&key) {
                self.print_event(&call.what, || "is cancelled".into());
            }
        }
        taken
    }

    /// Carries a call out, and returns the result of the system call.
    fn finish(&mut self, call: &Call) -> i32 {
        let medium = Rc::clone(&self.files[&file(&call.what).fd]);
        let mut medium = medium.borrow_mut();
        match call.fault {
            Some(Fault::NoSpace) => return -libc::ENOSPC,
            Some(Fault::Error) => {
                self.do_some(&mut medium, call);
                return -libc::EIO;
            }
            _ => {}
        }
        match call.what {
            SystemCall::Read { offset, part, .. } => {
                let length = self.share(part, call.fault);
                let offset = offset as usize;
                let from = &medium.bytes()[offset..offset + length];
                // SAFETY: the part is lent to the call, which has not ended, and is as long.
                unsafe { part.address().copy_from_nonoverlapping(from.as_ptr(), length) };
                length as i32
            }
            SystemCall::Write { offset, part, durable, .. } => {
                let length = self.share(part, call.fault);
                medium.write(offset as usize, &bytes_of(part)[..length]);
                if durable {
                    medium.persist(offset as usize, length);
                }
                length as i32
            }
            SystemCall::Sync { .. } => {
                medium.persist_until(call.began);
                0
            }
            SystemCall::Fallocate { offset, length, .. } => {
                medium.write(offset as usize, &vec![0; length as usize]);
                0
            }
        }
    }

    /// How many of its bytes a read or write moves.
    fn share(&mut self, part: MemoryPart, fault: Option<Fault>) -> usize {
        let sectors = u64::from(part.length()) / SECTOR_BYTES as u64;
        match fault {
            Some(Fault::Short) if sectors > 1 => {
                self.random.within(1..sectors) as usize * SECTOR_BYTES
            }
            _ => part.length() as usize,
        }
    }

    /// Writes some of a call's sectors, as a call that failed or was interrupted may have done.
    fn do_some(&mut self, medium: &mut Medium, call: &Call) {
        let (offset, bytes) = match call.what {
            SystemCall::Write { offset, part, .. } => (offset as usize, bytes_of(part)),
            SystemCall::Fallocate { offset, length, .. } => {
                (offset as usize, vec![0; length as usize])
            }
            SystemCall::Read { .. } | SystemCall::Sync { .. } => return,
        };
        let percent = self.random.pick(&[0, 50, 100]);
        for (index, sector) in bytes.chunks_exact(SECTOR_BYTES).enumerate() {
            if self.random.percent(percent) {
                medium.write(offset + index * SECTOR_BYTES, sector);
            }
        }
    }

    fn print_event(&self, call: &SystemCall, what: impl FnOnce() -> String) {
        if let Some(name) = &self.verbose {
            super::print_event(self.now, name, &format!("{} {}", describe(call), what()));
        }
    }

    /// The process has ended in the middle of calls.
    fn interrupt(&mut self, engine: u64) {
        let calls = std::mem::take(&mut self.calls);
        for (key, call) in calls {
            if call.engine != engine {
                self.calls.insert(key, call);
                continue;
            }
            self.stats.interrupted += 1;
            self.print_event(&call.what, || "is interrupted".into());
            let medium = Rc::clone(&self.files[&file(&call.what).fd]);
            self.do_some(&mut medium.borrow_mut(), &call);
        }
    }
}

impl Engine for DiskEngine {
    unsafe fn start(&mut self, call: CallId, what: SystemCall) {
        self.stats.plain += 1;
        self.sim_disks.inner.borrow_mut().start(self.number, call, what);
    }

    unsafe fn read_cached(&mut self, read: CachedRead) -> i32 {
        self.sim_disks.inner.borrow_mut().read_cached(read)
    }

    fn cancel(&mut self, call: CallId) {
        if self.sim_disks.inner.borrow_mut().take_back(self.number, call) {
            self.events.push_back(EngineEvent::Ended { call, result: -libc::ECANCELED });
        } else {
            self.events.push_back(EngineEvent::NotCancelled { call });
        }
    }

    fn turn(&mut self) {
        let mut inner = self.sim_disks.inner.borrow_mut();
        while let Some(call) = inner.take_due(self.number) {
            let result = inner.finish(&call);
            inner.print_event(&call.what, || format!("returns {result}"));
            self.events.push_back(EngineEvent::Ended { call: call.id, result });
        }
    }

    fn next_event(&mut self) -> Option<EngineEvent> {
        self.events.pop_front()
    }

    fn reserve(&mut self, calls: usize) {
        self.events.reserve((2 * calls).saturating_sub(self.events.len()));
    }

    fn sleep(&mut self, _watched: &[RawFd], _timeout: Option<Duration>) {
        unreachable!("a stepped target does not sleep")
    }

    fn was_readable(&mut self, _watched: RawFd) -> bool {
        unreachable!("a stepped target does not ask for wake-ups")
    }

    fn stats(&self) -> EngineStats {
        self.stats
    }
}

impl Drop for DiskEngine {
    fn drop(&mut self) {
        self.sim_disks.inner.borrow_mut().interrupt(self.number);
    }
}

fn file(what: &SystemCall) -> FileRef {
    match *what {
        SystemCall::Read { file, .. }
        | SystemCall::Write { file, .. }
        | SystemCall::Sync { file }
        | SystemCall::Fallocate { file, .. } => file,
    }
}

fn describe(what: &SystemCall) -> String {
    let fd = file(what).fd;
    match *what {
        SystemCall::Read { offset, part, .. } => {
            format!("file {fd}: read of {} bytes at {offset}", part.length())
        }
        SystemCall::Write { offset, part, durable, .. } => {
            let durable = if durable { "durable " } else { "" };
            format!("file {fd}: {durable}write of {} bytes at {offset}", part.length())
        }
        SystemCall::Sync { .. } => format!("file {fd}: sync"),
        SystemCall::Fallocate { offset, length, .. } => {
            format!("file {fd}: fallocate of {length} bytes at {offset}")
        }
    }
}

fn bytes_of(part: MemoryPart) -> Vec<u8> {
    let mut bytes = vec![0; part.length() as usize];
    // SAFETY: the part is lent to a call that has not ended, and is as long.
    unsafe { part.address().copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
    bytes
}
