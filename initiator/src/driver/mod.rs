//! Which thread turns the cores, and when: the only part of the crate that waits or reads a clock.
//!
//! A caller that waits for a result drives: it turns the cores, and sleeps on their descriptors in
//! between. Of several that wait at a time one sleeps on the descriptors and the others are woken
//! by it. One that has waited long leaves the descriptors to those that come and go, since each of
//! their results would wake it first. While no caller waits a thread of the host drives.

mod caller;
pub(crate) mod foreign_code;
pub(crate) mod host_state;
pub(crate) mod numa;
mod parker;
pub(crate) mod process;
pub(crate) mod provider;
mod sleepers;
pub(crate) mod wake_flag;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{self, AssertUnwindSafe};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use rdma::{CpuContention, Time};
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::time::{ClockId, clock_gettime};

use crate::driver::caller::Caller;
use crate::driver::parker::Parker;
use crate::driver::process::{Forked, Process};
use crate::driver::sleepers::{Consumed, Sleepers};
use crate::engine::plan_run::PlanRun;
use crate::engine::plan_state::PlanState;
use crate::engine::range_op::{RangeOp, StrandedRange};
use crate::engine::results::{Errands, Outbox, PlanKey, RangeFailover, RingKey};
use crate::engine::same_machine::NearTarget;
use crate::engine::shard_routes::{PathRoute, ShardPlace, ShardRoutes, TargetLoad};
use crate::engine::{ErasedEngine, NextTurn, earliest};
use crate::memory::plan_region::ClaimedMemory;
use crate::types::counters::HostCounters;
use crate::types::error::{Error, ErrorKind};

/// The thread leaves the cores to callers as long as one came within this time. Requests that a
/// caller has left to be sent wait for the next one no longer than twice that, and no peer sends
/// anything again so soon. Doubled, they may wait for 8 ms.
const CALLER_GRACE: Duration = Duration::from_millis(2);

/// Names the descriptor that interrupts a sleep among those that are slept on.
const INTERRUPT: u64 = 1;

const NO_EVENT: epoll::Event =
    epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };

/// How long a caller that waits looks for what it waits for before it sleeps, without the time that
/// it leaves to others: to be woken takes about as long. Doubled, a wait for a late result costs
/// twice the processor time.
const POLLING: Duration = Duration::from_micros(50);
/// To offer the processor takes less than this where no other thread wants it.
const SWITCH: Duration = Duration::from_micros(2);
/// A caller has waited long after this time.
const LONG: Duration = Duration::from_millis(1);
/// How long the host's thread leaves the cores alone after a turn that panicked, unless something
/// comes in. Halved, one that panics each time writes twice as much to the log.
const AFTER_PANIC: Duration = Duration::from_secs(1);
/// How long the end of connections is waited for when a host is dropped. Doubled, dropping the host
/// of a silent target takes up to 1 s.
const SHUTDOWN_GRACE: Duration = Duration::from_millis(500);

/// The cores of a host, and the threads that drive them.
pub(crate) struct SharedEngines {
    /// The process of the cores. In a child of it the lock may be held by a thread that the child
    /// does not have.
    process: Process,
    state: Mutex<DriverState>,
    /// The thread waits here while callers drive.
    idle: Condvar,
    /// Tells of anything to do: the cores' descriptors and `interrupt`.
    epoll: OwnedFd,
    /// Interrupts a thread that sleeps on `epoll`.
    interrupt: OwnedFd,
    /// Whether a thread drives when no caller does.
    pub(crate) threaded: bool,
}

