//! Gates of devices of different kinds, in simulated time.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use super::*;
use crate::backend::FileBackend;

const CALL_BYTES: u32 = 128 << 10;
const DEPTH: u64 = 32;
/// Time that the target takes to answer a read.
const ANSWER: Duration = Duration::from_micros(30);

/// Way in which a device processes its calls.
#[derive(Clone, Copy)]
enum Kind {
    /// The calls submitted together are one job, and one job is processed at a time.
    Jobs { fixed: Duration, each: Duration },
    /// All calls are processed in parallel.
    Parallel { each: Duration },
    /// Calls are processed one after the other.
    Serial { each: Duration },
}

const JOBS: Kind = Kind::Jobs { fixed: Duration::from_micros(35), each: Duration::from_micros(40) };
const PARALLEL: Kind = Kind::Parallel { each: Duration::from_micros(90) };
const SERIAL: Kind = Kind::Serial { each: Duration::from_micros(35) };

/// A device with its clock.
#[derive(Clone)]
struct Device {
    now: Rc<Cell<Time>>,
    kind: Rc<Cell<Kind>>,
    calls: Rc<RefCell<Calls>>,
}

#[derive(Default)]
struct Calls {
    /// Calls submitted since the last turn.
    given: Vec<CallId>,
    /// Running calls, and the time at which each ends.
    inside: VecDeque<(CallId, Time)>,
    ended: VecDeque<EngineEvent>,
    cancelled: usize,
}

impl Device {
    fn new(kind: Kind) -> Self {
        let (now, kind) = (Rc::new(Cell::new(Time::ZERO)), Rc::new(Cell::new(kind)));
        Self { now, kind, calls: Rc::default() }
    }

    fn pass(&self, time: Duration) {
        self.now.set(self.now.get() + time);
    }

    fn inside(&self) -> usize {
        self.calls.borrow().inside.len()
    }

    fn cancelled(&self) -> usize {
        self.calls.borrow().cancelled
    }
}

impl Engine for Device {
    unsafe fn start(&mut self, call: CallId, _: SystemCall) {
        self.calls.borrow_mut().given.push(call);
    }

    fn cancel(&mut self, call: CallId) {
        let mut calls = self.calls.borrow_mut();
        assert!(
            calls.given.contains(&call) || calls.inside.iter().any(|&(other, _)| other == call)
        );
        calls.cancelled += 1;
        calls.ended.push_back(EngineEvent::NotCancelled { call });
    }

    fn turn(&mut self) {
        let now = self.now.get();
        let Calls { given, inside, ended, .. } = &mut *self.calls.borrow_mut();
        let idle_from = inside.back().map_or(now, |&(_, end)| end.max(now));
        let count = given.len() as u32;
        for (index, call) in (1..).zip(given.drain(..)) {
            let end = match self.kind.get() {
                Kind::Jobs { fixed, each } => idle_from + fixed + each * count,
                // Never two at the same time.
                Kind::Parallel { each } => now + each + Duration::from_nanos(call.0 % 7 * 900),
                Kind::Serial { each } => idle_from + each * index,
            };
            inside.push_back((call, end));
        }
        inside.retain(|&(call, end)| {
            if end <= now {
                ended.push_back(EngineEvent::Ended { call, result: CALL_BYTES as i32 });
            }
            end > now
        });
    }

    fn next_event(&mut self) -> Option<EngineEvent> {
        self.calls.borrow_mut().ended.pop_front()
    }

    fn reserve(&mut self, _: usize) {}

    fn sleep(&mut self, _: &[RawFd], _: Option<Duration>) {}

    fn was_readable(&mut self, _: RawFd) -> bool {
        false
    }

    fn stats(&self) -> EngineStats {
        EngineStats::default()
    }
}

/// A host that keeps reads in flight, and a target that takes time to answer each.
struct Load {
    pool: Pool,
    buffer: crate::core_context::pool::Buffer,
    storage: Storage<u64>,
    backend: Arc<dyn Backend>,
    device: Device,
    answered: u64,
}

impl Load {
    /// Gates ignore reads through the page cache.
    fn new(kind: Kind, direct: bool) -> Self {
        let device = Device::new(kind);
        let mut pool = pool();
        let file = tempfile::tempfile().unwrap();
        let backend = FileBackend::new(file.into(), 1 << 30, direct.then_some(4096));
        let mut storage = Storage::new(Box::new(device.clone()));
        storage.reserve(DEPTH as usize);
        let buffer = pool.allocate(CALL_BYTES).unwrap();
        Self { pool, buffer, storage, backend: Arc::new(backend), device, answered: 0 }
    }

