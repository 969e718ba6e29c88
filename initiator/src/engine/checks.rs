//! Checks whether namespaces are still those that were opened: after a reconnect, and when their
//! controller reports a change.
//!
//! No command is sent to a namespace until its check has passed. Several are checked concurrently,
//! while ranges of the others continue.

use std::time::Duration;

use nvme_proto::async_event::{AsyncEvent, Notice};
use nvme_proto::feature::{AsyncEventConfig, Feature, SetFeatures};
use nvme_proto::identify::{Cns, Identify, NamespaceList};
use nvme_proto::log::{GetLogPage, LogId};
use nvme_proto::{AdminCommand, Cqe, Nsid, Sqe, Status};

use crate::engine::HostEngine;
use crate::engine::arena::{ControllerKey, NamespaceKey};
use crate::engine::check_state::{Check, CheckQuestion, CheckTask};
use crate::engine::namespace_identity::{NamespaceIdentity, lacks_descriptors};
use crate::engine::path_access::{AccessChange, AnaTable};
use crate::engine::range_queues::RangeCommand;
use crate::engine::results::Outbox;
use crate::engine::task::Task;
use crate::memory::bounce::BounceChunk;
use crate::types::error::{Error, ErrorKind};

/// Most commands of checks in flight, since they share the admin queue with Keep Alive and the
/// commands of callers.
const MAX_UNDER_WAY: usize = 16;
/// Fewest entries of an admin queue on which an Asynchronous Event Request may occupy one
/// permanently.
const SLOTS_FOR_EVENTS: u16 = 8;
/// Log Specific Parameter of Get Log Page for the ANA log page: Return Groups Only (RGO), without
/// lists of namespaces.
const GROUPS_ONLY: u8 = 1;
/// Pause between two reads of the ANA log page while ranges wait for another state, since an event
/// may be lost.
const ANA_PAUSE: Duration = Duration::from_secs(1);

impl HostEngine {
    /// Checks the namespaces of earlier connections after a controller was connected, and enables
    /// Asynchronous Events.
    pub(crate) fn begin_checks(&mut self, key: ControllerKey, outbox: &mut Outbox) {
        let controller = &mut self.controllers[key];
        controller.check_where(|_| true);
        controller.checks.has_news = true;
        match controller.checks.ana {
            Some(_) => controller.checks.reads_ana = true,
            None => self.apply_ana(key, outbox),
        }
        let controller = &mut self.controllers[key];
        let Some(admin) = controller.session.admin_queue() else { return };
        let wants_notices = controller.checks.notices != AsyncEventConfig::new();
        if wants_notices && self.queues[admin].depth() >= SLOTS_FOR_EVENTS {
            let feature = Feature::AsyncEventConfig(controller.checks.notices);
            let sqe = SetFeatures { nsid: Nsid::NONE, save: false, feature }.to_sqe();
            self.send_admin(key, sqe, Task::EventConfig, outbox);
        }
    }

    /// Sends an Asynchronous Event Request, if the last command for events was successful.
    pub(crate) fn await_event(&mut self, key: ControllerKey, cqe: &Cqe, outbox: &mut Outbox) {
        if cqe.status().is_success() {
            let sqe = AdminCommand::AsyncEventRequest.to_sqe();
            self.send_admin(key, sqe, Task::AsyncEvent, outbox);
        }
    }

    pub(crate) fn take_event(&mut self, key: ControllerKey, cqe: &Cqe, outbox: &mut Outbox) {
        self.await_event(key, cqe, outbox);
        let event = AsyncEvent::from_bits(cqe.dw0.get());
        let Some(notice) = event.as_notice().filter(|_| cqe.status().is_success()) else { return };
        let Some(controller) = self.controllers.get_mut(key) else { return };
        let checks = &mut controller.checks;
        checks.reads_list |= notice == Notice::NAMESPACE_ATTRIBUTE_CHANGED;
        checks.has_news |= checks.reads_list;
        checks.reads_ana |= notice == Notice::ANA_CHANGE && checks.ana.is_some();
        if notice == Notice::DISCOVERY_LOG_CHANGED {
            checks.log_changes.note(outbox);
        }
    }