/// The state that the lock protects.
pub(crate) struct DriverState {
    pub(crate) engines: Vec<Box<dyn ErasedEngine>>,
    /// Which provider each core has, and why, for a person; none for a device of the caller's.
    pub(crate) reasons: Vec<String>,
    pub(crate) outbox: Outbox,
    /// Callers that drive or wait to.
    callers: usize,
    /// Callers that have come so far; while this changes the thread leaves the cores to them.
    visits: u64,
    sleepers: Sleepers,
    /// A caller sleeps on the descriptors until then.
    sleeping_until: Option<Option<Time>>,
    /// The thread sleeps on the descriptors until then.
    thread_sleeps_until: Option<Option<Time>>,
    /// When the cores want to be turned again, as of the last turn.
    due: Option<Time>,
    /// Callers that another one is to wake, should it stop driving.
    parked: Vec<Thread>,
    /// Something came in that no waiting caller drives.
    kicked: bool,
    closing: bool,
    /// What no core counts.
    pub(crate) counters: HostCounters,
    /// Room for what is done outside the lock.
    errands: Errands,
}

impl SharedEngines {
    pub(crate) fn new(threaded: bool) -> io::Result<Self> {
        Process::count_forks()?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let interrupt = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Self {
            process: Process::current(),
            state: Mutex::new(DriverState {
                engines: Vec::new(),
                reasons: Vec::new(),
                outbox: Outbox::default(),
                callers: 0,
                visits: 0,
                sleepers: Sleepers::default(),
                sleeping_until: None,
                thread_sleeps_until: None,
                due: None,
                parked: Vec::new(),
                kicked: false,
                closing: false,
                counters: HostCounters::default(),
                errands: Errands::default(),
            }),
            idle: Condvar::new(),
            epoll,
            interrupt,
            threaded,
        };
        shared.watch(shared.interrupt.as_fd(), INTERRUPT)?;
        Ok(shared)
    }

    /// The state, in the process that made the host.
    ///
    /// # Errors
    /// The caller runs in a child of that process.
    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, DriverState>, Forked> {
        self.process.check()?;
        Ok(self.state())
    }

    /// The process that made the host.
    pub(crate) fn process(&self) -> Process {
        self.process
    }

    /// Whether the caller runs in a child of the process that made the host.
    pub(crate) fn is_forked(&self) -> bool {
        self.process.check().is_err()
    }

    /// For what runs in the process that made the host only.
    fn state(&self) -> MutexGuard<'_, DriverState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a core, and watches its descriptors. `reason` says which provider it has, and why.
    pub(crate) fn add(&self, engine: Box<dyn ErasedEngine>, reason: String) -> io::Result<usize> {
        self.watch_engine(&*engine)?;
        let mut state = self.state();
        state.engines.push(engine);
        state.reasons.push(reason);
        Ok(state.engines.len() - 1)
    }

    /// The number of one of these cores that serves another target from now on, if one is left.
    pub(crate) fn retarget(
        &self,
        mut cores: impl Iterator<Item = usize>,
        target: NearTarget,
    ) -> Option<usize> {
        let mut state = self.state();
        cores.find(|&core| state.engines.get_mut(core).is_some_and(|it| it.retarget(target)))
    }

    fn watch_engine(&self, engine: &dyn ErasedEngine) -> io::Result<()> {
        engine.fds().into_iter().try_for_each(|fd| self.watch(fd, 0))
    }

    /// Chooses the providers of attempts to connect that wait for it.
    fn choose_paths(&self, state: &mut DriverState, now: Time) {
        let DriverState { engines, reasons, .. } = state;
        for (engine, reason) in engines.iter_mut().zip(reasons) {
            let Some(change) = engine.path_change(now) else { continue };
            let new = provider::open_path(&change.target, change.to).and_then(|(device, why)| {
                let new = engine.moved_to(device)?;
                Ok((new, why))
            });
            match new {
                Ok((new, why)) => {
                    tracing::info!(target = %change.target.address, reason = %why, "changed the RDMA provider");
                    *reason = why;
                    self.replace(engine, new);
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot change the RDMA provider");
                    engine.keep_path();
                }
            }
        }
    }

    /// Puts a core in the place of another one.
    fn replace(&self, old: &mut Box<dyn ErasedEngine>, new: Box<dyn ErasedEngine>) {
        for fd in old.fds() {
            // A child of this process may have it open, so that its end would change nothing.
            let _ = epoll::delete(&self.epoll, fd);
        }
        if let Err(error) = self.watch_engine(&*new) {
            // Its timers still turn it.
            tracing::warn!(%error, "cannot wait for a device");
        }
        *old = new;
    }

