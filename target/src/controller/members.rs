//! Queues of an association, and the responses that wait for them.

use std::collections::BTreeMap;
use std::sync::Arc;

use nvme_proto::{Cid, Qid};

use super::command::CommandOutcome;
use super::event::{CloseReason, QueueEvent, Quiesce};
use super::link::QueueLink;

/// Queues of one association, with the Abort and Connect commands that wait for them.
#[derive(Debug, Default)]
pub(super) struct Members {
    /// Admin queue; `None` once it has left.
    pub(super) admin: Option<Arc<QueueLink>>,
    /// I/O queues that have not left.
    pub(super) io: BTreeMap<Qid, Arc<QueueLink>>,
    /// I/O queues that have left the association: closed, disconnected or lost. A queue stays here
    /// until its connection and its commands that change the medium have ended.
    pub(super) leaving: Vec<Arc<QueueLink>>,
    /// Connect commands (queue, CID) that get their response once no queue is leaving.
    pub(super) joining: Vec<(Arc<QueueLink>, Cid)>,
    pub(super) ending: Option<CloseReason>,
    /// Abort commands without a response (CID), each with the queue of the command to abort.
    pub(super) aborts: Vec<(Cid, Arc<QueueLink>)>,
}

/// When the response to the Connect command of a joining queue is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Joined {
    /// Immediately, since no queue is leaving.
    Now,
    /// Once no queue is leaving, by a [`QueueEvent::Complete`].
    Later,
}

impl Members {
    pub(super) fn has_io_queues(&self) -> bool {
        !self.io.is_empty()
    }

    pub(super) fn is_leaving(&self) -> bool {
        !self.leaving.is_empty()
    }

    pub(super) fn admin(&self) -> Option<&Arc<QueueLink>> {
        self.admin.as_ref()
    }

    /// I/O queues, leaving ones included.
    pub(super) fn io_queues(&self) -> impl Iterator<Item = &Arc<QueueLink>> {
        self.io.values().chain(&self.leaving)
    }

    /// Sends each I/O queue the request to attach a hold to its running commands.
    pub(super) fn quiesce(&self, quiesce: &Quiesce) {
        self.io_queues().for_each(|link| link.post(QueueEvent::Quiesce(quiesce.clone())));
    }

    /// Whether commands of queues that have left or are lost may still change the medium.
    pub(super) fn has_unfinished_writes(&self) -> bool {
        let connections = self.admin.iter().chain(self.io.values());
        self.is_leaving()
            || (self.has_io_queues() && connections.into_iter().any(|link| link.is_lost()))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.admin.is_none() && self.io.is_empty() && self.leaving.is_empty()
    }

    /// Returns the queue with the QID; not one that has left.
    pub(super) fn get(&self, qid: Qid) -> Option<&Arc<QueueLink>> {
        if qid.is_admin() { self.admin() } else { self.io.get(&qid) }
    }

    pub(super) fn end(&mut self, reason: CloseReason) {
        let reason = *self.ending.get_or_insert(reason);
        self.admin.iter().for_each(|link| link.close(reason));
        self.close_io_queues(reason);
    }

    /// Closes the I/O queues without ending the association.
    pub(super) fn close_io_queues(&mut self, reason: CloseReason) {
        for (_, link) in std::mem::take(&mut self.io) {
            link.close(reason);
            self.leaving.push(link);
        }
        self.joining.clear();
    }

    /// Moves an I/O queue to the leaving ones, and responds to Aborts that wait for it.
    pub(super) fn detach(&mut self, link: &Arc<QueueLink>) {
        if self.io.get(&link.qid).is_some_and(|member| Arc::ptr_eq(member, link)) {
            self.io.remove(&link.qid);
            self.leaving.push(Arc::clone(link));
        }
        self.joining.retain(|(other, _)| !Arc::ptr_eq(other, link));
        self.answer_aborts_of(link);
    }

    /// Sends the responses (`result`) to Connect commands that waited for leaving queues.
    pub(super) fn admit(&mut self, result: u64) {
        for (link, cid) in std::mem::take(&mut self.joining) {
            link.post(QueueEvent::Complete { cid, outcome: CommandOutcome::success(result) });
        }
    }

    /// Requests the completion of a parked command of the admin queue.
    pub(super) fn complete(&self, cid: Cid, outcome: CommandOutcome) {
        if let Some(admin) = self.admin() {
            admin.post(QueueEvent::Complete { cid, outcome });
        }
    }

    pub(super) fn answer_abort(&mut self, asked_by: Cid, aborted: bool) {
        let Some(at) = self.aborts.iter().position(|(cid, _)| *cid == asked_by) else { return };
        self.aborts.swap_remove(at);
        self.complete(asked_by, CommandOutcome::success(u64::from(!aborted)));
    }

    pub(super) fn answer_aborts_of(&mut self, link: &Arc<QueueLink>) {
        while let Some((cid, _)) = self.aborts.iter().find(|(_, of)| Arc::ptr_eq(of, link)) {
            self.answer_abort(*cid, false);
        }
    }
}
