//! In-band authentication of queues (Base, 8.3.4): when they are connected, and again later.

use std::sync::Arc;
use std::time::Duration;

use feedrail_auth::{HostAuth, HostAuthError, HostStep};
use nvme_proto::Cqe;
use nvme_proto::auth::{AuthenticationReceive, AuthenticationSend};
use rdma::ConnId;

use crate::engine::HostEngine;
use crate::engine::arena::ControllerKey;
use crate::engine::auth_exchange::{Exchange, ExchangeProgress, ExchangeStage};
use crate::engine::computation::{Computation, Computed};
use crate::engine::connections::ConnectionRole;
use crate::engine::reply::Promise;
use crate::engine::results::Outbox;
use crate::engine::session::{ControllerPhase, OpeningStep};
use crate::engine::task::Task;
use crate::types::authentication_failure::AuthenticationFailure;
use crate::types::error::{Error, ErrorKind};

/// Memory for a message of the controller, as Linux has it.
const RECEIVE_BYTES: usize = 4096;

/// Time after which a target may withdraw an authentication once more.
const WITHDRAWAL_INTERVAL: Duration = Duration::from_secs(60);

impl HostEngine {
    /// Authenticates the queue that was connected last, and continues the attempt to connect then.
    pub(crate) fn authenticate_new_queue(&mut self, key: ControllerKey, outbox: &mut Outbox) {
        let session = &mut self.controllers[key].session;
        let ControllerPhase::Opening(opening) = &mut session.phase else { return };
        opening.step = OpeningStep::Authentication;
        let queue = session.queues.len() - 1;
        self.begin_exchange(key, queue, outbox);
    }

    /// Queues a request to authenticate all queues again, now or at the next turn.
    pub(crate) fn start_reauthentication(
        &mut self,
        key: ControllerKey,
        promise: Promise<()>,
        outbox: &mut Outbox,
    ) {
        let Some(controller) = self.controllers.get_mut(key) else { return };
        let session = &mut controller.session;
        let refusal = match session.refusal() {
            Some(error) => Some(error.clone()),
            None if session.is_live() && !session.auth.is_done => {
                let what =
                    "the connection is not authenticated, so it cannot be authenticated again";
                Some(Error::from(ErrorKind::Invalid(what)).of_target(&controller.target))
            }
            None => None,
        };
        if let Some(error) = refusal {
            return promise.keep(Err(error), outbox);
        }
        // Without a connection the next one is waited for, which authenticates.
        session.auth.waiting.push(promise);
        if session.is_live() {
            self.authenticate_again(key, outbox);
        }
    }

    /// Authenticates all queues again, one after the other, unless that has begun.
    fn authenticate_again(&mut self, key: ControllerKey, outbox: &mut Outbox) {
        if self.controllers[key].session.auth.exchange.is_none() {
            self.begin_exchange(key, 0, outbox);
        }
    }

    fn begin_exchange(&mut self, key: ControllerKey, queue: usize, outbox: &mut Outbox) {
        let controller = &mut self.controllers[key];
        let Some(setup) = &controller.credentials else {
            return self.fail_exchange(key, AuthenticationFailure::SecretMissing, outbox);
        };
        let transaction = controller.session.auth.next_transaction();
        let (host, step) = HostAuth::begin(Arc::clone(setup), transaction);
        let deadline = self.clock + controller.options.connect_timeout;
        let stage = ExchangeStage::Receive;
        controller.session.auth.exchange =
            Some(Exchange { host, queue, stage, deadline, chunk: None });
        self.take_exchange_step(key, step, outbox);
    }

    fn take_exchange_step(&mut self, key: ControllerKey, step: HostStep, outbox: &mut Outbox) {
        let number = self.next_computation;
        let session = &mut self.controllers[key].session;
        let Some(exchange) = &mut session.auth.exchange else { return };
        match exchange.take(step, number) {
            ExchangeProgress::Waits => self.ready_list.mark_ready(key),
            ExchangeProgress::Compute(work) => {
                self.next_computation += 1;
                self.computations.push(Computation { controller: key, number, work });
            }
            ExchangeProgress::Finished(Ok(authenticated)) => {
                tracing::debug!(?authenticated, queue = exchange.queue, "authenticated a queue");
                self.end_exchange(key, outbox);
            }
            ExchangeProgress::Finished(Err(error)) => {
                let is_first_message = matches!(exchange.stage, ExchangeStage::Sending);
                let failure = match error {
                    HostAuthError::CommandFailed(status)
                        if is_first_message && !session.auth.is_required =>
                    {
                        AuthenticationFailure::NotOffered(status)
                    }
                    error => AuthenticationFailure::Failed(error),
                };
                self.fail_exchange(key, failure, outbox);
            }
        }
    }