    fn watch(&self, fd: BorrowedFd<'_>, name: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(name);
        Ok(epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN)?)
    }

    /// Readable when there is something to do.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Turns all cores once.
    pub(crate) fn turn(&self, now: Time) -> NextTurn {
        let (turn, errands) = {
            let Ok(mut state) = self.lock() else { return NextTurn::SleepUntil(None) };
            let mut turn = state.turn(now);
            if state.outbox.take_path_question() {
                self.choose_paths(&mut state, now);
                (turn, state.due) = (NextTurn::Busy, Some(now));
            }
            (turn, state.take_errands())
        };
        if let Some(errands) = errands {
            self.run(errands);
        }
        turn
    }

    /// Sends what was queued, from the thread that queued it, and sees to it that a thread looks
    /// for the results.
    pub(crate) fn launch(&self, now: Time) {
        let Ok(state) = self.lock() else { return };
        self.launch_locked(state, now);
    }

    fn launch_locked(&self, mut state: MutexGuard<'_, DriverState>, now: Time) {
        state.launch(now);
        // A thread that does not sleep looks by itself.
        let interrupt = state.is_overslept();
        let errands = state.take_errands();
        drop(state);
        if interrupt {
            self.interrupt();
        }
        if let Some(errands) = errands {
            self.run(errands);
        }
    }

    /// Does what must be done outside the lock.
    fn run(&self, mut errands: Errands) {
        errands.run();
        self.state().errands = errands;
    }

    /// Begins a plan, and sends what there is room for: `runs` tells the ranges of each core.
    pub(crate) fn submit_plan(
        &self,
        plan: Arc<PlanState>,
        memory: ClaimedMemory,
        runs: impl FnOnce(PlanKey) -> Vec<(usize, PlanRun)>,
    ) -> Result<PlanKey, Forked> {
        let mut state = self.lock()?;
        if plan.is_replicated() {
            state.choose_replicas(&plan, self.threaded.then(system_now));
        }
        let key = state.outbox.open_plan(plan, memory);
        for (engine, run) in runs(key) {
            // A handle of the controller keeps the host, and so its core.
            state.engines[engine].submit_run(run);
        }
        if self.threaded {
            // The caller may do something else before it waits.
            self.launch_locked(state, system_now());
        }
        Ok(key)
    }

    /// Cancels a plan; returns how many ranges have ended at once.
    pub(crate) fn cancel_plan(&self, plan: PlanKey) -> usize {
        let (count, errands) = {
            let Ok(mut state) = self.lock() else { return 0 };
            (state.cancel_plan(plan), state.take_errands())
        };
        if let Some(errands) = errands {
            self.run(errands);
        }
        count
    }

    /// Cancels a plan that no ticket names any more.
    pub(crate) fn close_plan(&self, plan: PlanKey) {
        let errands = {
            let Ok(mut state) = self.lock() else { return };
            // A plan that is at its end is no more once it is closed.
            let has_ranges = state.outbox.is_plan_in_flight(plan);
            state.outbox.close_plan(plan);
            if has_ranges {
                state.cancel_plan(plan);
            }
            state.take_errands()
        };
        if let Some(errands) = errands {
            self.run(errands);
        }
    }

    /// Gives a ring up.
    pub(crate) fn close_ring(&self, ring: RingKey) {
        let errands = {
            let Ok(mut state) = self.lock() else { return };
            state.close_ring(ring);
            state.take_errands()
        };
        if let Some(errands) = errands {
            self.run(errands);
        }
    }

    /// For the owner of a polled host: asks for wake-ups; what happened before is done in the turn
    /// that must follow.
    pub(crate) fn arm(&self) {
        let Ok(mut state) = self.lock() else { return };
        state.sleepers.owner_falls_asleep();
        state.arm();
    }

    /// As [`SharedEngines::turn`], for the owner of a polled host.
    pub(crate) fn turn_as_owner(&self, now: Time) -> NextTurn {
        let turn = self.turn(now);
        if turn == NextTurn::Busy
            && let Ok(mut state) = self.lock()
        {
            state.sleepers.owner_stays_awake();
        }
        turn
    }

    /// Consumes the wake-ups of all cores, after the owner of a polled host has slept on their
    /// descriptors.
    pub(crate) fn acknowledge(&self) {
        let Ok(mut state) = self.lock() else { return };
        let consumed = state.sleepers.owner_wakes();
        self.consume(&mut state, consumed);
    }

    /// Asks for wake-ups, before the turn that comes before a sleep on the descriptors.
    fn fall_asleep(&self) {
        let mut state = self.state();
        state.sleepers.fall_asleep();
        state.arm();
    }

    /// Ends what [`SharedEngines::fall_asleep`] began, slept or not.
    fn wake(&self, woken: Woken) {
        let mut state = self.state();
        state.counters.timer_wakes += u64::from(woken == Woken::Timer);
        let consumed = state.sleepers.wake(woken == Woken::Interrupt);
        self.consume(&mut state, consumed);
        drop(state);
        if consumed.is_none() {
            // What woke this thread is left for others that sleep; it would not let it sleep.
            thread::yield_now();
        }
    }

    fn consume(&self, state: &mut DriverState, consumed: Option<Consumed>) {
        let Some(Consumed { interrupt }) = consumed else { return };
        for engine in &mut state.engines {
            engine.acknowledge();
        }
        if interrupt {
            self.drain_interrupt();
        }
    }

    /// Makes the thread or caller that drives look at what came in; wakes the thread if none does.
    pub(crate) fn kick(&self) {
        let Ok(mut state) = self.lock() else { return };
        state.kicked = true;
        drop(state);
        self.idle.notify_one();
        self.interrupt();
    }

    fn interrupt(&self) {
        if self.is_forked() {
            return;
        }
        // The counter is far from full; were it not, the reader would be woken as well.
        let _ = rustix::io::write(&self.interrupt, &1u64.to_ne_bytes());
    }

    /// Runs a future to its end, driving the cores meanwhile.
    pub(crate) fn block_on<F: Future>(self: &Arc<Self>, future: Pin<&mut F>) -> F::Output {
        self.block_on_until(future, None).expect("without a deadline it runs to its end")
    }

    /// Runs a future to its end or until `deadline`, driving the cores meanwhile.
    pub(crate) fn block_on_until<F: Future>(
        self: &Arc<Self>,
        mut future: Pin<&mut F>,
        deadline: Option<Time>,
    ) -> Option<F::Output> {
        if self.is_forked() {
            // All that a child can wait for has failed.
            let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            return match polled {
                Poll::Ready(output) => Some(output),
                Poll::Pending => None,
            };
        }
        let parker = Parker::of_this_thread(self);
        let waker = Waker::from(Arc::clone(&parker));
        let mut context = Context::from_waker(&waker);
        let mut caller = Caller::enter(self);
        let is_quick = parker.is_quick(system_now());
        let output = loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                break Some(output);
            }
            if !self.drive_until_notified(&mut caller, &parker, deadline) {
                break None;
            }
        };
        let now = system_now();
        if !is_quick {
            // Acknowledgements leave with what is asked for next, which may be long in coming.
            self.turn(now);
        }
        drop(caller);
        parker.left(now);
        Parker::keep(parker);
        output
    }

    /// Drives until the caller's future is to be polled; `false` when the deadline comes first.
    fn drive_until_notified(
        &self,
        caller: &mut Caller<'_>,
        parker: &Parker,
        deadline: Option<Time>,
    ) -> bool {
        let began = system_now();
        let mut now = began;
        let mut looks_until = began + POLLING;
        loop {
            let aside = now - began >= LONG && caller.sees_others();
            let sleeper = !aside && self.claim_sleep();
            let looks_on = sleeper && now < looks_until && !CROWDING.get().should_sleep(now);
            let armed = sleeper && !looks_on;
            if armed {
                // Before the turn, so that what comes after it wakes us.
                self.fall_asleep();
            }
            now = system_now();
            let turn = self.turn(now);
            if turn == NextTurn::Busy {
                looks_until = now + POLLING;
            }
            let mut woken = Woken::Event;
            let over = deadline.is_some_and(|deadline| deadline <= now);
            let notified = parker.notice.take();
            if let NextTurn::SleepUntil(due) = turn
                && !(notified || over)
            {
                let until = earliest(due, deadline);
                match sleeper {
                    true if looks_on => {
                        // Another thread may drive meanwhile.
                        self.release_sleep();
                        looks_until = looks_until + give_way();
                        continue;
                    }
                    true => {
                        woken = self.sleep_as_caller(parker, until);
                        looks_until = system_now() + POLLING;
                    }
                    false if aside => caller.stand_aside(deadline, until, now),
                    false => self.park(parker, until, now),
                }
            }
            if armed {
                self.wake(woken);
            }
            if sleeper {
                self.release_sleep();
            }
            if notified || over {
                return notified;
            }
        }
    }

    /// Becomes the caller that sleeps on the descriptors, unless there is one.
    fn claim_sleep(&self) -> bool {
        let mut state = self.state();
        let free = state.sleeping_until.is_none();
        if free {
            // It does not sleep yet, and will have turned the cores before it does.
            state.sleeping_until = Some(Some(Time::ZERO));
        }
        free
    }

    fn release_sleep(&self) {
        self.state().sleeping_until = None;
    }

    fn sleep_as_caller(&self, parker: &Parker, until: Option<Time>) -> Woken {
        let mut woken = Woken::Event;
        if parker.notice.may_sleep() {
            let mut state = self.state();
            // Another thread may have turned the cores since.
            let until = earliest(until, state.due);
            state.sleeping_until = Some(until);
            state.counters.sleeps += 1;
            drop(state);
            woken = self.wait_for_events(until);
        }
        parker.notice.wake();
        woken
    }

    /// Waits to be woken by the caller that sleeps on the descriptors, and sees that it does not
    /// sleep too long.
    fn park(&self, parker: &Parker, until: Option<Time>, now: Time) {
        let mut state = self.state();
        let Some(sleeper_until) = state.sleeping_until else { return };
        state.parked.push(parker.thread.clone());
        drop(state);
        if until.is_some_and(|own| sleeper_until.is_none_or(|theirs| own < theirs)) {
            self.interrupt();
        }
        match until {
            Some(until) => thread::park_timeout(until - now),
            None => thread::park(),
        }
        self.state().parked.retain(|thread| thread.id() != parker.thread.id());
    }

    /// Sleeps until there is something to do, or until the deadline; says what ended it.
    fn wait_for_events(&self, deadline: Option<Time>) -> Woken {
        let mut events = [NO_EVENT; 2];
        let timeout = deadline.map(|deadline| timespec(deadline - system_now()));
        match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
            Ok(0) => Woken::Timer,
            Ok(count) if events[..count].iter().any(|event| event.data.u64() == INTERRUPT) => {
                Woken::Interrupt
            }
            // An interruption by a signal is as good as an event.
            _ => Woken::Event,
        }
    }

    /// Lets the descriptor that interrupts be quiet again.
    fn drain_interrupt(&self) {
        // Nothing to read is as good.
        let _ = rustix::io::read(&self.interrupt, &mut [0; 8]);
    }

    /// The life of the host's thread.
    pub(crate) fn live(&self) {
        while self.wait_for_idleness() {
            if self.outlive_turn(system_now()) == NextTurn::Busy {
                continue;
            }
            self.fall_asleep();
            let now = system_now();
            let mut woken = Woken::Event;
            if let NextTurn::SleepUntil(deadline) = self.outlive_turn(now) {
                let mut state = self.state();
                // Another thread may have turned the cores since.
                let deadline = earliest(deadline, state.due);
                state.thread_sleeps_until = Some(deadline);
                state.counters.sleeps += 1;
                drop(state);
                woken = self.wait_for_events(deadline);
            }
            self.state().thread_sleeps_until = None;
            self.wake(woken);
        }
        self.farewell();
    }

    /// As [`SharedEngines::turn`], on the host's thread: without it nothing would drive for tasks
    /// that wait.
    fn outlive_turn(&self, now: Time) -> NextTurn {
        let turn = panic::catch_unwind(AssertUnwindSafe(|| self.turn(now)));
        turn.unwrap_or_else(|panic| {
            foreign_code::outlive("a turn", panic);
            NextTurn::SleepUntil(Some(now + AFTER_PANIC))
        })
    }

    /// Waits until no caller drives; `false` when the host is closed.
    fn wait_for_idleness(&self) -> bool {
        let mut state = self.state();
        let mut seen = state.visits;
        while !state.closing && !state.kicked && state.callers > 0 {
            state = self.linger(state);
            while !state.closing && !state.kicked && seen != state.visits {
                seen = state.visits;
                state = self.linger(state);
            }
        }
        state.kicked = false;
        !state.closing
    }

    fn linger<'a>(&self, state: MutexGuard<'a, DriverState>) -> MutexGuard<'a, DriverState> {
        self.idle.wait_timeout(state, CALLER_GRACE).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Ends the host's thread.
    pub(crate) fn close(&self) {
        self.state().closing = true;
        self.idle.notify_one();
        self.interrupt();
    }

    /// Lets connections end in order, for a short time, and drops the cores.
    pub(crate) fn farewell(&self) {
        let end = system_now() + SHUTDOWN_GRACE;
        loop {
            self.fall_asleep();
            let now = system_now();
            let turn = self.turn(now);
            let over = now >= end || self.state().engines.iter().all(|engine| engine.is_quiet());
            let woken = match turn {
                NextTurn::SleepUntil(deadline) if !over => {
                    self.wait_for_events(earliest(deadline, Some(end)))
                }
                _ => Woken::Event,
            };
            self.wake(woken);
            if over {
                break;
            }
        }
        self.drop_engines();
    }

    /// Drops the cores, connected or not.
    pub(crate) fn drop_engines(&self) {
        let engines = std::mem::take(&mut self.state().engines);
        // Outside the lock: promises that are dropped unkept wake their owners.
        drop(engines);
    }
}