    /// Sends the commands that are due, as far as there is room.
    pub(crate) fn issue_checks(&mut self, key: ControllerKey, outbox: &mut Outbox) {
        while self.controllers[key].session.is_live() && self.has_check_room(key) {
            let controller = &mut self.controllers[key];
            if std::mem::take(&mut controller.checks.reads_list) {
                let Some(chunk) = controller.bounce.claim() else { return };
                let length = size_of::<NamespaceList>() as u64;
                let page = GetLogPage::new(LogId::CHANGED_NAMESPACES, length);
                let sqe = AdminCommand::GetLogPage(page).to_sqe();
                let task = CheckTask { question: CheckQuestion::ChangedList, chunk };
                self.send_check(key, sqe, task, outbox);
                continue;
            }
            if std::mem::take(&mut controller.checks.reads_ana) {
                let Some(chunk) = controller.bounce.claim() else { return };
                let length = Identify::DATA_BYTES as u64;
                let page = GetLogPage { lsp: GROUPS_ONLY, ..GetLogPage::new(LogId::ANA, length) };
                let sqe = AdminCommand::GetLogPage(page).to_sqe();
                let task = CheckTask { question: CheckQuestion::AnaLog, chunk };
                self.send_check(key, sqe, task, outbox);
                continue;
            }
            let Some(namespace) = self.next_to_check(key) else {
                return self.controllers[key].checks.tell_of_changes(outbox);
            };
            let controller = &mut self.controllers[key];
            let attached = &mut controller.namespaces[namespace];
            attached.check = Check::Namespace { stale: false };
            let sqe = Identify::namespace(Cns::NAMESPACE, attached.nsid).to_sqe();
            let Some(chunk) = controller.bounce.claim() else { return };
            let task = CheckTask { question: CheckQuestion::Identify { namespace }, chunk };
            self.send_check(key, sqe, task, outbox);
        }
    }

    /// Selects the next namespace to check, other than those with writes in flight: once the
    /// successor of a namespace was identified, a target may accept commands for it, and a delayed
    /// write would change the wrong namespace.
    fn next_to_check(&mut self, key: ControllerKey) -> Option<NamespaceKey> {
        for _ in 0..self.controllers[key].checks.due.len() {
            let controller = &mut self.controllers[key];
            let namespace = controller.checks.due.pop_front()?;
            let attached = controller.namespaces.get(namespace);
            if !attached.is_some_and(|attached| matches!(attached.check, Check::Due)) {
                continue;
            }
            if !self.has_writes_on(key, namespace) {
                return Some(namespace);
            }
            self.controllers[key].checks.due.push_back(namespace);
        }
        None
    }

    /// Returns whether writes to a namespace are in flight, or must still be sent for blocks that
    /// were read.
    fn has_writes_on(&self, key: ControllerKey, namespace: NamespaceKey) -> bool {
        let controller = &self.controllers[key];
        let is_of = |command: &RangeCommand| {
            self.ops.get(command.op).is_some_and(|op| op.is_on(key, namespace))
        };
        let queues = controller.session.queues.iter().map(|&queue| &self.queues[queue]);
        let mut in_flight = queues.flat_map(|queue| queue.awaiting().map(|(_, task)| task));
        controller.ranges.modified.iter().any(is_of)
            || in_flight.any(|task| match task {
                Task::Piece(command) => is_of(command) && self.may_change_something(task),
                _ => false,
            })
    }

    fn has_check_room(&self, key: ControllerKey) -> bool {
        let controller = &self.controllers[key];
        controller.checks.under_way < MAX_UNDER_WAY
            && controller.bounce.has_free()
            && self.admin_with_room(key).is_some()
    }

    fn send_check(&mut self, key: ControllerKey, sqe: Sqe, task: CheckTask, outbox: &mut Outbox) {
        let now = self.clock;
        let Some(admin) = self.controllers[key].session.admin_queue() else { return };
        let controller = &mut self.controllers[key];
        controller.expect_answer(now);
        controller.checks.under_way += 1;
        controller.checks.progress = now;
        let data = controller.bounce.data(&task.chunk, Identify::DATA_BYTES as u32);
        let queue = &mut self.queues[admin];
        self.pushed = true;
        self.counters.commands += 1;
        let issued = queue.issue(&mut *self.wire, sqe, data, Task::Check(task));
        if let Err((error, task)) = issued {
            self.interrupt(key, task, outbox);
            self.end_association(key, error.into(), outbox);
        }
    }

