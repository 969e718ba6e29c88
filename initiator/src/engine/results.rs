//! Results of ranges on their way from the engines to the callers, and the wakers of the callers.
#![cfg_attr(test, expect(unsafe_code, reason = "memory whose release panics"))]

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use rdma::Time;

use crate::engine::arena::{Arena, EngineKey, PlanKey, RingKey};
use crate::engine::completion::{RangeCompletion, RangeService};
use crate::engine::computation::{Computation, DueComputation};
use crate::engine::deferred::Deferred;
use crate::engine::plan_state::PlanState;
use crate::engine::range_op::{Displaced, DisplacedRange, RangeOp};
use crate::engine::range_owner::RangeOwner;
use crate::engine::write_table::WriteTable;
use crate::memory::plan_region::{ClaimedMemory, KeptMemory};
use crate::memory::region::RegionSlice;
use crate::types::error::{Error, ErrorKind};
use crate::types::host_trace::TraceInProgress;

/// State that all engines of a host share: its rings, plans and writes, and the wakers to call
/// after its lock is released.
#[derive(Default)]
pub(crate) struct Outbox {
    /// Writes in progress of all engines.
    pub(crate) writes: WriteTable,
    /// Trace in progress of completed commands.
    pub(crate) trace: Option<TraceInProgress>,
    rings: Arena<RingKey, RingState>,
    plans: Arena<PlanKey, OpenPlan>,
    wakers: Vec<Waker>,
    /// Results of abandoned rings. Their memory is freed after the host's lock is released, since
    /// that can call code of its owner.
    discarded: Vec<RangeCompletion>,
    /// Memory of plans that have ended, which is freed at that time as well.
    ended: Vec<KeptMemory>,
    /// Ranges that may continue on other paths or replicas.
    displaced: Vec<DisplacedRange>,
    /// A controller was connected or lost, so that waiting ranges may be moved.
    moved: bool,
    /// An attempt to connect waits for the selection of its provider.
    asks_for_path: bool,
    /// Computations for authentications, which are done after the host's lock is released.
    computations: Vec<DueComputation>,
}

/// A plan whose ticket exists, or whose ranges have not all ended.
struct OpenPlan {
    state: Arc<PlanState>,
    /// Memory of the plan, until its last range has ended.
    memory: Option<ClaimedMemory>,
    in_flight: usize,
    waiting: Vec<PlanWaiter>,
    abandoned: bool,
}

/// A task that waits for ranges of a plan.
struct PlanWaiter {
    /// Number of ended ranges at which it is woken.
    wanted: usize,
    waker: Waker,
}

struct RingState {
    ready: VecDeque<RangeCompletion>,
    in_flight: usize,
    depth: usize,
    /// Number of ready results at which `waker` is called.
    wanted: usize,
    waker: Option<Waker>,
    /// The ring was closed while ranges were in flight; their results are discarded.
    abandoned: bool,
}

impl Outbox {
    /// Opens a ring for at most `depth` ranges, in flight or ready.
    pub(crate) fn open(&mut self, depth: usize) -> RingKey {
        let ready = VecDeque::with_capacity(depth);
        let ring =
            RingState { ready, in_flight: 0, depth, wanted: 0, waker: None, abandoned: false };
        self.rings.insert(ring)
    }

    /// Returns whether the ring has room for another range.
    pub(crate) fn has_room(&self, key: RingKey) -> bool {
        let ring = &self.rings[key];
        ring.in_flight + ring.ready.len() < ring.depth
    }

    /// Reserves a place in the ring, which must have room.
    pub(crate) fn reserve(&mut self, key: RingKey) {
        debug_assert!(self.has_room(key));
        self.rings[key].in_flight += 1;
    }

    /// Delivers the result of a range to its owner.
    pub(crate) fn complete(
        &mut self,
        owner: RangeOwner,
        slice: RegionSlice,
        result: Result<(), Error>,
        service: RangeService,
    ) {
        match owner {
            RangeOwner::Ring { ring, token, .. } => {
                self.complete_in_ring(ring, RangeCompletion { token, slice, result });
            }
            RangeOwner::Plan { plan, index } => {
                // A caller that sees the end of the range may reuse the memory, which the plan
                // still keeps.
                drop(slice);
                self.end_range(plan, index, result, service);
            }
            RangeOwner::PlanRanges { plan, first, count } => {
                drop(slice);
                match result {
                    Ok(()) => self.end_ranges(plan, first, count, service),
                    Err(error) => (first..first + count).for_each(|index| {
                        self.end_range(plan, index, Err(error.clone()), service);
                    }),
                }
            }
        }
    }

    /// Records the success of `count` ranges of a plan.
    pub(crate) fn end_ranges(
        &mut self,
        plan: PlanKey,
        first: u32,
        count: u32,
        service: RangeService,
    ) {
        if count == 0 {
            return;
        }
        self.retire(plan, count as usize);
        self.plans[plan].state.end_all(first, count, service);
        self.tell_of(plan);
    }

