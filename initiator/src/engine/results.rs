//! Where engines leave results, and who is waiting for them.
#![cfg_attr(test, expect(unsafe_code, reason = "memory whose release panics"))]

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use slab::Slab;

use crate::driver::foreign_code;
use crate::engine::plan_state::PlanState;
use crate::engine::range_op::DisplacedRange;
use crate::engine::write_table::WriteTable;
use crate::memory::plan_region::{ClaimedMemory, KeptMemory};
use crate::memory::region::RegionSlice;
use crate::types::error::{Error, ErrorKind};
use crate::types::host_trace::TraceInProgress;
use crate::types::plan::Outcome;

/// How a range of a ring ended.
#[derive(Debug)]
pub struct RangeCompletion {
    /// Token given when the range was submitted.
    pub token: u64,
    /// The memory, back from the target.
    pub slice: RegionSlice,
    /// Whether all bytes were transferred; if not, the slice's contents are unspecified.
    pub result: Result<(), Error>,
}

/// Names a ring of an [`Outbox`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingKey(usize);

impl RingKey {
    /// A key that names no ring.
    pub(crate) const NONE: Self = Self(usize::MAX);
}

/// Names a plan of an [`Outbox`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PlanKey(usize);

/// Where the result of a range goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResultSink {
    /// The result is added to those of a ring, where the range has a place.
    Ring(RingKey),
    /// The result is noted as the outcome of a plan's range, whose number the token is.
    Plan(PlanKey),
}

/// How a range was served, for the outcomes of plans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RangeService {
    /// The bits of [`Outcome::path`](crate::Outcome::path) so far.
    pub(crate) path: u8,
    pub(crate) attempts: u32,
    pub(crate) latency_us: u32,
}

impl RangeService {
    fn outcome(self, result: &Result<(), Error>) -> Outcome {
        Outcome {
            status: result.as_ref().map_or_else(Outcome::status_of, |()| 0),
            path: self.path,
            attempts: self.attempts.try_into().unwrap_or(u8::MAX),
            latency_us: self.latency_us,
        }
    }
}

/// State that the engines of a host share: its rings, plans and writes, and the wakers to call once
/// its lock is released.
#[derive(Default)]
pub(crate) struct Outbox {
    /// The writes of all engines.
    pub(crate) writes: WriteTable,
    /// Commands that were answered, while a trace of them is taken.
    pub(crate) trace: Option<TraceInProgress>,
    rings: Slab<RingState>,
    plans: Slab<OpenPlan>,
    wakers: Vec<Waker>,
    /// Results of rings that were abandoned. Their memory is freed once the host's lock is
    /// released: that calls what its owner left to be called.
    discarded: Vec<RangeCompletion>,
    /// Memory of plans that have ended, for the same reason.
    ended: Vec<KeptMemory>,
    /// Ranges of plans that are to be read from other replicas.
    replica_retries: Vec<ReplicaRetry>,
    /// Ranges of rings that their path cannot serve.
    displaced: Vec<DisplacedRange>,
    /// A controller was connected or lost: ranges that wait for one may be read from another.
    moved: bool,
    /// An attempt to connect waits until its provider is chosen.
    asks_for_path: bool,
}

/// Range of a plan that failed at one replica of its shard and is to be read from another.
pub(crate) struct ReplicaRetry {
    pub(crate) plan: PlanKey,
    pub(crate) range: u32,
    /// Error of the range if no other replica is left.
    pub(crate) error: Error,
    pub(crate) service: RangeService,
}

/// A plan whose ticket was not dropped, or whose ranges have not all ended.
struct OpenPlan {
    state: Arc<PlanState>,
    /// Memory of the plan until the last range has ended.
    memory: Option<ClaimedMemory>,
    in_flight: usize,
    waiting: Vec<PlanWaiter>,
    abandoned: bool,
}

/// A task that waits for ranges of a plan.
struct PlanWaiter {
    /// Ranges that it waits for to have ended.
    wanted: usize,
    waker: Waker,
}

struct RingState {
    ready: VecDeque<RangeCompletion>,
    in_flight: usize,
    depth: usize,
    /// `waker` is called when this many are ready.
    wanted: usize,
    waker: Option<Waker>,
    /// The ring was closed while ranges were in flight: their results are discarded.
    abandoned: bool,
}

impl Outbox {
    /// A ring for at most `depth` ranges, in flight and ready together.
    pub(crate) fn open(&mut self, depth: usize) -> RingKey {
        let ready = VecDeque::with_capacity(depth);
        let ring =
            RingState { ready, in_flight: 0, depth, wanted: 0, waker: None, abandoned: false };
        RingKey(self.rings.insert(ring))
    }

