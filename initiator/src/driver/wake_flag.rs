//! The flag that notifies a waiting thread, which may be about to sleep.

#[cfg(not(all(loom, test)))]
use std::sync::atomic::{AtomicBool, Ordering, fence};

#[cfg(all(loom, test))]
use loom::sync::atomic::{AtomicBool, Ordering, fence};

/// Notification of a waiting thread that its future must be polled.
#[derive(Debug)]
pub(crate) struct WakeFlag {
    given: AtomicBool,
    /// Whether the waiting thread sleeps on the descriptors, or is about to.
    sleeping: AtomicBool,
}

impl WakeFlag {
    pub(crate) fn new() -> Self {
        Self { given: AtomicBool::new(false), sleeping: AtomicBool::new(false) }
    }

    /// Sets the flag; earlier writes are visible to the thread that takes it. True if that thread
    /// must be interrupted.
    pub(crate) fn give(&self) -> bool {
        // A swap, not a store: of two concurrent stores, the second would hide the writes before
        // the first.
        self.given.swap(true, Ordering::AcqRel);
        // Pairs with the fence in `may_sleep`: either this sees the sleeper, or the sleeper sees
        // the flag.
        fence(Ordering::SeqCst);
        self.sleeping.load(Ordering::Relaxed)
    }

    /// Clears the flag; returns whether it was set.
    pub(crate) fn take(&self) -> bool {
        self.given.swap(false, Ordering::AcqRel)
    }

    /// Announces a sleep on the descriptors; false if the flag is set. [`WakeFlag::wake`] must
    /// follow, whether the thread sleeps or not.
    pub(crate) fn may_sleep(&self) -> bool {
        self.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        !self.given.load(Ordering::Relaxed)
    }

    /// Ends the sleep that [`WakeFlag::may_sleep`] announced; no interrupt is needed any longer.
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
