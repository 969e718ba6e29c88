//! Commands of ranges, from the lists of waiting ranges to the queues.

use nvme_proto::nvm::Io;
use nvme_proto::{LbaRange, NvmCommand, Sqe};
use rdma::{Access, Sge};

use crate::engine::arena::{Arena, ControllerKey, QueueKey, RangeKey};
use crate::engine::block_plan::{BlockStep, TransferMemory};
use crate::engine::controller::Attached;
use crate::engine::plan_run::RunStep;
use crate::engine::queue::HostQueue;
use crate::engine::range_op::{RangeList, RangeOp};
use crate::engine::range_queues::{BlockStage, IssueLine, RangeCommand, RangeQueues};
use crate::engine::results::Outbox;
use crate::engine::session::Session;
use crate::engine::task::Task;
use crate::engine::wire::Data;
use crate::engine::{HostEngine, earliest};
use crate::types::direction::RangeDirection;
use crate::types::options::Class;
use crate::types::plan::Outcome;

/// Result of an attempt to send the next command of a range.
pub(crate) enum Advance {
    /// A command was pushed, for this many bytes of the range.
    Issued(u64),
    /// No queue has room, or no bounce chunk is free.
    Stalled,
    /// All commands of the range are in flight, or it has failed.
    Done,
    /// The write waits for another to the same blocks, which is in progress or fenced.
    Blocked,
    /// The namespace is being checked for changes, or its ANA state does not permit access.
    Unchecked,
}

impl HostEngine {
    /// Sends the commands that wait for a controller, as far as its queues have room.
    pub(crate) fn issue_waiting(&mut self, key: ControllerKey, outbox: &mut Outbox) {
        if self.controllers[key].session.auth.exchange.is_some() {
            self.issue_exchange(key, outbox);
        }
        self.issue_checks(key, outbox);
        self.issue_raw(key, outbox);
        while self.controllers[key].session.is_live() {
            let Some(modified) = self.controllers[key].ranges.modified.pop_front() else { break };
            if let Err(modified) = self.issue_modified(key, modified, outbox) {
                self.controllers[key].ranges.modified.push_front(modified);
                return;
            }
        }
        for class in Class::ALL {
            if !self.issue_class(key, class, outbox) {
                return;
            }
        }
    }

    /// Sends the commands that wait in a class; false if there is no room for the next one.
    fn issue_class(&mut self, key: ControllerKey, class: Class, outbox: &mut Outbox) -> bool {
        // Consecutive runs whose next range waits for the check of its namespace.
        let mut held = 0;
        while self.controllers[key].session.is_live() {
            match self.controllers[key].ranges.next_line(class, held) {
                None => break,
                Some(IssueLine::Range(op)) => {
                    if !self.issue_range(key, class, op, outbox) {
                        return false;
                    }
                }
                Some(IssueLine::Run(run)) => match self.issue_run(key, run, outbox) {
                    RunStep::Issued => held = 0,
                    RunStep::Held => held += 1,
                    RunStep::Stalled => return false,
                },
            }
        }
        true
    }

    /// Sends the next command of the first range in line; false if there is no room for it.
    fn issue_range(
        &mut self,
        key: ControllerKey,
        class: Class,
        op: RangeKey,
        outbox: &mut Outbox,
    ) -> bool {
        match self.advance(key, op, outbox) {
            Advance::Issued(bytes) => {
                self.controllers[key].ranges.turns[class as usize].of_ranges(bytes)
            }
            Advance::Stalled => return false,
            Advance::Blocked => {
                let controller = &mut self.controllers[key];
                controller.ranges.ready[class as usize].pop_front();
                controller.ranges.blocked.push_back(op);
            }
            Advance::Unchecked => {
                let controller = &mut self.controllers[key];
                controller.ranges.ready[class as usize].pop_front();
                let namespace = self.ops[op].namespace;
                controller.namespaces[namespace].waiting.push_back(op);
            }
            Advance::Done => {
                // The list is empty if the association ended in `advance`.
                let ready = &mut self.controllers[key].ranges.ready[class as usize];
                if ready.front() == Some(&op) {
                    ready.pop_front();
                    self.ops[op].place = RangeList::None;
                }
            }
        }
        true
    }