    /// Releases a command of a check whose connection was lost. All namespaces are checked on the
    /// next one.
    pub(crate) fn interrupt_check(&mut self, key: ControllerKey, task: CheckTask) {
        let controller = &mut self.controllers[key];
        controller.checks.under_way -= 1;
        controller.bounce.release(task.chunk);
    }

    /// Handles the response to a command of a check.
    pub(crate) fn finish_check(
        &mut self,
        key: ControllerKey,
        CheckTask { question, chunk }: CheckTask,
        cqe: &Cqe,
        outbox: &mut Outbox,
    ) {
        let now = self.clock;
        let controller = &mut self.controllers[key];
        controller.checks.under_way -= 1;
        controller.checks.progress = now;
        let mut data = vec![0; Identify::DATA_BYTES];
        controller.bounce.copy_out(&chunk, 0, &mut data);
        match question {
            CheckQuestion::ChangedList => {
                controller.bounce.release(chunk);
                controller.check_changed(cqe, &data);
            }
            CheckQuestion::AnaLog => {
                controller.bounce.release(chunk);
                // If the target cannot report states now, the log page is read again while ranges
                // wait.
                if cqe.status().is_success() {
                    controller.checks.ana = Some(AnaTable::parse(&data));
                }
                self.apply_ana(key, outbox);
            }
            CheckQuestion::Identify { namespace } => {
                self.take_identity(key, namespace, chunk, cqe, &data, outbox);
            }
        }
    }

    /// Takes the access state of a namespace from the status of a command that it refused.
    pub(crate) fn note_refused_access(
        &mut self,
        key: ControllerKey,
        namespace: NamespaceKey,
        status: Status,
        outbox: &mut Outbox,
    ) {
        let controller = &mut self.controllers[key];
        let group = controller.namespaces[namespace].identity.ana_group;
        if controller.checks.ana.as_mut().is_some_and(|ana| ana.note_refusal(group, status)) {
            controller.checks.reads_ana = true;
            self.apply_ana(key, outbox);
        }
    }

    /// Sets the access states of the namespaces from the ANA table. Ranges that waited for another
    /// state continue, on this path or another.
    fn apply_ana(&mut self, key: ControllerKey, outbox: &mut Outbox) {
        let controller = &mut self.controllers[key];
        let nothing = AnaTable::default();
        let ana = controller.checks.ana.as_ref().unwrap_or(&nothing);
        let (mut opened, mut has_changed, mut has_closed) = (Vec::new(), false, false);
        for (number, attached) in controller.namespaces.iter() {
            let change = ana.apply(attached.identity.ana_group, &attached.access);
            has_changed |= change != AccessChange::None;
            has_closed |= change == AccessChange::Closed;
            if change == AccessChange::Opened && attached.check.is_passed() {
                opened.push(number);
            }
        }
        let waits = controller.namespaces.values().any(|it| it.access.obstacle().is_some());
        controller.checks.ana_again = waits.then(|| self.clock + ANA_PAUSE);
        for number in opened {
            let waiting = std::mem::take(&mut self.controllers[key].namespaces[number].waiting);
            self.resume(key, waiting);
        }
        if has_closed {
            self.start_clocks(key);
        }
        if has_changed {
            outbox.note_move();
        }
        self.ready_list.mark_ready(key);
    }

