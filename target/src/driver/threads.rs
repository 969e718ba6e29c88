//! Threads of a target: one for each poll group, and one for all acceptors.

use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use rdma::Time;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::thread::CpuSet;

use crate::config::Cores;
use crate::doorbell::Doorbell;
use crate::driver::assembly::Assembly;
use crate::driver::clock::Clock;
use crate::driver::devices::{Acceptors, Devices};
use crate::driver::idle_polling::IdlePolling;
use crate::driver::turn_mark::{TurnMark, TurnWatch};
use crate::limits::STORAGE_GRACE;
use crate::metrics::latency::{Latency, LatencyCounters, LatencyStats};
use crate::poll_group::{PollGroup, PollGroupBuilder, PollGroupStats, StopRequest, Turn};
use crate::storage::{BufferRegistration, Uring, UringError};
use crate::transport::{AcceptorStats, Stop};

/// Maximum time for disconnecting from hosts when the target stops.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);
/// Maximum wait for a busy thread to publish its counters; then its last ones are returned.
const STATS_TIMEOUT: Duration = Duration::from_secs(1);

/// Options of the poll groups' threads.
#[derive(Clone, Debug, Default)]
pub(crate) struct RuntimeOptions {
    /// Maximum time that an idle poll group polls before it sleeps.
    pub polling: Duration,
    /// CPU cores to pin the poll groups to, in order. A group without one is left to the scheduler.
    pub pins: Vec<u16>,
}

/// Reason for which threads do not start.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// io_uring cannot be set up.
    #[error(transparent)]
    Uring(#[from] UringError),
    /// A CPU core does not exist, or this process may not use it.
    #[error(
        "no thread can run on core {core}, which cores names: {error}; /sys/devices/system/cpu/online has those of \
         the machine, and AllowedCPUs= or a cpuset may leave fewer; the systemd unit needs \
         SystemCallFilter=sched_setaffinity in a drop-in"
    )]
    Core {
        /// Number of the CPU core, as in the configuration key `cores`.
        core: u16,
        /// Error of the system call `sched_setaffinity`.
        error: io::Error,
    },
    /// A thread cannot be created.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// Running threads of a target. Dropping it ends them.
pub(crate) struct Runtime {
    clock: Clock,
    groups: Vec<Worker<PollGroupStats>>,
    /// Durations of the turns of each poll group, in nanoseconds.
    turns: Vec<Arc<LatencyCounters>>,
    acceptor: Worker<AcceptorStats>,
    stop_request: Arc<StopRequest>,
}

/// A thread, with what wakes it, returns its counters and marks its turns.
struct Worker<S> {
    thread: Option<JoinHandle<()>>,
    bell: Arc<Doorbell>,
    mailbox: Arc<StatsMailbox<S>>,
    mark: Arc<TurnMark>,
}

impl Runtime {
    /// Starts the threads of a target. Devices can be added to the returned set.
    ///
    /// # Errors
    /// See [`RuntimeError`]. The threads that were started end.
    pub(crate) fn start(
        assembly: Assembly,
        options: &RuntimeOptions,
    ) -> Result<(Self, Devices), RuntimeError> {
        let clock = Clock::new();
        assembly.associations.trace().set_clock(clock);
        let Assembly { seeds, acceptors, acceptor_bell, stop_request, devices, .. } = assembly;
        let (ready, started) = mpsc::channel();
        let mut runtime = Self {
            clock,
            groups: Vec::with_capacity(seeds.len()),
            turns: Vec::with_capacity(seeds.len()),
            acceptor: start_acceptors(acceptors, acceptor_bell, clock, &stop_request)
                .map_err(RuntimeError::Thread)?,
            stop_request,
        };
        let count = seeds.len();
        for (index, seed) in seeds.into_iter().enumerate() {
            let pin = options.pins.get(index).copied();
            let turns = Arc::new(LatencyCounters::default());
            runtime.turns.push(Arc::clone(&turns));
            let pace = GroupPace { clock, polling: options.polling, turns };
            let worker = start_group(index, seed, pace, pin, ready.clone());
            runtime.groups.push(worker.map_err(RuntimeError::Thread)?);
        }
        drop(ready);
        for _ in 0..count {
            // If it failed, the drop of `runtime` ends the other threads.
            let buffers = started.recv().expect("each thread reports before it ends")?;
            report(&buffers);
        }
        Ok((runtime, devices))
    }

