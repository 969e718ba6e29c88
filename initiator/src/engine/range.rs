//! Ranges: how reads and writes of bytes are split into commands, retried and completed.

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::time::Duration;

use nvme_proto::nvm::Io;
use nvme_proto::{LbaRange, NvmCommand, Sqe, Status};
use rdma::{Access, Sge, Time};

use crate::engine::arena::{ControllerKey, NamespaceKey, PlanKey, QueueKey, RangeKey, RingKey};
use crate::engine::block_plan::{self, BlockStep};
use crate::engine::plan_run::RunStep;
use crate::engine::range_op::{
    Displaced, DisplacedRange, NEVER, RangeFailure, RangeList, RangeOp, Submission,
};
use crate::engine::range_owner::RangeOwner;
use crate::engine::range_queues::{BlockStage, CommandsInFlight, IssueLine, RangeCommand};
use crate::engine::results::{Outbox, RangeService};
use crate::engine::task::Task;
use crate::engine::wire::Data;
use crate::engine::{HostEngine, earliest, path_access};
use crate::memory::region::{Grant, Keys};
use crate::types::direction::RangeDirection;
use crate::types::error::{Error, ErrorKind};
use crate::types::options::Class;
use crate::types::plan::Outcome;

/// Most bytes of background ranges in flight per controller, which foreground ranges wait for. With
/// twice as many, a row of 2 KiB waits for 9 ms beside 400 MiB from a target that sends 450 MB/s.
const MAX_BACKGROUND_BYTES: u64 = 2 << 20;

/// Most bytes of ranges in flight per I/O queue; a single command may be longer. More would wait at
/// a slow target while the time-out of its range runs. With twice as many, a target that sends 60
/// MB/s delays the last range by 0.5 s.
const MAX_QUEUE_BYTES: u64 = 16 << 20;