    fn fail_exchange(
        &mut self,
        key: ControllerKey,
        reason: AuthenticationFailure,
        outbox: &mut Outbox,
    ) {
        self.end_association(key, ErrorKind::Authentication { reason }.into(), outbox);
    }

    /// Returns the use of a connection that has ended. A target that refuses a host disconnects
    /// after its last message, which is taken before.
    pub(crate) fn known_at_end(
        &mut self,
        conn: ConnId,
        known: ConnectionRole,
        outbox: &mut Outbox,
    ) -> ConnectionRole {
        let controller = known.controller().and_then(|key| self.controllers.get(key));
        if controller.is_none_or(|controller| controller.session.auth.exchange.is_none()) {
            return known;
        }
        self.drain_completions(outbox);
        self.connections.get(conn).unwrap_or(ConnectionRole::Closing)
    }

    /// Returns the cause of the end of an association. One that is lost during a transaction may be
    /// lost because of it.
    pub(crate) fn cause_with_exchange(&mut self, key: ControllerKey, cause: Error) -> Error {
        let session = &mut self.controllers[key].session;
        let is_live = session.is_live();
        let exchange = session.auth.exchange.as_mut();
        let (Some(exchange), ErrorKind::ConnectionLost(_)) = (exchange, cause.kind()) else {
            return cause;
        };
        match exchange.host.timed_out() {
            // The target left when it was told, or before.
            HostStep::Finish(Err(error @ HostAuthError::Refused(_))) => {
                ErrorKind::Authentication { reason: AuthenticationFailure::Failed(error) }.into()
            }
            _ if is_live => cause,
            _ => ErrorKind::ConnectionLost(
                "the connection ended while this host authenticated; if the target refused the \
                 host, its log says why",
            )
            .into(),
        }
    }

    /// Continues after a transaction that succeeded.
    fn end_exchange(&mut self, key: ControllerKey, outbox: &mut Outbox) {
        let controller = &mut self.controllers[key];
        let Some(exchange) = controller.session.auth.exchange.take() else { return };
        if let Some(chunk) = exchange.chunk {
            controller.bounce.release(chunk);
        }
        self.ready_list.mark_ready(key);
        let next = exchange.queue + 1;
        match controller.session.phase {
            ControllerPhase::Opening(_) => {
                controller.session.auth.is_done = true;
                self.queue_is_usable(key, outbox);
            }
            _ if next < controller.session.queues.len() => self.begin_exchange(key, next, outbox),
            _ => self.all_authenticated(key, outbox),
        }
    }

    /// Handles that all queues of a connection are authenticated.
    pub(crate) fn all_authenticated(&mut self, key: ControllerKey, outbox: &mut Outbox) {
        let controller = &mut self.controllers[key];
        controller.session.auth.complete(self.clock, controller.options.reauth_period);
        for promise in std::mem::take(&mut controller.session.auth.waiting) {
            promise.keep(Ok(()), outbox);
        }
    }

    /// Sends the next command of the transaction in progress, if its queue has room.
    pub(crate) fn issue_exchange(&mut self, key: ControllerKey, outbox: &mut Outbox) {
        let controller = &mut self.controllers[key];
        let Some(exchange) = &mut controller.session.auth.exchange else { return };
        if !matches!(exchange.stage, ExchangeStage::Send(_) | ExchangeStage::Receive) {
            return;
        }
        let Some(&queue) = controller.session.queues.get(exchange.queue) else { return };
        if self.queues[queue].room() == 0 {
            return;
        }
        if exchange.chunk.is_none() {
            exchange.chunk = controller.bounce.claim();
        }
        let Some(chunk) = &exchange.chunk else { return };
        let (sqe, length) = match &exchange.stage {
            ExchangeStage::Send(message) => {
                controller.bounce.copy_in(chunk, 0, message);
                let length_bytes = message.len() as u32;
                (AuthenticationSend { length_bytes }.to_sqe(), length_bytes)
            }
            _ => {
                // A target that writes nothing gives no message.
                controller.bounce.copy_in(chunk, 0, &[0; RECEIVE_BYTES]);
                let length_bytes = RECEIVE_BYTES as u32;
                (AuthenticationReceive { length_bytes }.to_sqe(), length_bytes)
            }
        };
        exchange.stage = match exchange.stage {
            ExchangeStage::Send(_) => ExchangeStage::Sending,
            _ => ExchangeStage::Receiving,
        };
        let data = controller.bounce.data(chunk, length);
        self.pushed = true;
        self.counters.commands += 1;
        let issued = self.queues[queue].issue(&mut *self.wire, sqe, data, Task::Authentication);
        if let Err((error, _)) = issued {
            self.end_association(key, error.into(), outbox);
        }
    }