    /// Sends the next command of a range.
    pub(crate) fn advance(
        &mut self,
        key: ControllerKey,
        op_key: RangeKey,
        outbox: &mut Outbox,
    ) -> Advance {
        let (op, controller) = (&mut self.ops[op_key], &mut self.controllers[key]);
        if op.trouble.is_some() || op.is_issued() {
            return Advance::Done;
        }
        let attached = &controller.namespaces[op.namespace];
        if !attached.is_ready() {
            return Advance::Unchecked;
        }
        let is_at_beginning = op.position == op.offset;
        if op.is_write() && is_at_beginning && !begin_write(op, attached, outbox) {
            return Advance::Blocked;
        }
        let start = op.position;
        let step = attached.geometry.next_step(start, op.end());
        let is_bounced = step.place != TransferMemory::Direct;
        let class = op.options.class;
        let (queues, session) = (&self.queues, &mut controller.session);
        let has_room = has_room(queues, session, &controller.ranges, class, step.length_bytes)
            && (!is_bounced || controller.bounce.has_free());
        if !has_room {
            return Advance::Stalled;
        }
        let queue = session.next_io_queue(|queue| queues[queue].room() > 0);
        let Some(queue) = queue else { return Advance::Stalled };
        let chunk = if is_bounced { controller.bounce.claim() } else { None };
        let stage = match is_bounced && op.is_write() {
            true => BlockStage::Fetch,
            false => BlockStage::Transfer,
        };
        let path = if is_bounced { Outcome::BOUNCED } else { Outcome::DIRECT };
        self.note_sent(key, op_key, step.length_bytes, path);
        self.count_step(&step);
        let piece = RangeCommand { op: op_key, start, step, chunk, stage, sent: self.clock };
        self.issue_piece(key, queue, piece, outbox);
        Advance::Issued(step.length_bytes)
    }

    /// Records a command for the next bytes of a range, which is sent now. `path` is a flag of
    /// [`Outcome`].
    pub(crate) fn note_sent(
        &mut self,
        key: ControllerKey,
        op_key: RangeKey,
        length_bytes: u64,
        path: u8,
    ) {
        let now = self.clock;
        let (op, controller) = (&mut self.ops[op_key], &mut self.controllers[key]);
        op.position += length_bytes;
        op.outstanding += 1;
        op.began.get_or_insert(now);
        op.path |= path;
        op.start_clock(now, controller.options.io_timeout);
        self.next_expiry = earliest(self.next_expiry, Some(op.expiry()));
        controller.expect_answer(now);
        controller.ranges.note_sent(op.options.class, length_bytes);
    }

    fn count_step(&mut self, step: &BlockStep) {
        let counters = &mut self.counters;
        match step.place {
            TransferMemory::Direct => {
                counters.direct_steps += 1;
                counters.direct_bytes += step.length_bytes;
            }
            TransferMemory::Bounce { .. } => {
                counters.bounced_steps += 1;
                counters.bounced_bytes += step.length_bytes;
            }
        }
    }

    /// Returns whether the limits of bytes in flight permit another command of this length.
    pub(crate) fn has_room(&self, key: ControllerKey, class: Class, length_bytes: u64) -> bool {
        let controller = &self.controllers[key];
        has_room(&self.queues, &controller.session, &controller.ranges, class, length_bytes)
    }

    /// Selects the next I/O queue with room, in round-robin order.
    pub(crate) fn next_io_queue(&mut self, key: ControllerKey) -> Option<QueueKey> {
        let queues = &self.queues;
        self.controllers[key].session.next_io_queue(|queue| queues[queue].room() > 0)
    }

