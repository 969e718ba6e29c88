//! A thread of a target that publishes counters when they are requested.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::doorbell::Doorbell;
use crate::driver::turn_mark::TurnMark;

/// Maximum wait for a busy thread to publish its counters; then its last ones are returned.
const STATS_TIMEOUT: Duration = Duration::from_secs(1);

/// A thread, with what wakes it, returns its counters and marks its turns.
pub(super) struct Worker<S> {
    thread: Option<JoinHandle<()>>,
    pub(super) bell: Arc<Doorbell>,
    mailbox: Arc<StatsMailbox<S>>,
    pub(super) mark: Arc<TurnMark>,
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

/// The thread's side of its mailbox. Its drop publishes that the thread ends, also if it panics.
pub(super) struct Publisher<S: Copy> {
    mailbox: Arc<StatsMailbox<S>>,
    /// Counters at the end.
    pub(super) last: S,
}

impl<S: Copy + Default + Send + 'static> Worker<S> {
    /// Starts a thread that executes `run`.
    pub(super) fn spawn(
        name: String,
        bell: Arc<Doorbell>,
        run: impl FnOnce(&mut Publisher<S>, &TurnMark) + Send + 'static,
    ) -> io::Result<Self> {
        let (mailbox, mark) = (Arc::<StatsMailbox<S>>::default(), Arc::<TurnMark>::default());
        let mut publisher = Publisher { mailbox: Arc::clone(&mailbox), last: S::default() };
        let mark_of_thread = Arc::clone(&mark);
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            run(&mut publisher, &mark_of_thread);
            mark_of_thread.sleep();
        })?;
        Ok(Self { thread: Some(thread), bell, mailbox, mark })
    }

    /// Requests and returns the counters: new ones if the thread publishes them within
    /// [`STATS_TIMEOUT`], otherwise the last ones.
    pub(super) fn stats(&self) -> S {
        let before = self.mailbox.published().number;
        self.mailbox.asked.store(true, Ordering::Release);
        self.bell.ring();
        let old = |now: &Published<S>| now.number == before && now.over.is_none();
        self.mailbox.wait_while(STATS_TIMEOUT, old).stats
    }

    pub(super) fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
            || self.mailbox.published().over.is_some()
    }

    pub(super) fn wait_for_end_within(&self, timeout: Duration) {
        drop(self.mailbox.wait_while(timeout, |now| now.over.is_none()));
    }

    /// Wakes the thread and waits for its end. A stuck thread stays until the process ends.
    pub(super) fn join(&mut self) {
        self.bell.ring();
        let Some(thread) = self.thread.take() else { return };
        let running = |now: &mut Published<S>| now.over.is_none();
        let ended = self.mailbox.changed.wait_while(self.mailbox.published(), running);
        let end = ended.unwrap_or_else(PoisonError::into_inner).over;
        if end != Some(ThreadEnd::Stuck) && thread.join().is_err() {
            tracing::error!("a thread of the target panicked");
        }
    }
}

impl<S> StatsMailbox<S> {
    /// Waits while something holds for the last publication, at most for `timeout`.
    fn wait_while(
        &self,
        timeout: Duration,
        holds: impl Fn(&Published<S>) -> bool,
    ) -> MutexGuard<'_, Published<S>> {
        let waited = self.changed.wait_timeout_while(self.published(), timeout, |now| holds(now));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn published(&self) -> MutexGuard<'_, Published<S>> {
        self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: Copy> Publisher<S> {
    /// Publishes counters if they were requested since the last call.
    pub(super) fn answer(&self, stats: impl FnOnce() -> S) {
        let asked = &self.mailbox.asked;
        if asked.load(Ordering::Relaxed) && asked.swap(false, Ordering::AcqRel) {
            self.publish(stats(), None);
        }
    }

    /// Publishes the last counters, and that the thread never ends.
    pub(super) fn is_stuck(&self) {
        self.publish(self.last, Some(ThreadEnd::Stuck));
    }

    fn publish(&self, stats: S, over: Option<ThreadEnd>) {
        let mut published = self.mailbox.published();
        published.stats = stats;
        published.number += 1;
        published.over = published.over.or(over);
        self.mailbox.changed.notify_all();
    }
}

impl<S: Copy> Drop for Publisher<S> {
    fn drop(&mut self) {
        self.publish(self.last, Some(ThreadEnd::Done));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn worker(run: impl FnOnce(&Publisher<u64>) + Send + 'static) -> Worker<u64> {
        let bell = Doorbell::new().expect("a descriptor");
        let worker = Worker::spawn("test".into(), bell, |publisher, _| run(publisher));
        worker.expect("a thread")
    }

    #[test]
    fn a_stuck_thread_is_not_joined() {
        let (release, released) = mpsc::channel::<()>();
        let mut stuck = worker(move |publisher| {
            publisher.is_stuck();
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
