//! Commands other than reads and writes of ranges: admin commands, Flush, Dataset Management and
//! others.

use std::collections::VecDeque;
use std::mem;
use std::ops::Range;

use nvme_proto::{Cqe, NvmOpcode, Sqe};
use rdma::Time;

use crate::engine::arena::{ControllerKey, NamespaceKey, QueueKey};
use crate::engine::controller::{ControllerState, QueueKind, Raw, RawData, RawReply, Task};
use crate::engine::reply::Promise;
use crate::engine::results::Outbox;
use crate::engine::wire::Data;
use crate::engine::{HostEngine, earliest};
use crate::memory::bounce::{BounceChunk, CHUNK_BYTES};
use crate::types::error::ErrorKind;

/// Admin queue slots that are reserved for Keep Alive, Abort and shutdown.
const RESERVED_SLOTS: usize = 4;
/// Blocks that a command may change whose range is not decoded.
const ALL_BLOCKS: Range<u64> = 0..u64::MAX;

impl HostEngine {
    pub(crate) fn submit_raw(
        &mut self,
        now: Time,
        key: ControllerKey,
        mut raw: Raw,
        outbox: &mut Outbox,
    ) {
        let Some(controller) = self.controllers.get_mut(key) else {
            return raw.promise.keep(Err(ErrorKind::Closed.into()), outbox);
        };
        let gone = raw.namespace.and_then(|number| controller.namespace(number).err());
        let refusal = match gone.or_else(|| controller.refusal().cloned()) {
            Some(error) => Some(error),
            _ if raw.data.length() as usize > CHUNK_BYTES => {
                Some(ErrorKind::Invalid("more data than a command of this kind may have").into())
            }
            _ if raw.queue == QueueKind::Io && controller.is_discovery() => {
                Some(ErrorKind::Invalid("a discovery controller has no I/O queue").into())
            }
            _ => None,
        };
        if let Some(error) = refusal {
            return raw.promise.keep(Err(error.of_target(&controller.target)), outbox);
        }
        self.ready_list.mark_ready(key);
        raw.deadline = now + controller.options.admin_timeout;
        controller.raw_expiry = earliest(controller.raw_expiry, Some(raw.deadline));
        controller.raw.push_back(raw);
    }

    /// Sends waiting commands, as far as there is room.
    pub(crate) fn issue_raw(&mut self, now: Time, key: ControllerKey, outbox: &mut Outbox) {
        while self.controllers[key].is_live() && self.controllers[key].takes_raw(outbox) {
            let Some(queue) = self.raw_queue(key) else { return };
            let controller = &mut self.controllers[key];
            let needs_chunk = controller.raw.front().is_some_and(|raw| raw.data.length() > 0);
            if needs_chunk && !controller.bounce.has_free() {
                return;
            }
            if let Some(raw) = controller.raw.pop_front() {
                self.issue_one_raw(now, key, queue, raw, outbox);
            }
        }
    }

    /// Returns the queue for the first command in line, if it has room.
    fn raw_queue(&mut self, key: ControllerKey) -> Option<QueueKey> {
        let controller = &self.controllers[key];
        match controller.raw.front()?.queue {
            QueueKind::Io => self.next_io_queue(key),
            QueueKind::Admin => self.admin_with_room(key),
        }
    }

    /// Returns the admin queue, if it has room beyond [`RESERVED_SLOTS`].
    pub(crate) fn admin_with_room(&self, key: ControllerKey) -> Option<QueueKey> {
        let admin = *self.controllers[key].queues.first()?;
        let queue = &self.queues[admin];
        let reserved = RESERVED_SLOTS.min(usize::from(queue.depth()) / 2);
        (queue.room() > reserved).then_some(admin)
    }

    fn issue_one_raw(
        &mut self,
        now: Time,
        key: ControllerKey,
        queue: QueueKey,
        raw: Raw,
        outbox: &mut Outbox,
    ) {
        let controller = &mut self.controllers[key];
        let Raw { sqe, data, namespace, deadline, repeatable, alters, promise, .. } = raw;
        let length = data.length();
        let chunk = if length > 0 { controller.bounce.claim() } else { None };
        if let (Some(chunk), RawData::ToController(bytes)) = (&chunk, &data) {
            controller.bounce.copy_in(chunk, 0, bytes);
        }
        let to_host = if matches!(data, RawData::ToHost { .. }) { length } else { 0 };
        let data = match &chunk {
            Some(chunk) => controller.bounce.data(chunk, length),
            None => Data::None,
        };
        let queue = &mut self.queues[queue];
        let again = repeatable.then_some(sqe);
        let task = Task::Raw { promise, chunk, to_host, namespace, deadline, again, alters };
        self.pushed = true;
        self.counters.commands += 1;
        if let Err((error, task)) = queue.issue(&mut *self.wire, sqe, data, task) {
            self.interrupt(key, task, outbox);
            self.end_association(now, key, error.into(), outbox);
        }
    }

    pub(crate) fn finish_raw(
        &mut self,
        key: ControllerKey,
        promise: Promise<RawReply>,
        (chunk, to_host): (Option<BounceChunk>, u32),
        namespace: Option<NamespaceKey>,
        cqe: &Cqe,
        outbox: &mut Outbox,
    ) {
        let controller = &mut self.controllers[key];
        let mut data = Vec::new();
        if let Some(chunk) = chunk {
            if cqe.status().is_success() && to_host > 0 {
                data.resize(to_host as usize, 0);
                controller.bounce.copy_out(&chunk, 0, &mut data);
            }
            controller.bounce.release(chunk);
        }
        let gone = namespace.and_then(|number| controller.namespace(number).err());
        let result = match (gone, cqe.status().ok()) {
            (Some(error), _) => Err(error),
            (None, Ok(())) => Ok(RawReply { result: cqe.result(), data }),
            (None, Err(status)) => {
                Err(crate::Error::from(ErrorKind::Status(status)).of_target(&controller.target))
            }
        };
        promise.keep(result, outbox);
    }

