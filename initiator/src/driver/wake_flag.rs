//! How a thread that waits is told to look again, when it may be about to sleep.

#[cfg(not(all(loom, test)))]
use std::sync::atomic::{AtomicBool, Ordering, fence};

#[cfg(all(loom, test))]
use loom::sync::atomic::{AtomicBool, Ordering, fence};

/// A notice for a thread that waits: there may be something to see.
#[derive(Debug)]
pub(crate) struct WakeFlag {
    given: AtomicBool,
    /// The thread that waits sleeps on the descriptors, or is about to.
    sleeping: AtomicBool,
}

impl WakeFlag {
    pub(crate) fn new() -> Self {
        Self { given: AtomicBool::new(false), sleeping: AtomicBool::new(false) }
    }

    /// Gives the notice; the work done before is visible to the thread that takes it. True if that
    /// thread has to be interrupted.
    pub(crate) fn give(&self) -> bool {
        // Not a store: where two give it at a time, one store would hide what the other had done
        // before its own.
        self.given.swap(true, Ordering::AcqRel);
        // Pairs with the fence in `may_sleep`: either this sees the sleeper, or the sleeper sees
        // the notice.
        fence(Ordering::SeqCst);
        self.sleeping.load(Ordering::Relaxed)
    }

    /// Takes the notice, if it was given.
    pub(crate) fn take(&self) -> bool {
        self.given.swap(false, Ordering::AcqRel)
    }

    /// Announces a sleep on the descriptors; false if the notice was given. [`WakeFlag::wake`]
    /// comes after, slept or not.
    pub(crate) fn may_sleep(&self) -> bool {
        self.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        !self.given.load(Ordering::Relaxed)
    }

    /// Ends what [`WakeFlag::may_sleep`] began: the thread is awake and need not be interrupted.
    pub(crate) fn wake(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::sync::atomic::AtomicUsize;
    use loom::sync::{Arc, Condvar, Mutex};
    use loom::thread;

    use super::*;

    /// The state shared with a worker that works, gives the notice and interrupts.
    struct Shared {
        notice: WakeFlag,
        done: AtomicUsize,
        interrupted: Mutex<bool>,
        changed: Condvar,
    }

    const WORKERS: usize = 2;

    fn shared() -> Arc<Shared> {
        Arc::new(Shared {
            notice: WakeFlag::new(),
            done: AtomicUsize::new(0),
            interrupted: Mutex::new(false),
            changed: Condvar::new(),
        })
    }

    impl Shared {
        fn is_over(&self) -> bool {
            self.notice.take() && self.done.load(Ordering::Relaxed) == WORKERS
        }

        fn sleep(&self) {
            let mut interrupted = self.interrupted.lock().unwrap();
            while !*interrupted {
                interrupted = self.changed.wait(interrupted).unwrap();
            }
            *interrupted = false;
        }
    }

    #[test]
    fn no_notice_is_slept_through() {
        loom::model(|| {
            let shared = shared();
            let work = |shared: Arc<Shared>| {
                move || {
                    shared.done.fetch_add(1, Ordering::Relaxed);
                    if shared.notice.give() {
                        *shared.interrupted.lock().unwrap() = true;
                        shared.changed.notify_one();
                    }
                }
            };
            let workers: Vec<_> =
                (0..WORKERS).map(|_| thread::spawn(work(shared.clone()))).collect();
            while !shared.is_over() {
                if shared.notice.may_sleep() {
                    shared.sleep();
                }
                shared.notice.wake();
            }
            workers.into_iter().for_each(|worker| worker.join().unwrap());
        });
    }
}
