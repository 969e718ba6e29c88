//! How queues join and leave an association, and how associations end.

use std::sync::Arc;

use nvme_proto::{Cid, Qid, Status};
use rdma::Time;

use super::auth_state::QueueAuthState;
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

/// Value shared by the running commands of a queue whose connection has ended. When the last of
/// these commands ends, the drop removes the queue from its association.
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
    /// Adds the admin queue of a new association; closes it if another core has ended that already.
    pub(super) fn join_admin(&self, link: &Arc<QueueLink>) {
        let members = &mut self.shared().members;
        members.ending.into_iter().for_each(|reason| link.close(reason));
        members.admin = Some(Arc::clone(link));
    }

    /// Adds an I/O queue; [`Joined`] says when to respond to its Connect, which has the CID `cid`.
    ///
    /// # Errors
    /// CONNECT_CONTROLLER_BUSY: the association is ending. COMMAND_SEQUENCE_ERROR: the controller
    /// is not ready, or another queue with a live connection has this QID.
    pub(super) fn join(&self, link: &Arc<QueueLink>, cid: Cid) -> Result<(Epoch, Joined), Status> {
        let mut shared = self.shared();
        let members = &mut shared.members;
        if members.ending.is_some() {
            return Err(Status::CONNECT_CONTROLLER_BUSY);
        }
        // The lock keeps a reset on another core from coming between.
        let epoch = self.ready_epoch().ok_or(Status::COMMAND_SEQUENCE_ERROR.with_dnr())?;
        if let Some(old) = members.io.get(&link.qid).cloned() {
            // A queue whose connection is known to be lost is replaced by the new one.
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
        // Storage may still execute writes of a queue that has left; they must not overwrite writes
        // that the host sends on the new queue.
        members.joining.push((Arc::clone(link), cid));
        Ok((epoch, Joined::Later))
    }

    /// Removes an I/O queue for which the host sent Disconnect; the host may then reuse its QID.
    pub(super) fn queue_disconnects(&self, link: &Arc<QueueLink>) {
        self.shared().members.detach(link);
    }

    /// Removes a queue whose connection has ended; the association ends with its admin queue. The
    /// caller attaches the returned hold to each running command that changes the medium.
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

    /// Removes a queue for good: its connection and all its commands that change the medium have
    /// ended. The last of them completes a reset and lets waiting Connects succeed.
    pub(super) fn queue_gone(&self, link: &Arc<QueueLink>) {
        let mut shared = self.shared();
        let members = &mut shared.members;
        members.leaving.retain(|member| !Arc::ptr_eq(member, link));
        // A busy host sends no Keep Alive, and may close its I/O queues first.
        members.admin().inspect(|admin| admin.saw_commands_of(link));
        if !members.is_leaving() {
            members.admit(self.connect_response());
            // When the target stops, the admin queue stays connected until the others have left.
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

    /// Whether an I/O queue is connected, or has left but its commands have not ended.
    pub(crate) fn has_io_connections(&self) -> bool {
        self.shared().members.io_queues().next().is_some()
    }

    /// Number of I/O queues that are connected, or have left but whose commands have not ended.
    pub(crate) fn io_queues(&self) -> usize {
        self.shared().members.io_queues().count()
    }

    /// QIDs of the connected queues, the admin queue first.
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

    /// Authentication of the host on the queue with this QID, if it is demanded.
    pub(crate) fn auth_state(&self, qid: Qid) -> Option<QueueAuthState> {
        self.shared().members.get(qid).and_then(|link| link.auth_state())
    }

    /// Whether running commands may still change the medium although their connections have ended,
    /// as the host knows. A new association of the host then has to wait.
    pub(crate) fn has_unfinished_writes(&self) -> bool {
        self.shared().members.has_unfinished_writes()
            && !deliberate_bugs::has(Bug::IgnoreDepartures)
    }

    /// Demands that the host authenticates again on each queue until `due`.
    pub(super) fn demand_proof(&self, now: Time, due: Time) {
        self.proof.demand(now, due);
        let shared = self.shared();
        shared
            .members
            .admin()
            .into_iter()
            .chain(shared.members.io_queues())
            .for_each(|of| of.wake());
    }

    /// Ends the association and closes all of its queues.
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

    /// Time at which the last command arrived on any queue.
    pub(super) fn last_command(&self) -> Time {
        let shared = self.shared();
        let queues = shared.members.admin().into_iter().chain(shared.members.io_queues());
        queues.map(|link| link.last_command()).max().unwrap_or(Time::ZERO)
    }

    /// Handles Abort. `Ok(true)`: the response is posted to the admin queue, possibly after the
    /// queue of the command has tried to abort it. `Ok(false)`: the association has no such queue.
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