/// What ended a sleep on the descriptors, if there was one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Woken {
    Event,
    /// Another thread of this process.
    Interrupt,
    Timer,
}

impl DriverState {
    fn arm(&mut self) {
        self.engines.iter_mut().for_each(|engine| engine.arm());
    }

    /// Has a caller that waits for another one to drive do so itself, if none does.
    fn wake_parked(&mut self) {
        if self.sleeping_until.is_none()
            && let Some(next) = self.parked.pop()
        {
            next.unpark();
        }
    }

    fn turn(&mut self, now: Time) -> NextTurn {
        let mut turn = NextTurn::SleepUntil(None);
        for engine in &mut self.engines {
            turn = turn.and(engine.turn(now, &mut self.outbox));
        }
        if self.fail_over(now) | self.move_ranges(now) | self.resume_writes() {
            turn = NextTurn::Busy;
        }
        self.due = match turn {
            NextTurn::Busy => Some(now),
            NextTurn::SleepUntil(due) => due,
        };
        turn
    }

    fn launch(&mut self, now: Time) {
        let mut due = None;
        for engine in &mut self.engines {
            due = earliest(due, engine.launch(now, &mut self.outbox));
        }
        // Work that was left undone is still to be done.
        let has_more = self.fail_over(now) | self.move_ranges(now) | self.resume_writes();
        let is_busy =
            has_more || self.outbox.has_errands() || self.due.is_some_and(|time| time <= now);
        self.due = if is_busy { Some(now) } else { due };
    }

