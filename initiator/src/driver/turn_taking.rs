//! Which thread turns the engines, and when.

use std::cell::Cell;
use std::future::Future;
use std::panic::{self, AssertUnwindSafe};
use std::pin::Pin;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use rdma::{CpuContention, Time};
use rustix::event::{Timespec, epoll};

use crate::driver::caller::Caller;
use crate::driver::clock::system_now;
use crate::driver::foreign_code;
use crate::driver::parker::Parker;
use crate::driver::shared::{INTERRUPT, SharedEngines};
use crate::driver::sleepers::Consumed;
use crate::driver::state::DriverState;
use crate::engine::{NextTurn, earliest};

/// The thread leaves the engines to callers as long as one came within this time. Requests that a
/// caller has left to be sent wait for the next one no longer than twice that, and no peer sends
/// anything again so soon. Doubled, they may wait for 8 ms.
const CALLER_GRACE: Duration = Duration::from_millis(2);

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
/// How long the host's thread leaves the engines alone after a turn that panicked, unless something
/// comes in. Halved, one that panics each time writes twice as much to the log.
const AFTER_PANIC: Duration = Duration::from_secs(1);
/// How long the end of connections is waited for when a host is dropped. Doubled, dropping the host
/// of a silent target takes up to 1 s.
const GRACEFUL_CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

impl SharedEngines {
    /// For the owner of a polled host: asks for wake-ups; what happened before is done in the turn
    /// that must follow.
    pub(crate) fn arm(&self) {
        let Ok(mut state) = self.lock() else { return };
        state.sleepers.owner_falls_asleep();
        state.arm();
    }

    /// Turns all engines as [`SharedEngines::turn`], for the owner of a polled host.
    pub(crate) fn turn_as_owner(&self, now: Time) -> NextTurn {
        let turn = self.turn(now);
        if turn == NextTurn::Busy
            && let Ok(mut state) = self.lock()
        {
            state.sleepers.owner_stays_awake();
        }
        turn
    }

    /// Consumes the wake-ups of all engines, after the owner of a polled host has slept on their
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

    /// Runs a future to its end, driving the engines while it waits.
    pub(crate) fn block_on<F: Future>(self: &Arc<Self>, future: Pin<&mut F>) -> F::Output {
        self.block_on_until(future, None).expect("without a deadline it runs to its end")
    }

    /// Runs a future to its end or until `deadline`, driving the engines while it waits.
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
                        // Another thread may drive while this one looks on.
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
            // It does not sleep yet, and will have turned the engines before it does.
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
            // Another thread may have turned the engines since.
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

    /// Quietens the descriptor that interrupts.
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
                // Another thread may have turned the engines since.
                let deadline = earliest(deadline, state.due);
                state.thread_sleeps_until = Some(deadline);
                state.counters.sleeps += 1;
                drop(state);
                woken = self.wait_for_events(deadline);
            }
            self.state().thread_sleeps_until = None;
            self.wake(woken);
        }
        self.close_gracefully();
    }

    /// Turns all engines as [`SharedEngines::turn`], on the host's thread: without it nothing would
    /// drive for tasks that wait.
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

    /// Ends connections in order, for a short time, and drops the engines.
    pub(crate) fn close_gracefully(&self) {
        let end = system_now() + GRACEFUL_CLOSE_TIMEOUT;
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

    /// Drops the engines, connected or not.
    pub(crate) fn drop_engines(&self) {
        let engines = std::mem::take(&mut self.state().engines);
        // Outside the lock: promises that are dropped unkept wake their owners.
        drop(engines);
    }
}

/// Cause of the end of a sleep on the descriptors, if there was one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Woken {
    Event,
    /// Another thread of this process.
    Interrupt,
    Timer,
}

thread_local! {
    /// Whether other threads want the processor of this one.
    static CROWDING: Cell<CpuContention> = const { Cell::new(CpuContention::NONE) };
}

/// Yields the processor to others, which may do what is waited for; returns for how long they had
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

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}
