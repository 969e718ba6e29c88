//! Queues that join and leave an association, and the end of associations.

use std::sync::Arc;

use nvme_proto::{Cid, Qid, Status};
use rdma::Time;

use super::command::CommandOutcome;
use super::event::{AbortRequest, CloseReason, QueueEvent};
use super::hold::CommandHold;
use super::jobs::Jobs;
use super::link::QueueLink;
use super::members::Joined;
use super::stage::{Epoch, RegisterPhase};
use super::state::{Controller, SharedState};
use crate::deliberate_bugs::{self, Bug};
use crate::limits::ABORTS;

/// Hold on a queue whose connection has ended while storage executes its commands. When the last
/// hold is dropped, the queue is gone.
#[derive(Debug)]
struct LeavingQueue {
    controller: Arc<Controller>,
    link: Arc<QueueLink>,
}

impl Drop for LeavingQueue {
    fn drop(&mut self) {
        self.controller.queue_gone(&self.link);
    }
}

impl Controller {
    /// Adds the admin queue of a new association, which another core may have ended already.
    pub(super) fn join_admin(&self, link: &Arc<QueueLink>) {
        let members = &mut self.shared().members;
        members.ending.into_iter().for_each(|reason| link.close(reason));
        members.admin = Some(Arc::clone(link));
    }

    /// Adds an I/O queue. `cid` is that of its Connect command.
    ///
    /// # Errors
    /// The association is ending, is not enabled, or has a queue with this QID.
    pub(super) fn join(&self, link: &Arc<QueueLink>, cid: Cid) -> Result<(Epoch, Joined), Status> {
        let mut shared = self.shared();
        let members = &mut shared.members;
        if members.ending.is_some() {
            return Err(Status::CONNECT_CONTROLLER_BUSY);
        }
        // Under the lock, so that no reset on another core comes between.
        let epoch = self.ready_epoch().ok_or(Status::COMMAND_SEQUENCE_ERROR.with_dnr())?;
        if let Some(old) = members.io.get(&link.qid).cloned() {
            // A queue whose connection is known to be lost is replaced by its successor.
            if !old.is_lost() {
                return Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr());
            }
            old.close(CloseReason::Lost);
            members.detach(&old);
        }
        members.io.insert(link.qid, Arc::clone(link));
        if !members.is_leaving() || deliberate_bugs::has(Bug::ResetEarly) {
            return Ok((epoch, Joined::Now));
        }
        // Storage may still execute writes of a queue that has left; they must not overwrite those
        // of this one.
        members.joining.push((Arc::clone(link), cid));
        Ok((epoch, Joined::Later))
    }

    /// Handles the Disconnect command of a host, after which another queue may use the QID.
    pub(super) fn queue_disconnects(&self, link: &Arc<QueueLink>) {
        self.shared().members.detach(link);
    }

    /// Removes a queue whose connection has ended; the association ends with its admin queue.
    /// Running commands that change the medium keep the returned hold until they end.
    pub(super) fn queue_left(self: &Arc<Self>, link: &Arc<QueueLink>) -> CommandHold {
        let mut shared = self.shared();
        if link.qid.is_admin() {
            shared.members.admin = None;
            self.end_locked(&mut shared, CloseReason::AssociationEnded);
        } else {
            shared.members.detach(link);
        }
        drop(shared);
        CommandHold::new(LeavingQueue { controller: Arc::clone(self), link: Arc::clone(link) })
    }

    /// Removes a queue whose commands that change the medium have all ended.
    pub(super) fn queue_gone(&self, link: &Arc<QueueLink>) {
        let mut shared = self.shared();
        let members = &mut shared.members;
        members.leaving.retain(|member| !Arc::ptr_eq(member, link));
        if !members.is_leaving() {
            members.admit(self.connect_response());
            // While the target drains, the admin queue waits for the other queues.
            members.admin().inspect(|admin| admin.wake());
            self.all_have_left(&mut shared);
        }
        if shared.members.is_empty() {
            drop(shared);
            self.forget();
        }
    }

    fn forget(&self) {
        if self.start_logged {
            tracing::info!(cntlid = %self.cntlid, host = %self.host.nqn, peer = %self.peer, "disconnected");
        }
        if let Some(associations) = self.associations.upgrade() {
            associations.forget(self);
        }
    }

    /// Whether I/O queues are connected, leaving ones included.
    pub(crate) fn has_io_connections(&self) -> bool {
        self.shared().members.io_queues().next().is_some()
    }

    /// Number of connected I/O queues, leaving ones included.
    pub(crate) fn io_queues(&self) -> usize {
        self.shared().members.io_queues().count()
    }

    /// QIDs of the connected queues.
    pub(crate) fn qids(&self) -> Vec<Qid> {
        let shared = self.shared();
        let members = &shared.members;
        members
            .admin()
            .map(|admin| admin.qid)
            .into_iter()
            .chain(members.io.keys().copied())
            .collect()
    }

    /// Whether running commands may still change the medium although the host knows that the
    /// connections on which it sent them have ended.
    pub(crate) fn has_unfinished_writes(&self) -> bool {
        self.shared().members.has_unfinished_writes()
            && !deliberate_bugs::has(Bug::IgnoreDepartures)
    }

    /// Ends the association and tells every queue to close.
    pub(crate) fn end(&self, reason: CloseReason) {
        self.end_locked(&mut self.shared(), reason);
    }

    fn end_locked(&self, shared: &mut SharedState, reason: CloseReason) {
        let first = shared.members.ending.is_none();
        if self.start_logged && first && reason != CloseReason::AssociationEnded {
            tracing::info!(cntlid = %self.cntlid, host = %self.host.nqn, peer = %self.peer, %reason, "ending");
        }
        if reason == CloseReason::KeepAlive {
            shared.csts.set_cfs(true);
        }
        self.stage.set(RegisterPhase::Ended);
        shared.jobs = Jobs::default();
        shared.members.end(reason);
    }

    /// Time of the last command on any queue.
    pub(super) fn last_command(&self) -> Time {
        let shared = self.shared();
        let queues = shared.members.admin().into_iter().chain(shared.members.io_queues());
        queues.map(|link| link.last_command()).max().unwrap_or(Time::ZERO)
    }

    /// Passes an Abort command on to the queue that has the command. `Ok(true)` means that the
    /// response comes later, `Ok(false)` that no command is to abort.
    pub(super) fn request_abort(&self, asked_by: Cid, sqid: Qid, cid: Cid) -> Result<bool, Status> {
        let mut shared = self.shared();
        if sqid.is_admin() && shared.async_events.take_request(cid) {
            shared.members.complete(cid, Status::ABORT_REQUESTED.into());
            shared.members.complete(asked_by, CommandOutcome::success(0));
            return Ok(true);
        }
        let members = &mut shared.members;
        if members.aborts.len() >= ABORTS {
            return Err(Status::ABORT_COMMAND_LIMIT_EXCEEDED);
        }
        let Some(link) = members.get(sqid).cloned() else { return Ok(false) };
        members.aborts.push((asked_by, Arc::clone(&link)));
        link.post(QueueEvent::Abort(AbortRequest { cid, asked_by }));
        Ok(true)
    }

    pub(super) fn answer_abort(&self, asked_by: Cid, aborted: bool) {
        self.shared().members.answer_abort(asked_by, aborted);
    }
}