    /// Time since the threads were started.
    pub(crate) fn uptime(&self) -> Duration {
        self.clock.now() - Time::ZERO
    }

    pub(crate) fn group_stats(&self) -> Vec<PollGroupStats> {
        self.groups.iter().map(Worker::stats).collect()
    }

    /// Durations, for each poll group, of the turns that did work, in nanoseconds.
    pub(crate) fn turn_stats(&self) -> Vec<LatencyStats> {
        self.turns.iter().map(|turns| turns.snapshot()).collect()
    }

    /// Sum of the counters of the acceptors.
    pub(crate) fn acceptor_stats(&self) -> AcceptorStats {
        self.acceptor.stats()
    }

    /// Returns a watch that notices whether one of the threads is stuck in a turn.
    pub(crate) fn turn_watch(&self) -> TurnWatch {
        let groups = self.groups.iter().map(|group| &group.mark);
        TurnWatch::new(groups.chain([&self.acceptor.mark]).map(Arc::clone))
    }

    /// Ends all connections and threads. Running commands get at most `timeout` to finish.
    pub(crate) fn stop(mut self, timeout: Duration) {
        if !timeout.is_zero() {
            self.order(Stop::Drain);
            let until = self.clock.now() + timeout;
            while self.clock.now() < until && !self.groups.iter().all(Worker::is_over) {
                let left = until - self.clock.now();
                if let Some(group) = self.groups.iter().find(|group| !group.is_over()) {
                    group.mailbox.wait_for_end_within(left);
                }
            }
        }
        // The drop of `self` ends the threads.
    }

    fn order(&mut self, how: Stop) {
        self.stop_request.set(how);
        self.acceptor.bell.ring();
        self.groups.iter().for_each(|group| group.bell.ring());
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.order(Stop::Now);
        for group in &mut self.groups {
            group.join();
        }
        self.acceptor.join();
    }
}

impl<S: Copy + Default> Worker<S> {
    fn stats(&self) -> S {
        self.mailbox.fetch(|| self.bell.ring())
    }

    fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished) || self.mailbox.is_over()
    }

    fn join(&mut self) {
        self.bell.ring();
        let Some(thread) = self.thread.take() else { return };
        match self.mailbox.wait_for_end() {
            // The thread stays until the process ends.
            ThreadEnd::Stuck => {}
            ThreadEnd::Done if thread.join().is_err() => {
                tracing::error!("a thread of the target panicked");
            }
            ThreadEnd::Done => {}
        }
    }
}

/// Mailbox in which a thread publishes its counters when they are requested.
#[derive(Debug, Default)]
struct StatsMailbox<S> {
    asked: AtomicBool,
    published: Mutex<Published<S>>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Published<S> {
    stats: S,
    /// Number of publications, by which a caller sees one after its request.
    number: u64,
    /// Set once the work of the thread has ended.
    over: Option<ThreadEnd>,
}

/// How the work of a thread ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ThreadEnd {
    /// The thread ends and can be joined.
    Done,
    /// The thread never ends: it keeps memory that the kernel still uses until the process ends.
    Stuck,
}

