//! Exponentiations of all queues that authenticate, executed by a thread of their own.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::ops::Bound;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use feedrail_auth::{
    ControllerWork, ControllerWorkResult, DhGroup, KeyPair, SequenceNumbers, WorkSlots,
};
use rdma::Time;

use super::link::QueueLink;
use crate::limits::peer::Party;
use crate::limits::{AUTH_WORK, AUTH_WORK_PER_ADDRESS};
use crate::metrics::authentications::AuthCounts;

/// Time for which transactions use one pair of exponent and public value.
const PAIR_LIFETIME: Duration = Duration::from_secs(60);
/// Priority of the thread: 19 is the lowest, below all threads that serve authenticated hosts.
const NICENESS: i32 = 19;

/// Source of random bytes.
type RandomSource = fn(&mut [u8]);

/// State that all authenticating queues of a target share: random numbers, sequence numbers and
/// work.
pub(crate) struct Authenticator {
    pub(super) random: RandomSource,
    pub(super) sequences: Arc<SequenceNumbers>,
    work: Mutex<PendingWork>,
    /// Signals new work, or that the thread has to end.
    changed: Condvar,
    pub(crate) counts: AuthCounts,
}

/// Work that waits for the thread, and what limits it.
struct PendingWork {
    slots: WorkSlots<Party>,
    waiting: BTreeMap<Party, VecDeque<AuthJob>>,
    /// Party whose work was executed last; the next one in order follows.
    last: Option<Party>,
    pairs: BTreeMap<DhGroup, UsedPair>,
    is_stopped: bool,
}

/// Pair of exponent and public value that several transactions use.
struct UsedPair {
    pair: Arc<KeyPair>,
    until: Time,
}

/// Work of one queue, which is left out if the queue has ended.
struct AuthJob {
    work: ControllerWork,
    queue: Weak<QueueLink>,
    asked_at: Time,
}

/// Fate of a piece of work.
pub(super) enum Submitted {
    /// The result was there already.
    Done(ControllerWorkResult),
    /// [`QueueLink::computed`] brings the result.
    Waiting,
    /// There is too much work.
    Refused,
}

impl Authenticator {
    pub(super) fn new(random: RandomSource) -> Self {
        let work = PendingWork {
            slots: WorkSlots::new(AUTH_WORK, AUTH_WORK_PER_ADDRESS),
            waiting: BTreeMap::new(),
            last: None,
            pairs: BTreeMap::new(),
            is_stopped: false,
        };
        Self {
            random,
            sequences: Arc::new(SequenceNumbers::new(&mut |bytes| random(bytes))),
            work: Mutex::new(work),
            changed: Condvar::new(),
            counts: AuthCounts::default(),
        }
    }

    /// Takes work for a queue of a host at this address.
    pub(super) fn submit(
        &self,
        now: Time,
        work: ControllerWork,
        queue: &Arc<QueueLink>,
        party: Party,
    ) -> Submitted {
        let mut pending = self.pending();
        if let Some(result) = pending.known(now, &work) {
            return Submitted::Done(result);
        }
        if !pending.slots.take(party) {
            return Submitted::Refused;
        }
        let job = AuthJob { work, queue: Arc::downgrade(queue), asked_at: now };
        pending.waiting.entry(party).or_default().push_back(job);
        self.changed.notify_one();
        Submitted::Waiting
    }

    /// Executes one piece of work. Returns whether there was one.
    pub(crate) fn execute_next(&self) -> bool {
        let Some((party, job)) = self.pending().next() else { return false };
        if let Some(queue) = job.queue.upgrade() {
            queue.computed(self.execute(&job));
        }
        self.pending().slots.give_back(&party);
        true
    }

    fn execute(&self, AuthJob { work, asked_at, .. }: &AuthJob) -> ControllerWorkResult {
        // An earlier job may have made the pair.
        if let Some(result) = self.pending().known(*asked_at, work) {
            return result;
        }
        let result = work.run(&mut |bytes| (self.random)(bytes));
        if let ControllerWorkResult::KeyPair { pair, .. } = &result {
            let used = UsedPair { pair: Arc::clone(pair), until: *asked_at + PAIR_LIFETIME };
            self.pending().pairs.insert(pair.group(), used);
        }
        result
    }

    /// Executes work until [`Authenticator::stop`] is called.
    fn serve(&self) {
        loop {
            let idle =
                |pending: &mut PendingWork| !pending.is_stopped && pending.waiting.is_empty();
            let pending = self.changed.wait_while(self.pending(), idle);
            let is_stopped = pending.unwrap_or_else(PoisonError::into_inner).is_stopped;
            if is_stopped {
                return;
            }
            self.execute_next();
        }
    }

    fn stop(&self) {
        self.pending().is_stopped = true;
        self.changed.notify_all();
    }

    fn pending(&self) -> MutexGuard<'_, PendingWork> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PendingWork {
    /// Returns the result of work that was done for another transaction.
    fn known(&self, now: Time, work: &ControllerWork) -> Option<ControllerWorkResult> {
        let ControllerWork::KeyPair { id, group } = work else { return None };
        let used = self.pairs.get(group).filter(|used| now < used.until)?;
        Some(ControllerWorkResult::KeyPair { id: *id, pair: Arc::clone(&used.pair) })
    }

    /// Takes the next piece of work, in turn for the parties that wait.
    fn next(&mut self) -> Option<(Party, AuthJob)> {
        let after = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let mut following = self.waiting.range_mut((after, Bound::Unbounded));
        let (party, jobs) = match following.next() {
            Some(found) => found,
            None => self.waiting.iter_mut().next()?,
        };
        let (party, job) = (*party, jobs.pop_front());
        if jobs.is_empty() {
            self.waiting.remove(&party);
        }
        self.last = Some(party);
        job.map(|job| (party, job))
    }
}

impl fmt::Debug for Authenticator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authenticator")
    }
}

/// Thread that executes the work of an [`Authenticator`]. Dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct AuthThread {
    authenticator: Arc<Authenticator>,
    thread: Option<JoinHandle<()>>,
}

impl AuthThread {
    /// Starts the thread, which lowers its priority and confines itself.
    ///
    /// # Errors
    /// The thread cannot be created.
    pub(crate) fn start(authenticator: Arc<Authenticator>) -> io::Result<Self> {
        let early = crate::confinement::EarlyThread::announce();
        let of_thread = Arc::clone(&authenticator);
        let run = move || {
            // On Linux this is about the calling thread. Without it, work only takes more time of
            // the cores that serve.
            let _ = rustix::process::setpriority_process(None, NICENESS);
            early.enter();
            of_thread.serve();
        };
        let thread = std::thread::Builder::new().name("feedrail-auth".into()).spawn(run)?;
        Ok(Self { authenticator, thread: Some(thread) })
    }
}

impl Drop for AuthThread {
    fn drop(&mut self) {
        self.authenticator.stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that computes for authentications panicked");
        }
    }
}

/// Fills the slice with random bytes of the kernel.
///
/// # Panics
/// If the kernel has none, as only kernels before 3.17.
pub(super) fn system_random(bytes: &mut [u8]) {
    rdma::fill_random(bytes).expect("the kernel has random numbers");
}