    /// Whether the ring takes another range.
    pub(crate) fn has_room(&self, key: RingKey) -> bool {
        let ring = &self.rings[key.0];
        ring.in_flight + ring.ready.len() < ring.depth
    }

    /// Takes a place in the ring, which has room.
    pub(crate) fn reserve(&mut self, key: RingKey) {
        debug_assert!(self.has_room(key));
        self.rings[key.0].in_flight += 1;
    }

    /// Delivers the result of a range.
    pub(crate) fn complete(
        &mut self,
        sink: ResultSink,
        completion: RangeCompletion,
        service: RangeService,
    ) {
        match sink {
            ResultSink::Ring(key) => self.complete_in_ring(key, completion),
            ResultSink::Plan(key) => {
                let RangeCompletion { token, slice, result } = completion;
                // Who sees that the range has ended may want all of its memory back. The plan
                // still keeps it.
                drop(slice);
                // Made of a 32-bit number.
                self.end_range(key, token as u32, result, service);
            }
        }
    }

    fn end_range(
        &mut self,
        plan: PlanKey,
        range: u32,
        result: Result<(), Error>,
        service: RangeService,
    ) {
        let state = &self.plans[plan.0].state;
        if let Err(error) = &result
            && matches!(error.kind(), ErrorKind::Changed(_))
        {
            state.take_out(range, error);
        }
        match result {
            Err(error) if state.is_replicated() && state.has_alternative(range, &error) => {
                self.replica_retries.push(ReplicaRetry { plan, range, error, service });
            }
            result => self.end_for_good(plan, range, result, service),
        }
    }

    /// Notes the outcome of a range that is not read from another replica.
    pub(crate) fn end_for_good(
        &mut self,
        plan: PlanKey,
        range: u32,
        result: Result<(), Error>,
        service: RangeService,
    ) {
        self.retire(plan, 1);
        let state = &self.plans[plan.0].state;
        let attempts = service.attempts + state.earlier_attempts(range);
        let outcome = RangeService { attempts, ..service }.outcome(&result);
        state.end(range, outcome, result.err());
        self.tell_of(plan);
    }

    /// The ranges that are to be read from other replicas. Each is to be submitted again, or to be
    /// ended.
    pub(crate) fn take_replica_retries(&mut self) -> Vec<ReplicaRetry> {
        std::mem::take(&mut self.replica_retries)
    }

    /// Ends the ranges of a plan that are between two replicas; returns how many.
    pub(crate) fn cancel_replica_retries(&mut self, plan: PlanKey) -> usize {
        let of_it = self.replica_retries.extract_if(.., |range| range.plan == plan);
        let ranges: Vec<_> = of_it.collect();
        for ReplicaRetry { range, service, .. } in &ranges {
            self.end_for_good(plan, *range, Err(ErrorKind::Cancelled.into()), *service);
        }
        ranges.len()
    }

    /// Adds a range of a ring that its path cannot serve.
    pub(crate) fn displace(&mut self, range: DisplacedRange) {
        self.displaced.push(range);
    }

    /// The ranges of rings that their path cannot serve.
    pub(crate) fn take_displaced(&mut self) -> Vec<DisplacedRange> {
        std::mem::take(&mut self.displaced)
    }

    /// A controller was connected, or its connection was lost.
    pub(crate) fn note_move(&mut self) {
        self.moved = true;
    }

    /// Whether that has happened since it was asked last.
    pub(crate) fn take_move(&mut self) -> bool {
        std::mem::take(&mut self.moved)
    }

    /// An attempt to connect waits until its provider is chosen.
    pub(crate) fn ask_for_path(&mut self) {
        self.asks_for_path = true;
    }

    /// Whether one has begun to wait since it was asked last.
    pub(crate) fn take_path_question(&mut self) -> bool {
        std::mem::take(&mut self.asks_for_path)
    }

    pub(crate) fn has_replica_retries(&self) -> bool {
        !self.replica_retries.is_empty()
    }

    pub(crate) fn plan_state(&self, plan: PlanKey) -> &Arc<PlanState> {
        &self.plans[plan.0].state
    }

    /// Delivers the result of a range that holds a place.
    pub(crate) fn complete_in_ring(&mut self, key: RingKey, completion: RangeCompletion) {
        let ring = &mut self.rings[key.0];
        ring.in_flight -= 1;
        if ring.abandoned {
            self.discarded.push(completion);
            if ring.in_flight == 0 {
                self.rings.remove(key.0);
            }
            return;
        }
        ring.ready.push_back(completion);
        if ring.ready.len() >= ring.wanted
            && let Some(waker) = ring.waker.take()
        {
            self.wakers.push(waker);
        }
    }

