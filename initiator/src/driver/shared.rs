//! The engines of a host, and the lock that guards them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use rdma::Time;
use rustix::event::{EventfdFlags, epoll, eventfd};

use crate::driver::auth_workers::AuthWorkers;
use crate::driver::clock::system_now;
use crate::driver::process::{Forked, Process};
use crate::driver::provider::{self, OpenedDevice};
use crate::driver::state::DriverState;
use crate::engine::arena::{EngineKey, PlanKey, RingKey};
use crate::engine::deferred::Deferred;
use crate::engine::host_engines::HostEngines;
use crate::engine::plan_run::PlanRun;
use crate::engine::plan_state::PlanState;
use crate::engine::same_machine::NearTarget;
use crate::engine::wire::Wire;
use crate::engine::{HostEngine, NextTurn};
use crate::memory::plan_region::ClaimedMemory;

/// Event data of the interrupt descriptor in the epoll instance.
pub(super) const INTERRUPT: u64 = 1;

/// Engines of a host, with what its threads need to drive them.
pub(crate) struct SharedEngines {
    /// Process of the engines. In a child of it, the lock may be held by a thread that the child
    /// does not have.
    process: Process,
    state: Mutex<DriverState>,
    /// The host's thread waits on it while callers drive.
    pub(super) idle: Condvar,
    /// Epoll instance on the engines' descriptors and `interrupt`.
    pub(super) epoll: OwnedFd,
    /// Eventfd that interrupts a thread which sleeps on `epoll`.
    pub(super) interrupt: OwnedFd,
    /// Whether the host has a thread, which drives when no caller does.
    pub(crate) threaded: bool,
    /// Threads that compute for authentications.
    pub(super) auth_workers: AuthWorkers,
    /// This value, for those threads.
    pub(super) this: Weak<Self>,
}

impl SharedEngines {
    pub(crate) fn new(threaded: bool) -> io::Result<Arc<Self>> {
        Process::count_forks()?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let interrupt = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new_cyclic(|this| Self {
            process: Process::current(),
            state: Mutex::default(),
            idle: Condvar::new(),
            epoll,
            interrupt,
            threaded,
            auth_workers: AuthWorkers::default(),
            this: Weak::clone(this),
        });
        shared.watch(shared.interrupt.as_fd(), INTERRUPT)?;
        Ok(shared)
    }