    /// Pushes a command of a range to a queue, which must have room.
    fn issue_piece(
        &mut self,
        key: ControllerKey,
        queue: QueueKey,
        piece: RangeCommand,
        outbox: &mut Outbox,
    ) {
        let queue = &mut self.queues[queue];
        let controller = &self.controllers[key];
        let op = &self.ops[piece.op];
        let attached = &controller.namespaces[op.namespace];
        let span = u64::from(piece.step.blocks) * attached.geometry.block_bytes();
        let length = u32::try_from(span).expect("a step is shorter than 2^24 bytes");
        let range = LbaRange { slba: piece.step.slba, blocks: piece.step.blocks };
        let sqe = sqe(op.direction, piece.stage, attached.nsid, range);
        let writes = op.is_write() && piece.stage == BlockStage::Transfer;
        let in_capsule = writes && queue.sends_data(&self.wire.facts().caps, length);
        self.counters.commands += 1;
        self.counters.in_capsule_writes += u64::from(in_capsule);
        let address = op.address_of(piece.start);
        let data = match &piece.chunk {
            Some(chunk) if in_capsule => Data::InCapsule(controller.bounce.sge(chunk, length)),
            Some(chunk) => controller.bounce.data(chunk, length),
            None if in_capsule => {
                Data::InCapsule(Sge { addr: address, length, lkey: op.keys.lkey })
            }
            None => {
                let access = if writes { Access::REMOTE_READ } else { Access::REMOTE_WRITE };
                op.memory_of(piece.start, length, access)
            }
        };
        let issued = queue.issue(&mut *self.wire, sqe, data, Task::Piece(piece));
        self.pushed = true;
        if let Err((error, task)) = issued {
            self.interrupt(key, task, outbox);
            self.end_association(key, error.into(), outbox);
        }
    }

    /// Sends the write of a block into which the caller's bytes were copied.
    fn issue_modified(
        &mut self,
        key: ControllerKey,
        piece: RangeCommand,
        outbox: &mut Outbox,
    ) -> Result<(), RangeCommand> {
        if self.ops[piece.op].trouble.is_some() {
            self.return_piece(key, piece, outbox);
        } else {
            let Some(queue) = self.next_io_queue(key) else { return Err(piece) };
            self.issue_piece(key, queue, RangeCommand { sent: self.clock, ..piece }, outbox);
        }
        Ok(())
    }
}

fn has_room(
    queues: &Arena<QueueKey, HostQueue<Task>>,
    session: &Session,
    ranges: &RangeQueues,
    class: Class,
    length_bytes: u64,
) -> bool {
    let depth = |&queue: &QueueKey| usize::from(queues[queue].depth());
    let slots = || session.io_queues().iter().map(depth).sum();
    ranges.has_room(length_bytes, session.io_queues().len())
        && (class != Class::Background || ranges.has_background_room(slots))
}

/// Returns whether a write may be started, or started again: no other write of this host to one of
/// its blocks is in progress, or may still be executed by a target.
fn begin_write(op: &mut RangeOp, attached: &Attached, outbox: &mut Outbox) -> bool {
    let blocks = attached.geometry.blocks_of(op.offset, op.end());
    if outbox.writes.is_fenced(attached.written, &blocks) {
        return false;
    }
    if op.write.is_none() {
        let aligned = attached.geometry.is_aligned(op.offset, op.end());
        op.write = outbox.writes.begin(attached.written, blocks, aligned);
    }
    op.write.is_some()
}

fn sqe(
    direction: RangeDirection,
    stage: BlockStage,
    nsid: nvme_proto::Nsid,
    range: LbaRange,
) -> Sqe {
    let io = |fua| Io { nsid, range, fua, limited_retry: false };
    let command = match (direction, stage) {
        (RangeDirection::Write { fua }, BlockStage::Transfer) => NvmCommand::Write(io(fua)),
        _ => NvmCommand::Read(io(false)),
    };
    command.to_sqe()
}