    /// The results that are ready.
    pub(crate) fn ready(&mut self, key: RingKey) -> &mut VecDeque<RangeCompletion> {
        &mut self.rings[key.0].ready
    }

    /// Ranges without a result yet.
    pub(crate) fn in_flight(&self, key: RingKey) -> usize {
        self.rings[key.0].in_flight
    }

    /// Registers `waker` to be called when `wanted` results are ready.
    pub(crate) fn notify(&mut self, key: RingKey, wanted: usize, waker: &Waker) {
        let ring = &mut self.rings[key.0];
        ring.wanted = wanted;
        let before = ring.waker.replace(waker.clone());
        // Not dropped here, as in `close_plan`.
        self.wakers.extend(before.filter(|before| !before.will_wake(waker)));
    }

    /// Gives a ring up; the memory of its ranges is freed as they end.
    pub(crate) fn close(&mut self, key: RingKey) {
        let ring = &mut self.rings[key.0];
        ring.abandoned = true;
        // Not dropped here, as in `close_plan`.
        self.wakers.extend(ring.waker.take());
        self.discarded.extend(ring.ready.drain(..));
        if ring.in_flight == 0 {
            self.rings.remove(key.0);
        }
    }

    /// Adds a plan before its ranges begin.
    pub(crate) fn open_plan(&mut self, state: Arc<PlanState>, memory: ClaimedMemory) -> PlanKey {
        let (in_flight, memory) = (state.len(), Some(memory));
        let plan = OpenPlan { state, memory, in_flight, waiting: Vec::new(), abandoned: false };
        let key = PlanKey(self.plans.insert(plan));
        // Without ranges it is at its end.
        self.retire(key, 0);
        key
    }

    /// A range of a plan: its destination.
    pub(crate) fn destination(&self, key: PlanKey, at: u64, length: u32) -> Option<RegionSlice> {
        self.plans[key.0].memory.as_ref().map(|memory| memory.part(at, length))
    }

    /// Ends unsent ranges of a plan.
    pub(crate) fn end_unsent(&mut self, key: PlanKey, ranges: &[u32], error: &Error) {
        if ranges.is_empty() {
            // The plan may have been removed.
            return;
        }
        // Another replica is not what somebody wants who cancels.
        let may_go_on = !matches!(error.kind(), ErrorKind::Cancelled);
        if may_go_on && self.plans[key.0].state.is_replicated() {
            for &range in ranges {
                self.end_range(key, range, Err(error.clone()), RangeService::default());
            }
        } else {
            self.retire(key, ranges.len());
            self.plans[key.0].state.end_unsent(ranges, error);
            self.tell_of(key);
        }
    }

    /// Ranges of a plan are about to be seen to have ended. With the last one its memory is free:
    /// before anybody sees that, who may submit the next plan into it immediately.
    fn retire(&mut self, key: PlanKey, ended: usize) {
        let plan = &mut self.plans[key.0];
        plan.in_flight -= ended;
        if plan.in_flight == 0
            && let Some(memory) = plan.memory.take()
        {
            self.ended.extend(memory.release());
        }
    }

    /// Ranges of a plan have ended: wakes those that wait for as many.
    fn tell_of(&mut self, key: PlanKey) {
        let plan = &mut self.plans[key.0];
        let done = plan.state.len() - plan.in_flight;
        let over = plan.waiting.extract_if(.., |waiter| waiter.wanted <= done);
        self.wakers.extend(over.map(|waiter| waiter.waker));
        if plan.in_flight == 0 && plan.abandoned {
            self.plans.remove(key.0);
        }
    }

    /// Whether ranges of a plan have not ended.
    pub(crate) fn is_plan_in_flight(&self, key: PlanKey) -> bool {
        self.plans[key.0].in_flight > 0
    }

    /// Registers `waker` to be called when `wanted` ranges of a plan have ended. A waker of the
    /// same task is replaced.
    pub(crate) fn notify_of_plan(&mut self, key: PlanKey, wanted: usize, waker: &Waker) {
        let waiting = &mut self.plans[key.0].waiting;
        waiting.retain(|waiter| !waiter.waker.will_wake(waker));
        waiting.push(PlanWaiter { wanted, waker: waker.clone() });
    }