impl<S: Copy + Default> StatsMailbox<S> {
    /// Whether counters were requested since the last call. Called by the thread.
    fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed) && self.asked.swap(false, Ordering::AcqRel)
    }

    fn publish(&self, stats: S, over: Option<ThreadEnd>) {
        let mut published = self.published();
        published.stats = stats;
        published.number += 1;
        published.over = published.over.or(over);
        self.changed.notify_all();
    }

    /// Requests and returns the counters: new ones if the thread publishes them within
    /// [`STATS_TIMEOUT`], otherwise the last ones.
    fn fetch(&self, ring: impl FnOnce()) -> S {
        let before = self.published().number;
        self.asked.store(true, Ordering::Release);
        ring();
        let old =
            |published: &mut Published<S>| published.number == before && published.over.is_none();
        let waited = self.changed.wait_timeout_while(self.published(), STATS_TIMEOUT, old);
        waited.unwrap_or_else(PoisonError::into_inner).0.stats
    }

    fn is_over(&self) -> bool {
        self.published().over.is_some()
    }

    fn wait_for_end_within(&self, timeout: Duration) {
        let running = |published: &mut Published<S>| published.over.is_none();
        let waited = self.changed.wait_timeout_while(self.published(), timeout, running);
        drop(waited);
    }

    fn wait_for_end(&self) -> ThreadEnd {
        let mut published = self.published();
        loop {
            if let Some(end) = published.over {
                return end;
            }
            let waited = self.changed.wait(published);
            published = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn published(&self) -> MutexGuard<'_, Published<S>> {
        self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Publishes at its drop that the thread ends, also if it panics, with the counters.
struct OnEnd<'a, S: Copy + Default>(&'a StatsMailbox<S>, S);

impl<S: Copy + Default> Drop for OnEnd<'_, S> {
    fn drop(&mut self) {
        self.0.publish(self.1, Some(ThreadEnd::Done));
    }
}

/// Clock of a poll group's thread, its maximum polling time, and the counters of its turns.
struct GroupPace {
    clock: Clock,
    polling: Duration,
    turns: Arc<LatencyCounters>,
}

fn start_group(
    index: usize,
    seed: PollGroupBuilder,
    pace: GroupPace,
    pin: Option<u16>,
    ready: mpsc::Sender<Result<BufferRegistration, RuntimeError>>,
) -> io::Result<Worker<PollGroupStats>> {
    let bell = Arc::clone(&seed.bell);
    let (mailbox, mark) = (Arc::new(StatsMailbox::default()), Arc::new(TurnMark::default()));
    let (of_thread, mark_of_thread) = (Arc::clone(&mailbox), Arc::clone(&mark));
    let run = move || {
        let mut end = OnEnd(&*of_thread, PollGroupStats::default());
        let made = pin.map_or(Ok(()), pin_to);
        let made = made.and_then(|()| Ok(Uring::new(Some(seed.pool().range()))?));
        let (engine, buffers) = match made {
            Ok(made) => made,
            Err(error) => {
                let _ = ready.send(Err(error));
                return;
            }
        };
        let group = seed.build(Box::new(engine));
        let _ = ready.send(Ok(buffers));
        drop(ready);
        run_group(group, pace, &mut end, &mark_of_thread);
        mark_of_thread.sleep();
    };
    let thread = std::thread::Builder::new().name(format!("feedrail-{index}")).spawn(run)?;
    Ok(Worker { thread: Some(thread), bell, mailbox, mark })
}

