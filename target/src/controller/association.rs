//! The life of an association: which queues it has, and how it ends.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nvme_proto::{Cid, Qid, Status};
use rdma::Time;

use super::command::{Abort, CloseReason, Event, Outcome};
use super::link::QueueLink;
use super::{Controller, Phase};
use crate::limits::{ABORTS, TEARDOWN_GRACE};

/// The queues of an association, and what they owe each other.
#[derive(Debug, Default)]
pub(super) struct Members {
    queues: BTreeMap<Qid, Arc<QueueLink>>,
    /// Queues that a reset sent away but whose connections are still closing.
    leaving: Vec<Arc<QueueLink>>,
    /// Why the association ends.
    ending: Option<CloseReason>,
    /// Abort commands that wait for an answer: which, and from which queue.
    aborts: Vec<(Cid, Qid)>,
}

impl Members {
    pub(super) fn has_io_queues(&self) -> bool {
        self.queues.keys().any(|qid| !qid.is_admin())
    }

    fn admin(&self) -> Option<&Arc<QueueLink>> {
        self.queues.get(&Qid::ADMIN)
    }

    fn all(&self) -> impl Iterator<Item = &Arc<QueueLink>> {
        self.queues.values().chain(&self.leaving)
    }

    fn is_empty(&self) -> bool {
        self.queues.is_empty() && self.leaving.is_empty()
    }

    /// Takes a queue out; true if it was one that should have stayed.
    fn remove(&mut self, link: &Arc<QueueLink>) -> bool {
        if self.queues.get(&link.qid).is_some_and(|member| Arc::ptr_eq(member, link)) {
            self.queues.remove(&link.qid);
            return true;
        }
        self.leaving.retain(|member| !Arc::ptr_eq(member, link));
        false
    }

    fn end(&mut self, reason: CloseReason) {
        let reason = *self.ending.get_or_insert(reason);
        self.all().for_each(|link| link.close(reason));
    }

    /// Sends the I/O queues away without ending the association.
    pub(super) fn close_io_queues(&mut self, reason: CloseReason) {
        let admin = self.queues.remove(&Qid::ADMIN);
        for (_, link) in std::mem::take(&mut self.queues) {
            link.close(reason);
            self.leaving.push(link);
        }
        self.queues.extend(admin.map(|link| (Qid::ADMIN, link)));
    }

    /// Completes a parked command of the admin queue.
    pub(super) fn complete(&self, cid: Cid, outcome: Outcome) {
        if let Some(admin) = self.admin() {
            admin.post(Event::Complete { cid, outcome });
        }
    }

    fn answer_abort(&mut self, asked_by: Cid, aborted: bool) {
        let Some(at) = self.aborts.iter().position(|(cid, _)| *cid == asked_by) else { return };
        self.aborts.swap_remove(at);
        self.complete(asked_by, Outcome::success(u64::from(!aborted)));
    }

    fn answer_aborts_of(&mut self, qid: Qid) {
        while let Some((cid, _)) = self.aborts.iter().find(|(_, of)| *of == qid).copied() {
            self.answer_abort(cid, false);
        }
    }
}

impl Controller {
    /// Adds a queue.
    ///
    /// # Errors
    /// The association is ending, or has a queue of that id.
    pub(super) fn join(&self, link: &Arc<QueueLink>) -> Result<(), Status> {
        let mut shared = self.shared();
        let members = &mut shared.members;
        if members.ending.is_some() || self.end_at().is_some() {
            return Err(Status::CONNECT_CONTROLLER_BUSY);
        }
        if members.queues.contains_key(&link.qid) {
            return Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr());
        }
        members.queues.insert(link.qid, Arc::clone(link));
        Ok(())
    }

    /// A queue's connection is gone. Unless it left by Disconnect or was sent away, the association ends with
    /// it: at once with the admin queue, after a grace with an I/O queue, since hosts that shut down in order
    /// end their I/O queues first. Without a time there is no grace.
    pub(super) fn queue_left(&self, link: &Arc<QueueLink>, disconnected: bool, now: Option<Time>) {
        let mut shared = self.shared();
        let members = &mut shared.members;
        let unexpected = members.remove(link);
        members.answer_aborts_of(link.qid);
        match now {
            _ if !unexpected || disconnected => {}
            Some(now) if !link.qid.is_admin() => {
                members.close_io_queues(CloseReason::AssociationEnded);
                let end_at = (now + TEARDOWN_GRACE).as_nanos();
                self.end_at.fetch_min(end_at, Ordering::AcqRel);
                members.admin().inspect(|admin| admin.wake());
            }
            _ => members.end(CloseReason::AssociationEnded),
        }
        if members.is_empty() {
            drop(shared);
            self.forget();
        }
    }

    fn forget(&self) {
        if self.announced {
            tracing::info!(cntlid = %self.cntlid, host = %self.host.nqn, peer = %self.peer, "disconnected");
        }
        if let Some(registry) = self.registry.upgrade() {
            registry.forget(self.cntlid);
        }
    }

    /// Whether I/O queues are connected, those that were sent away included.
    pub(crate) fn has_io_connections(&self) -> bool {
        let shared = self.shared();
        shared.members.has_io_queues() || !shared.members.leaving.is_empty()
    }

    /// Ends the association: every queue is told to close.
    pub(crate) fn end(&self, reason: CloseReason) {
        let mut shared = self.shared();
        if self.announced && shared.members.ending.is_none() {
            tracing::info!(cntlid = %self.cntlid, host = %self.host.nqn, peer = %self.peer, %reason, "ending");
        }
        if reason == CloseReason::KeepAlive {
            shared.csts.set_cfs(true);
            self.set_phase(Phase::Fatal);
        }
        shared.members.end(reason);
    }

    /// When the last command came on any queue.
    pub(super) fn last_command(&self) -> Time {
        let shared = self.shared();
        shared.members.all().map(|link| link.last_command()).max().unwrap_or(Time::ZERO)
    }

    /// Passes a host's wish on to the queue that has the command. `Ok(true)` means that the answer comes
    /// later, `Ok(false)` that there is nothing to abort.
    pub(super) fn request_abort(&self, asked_by: Cid, sqid: Qid, cid: Cid) -> Result<bool, Status> {
        let mut shared = self.shared();
        if sqid.is_admin() && shared.async_events.take_request(cid) {
            shared.members.complete(cid, Status::ABORT_REQUESTED.into());
            shared.members.complete(asked_by, Outcome::success(0));
            return Ok(true);
        }
        let members = &mut shared.members;
        if members.aborts.len() >= ABORTS {
            return Err(Status::ABORT_COMMAND_LIMIT_EXCEEDED);
        }
        let Some(link) = members.queues.get(&sqid).cloned() else { return Ok(false) };
        members.aborts.push((asked_by, sqid));
        link.post(Event::Abort(Abort { cid, asked_by }));
        Ok(true)
    }

    pub(super) fn answer_abort(&self, asked_by: Cid, aborted: bool) {
        self.shared().members.answer_abort(asked_by, aborted);
    }
}
