//! Submission of ranges to an engine.

use std::io;
use std::mem;
use std::time::Duration;

use crate::engine::arena::RangeKey;
use crate::engine::completion::RangeService;
use crate::engine::range_op::{NEVER, RangeList, RangeOp, Submission};
use crate::engine::results::Outbox;
use crate::engine::{HostEngine, earliest};
use crate::memory::region::{Grant, Keys};
use crate::types::error::{Error, ErrorKind};

const NO_WINDOWS: &str = "the RDMA device has no memory windows";

impl HostEngine {
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
                outbox.fail(op, error, self.clock);
            }
        }
    }

    pub(crate) fn insert_op(&mut self, op: RangeOp) -> RangeKey {
        self.controllers[op.controller].ranges.unissued_bytes += op.unissued();
        self.ops.insert(op)
    }

    pub(crate) fn remove_op(&mut self, op_key: RangeKey) -> RangeOp {
        let op = &self.ops[op_key];
        self.controllers[op.controller].ranges.unissued_bytes -= op.unissued();
        self.ops.remove(op_key)
    }

    /// Queues a new range for its controller and sets its times.
    pub(crate) fn start_range(&mut self, op_key: RangeKey, outbox: &mut Outbox) {
        let now = self.clock;
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
}