fn run_group(
    mut group: PollGroup,
    GroupPace { clock, polling, turns }: GroupPace,
    end: &mut OnEnd<'_, PollGroupStats>,
    mark: &TurnMark,
) {
    let mailbox = end.0;
    let mut idle = IdlePolling::new(clock.now(), polling);
    // Start of the last turn, if this turn followed it without a pause.
    let mut last: Option<Time> = None;
    while !group.is_over() {
        mark.begin_turn();
        let now = clock.now();
        if let Some(last) = last.take() {
            let nanos = now.as_nanos().saturating_sub(last.as_nanos());
            turns.count(Latency::from_nanos(nanos));
        }
        let turn = group.turn(now);
        if mailbox.is_asked() {
            mailbox.publish(group.stats(), None);
        }
        match turn {
            Turn::Busy => {
                last = Some(now);
                idle.worked(now, group.operations());
            }
            // Another thread on this core may have to do the work that this one waits for.
            Turn::SleepUntil(_) if idle.should_poll(now) => {
                let before = clock.now();
                std::thread::yield_now();
                let after = clock.now();
                idle.gave_way(after, after - before);
            }
            // If a wake-up was missed while it was armed, the group takes one more turn first.
            Turn::SleepUntil(at) if !group.arm() && !group.is_over() => {
                mark.sleep();
                group.sleep(at.map(|at| at - now));
            }
            Turn::SleepUntil(_) => {}
        }
    }
    // The end of the group may wait for storage, which is not a stuck turn.
    mark.sleep();
    end.1 = group.stats();
    if let Err(operations) = group.end() {
        tracing::error!(
            operations,
            "storage did not end these operations within {} s: the target stops without them",
            STORAGE_GRACE.as_secs()
        );
        mailbox.publish(end.1, Some(ThreadEnd::Stuck));
        loop {
            std::thread::park();
        }
    }
}

/// Pins the calling thread to a CPU core.
fn pin_to(core: u16) -> Result<(), RuntimeError> {
    let mut set = CpuSet::new();
    set.set(usize::from(core));
    rustix::thread::sched_setaffinity(None, &set)
        .map_err(|error| RuntimeError::Core { core, error: error.into() })
}

/// Checks whether a thread can be pinned to a CPU core.
///
/// # Errors
/// The thread cannot be created, or this process may not use the core.
pub(crate) fn try_core(core: u16) -> Result<(), RuntimeError> {
    let thread = std::thread::Builder::new().spawn(move || pin_to(core));
    thread.map_err(RuntimeError::Thread)?.join().unwrap_or(Ok(()))
}

/// Warns if there are more poll groups than CPU cores, since they wait for each other.
pub(crate) fn tell_of_few_cores(cores: &Cores) {
    let available = std::thread::available_parallelism().map_or(usize::MAX, usize::from);
    if cores.count() > available {
        tracing::warn!(
            cores = cores.count(),
            available,
            "more threads than cores that this process may use: they wait for each other"
        );
    }
}

fn start_acceptors(
    mut acceptors: Acceptors,
    bell: Arc<Doorbell>,
    clock: Clock,
    stop_request: &Arc<StopRequest>,
) -> io::Result<Worker<AcceptorStats>> {
    acceptors.obey();
    let (mailbox, mark) = (Arc::new(StatsMailbox::default()), Arc::new(TurnMark::default()));
    let thread_state = AcceptorThread {
        serves: !acceptors.is_empty(),
        acceptors,
        clock,
        bell: Arc::clone(&bell),
        mailbox: Arc::clone(&mailbox),
        mark: Arc::clone(&mark),
        stop_request: Arc::clone(stop_request),
        leave_at: None,
    };
    let builder = std::thread::Builder::new().name("feedrail-cm".into());
    let thread = builder.spawn(move || thread_state.run())?;
    Ok(Worker { thread: Some(thread), bell, mailbox, mark })
}

struct AcceptorThread {
    acceptors: Acceptors,
    clock: Clock,
    bell: Arc<Doorbell>,
    mailbox: Arc<StatsMailbox<AcceptorStats>>,
    mark: Arc<TurnMark>,
    stop_request: Arc<StopRequest>,
    /// Whether at least one device has not failed.
    serves: bool,
    /// Time at which the thread ends even if hosts have not confirmed the end of their connections.
    leave_at: Option<Time>,
}