    /// Handles the response to a command of the transaction in progress.
    pub(crate) fn finish_exchange_command(
        &mut self,
        key: ControllerKey,
        cqe: &Cqe,
        outbox: &mut Outbox,
    ) {
        let mut entropy = self.entropy;
        let controller = &mut self.controllers[key];
        let Some(exchange) = &mut controller.session.auth.exchange else { return };
        let step = match (cqe.status().ok(), &exchange.stage, &exchange.chunk) {
            (Err(status), ..) => exchange.host.command_failed(status),
            (Ok(()), ExchangeStage::Receiving, Some(chunk)) => {
                let mut message = [0; RECEIVE_BYTES];
                controller.bounce.copy_out(chunk, 0, &mut message);
                exchange.host.received(&message, &mut entropy)
            }
            _ => exchange.host.sent(),
        };
        self.take_exchange_step(key, step, outbox);
    }

    /// Takes the result of a computation, unless its transaction has ended.
    pub(crate) fn take_computed(&mut self, computed: Computed, outbox: &mut Outbox) {
        let Computed { controller: key, number, result } = computed;
        let mut entropy = self.entropy;
        let Some(controller) = self.controllers.get_mut(key) else { return };
        let Some(exchange) = &mut controller.session.auth.exchange else { return };
        if !matches!(exchange.stage, ExchangeStage::Computing(own) if own == number) {
            return;
        }
        match result {
            Ok(result) => {
                let step = exchange.host.computed(result, &mut entropy);
                self.take_exchange_step(key, step, outbox);
            }
            Err(error) => self.end_association(key, error.into(), outbox),
        }
    }

    /// Ends a transaction that takes too long, and begins one that is due, on a connection that is
    /// ready for commands.
    pub(crate) fn run_auth_timers(&mut self, key: ControllerKey, outbox: &mut Outbox) {
        let now = self.clock;
        let auth = &mut self.controllers[key].session.auth;
        match &mut auth.exchange {
            Some(exchange) if exchange.deadline <= now => {
                let step = exchange.host.timed_out();
                self.take_exchange_step(key, step, outbox);
            }
            Some(_) => {}
            None if auth.again_at.is_some_and(|time| time <= now) => {
                auth.again_at = None;
                self.authenticate_again(key, outbox);
            }
            None => {}
        }
    }

    /// Handles a command that was refused with Authentication Required on a connection that was
    /// ready for commands. The host connects and authenticates again, and fails if that was not
    /// enough.
    pub(crate) fn authentication_withdrawn(
        &mut self,
        key: ControllerKey,
        task: Task,
        outbox: &mut Outbox,
    ) {
        self.interrupt(key, task, outbox);
        let now = self.clock;
        let controller = &mut self.controllers[key];
        let last = controller.session.auth.withdrawn.replace(now);
        let reason = match last {
            _ if controller.credentials.is_none() => AuthenticationFailure::SecretMissing,
            Some(last) if now < last + WITHDRAWAL_INTERVAL => AuthenticationFailure::WithdrawnAgain,
            _ => AuthenticationFailure::Withdrawn,
        };
        self.fail_exchange(key, reason, outbox);
    }
}

/// Returns whether a controller is given up after this error. After a reconnect, a target that
/// refuses the host's response may have too much to compute, so that is tried again.
pub(crate) fn ends_controller(cause: &Error, was_live: bool) -> bool {
    match cause.kind() {
        ErrorKind::Unsupported(_) => true,
        ErrorKind::Authentication { reason } => {
            reason.is_final() && (was_live || !reason.is_refused_response())
        }
        _ => false,
    }
}
