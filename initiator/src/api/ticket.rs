//! Tickets: handles of plans in progress.

use std::fmt;
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};

use crate::api::namespace::Namespace;
use crate::api::shards::Shards;
use crate::driver::host_state::Inner;
use crate::driver::process::Forked;
use crate::driver::system_now;
use crate::engine::arena::PlanKey;
use crate::engine::plan_state::PlanState;
use crate::types::error::{Error, ErrorKind};
use crate::types::plan::{Outcome, PlanProgress};

/// Handle of a plan that was [submitted](crate::Host::submit). Its ranges are in progress whether
/// or not a thread waits for them.
///
/// Results can be read at any time, without a lock. If the ticket is dropped, the plan is
/// cancelled: no further command is sent, and memory is freed when the target can no longer access
/// it. In a process that was forked since, ranges without a result have [`Outcome::FORKED`], and
/// waiting for them returns immediately.
#[must_use = "dropping it cancels the plan"]
pub struct Ticket {
    host: Arc<Inner>,
    state: Arc<PlanState>,
    key: PlanKey,
    ended: OnceLock<Arc<EndedFd>>,
    /// Keeps the connections open while the ticket exists.
    shards: Shards,
}

impl Ticket {
    pub(crate) fn new(
        host: &Arc<Inner>,
        shards: &Shards,
        state: Arc<PlanState>,
        key: PlanKey,
    ) -> Self {
        let (host, ended, shards) = (Arc::clone(host), OnceLock::new(), shards.clone());
        Self { host, state, key, ended, shards }
    }

    /// Returns the number of ranges of the plan.
    pub fn len(&self) -> usize {
        self.state.len()
    }

    /// Returns whether the plan has no ranges.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how many ranges have ended. Takes no lock.
    pub fn progress(&self) -> PlanProgress {
        let progress = self.state.progress();
        if !self.is_forked() {
            return progress;
        }
        let PlanProgress { done, failed, total } = progress;
        PlanProgress { done: total, failed: failed + (total - done), total }
    }

    /// Returns whether all ranges have ended. Takes no lock.
    pub fn is_done(&self) -> bool {
        self.progress().is_done()
    }

    /// Returns the outcome of a range, whose status is [`Outcome::PENDING`] until it has ended.
    /// Takes no lock.
    ///
    /// # Panics
    /// The plan has no range with this index.
    pub fn outcome(&self, entry: usize) -> Outcome {
        match self.state.outcome(entry) {
            pending if pending.is_pending() && self.is_forked() => {
                Outcome { status: Outcome::FORKED, ..pending }
            }
            outcome => outcome,
        }
    }

