//! Thread of all acceptors.

use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use rdma::Time;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::doorbell::Doorbell;
use crate::driver::clock::Clock;
use crate::driver::devices::Acceptors;
use crate::driver::turn_mark::TurnMark;
use crate::driver::worker::{Publisher, Worker};
use crate::poll_group::StopRequest;
use crate::transport::{AcceptorStats, Stop};

/// Maximum time for disconnecting from hosts when the target stops.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(2);

/// Starts the thread of all acceptors.
pub(super) fn start(
    mut acceptors: Acceptors,
    bell: Arc<Doorbell>,
    clock: Clock,
    stop_request: &Arc<StopRequest>,
) -> io::Result<Worker<AcceptorStats>> {
    acceptors.obey();
    let thread = AcceptorThread {
        serves: !acceptors.is_empty(),
        acceptors,
        clock,
        bell: Arc::clone(&bell),
        stop_request: Arc::clone(stop_request),
        leave_at: None,
    };
    Worker::spawn("feedrail-cm".into(), bell, |publisher, mark| thread.run(publisher, mark))
}

struct AcceptorThread {
    acceptors: Acceptors,
    clock: Clock,
    bell: Arc<Doorbell>,
    stop_request: Arc<StopRequest>,
    /// Whether at least one device has not failed.
    serves: bool,
    /// Time at which the thread ends even if hosts have not confirmed the end of their connections.
    leave_at: Option<Time>,
}

impl AcceptorThread {
    fn run(mut self, publisher: &mut Publisher<AcceptorStats>, mark: &TurnMark) {
        loop {
            mark.begin_turn();
            let now = self.clock.now();
            let mut busy = self.bell.answer();
            busy |= busy && self.acceptors.obey();
            for acceptor in self.acceptors.iter_mut() {
                busy |= acceptor.turn(now);
            }
            self.check_devices();
            self.acceptors.drop_gone();
            publisher.answer(|| self.acceptors.stats());
            if self.is_over(now) {
                break;
            }
            if !busy {
                self.rest(now, mark);
            }
        }
        publisher.last = self.acceptors.stats();
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

    fn rest(&self, now: Time, mark: &TurnMark) {
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
        mark.sleep();
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
