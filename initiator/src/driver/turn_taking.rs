//! Selection of the thread that turns the engines.

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
use crate::driver::state::{DriverState, Sleep};
use crate::engine::{NextTurn, earliest};

/// Time since the last caller after which the host's thread drives. Requests that a caller left
/// unsent wait for twice that at most, which is shorter than the retransmission time-outs of peers.
/// With twice as much, they may wait for 8 ms.
const CALLER_GRACE: Duration = Duration::from_millis(2);

const NO_EVENT: epoll::Event =
    epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };

/// Time for which a waiting caller polls before it sleeps, without the time that it yields to
/// others: a wake-up takes about as long. With twice as much, a wait for a late result costs twice
/// the processor time.
const POLLING: Duration = Duration::from_micros(50);
/// Longest time of a yield after which no other thread has run.
const SWITCH: Duration = Duration::from_micros(2);
/// Time after which a caller has waited long.
const LONG: Duration = Duration::from_millis(1);
/// Pause of the host's thread after a turn that panicked, unless new work is queued. With half as
/// much, one that panics each time writes twice as much to the log.
const AFTER_PANIC: Duration = Duration::from_secs(1);
/// Time for connections to end when a host is dropped. With twice as much, dropping the host of a
/// silent target takes up to 1 s.
const GRACEFUL_CLOSE_TIMEOUT: Duration = Duration::from_millis(500);

impl SharedEngines {
    /// Arms wake-ups for the owner of a polled host, who must turn it before sleeping to process
    /// earlier events.
    pub(crate) fn arm(&self) {
        let Ok(mut state) = self.lock() else { return };
        state.sleepers.owner_falls_asleep();
        state.arm();
    }

    /// Turns all engines for the owner of a polled host; see [`SharedEngines::turn`].
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

    /// Arms wake-ups, before the turn that precedes a sleep on the descriptors.
    fn fall_asleep(&self) {
        let mut state = self.state();
        state.sleepers.fall_asleep();
        state.arm();
    }

    /// Ends a sleep after [`SharedEngines::fall_asleep`], whether the thread has slept or not.
    fn wake(&self, woken: Woken) {
        let mut state = self.state();
        state.host.counters.timer_wakes += u64::from(woken == Woken::Timer);
        let consumed = state.sleepers.wake(woken == Woken::Interrupt);
        self.consume(&mut state, consumed);
        drop(state);
        if consumed.is_none() {
            // The wake-up is left for other sleeping threads, and would prevent this thread from
            // sleeping.
            thread::yield_now();
        }
    }

    fn consume(&self, state: &mut DriverState, consumed: Option<Consumed>) {
        let Some(Consumed { interrupt }) = consumed else { return };
        for engine in state.host.engines.values_mut() {
            engine.acknowledge();
        }
        if interrupt {
            self.drain_interrupt();
        }
    }

    /// Polls a future until it is ready, driving the engines while it waits.
    pub(crate) fn block_on<F: Future>(self: &Arc<Self>, future: Pin<&mut F>) -> F::Output {
        self.block_on_until(future, None).expect("without a deadline it runs to its end")
    }

    /// Polls a future until it is ready or until `deadline`, driving the engines while it waits.
    pub(crate) fn block_on_until<F: Future>(
        self: &Arc<Self>,
        mut future: Pin<&mut F>,
        deadline: Option<Time>,
    ) -> Option<F::Output> {
        if self.is_forked() {
            // In a forked child all operations have failed.
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
            // Acknowledgements are sent with the next request, which may come much later.
            self.turn(now);
        }
        drop(caller);
        parker.left(now);
        Parker::keep(parker);
        output
    }

    /// Drives until the caller's future must be polled; false at the deadline.
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
                // Armed before the turn, so that later events wake this thread.
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
                        // Another thread may drive while this one polls.
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

    /// Makes this the caller that sleeps on the descriptors; false if there is one.
    fn claim_sleep(&self) -> bool {
        let mut state = self.state();
        let free = state.caller_sleep == Sleep::Awake;
        if free {
            // It is not asleep yet, and will turn the engines before.
            state.caller_sleep = Sleep::Until(Time::ZERO);
        }
        free
    }

