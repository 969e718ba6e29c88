//! Responses to commands of ranges, and the ends and retries of ranges.

use nvme_proto::Status;
use rdma::Time;

use crate::engine::arena::{ControllerKey, RangeKey};
use crate::engine::range_op::{Displaced, DisplacedRange, RangeFailure, RangeList};
use crate::engine::range_queues::{BlockStage, RangeCommand};
use crate::engine::results::Outbox;
use crate::engine::{HostEngine, block_plan, path_access};
use crate::types::direction::RangeDirection;
use crate::types::error::{Error, ErrorKind};

impl HostEngine {
    /// Number of attempts after which a status that permits a retry is final.
    const MAX_ATTEMPTS: u32 = 8;

    /// Releases the chunk of a command that was lost with its association or could not be pushed.
    /// Its range starts again from the beginning on the next connection.
    pub(crate) fn return_piece(
        &mut self,
        key: ControllerKey,
        piece: RangeCommand,
        outbox: &mut Outbox,
    ) {
        if piece.stage == BlockStage::List {
            return self.lose_list(key, piece, outbox);
        }
        if let Some(chunk) = piece.chunk {
            self.controllers[key].bounce.release(chunk);
        }
        self.ops[piece.op].trouble.get_or_insert(RangeFailure::Again(Time::ZERO));
        self.piece_done(key, piece.op, piece.step.length_bytes, outbox);
    }

    /// Handles the response to a command of a range.
    pub(crate) fn finish_piece(
        &mut self,
        key: ControllerKey,
        piece: RangeCommand,
        status: Status,
        outbox: &mut Outbox,
    ) {
        let now = self.clock;
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
            self.note_failure(key, op_key, status);
            self.note_refused_access(key, namespace, status, outbox);
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

    fn note_failure(&mut self, key: ControllerKey, op_key: RangeKey, status: Status) {
        let op = &mut self.ops[op_key];
        if op.trouble.is_some() {
            return;
        }
        let again = may_retry(status) && op.attempts < Self::MAX_ATTEMPTS;
        op.trouble = Some(if again {
            let pause = core::time::Duration::from_millis(20 << op.attempts.min(5));
            RangeFailure::Again(self.clock + pause)
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
    pub(crate) fn piece_done(
        &mut self,
        key: ControllerKey,
        op_key: RangeKey,
        length_bytes: u64,
        outbox: &mut Outbox,
    ) {
        let op = &mut self.ops[op_key];
        op.outstanding -= 1;
        let controller = &mut self.controllers[key];
        controller.ranges.note_ended(op.options.class, length_bytes);
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
    pub(crate) fn finish(&mut self, op_key: RangeKey, outbox: &mut Outbox) {
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
            return outbox
                .displace(DisplacedRange { range: Displaced::OfRing(Box::new(op)), error });
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
                self.counters.ranges += op.owner.ranges();
                controller.health.breaker.succeeded();
            }
            Err(error) => {
                self.counters.ranges_failed += op.owner.ranges();
                if is_fault_of_target(error) {
                    controller.health.breaker.failed(self.clock);
                }
            }
        }
        let result = result.map_err(|error: Error| error.of_attempts(service.attempts));
        outbox.complete(op.owner, op.slice, result, service);
    }
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