    /// Chooses the replica that each range of a plan is read from.
    fn choose_replicas(&mut self, plan: &PlanState, now: Option<Time>) {
        let load = |place: &ShardPlace| self.load(*place, now);
        let before: Vec<_> = plan.places().iter().map(load).collect();
        let mut loads = before.clone();
        plan.choose_replicas(&mut loads);
        let was_probe = |(before, after)| before == TargetLoad::Probe && after != before;
        let probes = before.into_iter().zip(loads).map(was_probe);
        for (place, _) in plan.places().iter().zip(probes).filter(|(_, is_probe)| *is_probe) {
            if let Some(engine) = self.engines.get_mut(place.engine) {
                engine.begin_probe(place.controller, now);
            }
        }
    }

    /// The load of a controller; without a time, as of the last turn.
    pub(crate) fn load(&self, place: ShardPlace, now: Option<Time>) -> TargetLoad {
        let engine = self.engines.get(place.engine);
        engine.map_or(TargetLoad::Away, |engine| engine.load(place.controller, now))
    }

    /// Has ranges that failed read from other replicas of their shards; false if there are none.
    fn fail_over(&mut self, now: Time) -> bool {
        if !self.outbox.has_failovers() {
            return false;
        }
        let mut runs = BTreeMap::<_, Vec<u32>>::new();
        for RangeFailover { plan, range, error, service } in self.outbox.take_failovers() {
            let state = Arc::clone(self.outbox.plan_state(plan));
            // Not to a target that is only tried: it has failed once.
            let load = |place| self.load(place, Some(now)).without_probe();
            if state.choose_again(range, now, load) {
                let place = state.entry(range).1.place;
                runs.entry((plan, place)).or_default().push(range);
            } else {
                self.outbox.end_for_good(plan, range, Err(error), service);
            }
        }
        for ((plan, place), ranges) in runs {
            self.submit_again(plan, place, ranges);
        }
        true
    }