    fn take_identity(
        &mut self,
        key: ControllerKey,
        namespace: NamespaceKey,
        chunk: BounceChunk,
        cqe: &Cqe,
        data: &[u8],
        outbox: &mut Outbox,
    ) {
        if !is_final(cqe.status()) {
            self.controllers[key].bounce.release(chunk);
            let cause = "the target cannot say now whether its namespaces are unchanged";
            return self.end_association(key, ErrorKind::ConnectionLost(cause).into(), outbox);
        }
        let controller = &mut self.controllers[key];
        let attached = &mut controller.namespaces[namespace];
        let nsid = attached.nsid;
        match std::mem::take(&mut attached.check) {
            Check::Namespace { stale } => {
                let answer = cqe.status().ok().map_err(|status| ErrorKind::Status(status).into());
                match answer.and_then(|()| NamespaceIdentity::parse(nsid, data)) {
                    Ok(identity) => {
                        let identity = Box::new(identity);
                        attached.check = Check::Descriptors { stale, identity };
                        let sqe = Identify::namespace(Cns::NAMESPACE_DESCRIPTORS, nsid).to_sqe();
                        let question = CheckQuestion::Identify { namespace };
                        let task = CheckTask { question, chunk };
                        return self.send_check(key, sqe, task, outbox);
                    }
                    Err(error) => self.lose_namespace(key, namespace, error.to_string(), outbox),
                }
            }
            Check::Descriptors { stale, mut identity } => {
                let status = cqe.status();
                if status.is_success() {
                    identity.add_descriptors(data);
                }
                if status.is_success() || lacks_descriptors(status) {
                    self.compare(key, namespace, &identity, stale, outbox);
                } else {
                    let cause = Error::from(ErrorKind::Status(status)).to_string();
                    self.lose_namespace(key, namespace, cause, outbox);
                }
            }
            Check::Passed | Check::Due => {}
        }
        let controller = &mut self.controllers[key];
        controller.bounce.release(chunk);
        if controller.namespaces[namespace].holders == 0 {
            self.sweep_namespaces(key, outbox);
        }
    }

    /// Compares the identity of a namespace with that at its opening; if they are equal, ranges
    /// that waited for the check continue.
    fn compare(
        &mut self,
        key: ControllerKey,
        namespace: NamespaceKey,
        identity: &NamespaceIdentity,
        stale: bool,
        outbox: &mut Outbox,
    ) {
        let controller = &mut self.controllers[key];
        let attached = &mut controller.namespaces[namespace];
        let change = attached.identity.difference(identity);
        let geometry = identity.geometry(controller.session.limits.max_transfer_bytes);
        match (change, geometry) {
            (None, Ok(geometry)) => {
                attached.geometry = geometry;
                let has_moved = attached.identity.ana_group != identity.ana_group;
                attached.identity.ana_group = identity.ana_group;
                attached.identity.name.clone_from(&identity.name);
                if stale {
                    // The controller reported another change, possibly after the response.
                    attached.check = Check::Due;
                    controller.checks.due.push_back(namespace);
                } else {
                    let waiting = std::mem::take(&mut attached.waiting);
                    self.resume(key, waiting);
                    self.controllers[key].raws.resume_of(namespace);
                }
                if has_moved {
                    self.apply_ana(key, outbox);
                }
            }
            (Some(change), _) => self.lose_namespace(key, namespace, change, outbox),
            (None, Err(error)) => self.lose_namespace(key, namespace, error.to_string(), outbox),
        }
    }

    /// Records that a namespace is no longer the one that was opened: its waiting ranges fail, as
    /// do all later commands.
    fn lose_namespace(
        &mut self,
        key: ControllerKey,
        number: NamespaceKey,
        change: String,
        outbox: &mut Outbox,
    ) {
        let controller = &mut self.controllers[key];
        let attached = &mut controller.namespaces[number];
        let error = Error::new(ErrorKind::Changed(change))
            .of_target(&controller.target)
            .of_namespace(attached.nsid);
        attached.gone = Some(error.clone());
        self.fail_namespace(key, number, &error, outbox);
        self.controllers[key].raws.resume_of(number);
    }

    /// Ends the association if a command of a check exceeds the admin time-out.
    pub(crate) fn expire_checks(&mut self, key: ControllerKey, outbox: &mut Outbox) {
        let controller = &self.controllers[key];
        let deadline = controller.checks.deadline(controller.options.admin_timeout);
        if deadline.is_some_and(|time| time <= self.clock) {
            let cause = "the target does not say whether its namespaces are what they were";
            self.end_association(key, ErrorKind::ConnectionLost(cause).into(), outbox);
        }
    }
}

/// Returns whether a status of Identify describes the namespace, or its absence. Other statuses
/// concern the controller or the connection, even with Do Not Retry, which is valid for this
/// command in this association only.
fn is_final(status: Status) -> bool {
    [Status::SUCCESS, Status::INVALID_NAMESPACE_OR_FORMAT, Status::INVALID_FIELD]
        .iter()
        .any(|&code| status.is(code))
}