    fn release_sleep(&self) {
        self.state().caller_sleep = Sleep::Awake;
    }

    fn sleep_as_caller(&self, parker: &Parker, until: Option<Time>) -> Woken {
        let mut woken = Woken::Event;
        if parker.notice.may_sleep() {
            let mut state = self.state();
            // Another thread may have turned the engines since.
            let until = earliest(until, state.due);
            state.caller_sleep = Sleep::until(until);
            state.host.counters.sleeps += 1;
            drop(state);
            woken = self.wait_for_events(until);
        }
        parker.notice.wake();
        woken
    }

    /// Waits until the caller that sleeps on the descriptors wakes this one, after making sure that
    /// it does not sleep beyond `until`.
    fn park(&self, parker: &Parker, until: Option<Time>, now: Time) {
        let mut state = self.state();
        let sleeper = state.caller_sleep;
        if sleeper == Sleep::Awake {
            return;
        }
        state.parked.push(parker.thread.clone());
        drop(state);
        if until.is_some_and(|own| sleeper.outlasts(own)) {
            self.interrupt();
        }
        match until {
            Some(until) => thread::park_timeout(until - now),
            None => thread::park(),
        }
        self.state().parked.retain(|thread| thread.id() != parker.thread.id());
    }

    /// Sleeps on the descriptors until an event or the deadline; returns which ended it.
    fn wait_for_events(&self, deadline: Option<Time>) -> Woken {
        let mut events = [NO_EVENT; 2];
        let timeout = deadline.map(|deadline| timespec(deadline - system_now()));
        match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
            Ok(0) => Woken::Timer,
            Ok(count) if events[..count].iter().any(|event| event.data.u64() == INTERRUPT) => {
                Woken::Interrupt
            }
            // A signal is treated like an event.
            _ => Woken::Event,
        }
    }

    /// Clears the interrupt descriptor.
    fn drain_interrupt(&self) {
        // Fails if it is clear already.
        let _ = rustix::io::read(&self.interrupt, &mut [0; 8]);
    }

    /// Main loop of the host's thread.
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
                state.thread_sleep = Sleep::until(deadline);
                state.host.counters.sleeps += 1;
                drop(state);
                woken = self.wait_for_events(deadline);
            }
            self.state().thread_sleep = Sleep::Awake;
            self.wake(woken);
        }
        self.close_gracefully();
    }

    /// Turns all engines on the host's thread and catches a panic, since waiting tasks depend on
    /// this thread; see [`SharedEngines::turn`].
    fn outlive_turn(&self, now: Time) -> NextTurn {
        let turn = panic::catch_unwind(AssertUnwindSafe(|| self.turn(now)));
        turn.unwrap_or_else(|panic| {
            foreign_code::outlive("a turn", panic);
            NextTurn::SleepUntil(Some(now + AFTER_PANIC))
        })
    }

    /// Waits until no caller drives; false when the host is closed.
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

    /// Makes the host's thread exit.
    pub(crate) fn close(&self) {
        self.state().closing = true;
        self.idle.notify_one();
        self.interrupt();
    }

    /// Closes connections in order, for up to [`GRACEFUL_CLOSE_TIMEOUT`], and drops the engines.
    pub(crate) fn close_gracefully(&self) {
        let end = system_now() + GRACEFUL_CLOSE_TIMEOUT;
        loop {
            self.fall_asleep();
            let now = system_now();
            let turn = self.turn(now);
            let over =
                now >= end || self.state().host.engines.values().all(|engine| engine.is_quiet());
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
        let engines = std::mem::take(&mut self.state().host.engines);
        // Outside the lock: dropped promises wake their tasks.
        drop(engines);
    }
}

/// Cause of the end of a sleep on the descriptors; `Event` without a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Woken {
    Event,
    /// Another thread of this process wrote to the interrupt descriptor.
    Interrupt,
    Timer,
}

thread_local! {
    /// Whether other threads compete for the processor of this one.
    static CROWDING: Cell<CpuContention> = const { Cell::new(CpuContention::NONE) };
}

/// Yields the processor to other threads, which may do the awaited work; returns for how long they
/// ran.
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