    /// A namespace has other paths: ranges that wait may go on over them.
    pub(crate) fn note_changed_paths(&mut self) {
        self.outbox.note_move();
    }

    /// Has ranges that wait for targets without a connection read from those that have one, if any
    /// of them came or went; false if nothing came of it.
    fn move_ranges(&mut self, now: Time) -> bool {
        let stranded = self.outbox.take_stranded();
        if !self.outbox.take_move() && stranded.is_empty() {
            return false;
        }
        let loads: Vec<_> = self.engines.iter().map(|engine| engine.loads(now)).collect();
        let load = |place: ShardPlace| {
            let mut controllers = loads.get(place.engine).into_iter().flatten();
            let known = controllers.find(|(key, _)| *key == place.controller);
            known.map_or(TargetLoad::Away, |(_, load)| load.without_probe())
        };
        let outbox = &self.outbox;
        let mut elsewhere = |plan, range, began| {
            let state = outbox.plan_state(plan);
            state.is_replicated() && state.choose_connected(range, began, load)
        };
        let mut runs = BTreeMap::<_, Vec<u32>>::new();
        for engine in &mut self.engines {
            for (plan, range) in engine.give_away(&mut elsewhere) {
                let place = outbox.plan_state(plan).entry(range).1.place;
                runs.entry((plan, place)).or_default().push(range);
            }
        }
        let usable = |op: &RangeOp| op.best_path(load).filter(|path| !path.load.is_away());
        let mut moves = Vec::new();
        for engine in &mut self.engines {
            let given = engine.give_away_ring_ranges(&|op| usable(op).is_some());
            moves.extend(given.into_iter().map(|op| (usable(&op), op, None)));
        }
        moves.extend(stranded.into_iter().map(|StrandedRange { op, error }| {
            // Where none is connected, one that may come back.
            let path = op.best_path(load).filter(|path| path.load != TargetLoad::Lost);
            (path, op, Some(error))
        }));
        let any = !runs.is_empty() || !moves.is_empty();
        for (path, op, error) in moves {
            self.move_range(now, path, op, error);
        }
        for ((plan, place), mut ranges) in runs {
            ranges.sort_unstable();
            self.submit_again(plan, place, ranges);
        }
        any
    }

