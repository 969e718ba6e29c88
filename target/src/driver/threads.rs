//! Threads of a running target: one for each poll group, and one for all acceptors.

use std::io;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use rdma::Time;
use rustix::thread::CpuSet;

use crate::config::Cores;
use crate::driver::acceptor_thread;
use crate::driver::assembly::Assembly;
use crate::driver::clock::Clock;
use crate::driver::devices::Devices;
use crate::driver::idle_polling::IdlePolling;
use crate::driver::turn_mark::{TurnMark, TurnWatch};
use crate::driver::worker::{Publisher, Worker};
use crate::limits::STORAGE_GRACE;
use crate::metrics::latency::{Latency, LatencyCounters, LatencyStats};
use crate::poll_group::{PollGroup, PollGroupBuilder, PollGroupStats, StopRequest, Turn};
use crate::storage::{BufferRegistration, Uring, UringError};
use crate::transport::{AcceptorStats, Stop};

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
            acceptor: acceptor_thread::start(acceptors, acceptor_bell, clock, &stop_request)
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
                    group.wait_for_end_within(left);
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
    Worker::spawn(format!("feedrail-{index}"), bell, move |publisher, mark| {
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
        run_group(group, pace, publisher, mark);
    })
}

fn run_group(
    mut group: PollGroup,
    GroupPace { clock, polling, turns }: GroupPace,
    publisher: &mut Publisher<PollGroupStats>,
    mark: &TurnMark,
) {
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
        publisher.answer(|| group.stats());
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
    publisher.last = group.stats();
    if let Err(operations) = group.end() {
        tracing::error!(
            operations,
            "storage did not end these operations within {} s: the target stops without them",
            STORAGE_GRACE.as_secs()
        );
        publisher.is_stuck();
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

fn report(buffers: &BufferRegistration) {
    if let BufferRegistration::Unregistered(reason) = buffers {
        tracing::warn!("the pool is not registered with io_uring, I/O costs more: {reason}");
    }
}
