//! Part of a queue that its owner shares with the controller, through which other cores reach it.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::task::Waker;

use feedrail_auth::ControllerWorkResult;
use nvme_proto::Qid;
use rdma::Time;

use super::auth_state::QueueAuthState;
use super::event::{CloseReason, JobId, QueueEvent};
use crate::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering};

/// Queue as seen by other threads: its mailbox, and when its last command arrived.
#[derive(Debug)]
pub(super) struct QueueLink {
    pub(super) qid: Qid,
    waker: Waker,
    /// Whether the mailbox may have messages; set after a message was added, cleared by the owner.
    mail: AtomicBool,
    mailbox: Mutex<QueueMailbox>,
    /// Time at which the last command arrived, in nanoseconds.
    last_command: AtomicU64,
    lost: Arc<Lost>,
}

/// Flag that a connection has ended, set before its poll group handles that.
#[derive(Debug, Default)]
pub struct Lost(AtomicBool);

impl Lost {
    /// Records that the host disconnected or became unreachable.
    pub fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

#[derive(Debug, Default)]
struct QueueMailbox {
    mail: VecDeque<QueueMessage>,
    /// First reason to close the connection.
    close: Option<CloseReason>,
    /// Authentication of the host on the queue; `None` if it is not demanded.
    auth: Option<QueueAuthState>,
}

#[derive(Debug)]
pub(super) enum QueueMessage {
    /// Event that the core of the queue must act on.
    Event(QueueEvent),
    /// Commands that a job of this admin queue waited for have ended.
    Quiesced(JobId),
    /// Whether the write protection of a job could be written to the state folder.
    ProtectionStored(JobId, bool),
    /// Result of work that the authentication of this queue waits for.
    Computed(ControllerWorkResult),
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

    /// Posts an event to the mailbox. The commands that a host may have outstanding bound its
    /// length.
    pub(super) fn post(&self, event: QueueEvent) {
        self.mailbox().mail.push_back(QueueMessage::Event(event));
        self.ring();
    }

    /// Posts that the commands that a job of this admin queue waited for have ended.
    pub(super) fn quiesced(&self, job: JobId) {
        self.mailbox().mail.push_back(QueueMessage::Quiesced(job));
        self.ring();
    }

    /// Posts whether the write protection of a job could be written to the state folder (`well`).
    pub(super) fn kept(&self, job: JobId, well: bool) {
        self.mailbox().mail.push_back(QueueMessage::ProtectionStored(job, well));
        self.ring();
    }

    /// Posts the result of work that the authentication of this queue waits for.
    pub(super) fn computed(&self, result: ControllerWorkResult) {
        self.mailbox().mail.push_back(QueueMessage::Computed(result));
        self.ring();
    }

    /// Records the authentication of the host on this queue, for operators.
    pub(super) fn set_auth_state(&self, state: QueueAuthState) {
        self.mailbox().auth = Some(state);
    }

    /// Authentication of the host on this queue; `None` if it is not demanded.
    pub(super) fn auth_state(&self) -> Option<QueueAuthState> {
        self.mailbox().auth
    }

    /// Requests that the owner closes the connection; only the first reason counts.
    pub(super) fn close(&self, reason: CloseReason) {
        self.mailbox().close.get_or_insert(reason);
        self.ring();
    }

    /// Wakes the owner, which then checks whether it has to do something.
    pub(super) fn wake(&self) {
        self.waker.wake_by_ref();
    }

    /// Returns the next message for the owner; without one this costs one relaxed load. After
    /// [`QueueLink::close`] it is always the close.
    pub(super) fn next_mail(&self) -> Option<QueueMessage> {
        if !self.mail.load(Ordering::Relaxed) {
            return None;
        }
        let mut mailbox = self.mailbox();
        if let Some(reason) = mailbox.close {
            return Some(QueueMessage::Event(QueueEvent::Close(reason)));
        }
        let mail = mailbox.mail.pop_front();
        // Cleared under the lock, so that no message posted now is missed.
        self.mail.store(!mailbox.mail.is_empty(), Ordering::Relaxed);
        mail
    }

    /// Whether the connection has ended, which its owner may not have handled yet.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.get()
    }

    pub(super) fn saw_command(&self, now: Time) {
        self.last_command.store(now.as_nanos(), Ordering::Relaxed);
    }

    /// Counts the commands of a queue that has left as if they had come on this one.
    pub(super) fn saw_commands_of(&self, other: &Self) {
        let last = other.last_command.load(Ordering::Relaxed);
        self.last_command.fetch_max(last, Ordering::Relaxed);
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

    /// Two threads post while the owner sleeps as long as it has nothing to do.
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
