//! The end of an association, by request or by failure, and the operations that it interrupts.

use std::mem;
use std::time::Duration;

use nvme_proto::{AdminCommand, Sqe, Status, admin};
use rdma::{Time, WcStatus};

use crate::engine::HostEngine;
use crate::engine::arena::{ControllerKey, RangeKey};
use crate::engine::authenticate::ends_controller;
use crate::engine::connections::ConnectionRole;
use crate::engine::health::KeepAlive;
use crate::engine::queue::HostQueue;
use crate::engine::raw::{QueueKind, Raw, RawData};
use crate::engine::results::Outbox;
use crate::engine::session::{BusyTarget, ControllerPhase, Outage};
use crate::engine::task::Task;
use crate::engine::wire::Data;
use crate::types::error::{Error, ErrorKind};

/// Time for a controller to confirm its shutdown, after which it is disconnected.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(500);

/// Longest pause before another attempt to connect to a target that responded Connect Controller
/// Busy.
const BUSY_PAUSE: Duration = Duration::from_millis(200);

impl HostEngine {
    /// Ends an association because of `cause`. After it, data from the target is no longer placed
    /// in memory, and each command in flight has either ended or waits for the next association.
    pub(crate) fn end_association(
        &mut self,
        key: ControllerKey,
        cause: Error,
        outbox: &mut Outbox,
    ) {
        let now = self.clock;
        if !self.controllers.contains(key) {
            return;
        }
        let cause = self.cause_with_exchange(key, cause);
        let controller = &self.controllers[key];
        let cause = cause.of_target(&controller.target);
        let live_for = match controller.session.phase {
            ControllerPhase::Live(since) => Some(now - since),
            _ => None,
        };
        let attempt_since = match &controller.session.phase {
            ControllerPhase::Opening(opening) => Some(opening.since),
            _ => None,
        };
        let was_attempt = attempt_since.is_some();
        self.disconnect(key, outbox);
        if was_attempt && is_busy(&cause) {
            self.prolong_fences(key);
        }
        let falls_back = self.falls_back(key, was_attempt, &cause);
        let controller = &mut self.controllers[key];
        if controller.session.closing {
            return self.forget(key, outbox);
        }
        if matches!(controller.session.phase, ControllerPhase::Dead(_)) {
            return;
        }
        if falls_back {
            tracing::info!(%cause, "no shared memory; the network is tried");
            controller.session.phase = ControllerPhase::Resting(now);
            return;
        }
        if controller.session.first.is_some() {
            return self.end_first_attempt(attempt_since.unwrap_or(now), key, cause, outbox);
        }
        match live_for {
            Some(_) => tracing::warn!(%cause, "connection ended"),
            // There are as many as the outage is long.
            None => tracing::info!(%cause, "cannot connect again yet"),
        }
        if ends_controller(&cause, live_for.is_some()) {
            return self.release_resources(key, cause, outbox);
        }
        self.counters.connections_lost += u64::from(live_for.is_some());
        if live_for.is_some() {
            controller.health.breaker.lost(now);
            outbox.note_move();
        }
        let outage =
            controller.session.outage.get_or_insert_with(|| Outage::begin(now, cause.clone()));
        outage.cause = cause.clone();
        if live_for.is_some_and(|time| time >= controller.options.reconnect_delay) {
            controller.session.retries.reset();
        }
        let pause = controller.session.retries.next_pause(controller.options.reconnect_delay);
        controller.session.phase = ControllerPhase::Resting(now + pause);
        if controller.session.refusal().is_none() && is_permanent_refusal(&cause) {
            return self.lose(key, cause, outbox);
        }
        match controller.session.refusal().cloned() {
            // Operations that waited for this attempt.
            Some(lost) => self.fail_waiting(key, &lost, outbox),
            None => self.start_clocks(key),
        }
    }