    /// Locks the state, in the process that made the host.
    ///
    /// # Errors
    /// The caller runs in a child of that process.
    pub(crate) fn lock(&self) -> Result<MutexGuard<'_, DriverState>, Forked> {
        self.process.check()?;
        Ok(self.state())
    }

    /// Returns the process that made the host.
    pub(crate) fn process(&self) -> Process {
        self.process
    }

    /// Returns whether the caller runs in a child of the process that made the host.
    pub(crate) fn is_forked(&self) -> bool {
        self.process.check().is_err()
    }

    /// Locks the state, for code that runs only in the process that made the host.
    pub(super) fn state(&self) -> MutexGuard<'_, DriverState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an engine and watches its descriptors; returns its key. `reason` names its provider
    /// and the reason for that choice.
    pub(crate) fn add(&self, engine: HostEngine, reason: String) -> io::Result<EngineKey> {
        self.watch_engine(&engine)?;
        let mut state = self.state();
        Ok(state.host.add(engine, reason))
    }

    /// Assigns one of these engines that has no controllers to another target; returns its key.
    pub(crate) fn retarget(
        &self,
        mut engines: impl Iterator<Item = EngineKey>,
        target: NearTarget,
    ) -> Option<EngineKey> {
        let mut state = self.state();
        engines.find(|&engine| {
            state.host.engines.get_mut(engine).is_some_and(|it| it.retarget(target))
        })
    }

    fn watch_engine(&self, engine: &HostEngine) -> io::Result<()> {
        engine.fds().into_iter().try_for_each(|fd| self.watch(fd, 0))
    }

    /// Selects the providers of attempts to connect that wait for it.
    fn choose_paths(&self, state: &mut DriverState, now: Time) {
        let HostEngines { engines, reasons, .. } = &mut state.host;
        for (engine, reason) in engines.values_mut().zip(reasons) {
            let Some(change) = engine.path_change(now) else { continue };
            let opened = provider::open_path(&change.target, change.to);
            let changed = opened
                .and_then(|OpenedDevice { wire, reason }| Ok((engine.change_wire(wire)?, reason)));
            match changed {
                Ok((old, why)) => {
                    tracing::info!(target = %change.target.address, reason = %why, "changed the RDMA provider");
                    *reason = why;
                    self.watch_instead(&*old, engine);
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot change the RDMA provider");
                    engine.keep_path();
                }
            }
        }
    }

    /// Watches the descriptors of an engine, instead of those of its previous device.
    fn watch_instead(&self, old: &dyn Wire, engine: &HostEngine) {
        for fd in old.fds() {
            // A child may have inherited it open, so that closing it would not remove it.
            let _ = epoll::delete(&self.epoll, fd);
        }
        if let Err(error) = self.watch_engine(engine) {
            // The engine is still turned when its timers are due.
            tracing::warn!(%error, "cannot wait for a device");
        }
    }

    fn watch(&self, fd: BorrowedFd<'_>, name: u64) -> io::Result<()> {
        let data = epoll::EventData::new_u64(name);
        Ok(epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN)?)
    }

    /// Returns a descriptor that is readable when there is work.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Turns all engines once, and does the deferred work; returns when the next turn is due.
    pub(crate) fn turn(&self, now: Time) -> NextTurn {
        let turned = self.with_state(|state| {
            let turn = state.turn(now);
            if !state.host.outbox.take_path_question() {
                return turn;
            }
            self.choose_paths(state, now);
            state.due = Some(now);
            NextTurn::Busy
        });
        turned.unwrap_or(NextTurn::SleepUntil(None))
    }

    /// Sends queued commands on the thread that queued them, and makes sure that a thread waits for
    /// their responses.
    pub(crate) fn launch(&self, now: Time) {
        let Ok(state) = self.lock() else { return };
        self.launch_locked(state, now);
    }

    fn launch_locked(&self, mut state: MutexGuard<'_, DriverState>, now: Time) {
        state.launch(now);
        // A thread that is awake finds the work without an interrupt.
        let interrupt = state.is_overslept();
        let deferred = state.take_deferred();
        drop(state);
        if interrupt {
            self.interrupt();
        }
        self.run(deferred);
    }

    /// Changes the state, and does the deferred work after the lock is released.
    ///
    /// # Errors
    /// The caller runs in a child of the process that made the host.
    fn with_state<T>(&self, change: impl FnOnce(&mut DriverState) -> T) -> Result<T, Forked> {
        let mut state = self.lock()?;
        let result = change(&mut state);
        let deferred = state.take_deferred();
        drop(state);
        self.run(deferred);
        Ok(result)
    }

    /// Does deferred work, and keeps the capacity of its lists.
    fn run(&self, deferred: Option<Deferred>) {
        if let Some(mut deferred) = deferred {
            deferred.run();
            deferred.computations.drain(..).for_each(|due| self.compute(due));
            self.state().deferred = deferred;
        }
    }

    /// Starts a plan, and sends commands as far as there is room. `runs` returns the ranges of each
    /// engine.
    pub(crate) fn submit_plan(
        &self,
        plan: Arc<PlanState>,
        memory: ClaimedMemory,
        runs: impl FnOnce(PlanKey) -> Vec<(EngineKey, PlanRun)>,
    ) -> Result<PlanKey, Forked> {
        let mut state = self.lock()?;
        let now = self.threaded.then(system_now);
        let key = state.host.submit_plan(plan, memory, runs, now);
        if let Some(now) = now {
            // The commands are sent now, since the caller may do something else before it waits.
            self.launch_locked(state, now);
        }
        Ok(key)
    }

    /// Cancels a plan; returns how many ranges have ended by that.
    pub(crate) fn cancel_plan(&self, plan: PlanKey) -> usize {
        self.with_state(|state| state.host.cancel_plan(plan)).unwrap_or(0)
    }

    /// Cancels and closes a plan whose ticket was dropped.
    pub(crate) fn close_plan(&self, plan: PlanKey) {
        // In a child of the host's process the plan belongs to the parent.
        let _ = self.with_state(|state| state.host.close_plan(plan));
    }

    /// Closes a ring; its reads send no further command.
    pub(crate) fn close_ring(&self, ring: RingKey) {
        // In a child of the host's process the ring belongs to the parent.
        let _ = self.with_state(|state| state.host.close_ring(ring));
    }

    /// Makes the thread or caller that drives process queued work; wakes the host's thread if none
    /// drives.
    pub(crate) fn kick(&self) {
        let Ok(mut state) = self.lock() else { return };
        state.kicked = true;
        drop(state);
        self.idle.notify_one();
        self.interrupt();
    }

    pub(super) fn interrupt(&self) {
        if self.is_forked() {
            return;
        }
        // A write fails only if the counter is full; the descriptor is then readable already.
        let _ = rustix::io::write(&self.interrupt, &1u64.to_ne_bytes());
    }
}