    /// Returns the outcomes of all ranges, in the order of the plan; as [`Ticket::outcome`].
    pub fn outcomes(&self) -> impl ExactSizeIterator<Item = Outcome> + '_ {
        (0..self.len()).map(|entry| self.outcome(entry))
    }

    /// Returns the error of a range; `None` if it succeeded or has not ended.
    ///
    /// # Panics
    /// The plan has no range with this index.
    pub fn error(&self, entry: usize) -> Option<Error> {
        if self.outcome(entry).status == Outcome::FORKED {
            return Some(ErrorKind::Forked.into());
        }
        self.state.error(entry)
    }

    /// Returns the namespace that a range is read from: of the replicas of its shard, the one that
    /// was attempted last.
    ///
    /// # Panics
    /// The plan has no range with this index.
    pub fn namespace(&self, entry: usize) -> &Namespace {
        let (shard, replica) = self.state.replica(entry);
        &self.shards.replicas(shard)[replica]
    }

    /// Waits until `min` ranges have ended (all if the plan has fewer), or until `timeout` has
    /// passed; drives the host until then. With a `min` of 0 it does the work that is ready and
    /// returns. The thread is woken once, when that many ranges have ended.
    ///
    /// # Panics
    /// The host uses a simulated device, which only the simulator can drive.
    pub fn wait(&self, min: usize, timeout: Option<Duration>) -> PlanProgress {
        assert_can_wait(&self.host);
        let shared = &self.host.shared;
        if min == 0 {
            shared.turn(system_now());
        } else {
            let deadline = timeout.map(|timeout| system_now() + timeout);
            let _ = shared.block_on_until(pin!(PlanEnds { ticket: self, min }), deadline);
        }
        self.progress()
    }

    /// Returns a future that is ready when `min` ranges have ended (all if the plan has fewer).
    pub fn finished(&self, min: usize) -> impl Future<Output = PlanProgress> + Send + '_ {
        let mut ends = PlanEnds { ticket: self, min };
        std::future::poll_fn(move |context| {
            if let Poll::Ready(progress) = Pin::new(&mut ends).poll(context) {
                return Poll::Ready(progress);
            }
            let shared = &self.host.shared;
            if !shared.threaded {
                return Poll::Pending;
            }
            // Takes a result that is ready by now without waking another thread.
            shared.turn(system_now());
            let polled = Pin::new(&mut ends).poll(context);
            if polled.is_pending() {
                shared.kick();
            }
            polled
        })
    }

    /// Cancels the plan. Ranges with no command in flight end immediately, with
    /// [`Outcome::CANCELLED`]; returns their number. The others end with it when the target has
    /// responded to their commands, or after the [time-outs](crate::ControllerOptions::io_timeout)
    /// of a silent target: it may access their memory until then, and a write may still be
    /// executed.
    pub fn cancel(&self) -> usize {
        self.host.shared.cancel_plan(self.key)
    }

    /// Returns an eventfd that is readable once all ranges have ended, for event loops, which must
    /// not read from it. A [polled](crate::Host::polled) host must be driven by the caller as well.
    ///
    /// # Errors
    /// The process has no descriptor left, or was forked from the one that submitted the plan.
    pub fn fd(&self) -> io::Result<BorrowedFd<'_>> {
        if let Some(ended) = self.ended.get() {
            return Ok(ended.fd.as_fd());
        }
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let ended = Arc::new(EndedFd { fd: eventfd(0, flags)? });
        let waker = Waker::from(Arc::clone(&ended));
        match self.host.shared.lock() {
            Err(Forked) => return Err(io::Error::other(Error::from(ErrorKind::Forked))),
            Ok(mut state) if state.host.outbox.is_plan_in_flight(self.key) => {
                state.host.outbox.notify_of_plan(self.key, self.len(), &waker);
            }
            Ok(_) => waker.wake_by_ref(),
        }
        if self.host.shared.threaded {
            self.host.shared.kick();
        }
        // Another thread may have created one since; the plan then writes to both.
        Ok(self.ended.get_or_init(|| ended).fd.as_fd())
    }

    fn is_forked(&self) -> bool {
        self.host.shared.is_forked()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.host.shared.close_plan(self.key);
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("progress", &self.progress()).finish_non_exhaustive()
    }
}

/// Future that is ready when at least `min` ranges of a plan have ended.
struct PlanEnds<'a> {
    ticket: &'a Ticket,
    min: usize,
}

impl Future for PlanEnds<'_> {
    type Output = PlanProgress;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<PlanProgress> {
        let Self { ticket, min } = *self;
        poll_any(&ticket.host, &[(ticket, min)], context).map(|()| ticket.progress())
    }
}

/// Future that is ready when one of these plans has at least as many ended ranges as the number
/// beside it (all if it has fewer).
struct AnyPlanEnds<'a> {
    host: &'a Inner,
    plans: &'a [(&'a Ticket, usize)],
}

impl Future for AnyPlanEnds<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        poll_any(self.host, self.plans, context)
    }
}

fn poll_any(host: &Inner, plans: &[(&Ticket, usize)], context: &mut Context<'_>) -> Poll<()> {
    let is_met =
        |&(ticket, min): &(&Ticket, usize)| ticket.progress().done >= min.min(ticket.len());
    if !plans.iter().any(is_met)
        && let Ok(mut state) = host.shared.lock()
        && !plans.iter().any(is_met)
    {
        for &(ticket, min) in plans {
            state.host.outbox.notify_of_plan(ticket.key, min.min(ticket.len()), context.waker());
        }
        return Poll::Pending;
    }
    Poll::Ready(())
}

fn assert_can_wait(host: &Inner) {
    assert!(
        host.shared.is_forked() || host.can_wait(),
        "a simulated host is driven by its simulator"
    );
}

pub(crate) fn wait_any(host: &Arc<Inner>, plans: &[(&Ticket, usize)], timeout: Option<Duration>) {
    let is_own = |(ticket, _): &(&Ticket, usize)| Arc::ptr_eq(&ticket.host, host);
    assert!(plans.iter().all(is_own), "a ticket is of another host");
    if plans.is_empty() {
        return;
    }
    assert_can_wait(host);
    let deadline = timeout.map(|timeout| system_now() + timeout);
    let _ = host.shared.block_on_until(pin!(AnyPlanEnds { host, plans }), deadline);
}

/// An eventfd that becomes readable when a plan has ended.
struct EndedFd {
    fd: OwnedFd,
}

impl Wake for EndedFd {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // A write fails only if the counter is full; the descriptor is then readable already.
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }
}
