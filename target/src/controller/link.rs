//! The state that a queue's owner shares with the controller: the other cores' way to reach the
//! queue.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::task::Waker;

use nvme_proto::Qid;
use rdma::Time;

use super::event::{CloseReason, JobId, QueueEvent};
use crate::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering};

/// One queue as the rest of the process sees it.
#[derive(Debug)]
pub(super) struct QueueLink {
    pub(super) qid: Qid,
    waker: Waker,
    /// Set after the mailbox changed, cleared by the owner before it looks.
    mail: AtomicBool,
    mailbox: Mutex<QueueMailbox>,
    /// When the last command came.
    last_command: AtomicU64,
    lost: Arc<Lost>,
}

/// Set by the connection manager when a connection ended, before its poll group notices.
#[derive(Debug, Default)]
pub struct Lost(AtomicBool);

impl Lost {
    /// The connection has ended: its host has said so, or cannot be reached.
    pub fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

#[derive(Debug, Default)]
struct QueueMailbox {
    mail: VecDeque<Mail>,
    close: Option<CloseReason>,
}

/// The contents of the mailbox of a queue's owner.
#[derive(Debug)]
pub(super) enum Mail {
    /// It has to do something.
    Event(QueueEvent),
    /// Commands are over that a job of this admin queue waited for.
    Settled(JobId),
    /// The state of a job was written to the state folder, or could not be.
    Kept(JobId, bool),
}

impl QueueLink {
    pub(super) fn new(qid: Qid, waker: Waker, now: Time, lost: Arc<Lost>) -> Self {
        Self {
            qid,
            waker,
            mail: AtomicBool::new(false),
            mailbox: Mutex::default(),
            last_command: AtomicU64::new(now.as_nanos()),
            lost,
        }
    }

    /// Puts an event into the mailbox, which is bounded by the commands that a host may have
    /// outstanding.
    pub(super) fn post(&self, event: QueueEvent) {
        self.mailbox().mail.push_back(Mail::Event(event));
        self.ring();
    }

    /// Commands are over that a job of this admin queue waited for.
    pub(super) fn settled(&self, job: JobId) {
        self.mailbox().mail.push_back(Mail::Settled(job));
        self.ring();
    }

    /// The state of a job was written to the state folder, or could not be.
    pub(super) fn kept(&self, job: JobId, well: bool) {
        self.mailbox().mail.push_back(Mail::Kept(job, well));
        self.ring();
    }

    /// Tells the owner to close the connection; the first reason counts.
    pub(super) fn close(&self, reason: CloseReason) {
        self.mailbox().close.get_or_insert(reason);
        self.ring();
    }

    /// Makes the owner look at its deadlines again.
    pub(super) fn wake(&self) {
        self.waker.wake_by_ref();
    }

    /// The next mail for the owner. One relaxed load when there is none. After [`QueueLink::close`]
    /// it is the closing for ever.
    pub(super) fn next_mail(&self) -> Option<Mail> {
        if !self.mail.load(Ordering::Relaxed) {
            return None;
        }
        let mut mailbox = self.mailbox();
        if let Some(reason) = mailbox.close {
            return Some(Mail::Event(QueueEvent::Close(reason)));
        }
        let mail = mailbox.mail.pop_front();
        // Under the lock, so that nothing that is posted now is overlooked.
        self.mail.store(!mailbox.mail.is_empty(), Ordering::Relaxed);
        mail
    }

    /// Whether its connection has ended, which its owner may not know yet.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.get()
    }

    pub(super) fn saw_command(&self, now: Time) {
        self.last_command.store(now.as_nanos(), Ordering::Relaxed);
    }

    pub(super) fn last_command(&self) -> Time {
        Time::from_nanos(self.last_command.load(Ordering::Relaxed))
    }

    fn ring(&self) {
        self.mail.store(true, Ordering::Release);
        self.waker.wake_by_ref();
    }

    fn mailbox(&self) -> MutexGuard<'_, QueueMailbox> {
        self.mailbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::thread;
    use nvme_proto::Cid;

    use super::super::event::AbortRequest;
    use super::*;
    use crate::doorbell::Doorbell;

    /// Two threads post, and the owner sleeps as long as it has nothing to do.
    #[test]
    fn no_event_is_slept_through() {
        const EVENTS: usize = 2;
        loom::model(|| {
            let bell = Doorbell::model();
            let waker = Waker::from(Arc::clone(&bell));
            let link = Arc::new(QueueLink::new(Qid(1), waker, Time::ZERO, Arc::default()));
            let posters: Vec<_> = (0..EVENTS)
                .map(|_| {
                    let link = Arc::clone(&link);
                    let abort = AbortRequest { cid: Cid(1), asked_by: Cid(2) };
                    thread::spawn(move || link.post(QueueEvent::Abort(abort)))
                })
                .collect();
            let mut seen = 0;
            bell.serve(|| {
                seen += std::iter::from_fn(|| link.next_mail()).count();
                seen == EVENTS
            });
            posters.into_iter().for_each(|poster| poster.join().unwrap());
        });
    }
}