    fn end_range(
        &mut self,
        plan: PlanKey,
        range: u32,
        result: Result<(), Error>,
        service: RangeService,
    ) {
        let state = &self.plans[plan].state;
        if let Err(error) = &result
            && matches!(error.kind(), ErrorKind::Changed(_))
        {
            state.take_out(range, error);
        }
        match result {
            Err(error) if state.is_replicated() && state.has_alternative(range, &error) => {
                let range = Displaced::OfPlan { plan, index: range, service };
                self.displaced.push(DisplacedRange { range, error });
            }
            result => self.end_for_good(plan, range, result, service),
        }
    }

    /// Records the outcome of a range that is not read from another replica.
    pub(crate) fn end_for_good(
        &mut self,
        plan: PlanKey,
        range: u32,
        result: Result<(), Error>,
        service: RangeService,
    ) {
        self.retire(plan, 1);
        let state = &self.plans[plan].state;
        let attempts = service.attempts + state.earlier_attempts(range);
        let outcome = RangeService { attempts, ..service }.outcome(&result);
        state.end(range, outcome, result.err());
        self.tell_of(plan);
    }

    /// Cancels the ranges of a plan that wait for another replica; returns their number.
    pub(crate) fn cancel_displaced(&mut self, plan: PlanKey) -> usize {
        let is_of_plan = |displaced: &mut DisplacedRange| match displaced.range {
            Displaced::OfPlan { plan: of, .. } => of == plan,
            Displaced::OfRing(_) => false,
        };
        let cancelled: Vec<_> = self.displaced.extract_if(.., is_of_plan).collect();
        for DisplacedRange { range, .. } in &cancelled {
            if let Displaced::OfPlan { index, service, .. } = range {
                self.end_for_good(plan, *index, Err(ErrorKind::Cancelled.into()), *service);
            }
        }
        cancelled.len()
    }

    pub(crate) fn fail(&mut self, op: RangeOp, error: Error, now: Time) {
        if let Some(write) = op.write {
            self.writes.end(write);
        }
        let service = op.service(now);
        let result = Err(error.of_attempts(service.attempts));
        self.complete(op.owner, op.slice, result, service);
    }

    /// Adds a range that may continue elsewhere.
    pub(crate) fn displace(&mut self, range: DisplacedRange) {
        self.displaced.push(range);
    }

    /// Takes the ranges that may continue elsewhere. The caller must submit or end each.
    pub(crate) fn take_displaced(&mut self) -> Vec<DisplacedRange> {
        std::mem::take(&mut self.displaced)
    }

    /// Records that a controller was connected or lost, so that waiting ranges may be moved.
    pub(crate) fn note_move(&mut self) {
        self.moved = true;
    }

    /// Returns whether that was recorded since the last call.
    pub(crate) fn take_move(&mut self) -> bool {
        std::mem::take(&mut self.moved)
    }

    /// Records that an attempt to connect waits for the selection of its provider.
    pub(crate) fn ask_for_path(&mut self) {
        self.asks_for_path = true;
    }

    /// Returns whether that was recorded since the last call.
    pub(crate) fn take_path_question(&mut self) -> bool {
        std::mem::take(&mut self.asks_for_path)
    }

    /// Adds computations of an engine, to be done `in_place` or on another thread.
    pub(crate) fn compute(
        &mut self,
        engine: EngineKey,
        in_place: bool,
        computations: impl Iterator<Item = Computation>,
    ) {
        self.computations.extend(computations.map(|computation| DueComputation {
            engine,
            in_place,
            computation,
        }));
    }

    pub(crate) fn plan_state(&self, plan: PlanKey) -> &Arc<PlanState> {
        &self.plans[plan].state
    }