    /// Has a range go on over another path, or end with an error where there is none.
    fn move_range(
        &mut self,
        now: Time,
        path: Option<PathRoute>,
        op: RangeOp,
        error: Option<Error>,
    ) {
        let engine = path.and_then(|path| self.engines.get_mut(path.place.engine).zip(Some(path)));
        match engine {
            Some((engine, path)) => {
                self.counters.failovers += 1;
                engine.adopt_range(op.moved_to(&path), &mut self.outbox);
            }
            None => {
                self.counters.ranges_failed += 1;
                let error = error.unwrap_or_else(|| ErrorKind::Closed.into());
                op.fail(error, now, &mut self.outbox);
            }
        }
    }

    /// Chooses the path of a range to a namespace that has several.
    pub(crate) fn choose_path(&mut self, routes: &ShardRoutes) -> usize {
        let path = routes.best_path(0, |place| self.load(place, None));
        if let Some(PathRoute { place, load: TargetLoad::Probe, .. }) = path
            && let Some(engine) = self.engines.get_mut(place.engine)
        {
            engine.begin_probe(place.controller, None);
        }
        path.map_or(0, |path| path.replica)
    }

    /// Has writes tried again that wait for others of this host, if any of those ended; false if
    /// there are none.
    fn resume_writes(&mut self) -> bool {
        let is_released = self.outbox.writes.take_released();
        if is_released {
            self.engines.iter_mut().for_each(|engine| engine.resume_writes());
        }
        is_released
    }