    /// Ends an attempt to connect that a caller waits for. If the target must first end an earlier
    /// controller of this host, another attempt is scheduled; any other failure is returned to the
    /// caller.
    fn end_first_attempt(
        &mut self,
        since: Time,
        key: ControllerKey,
        cause: Error,
        outbox: &mut Outbox,
    ) {
        let now = self.clock;
        let controller = &mut self.controllers[key];
        let Some(first) = &mut controller.session.first else { return };
        let until = match first.busy.take() {
            // The time for attempts passed during the last one.
            Some(busy) if busy.until <= now => {
                return self.release_resources(key, busy.refusal, outbox);
            }
            Some(busy) => busy.until,
            None => since + controller.options.connect_timeout,
        };
        let next = now + controller.session.retries.next_pause(BUSY_PAUSE);
        if next >= until || !is_busy(&cause) || is_permanent_refusal(&cause) {
            return self.release_resources(key, cause, outbox);
        }
        tracing::debug!(%cause, "connecting again");
        first.busy = Some(BusyTarget { refusal: cause, until });
        controller.session.phase = ControllerPhase::Resting(next);
    }

    /// Ends an attempt to connect over the network, so that the next one uses shared memory.
    pub(crate) fn leave_for_shared_memory(&mut self, key: ControllerKey, outbox: &mut Outbox) {
        self.disconnect(key, outbox);
        self.reopen_path();
        self.controllers[key].session.phase = ControllerPhase::Resting(self.clock);
    }

    /// Disconnects the queues of an association, and interrupts the commands in flight on them.
    fn disconnect(&mut self, key: ControllerKey, outbox: &mut Outbox) {
        let now = self.clock;
        self.ready_list.mark_ready(key);
        self.put_up_fence(key, outbox);
        let controller = &mut self.controllers[key];
        controller.health.keep_alive = KeepAlive::default();
        let queues = mem::take(&mut controller.session.queues);
        let connections: Vec<_> = self.connections.of(key).collect();
        self.wire.disconnect(now, &queues, &connections);
        for (id, role) in connections {
            match role {
                ConnectionRole::Open { .. } => self.connections.insert(id, ConnectionRole::Closing),
                _ => self.connections.remove(id),
            }
        }
        self.pushed = true;
        let queues = queues.into_iter().map(|queue| self.queues.remove(queue));
        let unfinished: Vec<_> = queues.flat_map(HostQueue::into_unfinished).collect();
        for task in unfinished {
            self.interrupt(key, task, outbox);
        }
        while let Some(modified) = self.controllers[key].ranges.modified.pop_front() {
            self.return_piece(key, modified, outbox);
        }
        let controller = &mut self.controllers[key];
        controller.forget_checks();
        if let Some(chunk) = controller.session.auth.forget() {
            controller.bounce.release(chunk);
        }
        if let ControllerPhase::Opening(_) = controller.session.phase
            && let ControllerPhase::Opening(opening) =
                mem::replace(&mut controller.session.phase, ControllerPhase::Resting(now))
        {
            controller.bounce.release(opening.chunk);
        }
    }

    /// Handles the loss of a command with its association: it fails, or is sent again on the next
    /// one.
    pub(crate) fn interrupt(&mut self, key: ControllerKey, task: Task, outbox: &mut Outbox) {
        match task {
            Task::Piece(piece) => self.return_piece(key, piece, outbox),
            Task::Raw { promise, chunk, to_host, namespace, deadline, again, alters } => {
                let controller = &mut self.controllers[key];
                if let Some(chunk) = chunk {
                    controller.bounce.release(chunk);
                }
                if let Some(sqe) = again {
                    let data = RawData::to_host(to_host.into());
                    let queue = QueueKind::Admin;
                    let repeatable = true;
                    let raw =
                        Raw { sqe, data, queue, namespace, deadline, repeatable, alters, promise };
                    return controller.raws.push_again(raw);
                }
                let error = ErrorKind::ConnectionLost("the command was not answered before");
                promise.keep(Err(Error::from(error).of_target(&controller.target)), outbox);
            }
            Task::Check(task) => self.interrupt_check(key, task),
            Task::Opening
            | Task::Authentication
            | Task::KeepAlive
            | Task::EventConfig
            | Task::AsyncEvent
            | Task::Abort
            | Task::Shutdown => {}
        }
    }

