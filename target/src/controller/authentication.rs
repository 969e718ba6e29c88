//! Authentication as a part of a queue: it makes the queue live, and its end is counted and logged.

use std::sync::Arc;

use feedrail_auth::{AuthEvent, ControllerWorkResult, DhGroup};
use nvme_proto::{Cid, Status};
use rdma::Time;

use super::command::Execution;
use super::queue::{Membership, Queue, QueueState};
use super::queue_auth::{AuthContext, QueueAuth};
use super::state::Controller;
use crate::metrics::authentications::AuthResult;

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
