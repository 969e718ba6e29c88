//! Authentication of one queue: Authentication Send and Receive, and the timer between them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use feedrail_auth::{
    AuthEvent, Authenticated, ControllerAuth, ControllerWorkResult, DhGroup, Parties,
    ReceiveReaction, SendReaction, TimeoutReaction,
};
use nvme_proto::{Cid, Nqn, Status};
use rdma::Time;

use super::associations::Associations;
use super::authenticator::Submitted;
use super::command::{CommandOutcome, Execution};
use super::link::QueueLink;
use super::queue::{Membership, Queue, QueueState};
use super::state::Controller;
use crate::limits::peer::Party;
use crate::limits::{AUTH_TIMEOUT, CONNECT_TIMEOUT};
use crate::metrics::authentications::AuthResult;

/// Authentication of the host on one queue, from Connect until the queue ends.
#[derive(Debug)]
pub(super) struct QueueAuth {
    auth: ControllerAuth,
    /// Authentication Receive that waits for the result of work.
    waiting: Option<Cid>,
    /// Time of Connect, or of the last command that carried a message.
    heard_at: Time,
    /// Time at which the host has authenticated last.
    proved_at: Time,
    /// Whether the host has keys.
    is_known: bool,
    /// Whether its work was refused, because there was too much.
    was_busy: bool,
}

/// Authentication of a queue as operators see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueAuthState {
    /// The host has not authenticated yet.
    Negotiating,
    /// The host has authenticated.
    Completed(Authenticated),
    /// The last transaction failed.
    Failed,
}

impl From<AuthEvent> for QueueAuthState {
    fn from(event: AuthEvent) -> Self {
        match event {
            AuthEvent::Authenticated(with) => Self::Completed(with),
            _ => Self::Failed,
        }
    }
}

/// Demand of an operator that the host of a controller authenticates again, on each queue.
#[derive(Debug, Default)]
pub(super) struct ProofDemand {
    /// Time of the demand in nanoseconds; 0 if there was none.
    asked_at: AtomicU64,
    /// Time at which queues are closed that have not authenticated since.
    due: AtomicU64,
}

impl ProofDemand {
    /// Demands that the host authenticates until `due`.
    pub(super) fn demand(&self, now: Time, due: Time) {
        self.due.store(due.as_nanos(), Ordering::Relaxed);
        self.asked_at.store(now.as_nanos(), Ordering::Release);
    }

    /// Time by which a host has to authenticate that did so at `proved_at`, if it has to.
    fn due_after(&self, proved_at: Time) -> Option<Time> {
        let is_older = proved_at.as_nanos() < self.asked_at.load(Ordering::Acquire);
        is_older.then(|| Time::from_nanos(self.due.load(Ordering::Relaxed)))
    }
}

impl Associations {
    /// Demands that a host of a subsystem, or all of its hosts, authenticate again within a time.
    /// Returns the number of their controllers.
    pub(crate) fn demand_proof(&self, nqn: &Nqn, host: Option<&Nqn>, within: Duration) -> usize {
        let Some(now) = self.trace().now() else { return 0 };
        let is_meant = |controller: &&Arc<Controller>| {
            let is_of_host = host.is_none_or(|host| controller.host.nqn.0 == *host);
            controller.authenticates && controller.nqn() == *nqn && is_of_host
        };
        let controllers = self.controllers();
        let meant = controllers.iter().filter(is_meant);
        meant.inspect(|controller| controller.demand_proof(now, now + within)).count()
    }
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

impl Queue {
    /// Executes a command that carries a message, and takes the state that follows from it.
    pub(super) fn authenticate(
        &mut self,
        now: Time,
        act: impl FnOnce(&mut QueueAuth, &AuthContext<'_>) -> Execution,
    ) -> Execution {
        let (associations, link) = (Arc::clone(&self.associations), Arc::clone(&self.link));
        let party = self.peer.party();
        let Some(Membership { auth: Some(auth), controller, .. }) = self.membership_mut() else {
            return Execution::Complete(Status::INVALID_OPCODE.with_dnr().into());
        };
        let context =
            AuthContext { now, associations: &associations, controller, link: &link, party };
        let execution = act(auth, &context);
        self.settle_authentication(now);
        execution
    }

    /// Takes the result of work. Returns the Authentication Receive that has waited for it.
    pub(super) fn computed(&mut self, now: Time, result: ControllerWorkResult) -> Option<Cid> {
        let waiting = self.membership_mut()?.auth.as_mut()?.computed(result);
        self.settle_authentication(now);
        waiting
    }

    /// Makes the queue live or not, as its authentication says, and logs the end of a transaction.
    pub(super) fn settle_authentication(&mut self, now: Time) {
        let Some(Membership { auth: Some(auth), controller, .. }) = self.membership_mut() else {
            return;
        };
        let (event, is_authenticated) = (auth.take_event(), auth.is_authenticated());
        if let Some(AuthEvent::Authenticated(_)) = event {
            auth.proved_at = now;
        }
        let (is_known, was_busy) = (auth.is_known, std::mem::take(&mut auth.was_busy));
        let controller = Arc::clone(controller);
        self.state = match std::mem::replace(&mut self.state, QueueState::Ended) {
            QueueState::Authenticating(mut membership) if is_authenticated => {
                membership.interval_start = now;
                membership.disabled_since = Some(now);
                QueueState::Live(membership)
            }
            QueueState::Live(membership) if !is_authenticated => {
                QueueState::Authenticating(membership)
            }
            state => state,
        };
        if let Some(event) = event {
            self.link.set_auth_state(event.into());
            let result = if was_busy { AuthResult::Busy } else { event.into() };
            let host = is_known.then_some(controller.host.nqn.0);
            self.associations.authenticator().counts.add(controller.nqn(), host, result);
            self.report_authentication(now, &controller, event, was_busy);
        }
    }

    fn report_authentication(
        &self,
        now: Time,
        controller: &Controller,
        event: AuthEvent,
        was_busy: bool,
    ) {
        let (peer, qid, cntlid) = (&self.peer, self.qid, controller.cntlid);
        let (host, nqn) = (&controller.host.nqn, controller.nqn());
        match event {
            AuthEvent::Authenticated(with) => {
                let (hash, group) = (with.hash, DhGroup::id_of(with.group));
                let bidirectional = with.bidirectional;
                tracing::debug!(
                    %peer, %qid, %cntlid, %host, %nqn, %hash, %group, bidirectional, "authenticated"
                );
            }
            _ if !self.associations.log_rate().admit(now) => {}
            AuthEvent::Refused(_) if was_busy => tracing::warn!(
                %peer, %qid, %host, %nqn, "authentication refused: too many hosts authenticate"
            ),
            AuthEvent::Refused(reason) => tracing::warn!(
                %peer, %qid, %host, %nqn, %reason, "authentication refused"
            ),
            AuthEvent::RefusedByHost(reason) => tracing::warn!(
                %peer, %qid, %host, %nqn, %reason, "the host refused the target's authentication"
            ),
            AuthEvent::TimedOut => {
                tracing::warn!(%peer, %qid, %host, %nqn, "the host did not authenticate in time");
            }
        }
    }
}