    /// Delivers the result of a range that has a place in a ring.
    pub(crate) fn complete_in_ring(&mut self, key: RingKey, completion: RangeCompletion) {
        let ring = &mut self.rings[key];
        ring.in_flight -= 1;
        if ring.abandoned {
            self.discarded.push(completion);
            if ring.in_flight == 0 {
                self.rings.remove(key);
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

    pub(crate) fn ready(&mut self, key: RingKey) -> &mut VecDeque<RangeCompletion> {
        &mut self.rings[key].ready
    }

    /// Returns the number of ranges without a result.
    pub(crate) fn in_flight(&self, key: RingKey) -> usize {
        self.rings[key].in_flight
    }

    /// Registers a waker that is called when `wanted` results are ready.
    pub(crate) fn notify(&mut self, key: RingKey, wanted: usize, waker: &Waker) {
        let ring = &mut self.rings[key];
        ring.wanted = wanted;
        let before = ring.waker.replace(waker.clone());
        // The old waker is dropped after the host's lock is released: see `close_plan`.
        self.wakers.extend(before.filter(|before| !before.will_wake(waker)));
    }

    /// Closes a ring; the memory of its ranges is freed as they end.
    pub(crate) fn close(&mut self, key: RingKey) {
        let ring = &mut self.rings[key];
        ring.abandoned = true;
        // The waker is dropped after the host's lock is released: see `close_plan`.
        self.wakers.extend(ring.waker.take());
        self.discarded.extend(ring.ready.drain(..));
        if ring.in_flight == 0 {
            self.rings.remove(key);
        }
    }

    /// Opens a plan before its ranges are started.
    pub(crate) fn open_plan(&mut self, state: Arc<PlanState>, memory: ClaimedMemory) -> PlanKey {
        let (in_flight, memory) = (state.len(), Some(memory));
        let plan = OpenPlan { state, memory, in_flight, waiting: Vec::new(), abandoned: false };
        let key = self.plans.insert(plan);
        // A plan without ranges has ended.
        self.retire(key, 0);
        key
    }

    /// Returns the memory of a range of a plan; `None` if the plan has ended.
    pub(crate) fn part(&self, key: PlanKey, at: u64, length: u32) -> Option<RegionSlice> {
        self.plans[key].memory.as_ref().map(|memory| memory.part(at, length))
    }

    /// Ends ranges of a plan that sent no command.
    pub(crate) fn end_unsent(&mut self, key: PlanKey, ranges: &[u32], error: &Error) {
        if ranges.is_empty() {
            // The plan may have been removed already.
            return;
        }
        // A cancelled range is not read from another replica.
        let may_go_on = !matches!(error.kind(), ErrorKind::Cancelled);
        if may_go_on && self.plans[key].state.is_replicated() {
            for &range in ranges {
                self.end_range(key, range, Err(error.clone()), RangeService::default());
            }
        } else {
            self.retire(key, ranges.len());
            self.plans[key].state.end_unsent(ranges, error);
            self.tell_of(key);
        }
    }

    /// Subtracts ranges that are about to end. With the last one it releases the memory of the
    /// plan, before a caller can see the end and submit the next plan into the same memory.
    fn retire(&mut self, key: PlanKey, ended: usize) {
        let plan = &mut self.plans[key];
        plan.in_flight -= ended;
        if plan.in_flight == 0
            && let Some(memory) = plan.memory.take()
        {
            self.ended.extend(memory.release());
        }
    }

    /// Wakes the tasks that wait for as many ended ranges, and removes an abandoned plan that has
    /// ended.
    fn tell_of(&mut self, key: PlanKey) {
        let plan = &mut self.plans[key];
        let done = plan.state.len() - plan.in_flight;
        let over = plan.waiting.extract_if(.., |waiter| waiter.wanted <= done);
        self.wakers.extend(over.map(|waiter| waiter.waker));
        if plan.in_flight == 0 && plan.abandoned {
            self.plans.remove(key);
        }
    }

    /// Returns whether ranges of a plan have not ended.
    pub(crate) fn is_plan_in_flight(&self, key: PlanKey) -> bool {
        self.plans[key].in_flight > 0
    }

    /// Registers a waker that is called when `wanted` ranges of a plan have ended. It replaces a
    /// waker of the same task.
    pub(crate) fn notify_of_plan(&mut self, key: PlanKey, wanted: usize, waker: &Waker) {
        let waiting = &mut self.plans[key].waiting;
        waiting.retain(|waiter| !waiter.waker.will_wake(waker));
        waiting.push(PlanWaiter { wanted, waker: waker.clone() });
    }

    /// Closes a plan, whose ticket was dropped.
    pub(crate) fn close_plan(&mut self, key: PlanKey) {
        let plan = &mut self.plans[key];
        plan.abandoned = true;
        // Dropping a waker may call foreign code, which may take the host's lock.
        self.wakers.extend(plan.waiting.drain(..).map(|waiter| waiter.waker));
        if plan.in_flight == 0 {
            self.plans.remove(key);
        }
    }

    /// Adds a waker to call after the host's lock is released.
    pub(crate) fn wake(&mut self, waker: Waker) {
        self.wakers.push(waker);
    }

    /// Moves the work that must be done after the release of the host's lock into `deferred`.
    pub(crate) fn take_deferred(&mut self, deferred: &mut Deferred) {
        deferred.wakers.append(&mut self.wakers);
        deferred.discarded.append(&mut self.discarded);
        deferred.ended.append(&mut self.ended);
        deferred.computations.append(&mut self.computations);
    }

    /// Returns whether work must be done after the release of the host's lock.
    pub(crate) fn has_deferred(&self) -> bool {
        !self.wakers.is_empty()
            || !self.discarded.is_empty()
            || !self.ended.is_empty()
            || !self.computations.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;
    use crate::driver::process::Process;
    use crate::engine::deferred::Deferred;
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