    /// Makes a controller unusable: waiting and later operations fail with `error`.
    fn release_resources(&mut self, key: ControllerKey, error: Error, outbox: &mut Outbox) {
        let controller = &mut self.controllers[key];
        controller.session.phase = ControllerPhase::Dead(error.clone());
        if let Some(first) = controller.session.first.take() {
            first.promise.keep(Err(error.clone()), outbox);
        }
        controller.checks.log_changes.end(&error, outbox);
        controller.checks.namespace_changes.end(&error, outbox);
        self.fail_waiting(key, &error, outbox);
    }

    /// Fails all operations that wait for a connection of a controller.
    fn fail_waiting(&mut self, key: ControllerKey, error: &Error, outbox: &mut Outbox) {
        for promise in mem::take(&mut self.controllers[key].session.auth.waiting) {
            promise.keep(Err(error.clone()), outbox);
        }
        for raw in self.controllers[key].raws.take_all() {
            raw.promise.keep(Err(error.clone()), outbox);
        }
        self.fail_ranges(key, error, outbox);
    }

    /// Does the actions that are due at `now`.
    pub(crate) fn run_timers(&mut self, outbox: &mut Outbox) {
        self.expire_ranges(outbox);
        self.take_down_fences(outbox);
        while let Some(key) = self.ready_list.next_due(self.clock) {
            self.ready_list.mark_ready(key);
            if self.controllers.contains(key) {
                self.expire_raw(key, outbox);
            }
            if self.controllers.contains(key) {
                self.check_outage(key, outbox);
            }
            if self.controllers.contains(key) {
                self.run_controller_timers(key, outbox);
            }
        }
    }

    fn check_outage(&mut self, key: ControllerKey, outbox: &mut Outbox) {
        let controller = &self.controllers[key];
        let Some(outage) = &controller.session.outage else { return };
        let after = controller.options.loss_timeout;
        let over = outage.since + after <= self.clock;
        if over
            && outage.lost.is_none()
            && !matches!(controller.session.phase, ControllerPhase::Dead(_))
        {
            let cause = Box::new(outage.cause.clone());
            let refused = matches!(cause.kind(), ErrorKind::Authentication { .. });
            let error = Error::from(ErrorKind::Lost { after, cause }).of_target(&controller.target);
            match refused {
                true => self.release_resources(key, error, outbox),
                false => self.lose(key, error, outbox),
            }
        }
    }

    /// Records the loss of a target that could not be reached in time or refuses this host: all
    /// operations fail, new ones immediately, until it is connected again.
    fn lose(&mut self, key: ControllerKey, error: Error, outbox: &mut Outbox) {
        let controller = &mut self.controllers[key];
        tracing::warn!(%error, "target lost; connecting to it continues");
        if let Some(outage) = &mut controller.session.outage {
            outage.lost = Some(error.clone());
        }
        self.fail_waiting(key, &error, outbox);
    }

    fn run_controller_timers(&mut self, key: ControllerKey, outbox: &mut Outbox) {
        let now = self.clock;
        let controller = &self.controllers[key];
        match &controller.session.phase {
            ControllerPhase::Opening(opening) if opening.deadline <= now => {
                let error = opening.no_answer(self.wire.cause_of_silence());
                self.end_association(key, error, outbox);
            }
            ControllerPhase::Opening(opening)
                if opening.poll_at.is_some_and(|time| time <= now) =>
            {
                self.poll_ready(key, outbox);
            }
            ControllerPhase::Live(_) => {
                self.run_auth_timers(key, outbox);
                if !self.controllers[key].session.is_live() {
                    return;
                }
                self.resume_delayed(key);
                self.controllers[key].checks.ask_again_for_access(now);
                self.expire_checks(key, outbox);
                self.keep_alive(key, outbox);
                if self.controllers.get(key).is_some_and(|controller| controller.session.is_live())
                {
                    self.watch_silence(key, outbox);
                }
            }
            ControllerPhase::Resting(time) if *time <= now => match self.is_fenced(key) {
                true => self.controllers[key].session.phase = ControllerPhase::Fenced,
                false => self.open(key, outbox),
            },
            ControllerPhase::Closing(time) if *time <= now => self.end_closing(key, outbox),
            _ => {}
        }
    }

