//! Read Ranges: adjacent ranges of a plan in one command, to a target that offers it.
//!
//! The ranges lie one after the other in the caller's memory. They are one [`RangeOp`] while the
//! command is in flight. Unless all of them were read, each of the others becomes a range of its
//! own, which is read, or moved to another replica, as if there had been no list.

use nvme_proto::nvm::{ListedRange, ReadRanges};
use nvme_proto::{Cqe, Status};

use rdma::Access;

use crate::engine::arena::{ControllerKey, QueueKey, RangeKey, RunKey};
use crate::engine::block_plan::{BlockStep, TransferMemory};
use crate::engine::plan_run::{PlanRun, RunStep};
use crate::engine::range_op::{NEVER, RangeOp, Submission};
use crate::engine::range_owner::RangeOwner;
use crate::engine::range_queues::{BlockStage, RangeCommand};
use crate::engine::results::Outbox;
use crate::engine::task::Task;
use crate::engine::{HostEngine, earliest};
use crate::types::direction::RangeDirection;
use crate::types::error::ErrorKind;
use crate::types::plan::{Entry, Outcome};

/// Most bytes of the ranges of a list.
const MAX_BYTES: u32 = 128 << 10;

/// Ranges of a plan for one command.
#[derive(Clone, Copy)]
struct Gathered {
    /// Index of the first range in its plan, and number of ranges.
    first: u32,
    count: u32,
    /// Place of the first byte in the memory of the plan, and number of bytes.
    dst: u64,
    bytes: u32,
}

impl HostEngine {
    /// Sends the next ranges of a run in one command; `None` if they are to be sent one by one.
    pub(crate) fn issue_list(
        &mut self,
        key: ControllerKey,
        run_key: RunKey,
        outbox: &mut Outbox,
    ) -> Option<RunStep> {
        let run = &self.runs[run_key];
        let controller = &mut self.controllers[key];
        let offer = controller.session.limits.range_lists?;
        if run.is_sending() || run.state.direction() != RangeDirection::Read {
            return None;
        }
        let namespace = run.next_namespace()?;
        let attached = controller.namespaces.get_mut(namespace)?;
        if attached.gone.is_some() || !attached.is_ready() || !attached.lists.may_gather() {
            return None;
        }
        let (nsid, geometry) = (attached.nsid, attached.geometry);
        let limit = (offer.ranges.into(), offer.bytes.min(MAX_BYTES));
        let gathered = run.gather(limit, &mut self.list)?;
        let Gathered { first, count, dst, bytes } = gathered;
        let keys = run.state.keys(run.state.entry(first).1);
        let start = run.state.entry(first).0.offset;
        let is_aligned = geometry.is_aligned(start, start + u64::from(bytes));
        if (count == 1 && is_aligned) || keys.scope != controller.scope.id() {
            return None;
        }
        let length = u64::from(bytes);
        if !self.has_room(key, run.options.class, length) {
            return Some(RunStep::Stalled);
        }
        let slice = outbox.part(run.plan, dst, bytes)?;
        let (plan, options, began, due) = (run.plan, run.options, run.began, run.due);
        let Some(queue) = self.next_io_queue(key) else { return Some(RunStep::Stalled) };
        let owner = RangeOwner::PlanRanges { plan, first, count };
        let submission = Submission {
            controller: key,
            namespace,
            direction: RangeDirection::Read,
            offset: start,
            slice,
            keys: Ok(keys),
            owner,
            options,
        };
        let op = RangeOp::new(submission, keys).in_run(run_key, began, due);
        let op_key = self.insert_op(op);
        self.runs[run_key].ranges.skip(count);
        let command = ReadRanges { nsid, ranges: count, length_bytes: bytes };
        self.send_list(key, queue, op_key, &command, outbox);
        self.note_issued(key, run_key, op_key, length);
        Some(RunStep::Issued)
    }

    /// Sends the command of a list, whose ranges are in `self.list`, by a queue with room.
    fn send_list(
        &mut self,
        key: ControllerKey,
        queue: QueueKey,
        op_key: RangeKey,
        command: &ReadRanges,
        outbox: &mut Outbox,
    ) {
        let length_bytes = u64::from(command.length_bytes);
        self.note_sent(key, op_key, length_bytes, Outcome::DIRECT);
        self.counters.commands += 1;
        let op = &self.ops[op_key];
        let (start, sent) = (op.offset, self.clock);
        let data = op.memory_of(start, command.length_bytes, Access::REMOTE_WRITE);
        let place = TransferMemory::Direct;
        let step = BlockStep { slba: 0, blocks: 0, length_bytes, place };
        let stage = BlockStage::List;
        let piece = RangeCommand { op: op_key, start, step, chunk: None, stage, sent };
        let queue = &mut self.queues[queue];
        self.pushed = true;
        let (sqe, task) = (command.to_sqe(), Task::Piece(piece));
        let issued = queue.issue_with_list(&mut *self.wire, sqe, &self.list, data, task);
        if let Err((error, task)) = issued {
            self.interrupt(key, task, outbox);
            self.end_association(key, error.into(), outbox);
        }
    }