    fn submit_again(&mut self, plan: PlanKey, place: usize, ranges: Vec<u32>) {
        self.counters.failovers += ranges.len() as u64;
        let state = Arc::clone(self.outbox.plan_state(plan));
        let ShardPlace { engine, controller } = state.places()[place];
        let options = state.options();
        let run = PlanRun::new(plan, state, controller, ranges.into(), options);
        if let Some(engine) = self.engines.get_mut(engine) {
            engine.submit_run(run);
        }
    }

    fn cancel_plan(&mut self, plan: PlanKey) -> usize {
        // Those that are between two replicas belong to no core.
        let between = self.outbox.cancel_failovers(plan);
        let outbox = &mut self.outbox;
        let engines = self.engines.iter_mut();
        between + engines.map(|engine| engine.cancel_plan(plan, outbox)).sum::<usize>()
    }

    fn close_ring(&mut self, ring: RingKey) {
        // A ring that is empty is no more once it is closed.
        let has_ranges = self.outbox.in_flight(ring) > 0;
        self.outbox.close(ring);
        if has_ranges {
            for engine in &mut self.engines {
                engine.abandon(ring, &mut self.outbox);
            }
        }
    }

    /// Whether a thread that sleeps on the descriptors sleeps beyond the time when the cores want
    /// to be turned.
    fn is_overslept(&self) -> bool {
        let Some(due) = self.due else { return false };
        let sleepers = [self.thread_sleeps_until, self.sleeping_until];
        sleepers.into_iter().flatten().any(|until| until.is_none_or(|until| due < until))
    }

    fn take_errands(&mut self) -> Option<Errands> {
        if !self.outbox.has_errands() {
            return None;
        }
        let mut errands = std::mem::take(&mut self.errands);
        self.outbox.take_errands(&mut errands);
        Some(errands)
    }
}

thread_local! {
    /// Whether other threads want the processor of this one.
    static CROWDING: Cell<CpuContention> = const { Cell::new(CpuContention::NONE) };
}

/// Lets others have the processor, which may do what is waited for; returns for how long they had
/// it.
fn give_way() -> Duration {
    let before = system_now();
    thread::yield_now();
    let now = system_now();
    let time = now - before;
    let mut crowding = CROWDING.get();
    crowding.gave_way(now, time);
    CROWDING.set(crowding);
    if time < SWITCH { Duration::ZERO } else { time }
}

/// The system's monotonic clock.
pub(crate) fn system_now() -> Time {
    let time = clock_gettime(ClockId::Monotonic);
    // Neither is negative on a monotonic clock.
    Time::from_nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}
