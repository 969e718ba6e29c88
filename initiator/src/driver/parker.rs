//! Wake-up of a waiting caller.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::Wake;
use std::thread::{self, Thread};
use std::time::Duration;

use rdma::Time;

use crate::driver::shared::SharedEngines;
use crate::driver::wake_flag::WakeFlag;

/// Time after a result within which a caller waits again promptly: it is then expected to do so
/// after the next result as well.
const PROMPT_RETURN: Duration = Duration::from_micros(50);

/// Wakes a caller, whether it is parked or sleeps on the descriptors.
pub(super) struct Parker {
    pub(super) thread: Thread,
    pub(super) notice: WakeFlag,
    shared: Weak<SharedEngines>,
    /// Time at which its thread last returned with a result, in nanoseconds.
    left_at: AtomicU64,
}

thread_local! {
    /// Parker of this thread's last wait, which the next one reuses.
    static PARKER: Cell<Option<Arc<Parker>>> = const { Cell::new(None) };
}

impl Parker {
    /// Returns a parker that no other wait of this thread uses.
    pub(super) fn of_this_thread(shared: &Arc<SharedEngines>) -> Arc<Self> {
        let kept = PARKER.try_with(Cell::take).ok().flatten();
        let kept = kept.filter(|parker| parker.shared.as_ptr() == Arc::as_ptr(shared));
        kept.unwrap_or_else(|| {
            Arc::new(Self {
                thread: thread::current(),
                notice: WakeFlag::new(),
                shared: Arc::downgrade(shared),
                left_at: AtomicU64::new(0),
            })
        })
    }

    /// Returns whether its thread has waited again promptly after the last result.
    pub(super) fn is_quick(&self, now: Time) -> bool {
        now - Time::from_nanos(self.left_at.load(Ordering::Relaxed)) < PROMPT_RETURN
    }

    /// Records that its thread returns with a result.
    pub(super) fn left(&self, now: Time) {
        self.left_at.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// Keeps it for the thread's next wait, in which a late wake-up is spurious and harmless.
    pub(super) fn keep(parker: Arc<Self>) {
        // Fails only while the thread exits.
        let _ = PARKER.try_with(|kept| kept.set(Some(parker)));
    }
}

impl Wake for Parker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let sleeps = self.notice.give();
        self.thread.unpark();
        if sleeps && let Some(shared) = self.shared.upgrade() {
            shared.interrupt();
        }
    }
}
