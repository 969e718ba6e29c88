//! Authentication of one queue: Authentication Send and Receive, and the timer between them.

use std::sync::Arc;

use feedrail_auth::{
    AuthEvent, ControllerAuth, ControllerWorkResult, Parties, ReceiveReaction, SendReaction,
    TimeoutReaction,
};
use nvme_proto::{Cid, Status};
use rdma::Time;

use super::associations::Associations;
use super::authenticator::Submitted;
use super::command::{CommandOutcome, Execution};
use super::link::QueueLink;
use super::state::Controller;
use crate::limits::peer::Party;
use crate::limits::{AUTH_TIMEOUT, CONNECT_TIMEOUT};

/// Authentication of the host on one queue, from Connect until the queue ends.
#[derive(Debug)]
pub(super) struct QueueAuth {
    auth: ControllerAuth,
    /// Authentication Receive that waits for the result of work.
    waiting: Option<Cid>,
    /// Time of Connect, or of the last command that carried a message.
    heard_at: Time,
    /// Time at which the host has authenticated last.
    pub(super) proved_at: Time,
    /// Whether the host has keys.
    pub(super) is_known: bool,
    /// Whether its work was refused, because there was too much.
    pub(super) was_busy: bool,
}

/// Parts that a queue's authentication uses of the rest of the target.
pub(super) struct AuthContext<'a> {
    pub(super) now: Time,
    pub(super) associations: &'a Associations,
    pub(super) controller: &'a Controller,
    pub(super) link: &'a Arc<QueueLink>,
    pub(super) party: Party,
}

impl QueueAuth {
    /// Begins with a host that has not authenticated.
    pub(super) fn new(now: Time, associations: &Associations, controller: &Controller) -> Self {
        let parties = Parties { host: controller.host.nqn, subsystem: controller.nqn() };
        let terms = controller.transaction_terms(associations.inventory());
        let sequences = Arc::clone(&associations.authenticator().sequences);
        let is_known = terms.keys.is_some();
        let auth = ControllerAuth::new(parties, terms.keys, terms.policy, sequences);
        Self { auth, waiting: None, heard_at: now, proved_at: now, is_known, was_busy: false }
    }

    /// Whether the host has proved who it is.
    pub(super) fn is_authenticated(&self) -> bool {
        self.auth.is_authenticated()
    }

    /// Takes the end of a transaction, once.
    pub(super) fn take_event(&mut self) -> Option<AuthEvent> {
        self.auth.take_event()
    }

    pub(super) fn send(&mut self, context: &AuthContext<'_>, message: &[u8]) -> Execution {
        self.heard_at = context.now;
        let terms = context.controller.transaction_terms(context.associations.inventory());
        self.is_known = terms.keys.is_some();
        self.auth.set_keys(terms.keys);
        self.auth.set_policy(terms.policy);
        match self.auth.send(message) {
            SendReaction::Complete => Execution::Complete(CommandOutcome::SUCCESS),
            SendReaction::Compute(work) => {
                let id = work.id();
                let AuthContext { now, link, party, .. } = *context;
                match context.associations.authenticator().submit(now, work, link, party) {
                    Submitted::Done(result) => self.auth.computed(result),
                    Submitted::Waiting => {}
                    Submitted::Refused => {
                        self.was_busy = true;
                        self.auth.cannot_compute(id);
                    }
                }
                Execution::Complete(CommandOutcome::SUCCESS)
            }
            SendReaction::Abort(status) => Execution::Complete(status.into()),
            SendReaction::Disconnect => Execution::CompleteAndClose(CommandOutcome::SUCCESS),
        }
    }

    /// Executes Authentication Receive, also again when the result of work is there.
    pub(super) fn receive(
        &mut self,
        context: &AuthContext<'_>,
        cid: Cid,
        data: &mut [u8],
    ) -> Execution {
        self.heard_at = context.now;
        if self.waiting.is_some_and(|waiting| waiting != cid) {
            return Execution::Complete(Status::COMMAND_SEQUENCE_ERROR.with_dnr().into());
        }
        self.waiting = None;
        let random = context.associations.authenticator().random;
        let (message, execution) = match self.auth.receive(data.len(), &mut |bytes| random(bytes)) {
            ReceiveReaction::Respond(message) => {
                (message, Execution::Complete(CommandOutcome::SUCCESS))
            }
            ReceiveReaction::RespondAndDisconnect(message) => {
                (message, Execution::CompleteAndClose(CommandOutcome::SUCCESS))
            }
            ReceiveReaction::Wait => {
                self.waiting = Some(cid);
                return Execution::Postponed;
            }
            ReceiveReaction::Abort(status) => return Execution::Complete(status.into()),
        };
        data.fill(0);
        data[..message.len()].copy_from_slice(&message);
        execution
    }

    /// Takes the result of work. Returns the Authentication Receive that has waited for it.
    pub(super) fn computed(&mut self, result: ControllerWorkResult) -> Option<Cid> {
        self.auth.computed(result);
        self.waiting
    }

    /// Time by which the host has to send its next message, if it owes one: at least the time that
    /// it has for Connect.
    pub(super) fn deadline(&self, controller: &Controller) -> Option<Time> {
        let limit = controller.keep_alive().map_or(AUTH_TIMEOUT, |kato| kato.min(AUTH_TIMEOUT));
        // A host that waits for the target's work is not late.
        let owes = self.auth.awaits_host() && self.waiting.is_none();
        let message = owes.then(|| self.heard_at + limit.max(CONNECT_TIMEOUT));
        message.into_iter().chain(controller.proof.due_after(self.proved_at)).min()
    }

    /// Handles the end of the time that [`QueueAuth::deadline`] gives. Returns whether the queue
    /// has to close.
    pub(super) fn timed_out(&mut self, now: Time, controller: &Controller) -> bool {
        let is_due = controller.proof.due_after(self.proved_at).is_some_and(|due| now >= due);
        self.auth.timed_out() == TimeoutReaction::Disconnect || is_due
    }
}