    /// The ticket of a plan was dropped.
    pub(crate) fn close_plan(&mut self, key: PlanKey) {
        let plan = &mut self.plans[key.0];
        plan.abandoned = true;
        // Not dropped here: that may call code of others, which may want the host's lock.
        self.wakers.extend(plan.waiting.drain(..).map(|waiter| waiter.waker));
        if plan.in_flight == 0 {
            self.plans.remove(key.0);
        }
    }

    /// Adds a waker to call.
    pub(crate) fn wake(&mut self, waker: Waker) {
        self.wakers.push(waker);
    }

    /// Moves the work that waits for the release of the host's lock into `deferred`.
    pub(crate) fn take_deferred(&mut self, deferred: &mut Deferred) {
        deferred.wakers.append(&mut self.wakers);
        deferred.discarded.append(&mut self.discarded);
        deferred.ended.append(&mut self.ended);
    }

    /// Whether any work waits for the release of the host's lock.
    pub(crate) fn has_deferred(&self) -> bool {
        !self.wakers.is_empty() || !self.discarded.is_empty() || !self.ended.is_empty()
    }
}

/// Work that runs after the host's lock is released, since it calls code of others.
#[derive(Default)]
pub(crate) struct Deferred {
    wakers: Vec<Waker>,
    discarded: Vec<RangeCompletion>,
    ended: Vec<KeptMemory>,
}

impl Deferred {
    /// Runs all of it, even if some of it panics; keeps the room of the lists.
    pub(crate) fn run(&mut self) {
        self.discarded.clear();
        self.ended.clear();
        for waker in self.wakers.drain(..) {
            foreign_code::call("a waker", || waker.wake());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;
    use crate::driver::process::Process;
    use crate::engine::reply::promise;
    use crate::memory::region::Grant;

    struct CountsWakes(AtomicUsize);

    impl Wake for CountsWakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    struct PanicsAtWakes;

    impl Wake for PanicsAtWakes {
        fn wake(self: Arc<Self>) {
            panic!("of a test");
        }
    }

    fn memory_whose_release_panics() -> RegionSlice {
        let bytes = Box::leak(Box::new([0u8; 16]));
        let address = std::ptr::NonNull::from(bytes).cast();
        // SAFETY: the memory is never freed, and used through the slice only.
        unsafe { RegionSlice::from_raw(address, 16, Grant::Persistent, || panic!("of a test")) }
    }

    #[test]
    fn deferred_work_is_all_done_though_some_panics() {
        let woken = Arc::new(CountsWakes(AtomicUsize::new(0)));
        let (counts, panics) =
            (Waker::from(Arc::clone(&woken)), Waker::from(Arc::new(PanicsAtWakes)));
        let mut outbox = Outbox::default();
        let ring = outbox.open(2);
        for token in 0..2 {
            outbox.reserve(ring);
            let slice = memory_whose_release_panics();
            outbox.complete_in_ring(ring, RangeCompletion { token, slice, result: Ok(()) });
        }
        outbox.close(ring);
        for waker in [&panics, &counts, &panics, &counts] {
            outbox.wake(waker.clone());
        }
        let mut deferred = Deferred::default();
        outbox.take_deferred(&mut deferred);
        deferred.run();
        assert_eq!(woken.0.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn promises_are_broken_though_wakers_panic() {
        let woken = Arc::new(CountsWakes(AtomicUsize::new(0)));
        let (counts, panics) =
            (Waker::from(Arc::clone(&woken)), Waker::from(Arc::new(PanicsAtWakes)));
        let (mut promises, mut replies) = (Vec::new(), Vec::new());
        for waker in [&panics, &panics, &counts] {
            let (promise, mut reply) = promise::<()>(Process::current());
            let mut context = std::task::Context::from_waker(waker);
            assert!(std::pin::Pin::new(&mut reply).poll(&mut context).is_pending());
            promises.push(promise);
            replies.push(reply);
        }
        // A second panic while the first unwinds would end the process.
        drop(promises);
        assert_eq!(woken.0.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_waker_that_is_replaced_is_called_outside_the_lock() {
        let woken = Arc::new(CountsWakes(AtomicUsize::new(0)));
        let mut outbox = Outbox::default();
        let ring = outbox.open(1);
        outbox.reserve(ring);
        outbox.notify(ring, 1, &Waker::from(Arc::clone(&woken)));
        outbox.notify(ring, 1, &Waker::from(Arc::clone(&woken)));
        assert!(!outbox.has_deferred());
        outbox.notify(ring, 1, Waker::noop());
        let mut deferred = Deferred::default();
        outbox.take_deferred(&mut deferred);
        deferred.run();
        assert_eq!(woken.0.load(Ordering::SeqCst), 1);
    }
}
