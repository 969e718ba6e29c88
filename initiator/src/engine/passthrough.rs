//! Commands other than reads and writes of ranges: admin commands, Flush, Dataset Management and
//! others.

use nvme_proto::Cqe;
use rdma::Time;

use crate::engine::arena::{ControllerKey, NamespaceKey, QueueKey};
use crate::engine::raw::{QueueKind, Raw, RawData, RawReply};
use crate::engine::reply::Promise;
use crate::engine::results::Outbox;
use crate::engine::task::Task;
use crate::engine::wire::Data;
use crate::engine::{HostEngine, earliest};
use crate::memory::bounce::{BounceChunk, CHUNK_BYTES};
use crate::types::error::ErrorKind;

/// Admin queue slots that are reserved for Keep Alive, Abort and shutdown.
const RESERVED_SLOTS: usize = 4;

impl HostEngine {
    pub(crate) fn submit_raw(&mut self, key: ControllerKey, mut raw: Raw, outbox: &mut Outbox) {
        let Some(controller) = self.controllers.get_mut(key) else {
            return raw.promise.keep(Err(ErrorKind::Closed.into()), outbox);
        };
        let gone = raw.namespace.and_then(|number| controller.namespace(number).err());
        let refusal = match gone.or_else(|| controller.session.refusal().cloned()) {
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
        raw.deadline = self.clock + controller.options.admin_timeout;
        controller.raws.push(raw);
    }

    /// Sends waiting commands, as far as there is room.
    pub(crate) fn issue_raw(&mut self, key: ControllerKey, outbox: &mut Outbox) {
        while self.controllers[key].session.is_live() && self.controllers[key].takes_raw(outbox) {
            let Some(queue) = self.raw_queue(key) else { return };
            let controller = &mut self.controllers[key];
            let needs_chunk =
                controller.raws.waiting.front().is_some_and(|raw| raw.data.length() > 0);
            if needs_chunk && !controller.bounce.has_free() {
                return;
            }
            if let Some(raw) = controller.raws.waiting.pop_front() {
                self.issue_one_raw(key, queue, raw, outbox);
            }
        }
    }

    /// Returns the queue for the first command in line, if it has room.
    fn raw_queue(&mut self, key: ControllerKey) -> Option<QueueKey> {
        let controller = &self.controllers[key];
        match controller.raws.waiting.front()?.queue {
            QueueKind::Io => self.next_io_queue(key),
            QueueKind::Admin => self.admin_with_room(key),
        }
    }

    /// Returns the admin queue, if it has room beyond [`RESERVED_SLOTS`].
    pub(crate) fn admin_with_room(&self, key: ControllerKey) -> Option<QueueKey> {
        let admin = self.controllers[key].session.admin_queue()?;
        let queue = &self.queues[admin];
        let reserved = RESERVED_SLOTS.min(usize::from(queue.depth()) / 2);
        (queue.room() > reserved).then_some(admin)
    }

    fn issue_one_raw(
        &mut self,
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
            self.end_association(key, error.into(), outbox);
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
    pub(crate) fn expire_raw(&mut self, key: ControllerKey, outbox: &mut Outbox) {
        let now = self.clock;
        let controller = &mut self.controllers[key];
        if controller.raws.expiry.is_none_or(|time| time > now) {
            return;
        }
        let after = controller.options.admin_timeout;
        for raw in controller.raws.take_expired(now) {
            let error = match &controller.session.outage {
                Some(outage) => ErrorKind::Lost { after, cause: Box::new(outage.cause.clone()) },
                None => ErrorKind::TimedOut { after },
            };
            let error = crate::Error::from(error).of_target(&controller.target);
            raw.promise.keep(Err(error), outbox);
        }
        let issued = self.earliest_issued_raw(key);
        if issued.is_some_and(|deadline| deadline <= now) {
            let error = ErrorKind::ConnectionLost("a command was not answered");
            self.end_association(key, error.into(), outbox);
        }
        if let Some(controller) = self.controllers.get(key) {
            let waiting = controller.raws.iter().map(|raw| raw.deadline).min();
            let next = earliest(waiting, self.earliest_issued_raw(key));
            self.controllers[key].raws.expiry = next;
        }
    }

    fn earliest_issued_raw(&self, key: ControllerKey) -> Option<Time> {
        let queues = &self.controllers[key].session.queues;
        let tasks = queues.iter().flat_map(|&queue| self.queues[queue].awaiting());
        tasks
            .filter_map(|(_, task)| match task {
                Task::Raw { deadline, .. } => Some(*deadline),
                _ => None,
            })
            .min()
    }

    /// Returns the namespaces of all commands of a controller, whether sent or not.
    pub(crate) fn namespaces_of_raws(&self, key: ControllerKey) -> Vec<NamespaceKey> {
        let Some(controller) = self.controllers.get(key) else { return Vec::new() };
        let fresh = self.fresh.raws.iter().filter(|(of, _)| *of == key).map(|(_, raw)| raw);
        let waiting = fresh.chain(controller.raws.iter());
        let queues = controller.session.queues.iter();
        let issued = queues.flat_map(|&queue| self.queues[queue].awaiting());
        let issued = issued.filter_map(|(_, task)| match task {
            Task::Raw { namespace, .. } => *namespace,
            _ => None,
        });
        waiting.filter_map(|raw| raw.namespace).chain(issued).collect()
    }
}