    fn keep_alive(&mut self, key: ControllerKey, outbox: &mut Outbox) {
        let now = self.clock;
        let controller = &mut self.controllers[key];
        let timeout_ms = controller.options.keep_alive_ms;
        if controller.health.keep_alive.next.is_none_or(|next| next > now) {
            return;
        }
        let timeout = Duration::from_millis(timeout_ms.into());
        controller.health.keep_alive.next = Some(now + KeepAlive::interval(timeout_ms));
        match controller.health.keep_alive.sent {
            Some(sent) if now - sent >= timeout => {
                let error = ErrorKind::ConnectionLost("the target does not answer Keep Alive");
                self.end_association(key, error.into(), outbox);
            }
            Some(_) => {}
            None => self.send_keep_alive(key, outbox),
        }
    }

    fn send_keep_alive(&mut self, key: ControllerKey, outbox: &mut Outbox) {
        self.controllers[key].health.keep_alive.sent = Some(self.clock);
        self.counters.keep_alives += 1;
        let sqe = AdminCommand::KeepAlive.to_sqe();
        self.send_admin(key, sqe, Task::KeepAlive, outbox);
    }

    /// Ends the association of a target that has not responded for too long. Without this a lost
    /// target could stay undetected: if it has acknowledged the commands, nothing is retransmitted.
    fn watch_silence(&mut self, key: ControllerKey, outbox: &mut Outbox) {
        let now = self.clock;
        let controller = &mut self.controllers[key];
        let Some(silence) = controller.options.silence() else { return };
        if controller.health.keep_alive.watch.is_none_or(|watch| watch > now) {
            return;
        }
        let owes = controller.owes_answers();
        let KeepAlive { sent, last_answer, watch, .. } = &mut controller.health.keep_alive;
        *watch = match *sent {
            _ if !owes => None,
            None if *last_answer + silence / 2 > now => Some(*last_answer + silence / 2),
            None => Some(now + silence),
            Some(sent) => Some(sent.max(*last_answer) + silence),
        };
        let is_over = watch.is_some_and(|watch| watch <= now);
        let is_to_be_asked = owes && sent.is_none() && *last_answer + silence / 2 <= now;
        if is_over {
            let error = ErrorKind::ConnectionLost("the target is silent, though it owes answers");
            self.end_association(key, error.into(), outbox);
        } else if is_to_be_asked {
            self.send_keep_alive(key, outbox);
        }
    }

    /// Sends Abort for the commands of a range in flight. If they do not complete, the second
    /// deadline of the range ends the association.
    pub(crate) fn abort_commands_of(
        &mut self,
        key: ControllerKey,
        op: RangeKey,
        outbox: &mut Outbox,
    ) {
        let queues = self.controllers[key].session.io_queues().iter();
        let commands: Vec<admin::Abort> = queues
            .map(|&queue| &self.queues[queue])
            .flat_map(|queue| queue.awaiting().map(|(cid, task)| (queue.qid(), cid, task)))
            .filter(|(_, _, task)| matches!(task, Task::Piece(piece) if piece.op == op))
            .map(|(sqid, cid, _)| admin::Abort { sqid, cid })
            .collect();
        for abort in commands {
            self.counters.aborts += 1;
            self.send_admin(key, abort.to_sqe(), Task::Abort, outbox);
        }
    }

    /// Sends a command without data on the admin queue; does nothing if the queue is full.
    pub(crate) fn send_admin(
        &mut self,
        key: ControllerKey,
        sqe: Sqe,
        task: Task,
        outbox: &mut Outbox,
    ) {
        let Some(admin) = self.controllers[key].session.admin_queue() else { return };
        let queue = &mut self.queues[admin];
        if queue.room() == 0 {
            return;
        }
        self.pushed = true;
        self.counters.commands += 1;
        let issued = queue.issue(&mut *self.wire, sqe, Data::None, task);
        if let Err((error, _)) = issued {
            self.end_association(key, error.into(), outbox);
        }
    }