    fn submit(&mut self, tag: u64) -> OperationKey {
        // SAFETY: the buffer outlives the storage, and the device touches no memory.
        let span = unsafe { self.pool.span(&self.buffer, 0, CALL_BYTES) };
        let read = Operation::read(0, span);
        let now = self.device.now.get();
        match self.storage.submit(now, tag, &self.backend, read) {
            Submitted::UnderWay(key) => key,
            Submitted::Over(result) => panic!("{result:?}"),
        }
    }

    /// Answers ended reads; each answer takes a while, and the host sends the next read.
    fn turn(&mut self) {
        self.storage.turn(self.device.now.get());
        if let Some(report) = self.storage.next_report() {
            let StorageReport::Done { tag, result: Ok(()) } = report else { panic!("{report:?}") };
            self.answered += 1;
            self.device.pass(ANSWER);
            self.submit(tag);
        }
        self.device.pass(Duration::from_micros(1));
    }

    /// Number of answers within a time.
    fn run(&mut self, time: Duration) -> u64 {
        let before = self.answered;
        let end = self.device.now.get() + time;
        while self.device.now.get() < end {
            self.turn();
        }
        self.answered - before
    }
}

/// A load that has begun on a device of this kind.
fn begun(kind: Kind, direct: bool) -> Load {
    let mut load = Load::new(kind, direct);
    for tag in 0..DEPTH {
        load.submit(tag);
    }
    load
}

/// Number of answers within a second, by a device of this kind, with or without gates.
fn answers(kind: Kind, direct: bool) -> u64 {
    begun(kind, direct).run(Duration::from_secs(1))
}

#[test]
fn a_device_that_works_in_jobs_gains() {
    let (gated, open) = (answers(JOBS, true), answers(JOBS, false));
    assert!(10 * gated >= 12 * open, "{gated} with gates, {open} without");
}

#[test]
fn a_parallel_device_loses_almost_nothing() {
    for kind in [PARALLEL, SERIAL] {
        let (gated, open) = (answers(kind, true), answers(kind, false));
        assert!(100 * gated >= 95 * open, "{gated} with gates, {open} without");
    }
}

#[test]
fn a_device_that_changes_its_ways_is_followed() {
    let mut load = begun(JOBS, true);
    load.run(Duration::from_secs(1));
    load.device.kind.set(PARALLEL);
    load.run(Duration::from_secs(6));
    let (gated, open) = (load.run(Duration::from_secs(1)), answers(PARALLEL, false));
    assert!(100 * gated >= 95 * open, "{gated} with gates, {open} without");
    load.device.kind.set(JOBS);
    load.run(Duration::from_secs(6));
    let (gated, open) = (load.run(Duration::from_secs(1)), answers(JOBS, false));
    assert!(10 * gated >= 12 * open, "{gated} with gates, {open} without");
}

/// Two reads that a stuck device does not end, and a third that is held back.
fn stuck() -> (Load, OperationKey) {
    let mut load = begun(JOBS, true);
    load.run(Duration::from_secs(1));
    while load.storage.in_flight() > 0 {
        load.storage.turn(load.device.now.get());
        while load.storage.next_report().is_some() {}
        load.device.pass(Duration::from_micros(1));
    }
    load.device.kind.set(Kind::Serial { each: Duration::from_secs(1000) });
    let [_, _, third] = [0, 1, 2].map(|tag| load.submit(tag));
    load.storage.turn(load.device.now.get());
    assert_eq!((load.device.inside(), load.storage.in_flight()), (2, 3));
    (load, third)
}

#[test]
fn a_stuck_device_does_not_hold_calls_for_long() {
    let (mut load, _) = stuck();
    let deadline = load.storage.deadline().expect("a held call has a deadline");
    assert!(deadline <= load.device.now.get() + Duration::from_millis(10));
    load.device.now.set(deadline);
    assert!(load.storage.turn(deadline));
    assert_eq!(load.device.inside(), 3);
    assert_eq!(load.storage.deadline(), None);
}

#[test]
fn a_held_call_can_be_cancelled() {
    let (mut load, third) = stuck();
    load.storage.cancel(third);
    assert_eq!(load.device.cancelled(), 1);
    load.storage.turn(load.device.now.get());
    let report = load.storage.next_report();
    assert!(matches!(report, Some(StorageReport::NotCancelled { tag: 2 })), "{report:?}");
    assert_eq!(load.device.inside(), 3);
}