impl AcceptorThread {
    fn run(mut self) {
        let mailbox = Arc::clone(&self.mailbox);
        let mut end = OnEnd(&*mailbox, AcceptorStats::default());
        loop {
            self.mark.begin_turn();
            let now = self.clock.now();
            let mut busy = self.bell.answer();
            busy |= busy && self.acceptors.obey();
            for acceptor in self.acceptors.iter_mut() {
                busy |= acceptor.turn(now);
            }
            self.check_devices();
            self.acceptors.drop_gone();
            if self.mailbox.is_asked() {
                self.mailbox.publish(self.acceptors.stats(), None);
            }
            if self.is_over(now) {
                break;
            }
            if !busy {
                self.rest(now);
            }
        }
        self.mark.sleep();
        end.1 = self.acceptors.stats();
    }

    /// Logs, once, that no working device is left.
    fn check_devices(&mut self) {
        let serves = self.acceptors.iter().any(|acceptor| !acceptor.has_failed());
        if std::mem::replace(&mut self.serves, serves) && !serves {
            tracing::error!(
                "no RDMA device is left: the target serves no host until there is one again"
            );
        }
    }

    fn is_over(&mut self, now: Time) -> bool {
        let Some(how) = self.stop_request.get() else { return false };
        self.acceptors.iter_mut().for_each(|acceptor| acceptor.close());
        if how == Stop::Drain {
            return false;
        }
        let leave_at = *self.leave_at.get_or_insert(now + SHUTDOWN_GRACE);
        now >= leave_at || self.acceptors.iter().all(|acceptor| acceptor.is_empty())
    }

    fn rest(&self, now: Time) {
        let quiet = self.acceptors.iter().all(|acceptor| acceptor.may_sleep());
        if !quiet || !self.bell.is_quiet() {
            return;
        }
        let deadlines = self.acceptors.iter().filter_map(|acceptor| acceptor.deadline());
        let timeout = deadlines.chain(self.leave_at).min().map(|at| at - now);
        let watched = self.acceptors.iter().flat_map(|acceptor| acceptor.watched()).flatten();
        let mut fds: Vec<PollFd<'_>> = (watched.chain([self.bell.fd()]))
            .map(|fd| PollFd::from_borrowed_fd(borrow(fd), PollFlags::IN))
            .collect();
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        self.mark.sleep();
        // A sleep that a signal interrupts is only a short one.
        let _ = rustix::event::poll(&mut fds, timeout.as_ref());
    }
}

#[expect(unsafe_code, reason = "sleeps on descriptors by number")]
fn borrow<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: acceptors keep their descriptors open as long as they live, and none is dropped
    // during a sleep.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

fn report(buffers: &BufferRegistration) {
    if let BufferRegistration::Unregistered(reason) = buffers {
        tracing::warn!("the pool is not registered with io_uring, I/O costs more: {reason}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(
        run: impl FnOnce(&StatsMailbox<PollGroupStats>) + Send + 'static,
    ) -> Worker<PollGroupStats> {
        let mailbox = Arc::new(StatsMailbox::default());
        let of_thread = Arc::clone(&mailbox);
        let thread = std::thread::spawn(move || {
            let _end = OnEnd(&*of_thread, PollGroupStats::default());
            run(&of_thread);
        });
        let bell = Doorbell::new().expect("a descriptor");
        Worker { thread: Some(thread), bell, mailbox, mark: Arc::default() }
    }

    #[test]
    fn a_stuck_thread_is_not_joined() {
        let (release, released) = mpsc::channel::<()>();
        let mut stuck = worker(move |mailbox| {
            mailbox.publish(PollGroupStats::default(), Some(ThreadEnd::Stuck));
            let _ = released.recv();
        });
        stuck.join();
        assert!(stuck.is_over());
        drop(release);
    }

    #[test]
    fn a_thread_that_ends_is_waited_for() {
        let (sender, receiver) = mpsc::channel();
        let mut ending = worker(move |_| sender.send(()).expect("the receiver exists"));
        ending.join();
        assert_eq!(receiver.try_recv(), Ok(()));
    }
}