    /// Fails commands that were not sent in time. If a command that was sent has no response in
    /// time, the association is ended.
    pub(crate) fn expire_raw(&mut self, now: Time, key: ControllerKey, outbox: &mut Outbox) {
        let controller = &mut self.controllers[key];
        if controller.raw_expiry.is_none_or(|time| time > now) {
            return;
        }
        let after = controller.options.admin_timeout;
        let mut expired = VecDeque::new();
        for list in [&mut controller.raw, &mut controller.unchecked] {
            let (over, waiting): (VecDeque<Raw>, VecDeque<Raw>) =
                mem::take(list).into_iter().partition(|raw| raw.deadline <= now);
            *list = waiting;
            expired.extend(over);
        }
        for raw in expired {
            let error = match &controller.outage {
                Some(outage) => ErrorKind::Lost { after, cause: Box::new(outage.cause.clone()) },
                None => ErrorKind::TimedOut { after },
            };
            let error = crate::Error::from(error).of_target(&controller.target);
            raw.promise.keep(Err(error), outbox);
        }
        let issued = self.earliest_issued_raw(key);
        if issued.is_some_and(|deadline| deadline <= now) {
            let error = ErrorKind::ConnectionLost("a command was not answered");
            self.end_association(now, key, error.into(), outbox);
        }
        if let Some(controller) = self.controllers.get(key) {
            let waiting = controller.raw.iter().chain(&controller.unchecked);
            let waiting = waiting.map(|raw| raw.deadline).min();
            let next = earliest(waiting, self.earliest_issued_raw(key));
            self.controllers[key].raw_expiry = next;
        }
    }

    fn earliest_issued_raw(&self, key: ControllerKey) -> Option<Time> {
        let queues = &self.controllers[key].queues;
        let tasks = queues.iter().flat_map(|&queue| self.queues[queue].awaiting());
        tasks
            .filter_map(|(_, task)| match task {
                Task::Raw { deadline, .. } => Some(*deadline),
                _ => None,
            })
            .min()
    }

    /// Queues commands that waited for the check of their namespace.
    pub(crate) fn resume_raw(&mut self, key: ControllerKey, namespace: NamespaceKey) {
        let controller = &mut self.controllers[key];
        let (ready, unchecked): (VecDeque<Raw>, VecDeque<Raw>) =
            mem::take(&mut controller.unchecked)
                .into_iter()
                .partition(|raw| raw.namespace == Some(namespace));
        controller.raw.extend(ready);
        controller.unchecked = unchecked;
    }

    /// Returns the namespaces of all commands of a controller, whether sent or not.
    pub(crate) fn namespaces_of_raws(&self, key: ControllerKey) -> Vec<NamespaceKey> {
        let Some(controller) = self.controllers.get(key) else { return Vec::new() };
        let fresh = self.fresh.raws.iter().filter(|(of, _)| *of == key).map(|(_, raw)| raw);
        let waiting = fresh.chain(&controller.raw).chain(&controller.unchecked);
        let queues = controller.queues.iter();
        let issued = queues.flat_map(|&queue| self.queues[queue].awaiting());
        let issued = issued.filter_map(|(_, task)| match task {
            Task::Raw { namespace, .. } => *namespace,
            _ => None,
        });
        waiting.filter_map(|raw| raw.namespace).chain(issued).collect()
    }
}

impl Raw {
    /// Returns a command that is sent once, and is not for an open namespace.
    pub(crate) fn new(
        sqe: Sqe,
        data: RawData,
        queue: QueueKind,
        promise: Promise<RawReply>,
    ) -> Self {
        let (namespace, deadline) = (None, Time::ZERO);
        let alters = queue == QueueKind::Admin || !only_asks(NvmOpcode(sqe.opcode));
        Self { sqe, data, queue, namespace, deadline, repeatable: false, alters, promise }
    }
}

/// Returns whether a command changes no data, so that it needs no fence.
fn only_asks(opcode: NvmOpcode) -> bool {
    matches!(opcode, NvmOpcode::FLUSH | NvmOpcode::READ | NvmOpcode::COMPARE | NvmOpcode::VERIFY)
}

impl ControllerState {
    /// Returns whether there is a command to send, which is then the first in line. Those before it
    /// are moved to `unchecked` if they wait for a check or a fence, or fail if their namespace has
    /// changed.
    fn takes_raw(&mut self, outbox: &mut Outbox) -> bool {
        while let Some(raw) = self.raw.front() {
            let Some(number) = raw.namespace else { return true };
            let alters = raw.alters;
            let passed = self.namespace(number).map(|attached| {
                let mut is_fenced = || outbox.writes.is_fenced(attached.written, &ALL_BLOCKS);
                attached.check.is_passed() && !(alters && is_fenced())
            });
            if matches!(passed, Ok(true)) {
                return true;
            }
            let Some(raw) = self.raw.pop_front() else { return false };
            match passed {
                Ok(_) => self.unchecked.push_back(raw),
                Err(error) => raw.promise.keep(Err(error), outbox),
            }
        }
        false
    }
}