    /// Starts the shutdown of a controller whose last handle was dropped.
    pub(crate) fn start_closing(&mut self, key: ControllerKey, outbox: &mut Outbox) {
        let Some(controller) = self.controllers.get_mut(key) else { return };
        self.ready_list.mark_ready(key);
        controller.session.closing = true;
        if !controller.session.is_live() {
            return self.end_closing(key, outbox);
        }
        controller.session.phase = ControllerPhase::Closing(self.clock + SHUTDOWN_TIMEOUT);
        let sqe = controller.session.shutdown_sqe();
        self.send_admin(key, sqe, Task::Shutdown, outbox);
    }

    pub(crate) fn end_closing(&mut self, key: ControllerKey, outbox: &mut Outbox) {
        self.disconnect(key, outbox);
        self.forget(key, outbox);
    }

    /// Removes a controller that has no association.
    fn forget(&mut self, key: ControllerKey, outbox: &mut Outbox) {
        let error = Error::from(ErrorKind::Closed).of_target(&self.controllers[key].target);
        self.release_resources(key, error, outbox);
        for attached in self.controllers.remove(key).namespaces.values() {
            outbox.writes.close(attached.written);
        }
    }

    /// Removes namespaces without handles and without operations in progress.
    pub(crate) fn sweep_namespaces(&mut self, key: ControllerKey, outbox: &mut Outbox) {
        let of_raws = self.namespaces_of_raws(key);
        let ops = &self.ops;
        let controller = &mut self.controllers[key];
        controller.namespaces.retain(|number, attached| {
            let is_used = attached.holders > 0
                || attached.check.is_under_way()
                || of_raws.contains(&number)
                || ops.iter().any(|(_, op)| op.is_on(key, number));
            if !is_used {
                outbox.writes.close(attached.written);
            }
            is_used
        });
    }
}

/// Returns the reason, as text, for which a failed work request ended a connection.
pub(crate) fn reason(status: WcStatus) -> &'static str {
    match status {
        WcStatus::RETRY_EXCEEDED => {
            "the target does not answer (transport retries exceeded); if it does to small \
             requests, the MTUs of the two interfaces or of what is between them differ"
        }
        WcStatus::RNR_RETRY_EXCEEDED => {
            "the target accepts no further commands (RNR retries exceeded)"
        }
        WcStatus::FLUSHED => "the connection went down",
        WcStatus::REMOTE_ACCESS_ERROR | WcStatus::REMOTE_INVALID_REQUEST => {
            "the target refused a request of the transport"
        }
        WcStatus::REMOTE_OPERATION_ERROR => "the target failed to take a command",
        WcStatus::LOCAL_PROTECTION_ERROR | WcStatus::LOCAL_ACCESS_ERROR => {
            "the target tried to use memory that it has no right to"
        }
        WcStatus::LOCAL_LENGTH_ERROR => "the target sent more than a response",
        WcStatus::BAD_RESPONSE => "the target sent an invalid packet",
        WcStatus::WINDOW_BIND_ERROR => "a memory window could not be bound",
        WcStatus::FATAL => "the RDMA device failed",
        _ => "a work request failed",
    }
}

/// Returns whether the target still executes commands of the last association (Base, 6.3).
fn is_busy(cause: &Error) -> bool {
    let busy = Status::CONNECT_CONTROLLER_BUSY;
    matches!(cause.kind(), ErrorKind::ConnectRefused { status, .. } if status.is(busy))
}

/// Returns whether the target will respond the same until its configuration changes, so that
/// operations fail immediately instead of after the loss time-out (NVMe base specification, "Do Not
/// Retry").
fn is_permanent_refusal(cause: &Error) -> bool {
    matches!(cause.kind(), ErrorKind::ConnectRefused { status, .. } if status.do_not_retry())
}