    /// Handles the response to the command of a list.
    pub(crate) fn finish_list(
        &mut self,
        key: ControllerKey,
        piece: RangeCommand,
        cqe: &Cqe,
        outbox: &mut Outbox,
    ) {
        let (now, status) = (self.clock, cqe.status());
        let op = &self.ops[piece.op];
        let RangeOwner::PlanRanges { count, .. } = op.owner else { return };
        let namespace = op.namespace;
        let controller = &mut self.controllers[key];
        let read = match status.is_success() {
            true => cqe.dw0.get(),
            false => 0,
        };
        if read > count {
            self.counters.protocol_violations += 1;
            self.interrupt(key, Task::Piece(piece), outbox);
            let rule = "it read more ranges than a list has";
            return self.end_association(key, ErrorKind::Protocol(rule).into(), outbox);
        }
        if status.is(Status::INVALID_OPCODE) {
            controller.session.limits.range_lists = None;
        }
        let attached = &mut controller.namespaces[namespace];
        attached.lists.answered(read, count);
        // Otherwise the command may have been executed on a successor of the namespace.
        let read = if attached.check.is_passed() { read } else { 0 };
        let io_timeout = controller.options.io_timeout;
        let op = &mut self.ops[piece.op];
        if op.trouble.is_some() || read == count {
            let length_bytes = piece.step.length_bytes;
            if op.trouble.is_none() {
                self.counters.count_listed(read, length_bytes);
            }
            op.progress(now, length_bytes, io_timeout);
            return self.piece_done(key, piece.op, length_bytes, outbox);
        }
        op.deadline = NEVER;
        self.dissolve(key, piece, read, outbox);
    }

    /// Continues the ranges of a list whose command was lost with its association, or could not
    /// be pushed.
    pub(crate) fn lose_list(
        &mut self,
        key: ControllerKey,
        piece: RangeCommand,
        outbox: &mut Outbox,
    ) {
        let op = &mut self.ops[piece.op];
        if op.trouble.is_some() {
            let length_bytes = piece.step.length_bytes;
            return self.piece_done(key, piece.op, length_bytes, outbox);
        }
        op.attempts += 1;
        self.counters.retries += 1;
        self.dissolve(key, piece, 0, outbox);
    }

    /// Ends the first `read` ranges of a list, and queues the others as ranges of their own.
    fn dissolve(
        &mut self,
        key: ControllerKey,
        piece: RangeCommand,
        read: u32,
        outbox: &mut Outbox,
    ) {
        let op = self.remove_op(piece.op);
        let RangeOwner::PlanRanges { plan, first, count } = op.owner else { return };
        let class = op.options.class;
        self.controllers[key].ranges.note_ended(class, piece.step.length_bytes);
        let state = outbox.plan_state(plan);
        let lengths = (first..first + read).map(|index| u64::from(state.entry(index).0.length));
        self.counters.ranges += u64::from(read);
        self.counters.count_listed(read, lengths.sum());
        outbox.end_ranges(plan, first, read, op.service(self.clock));
        for index in (first + read..first + count).rev() {
            let state = outbox.plan_state(plan);
            let &Entry { offset, dst, length, .. } = state.entry(index).0;
            let Some(slice) = outbox.part(plan, dst, length) else { return };
            let owner = RangeOwner::Plan { plan, index };
            let single = op.single(offset, slice, owner);
            let single = self.insert_op(single);
            self.controllers[key].ranges.ready[class as usize].push_front(single);
        }
        self.next_expiry = earliest(self.next_expiry, Some(op.expiry()));
        self.ready_list.mark_ready(key);
        if !self.controllers[key].is_path_to(op.namespace) {
            outbox.note_move();
        }
    }
}

impl PlanRun {
    /// Selects the next ranges that one command can read, and writes their list; `None` if the next
    /// range fits no list.
    fn gather(
        &self,
        (most_ranges, most_bytes): (u32, u32),
        list: &mut Vec<ListedRange>,
    ) -> Option<Gathered> {
        list.clear();
        let first = self.ranges.peek()?;
        let (entry, route) = self.state.entry(first);
        let (dst, namespace) = (entry.dst, route.namespace);
        let mut bytes = 0;
        for (index, count) in (first..).zip(0..most_ranges) {
            if self.ranges.nth(count as usize) != Some(index) {
                break;
            }
            let (entry, route) = self.state.entry(index);
            let fits = route.namespace == namespace
                && entry.dst == dst + u64::from(bytes)
                && (1..=most_bytes - bytes).contains(&entry.length);
            if !fits {
                break;
            }
            list.push(ListedRange::new(entry.offset, entry.length));
            bytes += entry.length;
        }
        let count = list.len() as u32;
        (count > 0).then_some(Gathered { first, count, dst, bytes })
    }
}