const NO_WINDOWS: &str = "the RDMA device has no memory windows";

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
    /// Number of attempts after which a status that permits a retry is final.
    const MAX_ATTEMPTS: u32 = 8;

    pub(crate) fn submit_range(&mut self, mut submission: Submission, outbox: &mut Outbox) {
        // An error of registration is reported only if nothing else is wrong.
        let keys = mem::replace(&mut submission.keys, Ok(Keys::NONE));
        match self.admit(&mut submission, keys) {
            Err(error) => {
                self.counters.ranges_failed += 1;
                self.counters.timeouts +=
                    u64::from(matches!(error.kind(), ErrorKind::TimedOut { .. }));
                let Submission { owner, slice, .. } = submission;
                outbox.complete(owner, slice, Err(error), RangeService::default());
            }
            Ok(_) if submission.slice.is_empty() => {
                self.counters.ranges += 1;
                let Submission { owner, slice, .. } = submission;
                outbox.complete(owner, slice, Ok(()), RangeService::default());
            }
            Ok(keys) => self.enqueue(submission, keys),
        }
    }

    fn enqueue(&mut self, submission: Submission, keys: Keys) {
        let op = self.insert_op(RangeOp::new(submission, keys));
        self.fresh.ops.push(op);
    }

    /// Queues a range that was moved here from another path of its namespace.
    pub(crate) fn adopt_range(&mut self, mut op: RangeOp, outbox: &mut Outbox) {
        let has_windows = self.wire.facts().caps.memory_windows;
        let known = self.controllers.get(op.controller).ok_or_else(|| ErrorKind::Closed.into());
        let keys = known.and_then(|controller| {
            let nsid = controller.namespace(op.namespace)?.nsid;
            let is_possible = op.slice.grant() == Grant::Persistent || has_windows;
            let keys = match is_possible {
                // The memory was usually registered for this path when the range was submitted.
                true => op.slice.keys(&*controller.scope).map_err(Error::from),
                false => Err(ErrorKind::Unsupported(NO_WINDOWS).into()),
            };
            keys.map_err(|error| error.of_target(&controller.target).of_namespace(nsid))
        });
        match keys {
            Ok(keys) => {
                op.keys = keys;
                let op = self.insert_op(op);
                self.fresh.ops.push(op);
            }
            Err(error) => {
                self.counters.ranges_failed += 1;
                op.fail(error, self.clock, outbox);
            }
        }
    }

    pub(crate) fn insert_op(&mut self, op: RangeOp) -> RangeKey {
        self.controllers[op.controller].ranges.unissued_bytes += op.unissued();
        self.ops.insert(op)
    }

    fn remove_op(&mut self, op_key: RangeKey) -> RangeOp {
        let op = self.ops.remove(op_key);
        self.controllers[op.controller].ranges.unissued_bytes -= op.unissued();
        op
    }

    /// Queues a new range for its controller and sets its times.
    pub(crate) fn start_range(&mut self, now: Time, op_key: RangeKey, outbox: &mut Outbox) {
        // The range may have failed since, and another may have its key.
        let fresh = self.ops.get_mut(op_key).filter(|op| op.place == RangeList::Fresh);
        let Some(op) = fresh else { return };
        let controller = &mut self.controllers[op.controller];
        if let Some(limit) = op.options.deadline
            && op.due == NEVER
        {
            op.due = now + limit;
        }
        if !controller.is_usable(op.namespace) {
            op.start_clock(now, controller.options.io_timeout);
            if op.owner.paths().is_some() {
                // The path was lost after it was chosen: the range may move.
                outbox.note_move();
            }
        }
        op.place = RangeList::Queued;
        if op.began.is_none() {
            op.submitted = now;
        }
        self.next_expiry = earliest(self.next_expiry, Some(op.expiry()));
        controller.ranges.ready[op.options.class as usize].push_back(op_key);
        self.ready_list.mark_ready(op.controller);
    }

    /// Checks a range before it is queued, and returns its keys.
    fn admit(&self, submission: &mut Submission, keys: io::Result<Keys>) -> Result<Keys, Error> {
        let (offset, length) = (submission.offset, submission.slice.len() as u64);
        let controller = self.controllers.get(submission.controller).ok_or(ErrorKind::Closed)?;
        let about = |error: Error, nsid| {
            error.of_target(&controller.target).of_namespace(nsid).of_range(offset, length)
        };
        let attached = controller.namespace(submission.namespace)?;
        if let Some(error) = controller.session.refusal() {
            return Err(about(error.clone(), attached.nsid));
        }
        let size_bytes = attached.identity.size_bytes;
        if submission.offset.checked_add(length).is_none_or(|end| end > size_bytes) {
            return Err(about(ErrorKind::OutOfRange { size_bytes }.into(), attached.nsid));
        }
        if submission.slice.grant() == Grant::PerCommand && !self.wire.facts().caps.memory_windows {
            let error = ErrorKind::Unsupported(NO_WINDOWS);
            return Err(about(error.into(), attached.nsid));
        }
        if submission.options.has_no_time() {
            let error = ErrorKind::TimedOut { after: Duration::ZERO };
            return Err(about(error.into(), attached.nsid));
        }
        let keys = keys.and_then(|keys| match keys.scope == controller.scope.id() {
            true => Ok(keys),
            // The provider was changed after the keys were returned.
            false => submission.slice.keys(&*controller.scope),
        });
        keys.map_err(|error| about(error.into(), attached.nsid))
    }

    /// Sends the commands that wait for a controller, as far as its queues have room.
    pub(crate) fn issue_waiting(&mut self, now: Time, key: ControllerKey, outbox: &mut Outbox) {
        self.issue_checks(now, key, outbox);
        self.issue_raw(now, key, outbox);
        while self.controllers[key].session.is_live() {
            let Some(modified) = self.controllers[key].ranges.modified.pop_front() else { break };
            if let Err(modified) = self.issue_modified(now, key, modified, outbox) {
                self.controllers[key].ranges.modified.push_front(modified);
                return;
            }
        }
        for class in Class::ALL {
            if !self.issue_class(now, key, class, outbox) {
                return;
            }
        }
    }

    /// Sends the commands that wait in a class; false if there is no room for the next one.
    fn issue_class(
        &mut self,
        now: Time,
        key: ControllerKey,
        class: Class,
        outbox: &mut Outbox,
    ) -> bool {
        // Consecutive runs whose next range waits for the check of its namespace.
        let mut held = 0;
        while self.controllers[key].session.is_live() {
            match self.controllers[key].ranges.next_line(class, held) {
                None => break,
                Some(IssueLine::Range(op)) => {
                    if !self.issue_range(now, key, class, op, outbox) {
                        return false;
                    }
                }
                Some(IssueLine::Run(run)) => match self.issue_run(now, key, run, outbox) {
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
        now: Time,
        key: ControllerKey,
        class: Class,
        op: RangeKey,
        outbox: &mut Outbox,
    ) -> bool {
        match self.advance(now, key, op, outbox) {
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

    /// Returns whether a command of this length keeps the bytes in flight within
    /// [`MAX_QUEUE_BYTES`] per queue.
    fn has_byte_room(&self, key: ControllerKey, length_bytes: u64) -> bool {
        let controller = &self.controllers[key];
        let CommandsInFlight { commands, bytes } = controller.ranges.in_flight;
        let queues = controller.session.io_queues().len() as u64;
        commands == 0 || bytes + length_bytes <= queues * MAX_QUEUE_BYTES
    }

    /// Returns whether another background command may be sent. The limit bounds how long a
    /// foreground range waits for those in flight.
    fn has_background_room(&self, key: ControllerKey) -> bool {
        let controller = &self.controllers[key];
        let CommandsInFlight { commands, bytes } = controller.ranges.background;
        let io = controller.session.io_queues().iter();
        let slots: usize = io.map(|&queue| usize::from(self.queues[queue].depth())).sum();
        commands == 0 || (commands < slots / 2 && bytes < MAX_BACKGROUND_BYTES)
    }

    /// Sends the next command of a range.
    pub(crate) fn advance(
        &mut self,
        now: Time,
        key: ControllerKey,
        op_key: RangeKey,
        outbox: &mut Outbox,
    ) -> Advance {
        let op = &self.ops[op_key];
        if op.trouble.is_some() || op.position == op.end() {
            return Advance::Done;
        }
        if !self.controllers[key].namespaces[op.namespace].is_ready() {
            return Advance::Unchecked;
        }
        let is_at_beginning = op.position == op.offset;
        if op.is_write() && is_at_beginning && !self.begin_write(key, op_key, outbox) {
            return Advance::Blocked;
        }
        let op = &self.ops[op_key];
        let controller = &mut self.controllers[key];
        let start = op.position;
        let step = controller.namespaces[op.namespace].geometry.next_step(start, op.end());
        let bounced = step.place != block_plan::TransferMemory::Direct;
        let class = op.options.class;
        if class == Class::Background && !self.has_background_room(key) {
            return Advance::Stalled;
        }
        if !self.has_byte_room(key, step.length_bytes) {
            return Advance::Stalled;
        }
        if !self.has_io_room(key) || (bounced && !self.controllers[key].bounce.has_free()) {
            return Advance::Stalled;
        }
        let controller = &mut self.controllers[key];
        let chunk = if bounced { controller.bounce.claim() } else { None };
        let io_timeout = controller.options.io_timeout;
        let stage = if bounced && self.ops[op_key].is_write() {
            BlockStage::Fetch
        } else {
            BlockStage::Transfer
        };
        let op = &mut self.ops[op_key];
        op.position += step.length_bytes;
        controller.ranges.unissued_bytes -= step.length_bytes;
        op.outstanding += 1;
        op.began.get_or_insert(now);
        op.path |= if bounced { Outcome::BOUNCED } else { Outcome::DIRECT };
        op.start_clock(now, io_timeout);
        self.next_expiry = earliest(self.next_expiry, Some(op.expiry()));
        let controller = &mut self.controllers[key];
        controller.expect_answer(now);
        controller.ranges.add_in_flight(class, step.length_bytes);
        self.count_step(&step);
        let piece = RangeCommand { op: op_key, start, step, chunk, stage, sent: now };
        self.issue_piece(now, key, piece, outbox);
        Advance::Issued(step.length_bytes)
    }

    fn count_step(&mut self, step: &BlockStep) {
        let counters = &mut self.counters;
        match step.place {
            block_plan::TransferMemory::Direct => {
                counters.direct_steps += 1;
                counters.direct_bytes += step.length_bytes;
            }
            block_plan::TransferMemory::Bounce { .. } => {
                counters.bounced_steps += 1;
                counters.bounced_bytes += step.length_bytes;
            }
        }
    }

    fn has_io_room(&self, key: ControllerKey) -> bool {
        let queues = self.controllers[key].session.io_queues();
        queues.iter().any(|&queue| self.queues[queue].room() > 0)
    }

    /// Selects the next I/O queue with room, in round-robin order.
    pub(crate) fn next_io_queue(&mut self, key: ControllerKey) -> Option<QueueKey> {
        let queues = &self.queues;
        self.controllers[key].session.next_io_queue(|queue| queues[queue].room() > 0)
    }

    /// Pushes a command of a range to a queue; one must have room.
    fn issue_piece(
        &mut self,
        now: Time,
        key: ControllerKey,
        piece: RangeCommand,
        outbox: &mut Outbox,
    ) {
        let queue = self.next_io_queue(key).expect("the caller asked for room");
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
            None if op.slice.grant() == Grant::Persistent => {
                Data::Keyed { address, length, rkey: op.keys.rkey }
            }
            None => {
                let access = if writes { Access::REMOTE_READ } else { Access::REMOTE_WRITE };
                Data::Window { slice: &op.slice, address, length, access }
            }
        };
        let issued = queue.issue(&mut *self.wire, sqe, data, Task::Piece(piece));
        self.pushed = true;
        if let Err((error, task)) = issued {
            self.interrupt(key, task, outbox);
            self.end_association(now, key, error.into(), outbox);
        }
    }

    /// Releases the chunk of a command that was lost with its association or could not be pushed.
    /// Its range starts again from the beginning on the next connection.
    pub(crate) fn return_piece(
        &mut self,
        key: ControllerKey,
        piece: RangeCommand,
        outbox: &mut Outbox,
    ) {
        if let Some(chunk) = piece.chunk {
            self.controllers[key].bounce.release(chunk);
        }
        self.ops[piece.op].trouble.get_or_insert(RangeFailure::Again(Time::ZERO));
        self.piece_done(key, piece.op, piece.step.length_bytes, outbox);
    }

    /// Sends the write of a block into which the caller's bytes were copied.
    fn issue_modified(
        &mut self,
        now: Time,
        key: ControllerKey,
        piece: RangeCommand,
        outbox: &mut Outbox,
    ) -> Result<(), RangeCommand> {
        if self.ops[piece.op].trouble.is_some() {
            self.return_piece(key, piece, outbox);
        } else if self.has_io_room(key) {
            self.issue_piece(now, key, RangeCommand { sent: now, ..piece }, outbox);
        } else {
            return Err(piece);
        }
        Ok(())
    }

    /// Handles the response to a command of a range.
    pub(crate) fn finish_piece(
        &mut self,
        now: Time,
        key: ControllerKey,
        piece: RangeCommand,
        status: Status,
        outbox: &mut Outbox,
    ) {
        if status.is_success() && piece.stage == BlockStage::Fetch {
            return self.modify(key, piece);
        }
        let op_key = piece.op;
        let length_bytes = piece.step.length_bytes;
        let namespace = self.ops[op_key].namespace;
        if status.is_success() && !self.controllers[key].namespaces[namespace].check.is_passed() {
            // The command may have been executed on a successor of the namespace.
            self.ops[op_key].trouble.get_or_insert(RangeFailure::Again(now));
        } else if status.is_success() {
            self.deliver(key, &piece);
            let io_timeout = self.controllers[key].options.io_timeout;
            self.ops[op_key].progress(now, length_bytes, io_timeout);
        } else {
            self.note_failure(now, key, op_key, status);
            self.note_refused_access(now, key, namespace, status, outbox);
        }
        if let Some(chunk) = piece.chunk {
            self.controllers[key].bounce.release(chunk);
        }
        self.piece_done(key, op_key, length_bytes, outbox);
    }

    /// Copies data that was read into a chunk to the caller's memory.
    fn deliver(&mut self, key: ControllerKey, piece: &RangeCommand) {
        let op = &mut self.ops[piece.op];
        if let (
            block_plan::TransferMemory::Bounce { skip_bytes },
            Some(chunk),
            RangeDirection::Read,
        ) = (piece.step.place, &piece.chunk, op.direction)
        {
            let part = op.part(piece.start, piece.step.length_bytes);
            // Less than a block, which is at most a chunk.
            let skip = skip_bytes as usize;
            self.controllers[key].bounce.copy_out_to(chunk, skip, &mut op.slice, part);
        }
    }

    /// Copies the caller's bytes into the block that was read, and queues the write of the block.
    fn modify(&mut self, key: ControllerKey, piece: RangeCommand) {
        let op = &self.ops[piece.op];
        let controller = &mut self.controllers[key];
        if let (block_plan::TransferMemory::Bounce { skip_bytes }, Some(chunk)) =
            (piece.step.place, &piece.chunk)
        {
            let part = op.part(piece.start, piece.step.length_bytes);
            // Less than a block, which is at most a chunk.
            controller.bounce.copy_in_from(chunk, skip_bytes as usize, &op.slice, part);
        }
        controller.ranges.modified.push_back(RangeCommand { stage: BlockStage::Transfer, ..piece });
    }

    fn note_failure(&mut self, now: Time, key: ControllerKey, op_key: RangeKey, status: Status) {
        let op = &mut self.ops[op_key];
        if op.trouble.is_some() {
            return;
        }
        let again = may_retry(status) && op.attempts < Self::MAX_ATTEMPTS;
        op.trouble = Some(if again {
            let pause = core::time::Duration::from_millis(20 << op.attempts.min(5));
            RangeFailure::Again(now + pause)
        } else {
            let controller = &self.controllers[key];
            let nsid = controller.namespaces[op.namespace].nsid;
            let error = Error::new(ErrorKind::Status(status)).of_target(&controller.target);
            RangeFailure::Failed(
                error.of_namespace(nsid).of_range(op.offset, op.slice.len() as u64),
            )
        });
    }

    /// Subtracts an ended command, and ends or retries its range if it was the last in flight.
    fn piece_done(
        &mut self,
        key: ControllerKey,
        op_key: RangeKey,
        length_bytes: u64,
        outbox: &mut Outbox,
    ) {
        let op = &mut self.ops[op_key];
        op.outstanding -= 1;
        let controller = &mut self.controllers[key];
        controller.ranges.remove_in_flight(op.options.class, length_bytes);
        if self.retry_or_end(key, op_key) {
            self.finish(op_key, outbox);
            return;
        }
        let op = &self.ops[op_key];
        if op.outstanding == 0 && !self.controllers[key].is_path_to(op.namespace) {
            // The range waits for its connection or access state, unless it can be moved to another
            // path.
            outbox.note_move();
        }
    }

    /// Schedules another attempt if the range failed and nothing of it is in flight. Returns true
    /// if the range has ended.
    fn retry_or_end(&mut self, key: ControllerKey, op_key: RangeKey) -> bool {
        let op = &mut self.ops[op_key];
        if op.outstanding > 0 {
            return false;
        }
        match op.trouble {
            Some(RangeFailure::Again(time)) => {
                op.trouble = None;
                op.attempts += 1;
                self.controllers[key].ranges.unissued_bytes += op.position - op.offset;
                op.position = op.offset;
                op.done = 0;
                self.counters.retries += 1;
                self.unqueue(key, op_key);
                self.ops[op_key].place = RangeList::Queued;
                self.controllers[key].ranges.delayed.push((time, op_key));
                false
            }
            Some(_) => true,
            None => op.position == op.end(),
        }
    }

    /// Returns the result of a range without commands in flight or queued. A range that
    /// failed because of its path is moved to another path, if it has one.
    fn finish(&mut self, op_key: RangeKey, outbox: &mut Outbox) {
        self.unqueue(self.ops[op_key].controller, op_key);
        let mut op = self.remove_op(op_key);
        if let Some(RangeFailure::Failed(error)) = &op.trouble
            && let Some(paths) = op.owner.paths_mut()
            && error.is_of_path()
        {
            if error.status().is_some() {
                paths.note_failure();
            }
            let error = error.clone();
            return outbox.displace(DisplacedRange { range: Displaced::OfRing(op), error });
        }
        let controller = &mut self.controllers[op.controller];
        if let Some(write) = op.write {
            outbox.writes.end(write);
        }
        let service = op.service(self.clock);
        let result = match op.trouble {
            Some(RangeFailure::Failed(error) | RangeFailure::Expired(error, _)) => Err(error),
            _ => Ok(()),
        };
        match &result {
            Ok(()) => {
                self.counters.ranges += 1;
                controller.health.breaker.succeeded();
            }
            Err(error) => {
                self.counters.ranges_failed += 1;
                if is_fault_of_target(error) {
                    controller.health.breaker.failed(self.clock);
                }
            }
        }
        let result = result.map_err(|error: Error| error.of_attempts(service.attempts));
        outbox.complete(op.owner, op.slice, result, service);
    }

    /// Returns whether a write may be started, or started again: no other write of this host to one
    /// of its blocks is in progress, or may still be executed by a target.
    fn begin_write(&mut self, key: ControllerKey, op_key: RangeKey, outbox: &mut Outbox) -> bool {
        let op = &mut self.ops[op_key];
        let attached = &self.controllers[key].namespaces[op.namespace];
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

    /// Fails all ranges of a controller.
    pub(crate) fn fail_ranges(&mut self, key: ControllerKey, error: &Error, outbox: &mut Outbox) {
        self.fail_ranges_where(key, |_| true, error, outbox);
        self.fail_runs(key, error, outbox);
    }

    /// Fails the ranges of one namespace.
    pub(crate) fn fail_namespace(
        &mut self,
        key: ControllerKey,
        namespace: NamespaceKey,
        error: &Error,
        outbox: &mut Outbox,
    ) {
        self.fail_ranges_where(key, |op| op.namespace == namespace, error, outbox);
    }

    /// Fails ranges; one with commands in flight ends when those have.
    fn fail_ranges_where(
        &mut self,
        key: ControllerKey,
        which: impl Fn(&RangeOp) -> bool,
        error: &Error,
        outbox: &mut Outbox,
    ) {
        let mut doomed = Vec::new();
        for (op_key, op) in self.ops.iter_mut() {
            if op.controller != key || !which(op) {
                continue;
            }
            let nsid = self.controllers[key].namespaces[op.namespace].nsid;
            let error = error.clone().of_namespace(nsid).of_range(op.offset, op.slice.len() as u64);
            if op.outstanding == 0 {
                op.trouble = Some(RangeFailure::Failed(error));
                doomed.push(op_key);
            } else if matches!(op.trouble, None | Some(RangeFailure::Again(_))) {
                op.trouble = Some(RangeFailure::Failed(error));
            }
        }
        self.finish_all(doomed, outbox);
    }

    /// Abandons a ring: its reads send no further command, and its writes are not moved, since
    /// their other paths may be dropped.
    pub(crate) fn abandon_ring(&mut self, ring: RingKey, outbox: &mut Outbox) {
        let mut doomed = Vec::new();
        for (op_key, op) in self.ops.iter_mut().filter(|(_, op)| op.owner.is_ring(ring)) {
            op.owner.forget_paths();
            if !op.is_write() && op.give_up(ErrorKind::Closed) {
                doomed.push(op_key);
            }
        }
        self.finish_all(doomed, outbox);
    }

    /// Removes and returns ranges of rings that wait for a connection or an access state and for
    /// which `elsewhere` finds another path.
    pub(crate) fn give_away_ring_ranges(
        &mut self,
        elsewhere: &dyn Fn(&RangeOp) -> bool,
    ) -> Vec<RangeOp> {
        let ops = self.ops.iter().filter(|(_, op)| op.owner.paths().is_some());
        let ops = ops.filter(|(_, op)| self.waits_for_access(op) && elsewhere(op));
        let ops: Vec<_> = ops.map(|(op_key, _)| op_key).collect();
        ops.into_iter().map(|op_key| self.take_away(op_key)).collect()
    }

    /// Returns whether a range waits for a connection or an access state.
    fn waits_for_access(&self, op: &RangeOp) -> bool {
        let is_free = op.outstanding == 0 && op.trouble.is_none();
        is_free && !self.controllers[op.controller].is_path_to(op.namespace)
    }

    /// Removes a waiting range from the engine.
    fn take_away(&mut self, op_key: RangeKey) -> RangeOp {
        let controller = self.ops[op_key].controller;
        self.unqueue(controller, op_key);
        // The timer of the controller may have been that of this range.
        self.ready_list.mark_ready(controller);
        self.remove_op(op_key)
    }

    /// Removes and returns ranges of plans that wait for a connection or an access state and for
    /// which `elsewhere` finds another replica.
    pub(crate) fn give_away_ops(
        &mut self,
        elsewhere: &mut dyn FnMut(PlanKey, u32, bool) -> bool,
    ) -> Vec<(PlanKey, u32)> {
        let (mut given, mut ops) = (Vec::new(), Vec::new());
        for (op_key, op) in self.ops.iter() {
            let RangeOwner::Plan { plan, index } = op.owner else { continue };
            if !self.waits_for_access(op) {
                continue;
            }
            if elsewhere(plan, index, op.attempts > 0) {
                given.push((plan, index));
                ops.push(op_key);
            }
        }
        for op_key in ops {
            self.take_away(op_key);
        }
        given
    }

    /// Abandons the started ranges of a plan, which send no further command; returns how many have
    /// ended by that.
    pub(crate) fn abandon_plan(&mut self, plan: PlanKey, outbox: &mut Outbox) -> usize {
        let mut doomed = Vec::new();
        for (op_key, op) in self.ops.iter_mut() {
            if op.owner.is_plan(plan) && op.give_up(ErrorKind::Cancelled) {
                doomed.push(op_key);
            }
        }
        let count = doomed.len();
        self.finish_all(doomed, outbox);
        count
    }

    /// Ends ranges without commands in flight, removing all of them from the lists in one pass.
    fn finish_all(&mut self, ops: Vec<RangeKey>, outbox: &mut Outbox) {
        let mut controllers = Vec::new();
        for &op_key in &ops {
            let op = &mut self.ops[op_key];
            match mem::replace(&mut op.place, RangeList::None) {
                RangeList::Queued => controllers.push(op.controller),
                RangeList::Run(run) => self.leave_run(run, op_key),
                RangeList::Fresh | RangeList::None => {}
            }
        }
        controllers.sort_unstable();
        controllers.dedup();
        for key in controllers {
            let ops = &self.ops;
            self.controllers[key].retain_waiting(|op_key| ops[op_key].place == RangeList::Queued);
        }
        for op_key in ops {
            self.finish(op_key, outbox);
        }
    }

    /// Queues a range that has left its run before those that were not started.
    pub(crate) fn queue_first(&mut self, op_key: RangeKey) {
        let op = &mut self.ops[op_key];
        op.place = RangeList::Queued;
        self.controllers[op.controller].ranges.ready[op.options.class as usize].push_front(op_key);
        self.ready_list.mark_ready(op.controller);
    }

    /// Removes a range from its run when all of its commands were sent.
    pub(crate) fn detach_from_run(&mut self, op_key: RangeKey) {
        if let Some(op) = self.ops.get_mut(op_key)
            && let RangeList::Run(run) = op.place
        {
            op.place = RangeList::None;
            self.leave_run(run, op_key);
        }
    }

    /// Removes a range from the lists of waiting ranges, if it is in one.
    fn unqueue(&mut self, key: ControllerKey, op_key: RangeKey) {
        match mem::replace(&mut self.ops[op_key].place, RangeList::None) {
            RangeList::Queued => self.controllers[key].retain_waiting(|queued| queued != op_key),
            RangeList::Run(run) => self.leave_run(run, op_key),
            RangeList::Fresh | RangeList::None => {}
        }
    }

    /// Queues ranges that waited for the check of their namespace.
    pub(crate) fn resume(&mut self, key: ControllerKey, waiting: VecDeque<RangeKey>) {
        let controller = &mut self.controllers[key];
        for op in waiting {
            controller.ranges.ready[self.ops[op].options.class as usize].push_back(op);
        }
    }

    /// Queues ranges whose pause before a retry has passed.
    pub(crate) fn resume_delayed(&mut self, now: Time, key: ControllerKey) {
        let controller = &mut self.controllers[key];
        if controller.session.is_live() {
            controller.ranges.resume_delayed(now, &self.ops);
        }
    }

    /// Fails ranges whose deadline has passed, or aborts their commands.
    pub(crate) fn expire_ranges(&mut self, now: Time, outbox: &mut Outbox) {
        if self.next_expiry.is_none_or(|time| time > now) {
            return;
        }
        self.stop_clocks(now);
        let expired = self.ops.iter().filter(|(_, op)| op.expiry() <= now);
        let (idle, busy): (Vec<_>, Vec<_>) = expired.partition(|(_, op)| op.outstanding == 0);
        let keys = |ops: Vec<(RangeKey, &RangeOp)>| ops.into_iter().map(|(key, _)| key).collect();
        let (idle, busy): (Vec<RangeKey>, Vec<RangeKey>) = (keys(idle), keys(busy));
        for &op_key in &idle {
            self.expire(now, op_key);
        }
        self.finish_all(idle, outbox);
        self.expire_runs(now, outbox);
        for op_key in busy {
            // The range may have ended with the association of an earlier one.
            if self.ops.get(op_key).is_some_and(|op| op.expiry() <= now) {
                self.expire_busy(now, op_key, outbox);
            }
        }
        let of_ranges = self.ops.iter().map(|(_, op)| op.expiry());
        let of_runs = self.runs.iter().map(|(_, run)| run.expiry());
        self.next_expiry = of_ranges.chain(of_runs).min().filter(|&time| time != NEVER);
    }

    /// Starts the time-outs of ranges that wait for a controller without a connection.
    pub(crate) fn start_clocks(&mut self, now: Time, key: ControllerKey) {
        let io_timeout = self.controllers[key].options.io_timeout;
        for (_, op) in self.ops.iter_mut().filter(|(_, op)| op.controller == key) {
            if op.place != RangeList::Fresh {
                op.start_clock(now, io_timeout);
                self.next_expiry = earliest(self.next_expiry, Some(op.expiry()));
            }
        }
        self.start_run_clocks(now, key);
    }

    /// Stops the time-outs of ranges that were not started and whose controller is connected again:
    /// they only wait for room.
    fn stop_clocks(&mut self, now: Time) {
        for (_, op) in
            self.ops.iter_mut().filter(|(_, op)| op.deadline <= now && op.began.is_none())
        {
            if self.controllers[op.controller].is_usable(op.namespace) {
                op.deadline = NEVER;
            }
        }
    }

    /// Aborts the commands of a range whose deadline has passed, or ends the association if they
    /// did not end within the abort time-out.
    fn expire_busy(&mut self, now: Time, op_key: RangeKey, outbox: &mut Outbox) {
        let op = &self.ops[op_key];
        let key = op.controller;
        if let Some(RangeFailure::Expired(..)) = op.trouble {
            let cause = "a command did not end after it was aborted";
            let error = ErrorKind::ConnectionLost(cause).into();
            return self.end_association(now, key, error, outbox);
        }
        self.expire(now, op_key);
        self.abort_commands_of(now, key, op_key, outbox);
    }

    /// Records that the deadline of a range has passed.
    fn expire(&mut self, now: Time, op_key: RangeKey) {
        let op = &mut self.ops[op_key];
        self.ready_list.mark_ready(op.controller);
        let controller = &self.controllers[op.controller];
        let nsid = controller.namespaces[op.namespace].nsid;
        let after = match op.options.deadline {
            Some(limit) if op.due <= now => limit,
            _ => controller.options.io_timeout,
        };
        let error = match op.trouble.take() {
            // The first error is the cause.
            Some(RangeFailure::Failed(error)) => error,
            _ => controller.no_result(op.namespace.into(), after).of_namespace(nsid),
        };
        let error = error.of_range(op.offset, op.slice.len() as u64);
        self.counters.timeouts += 1;
        op.trouble = Some(RangeFailure::Expired(error, now + controller.options.abort_timeout));
    }
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

/// Returns whether an error of a range counts against the circuit breaker of its target. A lost
/// connection opens the breaker itself, and a path that does not serve one namespace may serve
/// others.
fn is_fault_of_target(error: &Error) -> bool {
    match error.kind() {
        ErrorKind::Status(status) => path_access::state_of(*status).is_none(),
        kind => matches!(kind, ErrorKind::TimedOut { .. }),
    }
}

/// Returns whether the same command may succeed later, by its status.
fn may_retry(status: Status) -> bool {
    const TRANSIENT: [Status; 9] = [
        Status::NAMESPACE_NOT_READY,
        Status::COMMAND_INTERRUPTED,
        Status::TRANSIENT_TRANSPORT_ERROR,
        Status::ABORTED_SQ_DELETION,
        Status::INTERNAL_PATH_ERROR,
        Status::ANA_INACCESSIBLE,
        Status::ANA_TRANSITION,
        Status::CONTROLLER_PATHING_ERROR,
        Status::ABORT_REQUESTED,
    ];
    !status.do_not_retry() && TRANSIENT.iter().any(|&transient| status.is(transient))
}
