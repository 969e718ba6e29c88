//! Deadlines of ranges: those that expire fail, or have their commands aborted.

use crate::engine::arena::{ControllerKey, RangeKey};
use crate::engine::range_op::{NEVER, RangeFailure, RangeList, RangeOp};
use crate::engine::results::Outbox;
use crate::engine::{HostEngine, earliest};
use crate::types::error::ErrorKind;

impl HostEngine {
    /// Fails ranges whose deadline has passed, or aborts their commands.
    pub(crate) fn expire_ranges(&mut self, outbox: &mut Outbox) {
        let now = self.clock;
        if self.next_expiry.is_none_or(|time| time > now) {
            return;
        }
        self.stop_clocks();
        let expired = self.ops.iter().filter(|(_, op)| op.expiry() <= now);
        let (idle, busy): (Vec<_>, Vec<_>) = expired.partition(|(_, op)| op.outstanding == 0);
        let keys = |ops: Vec<(RangeKey, &RangeOp)>| ops.into_iter().map(|(key, _)| key).collect();
        let (idle, busy): (Vec<RangeKey>, Vec<RangeKey>) = (keys(idle), keys(busy));
        for &op_key in &idle {
            self.expire(op_key);
        }
        self.finish_all(idle, outbox);
        self.expire_runs(outbox);
        for op_key in busy {
            // The range may have ended with the association of an earlier one.
            if self.ops.get(op_key).is_some_and(|op| op.expiry() <= now) {
                self.expire_busy(op_key, outbox);
            }
        }
        let of_ranges = self.ops.iter().map(|(_, op)| op.expiry());
        let of_runs = self.runs.iter().map(|(_, run)| run.expiry());
        self.next_expiry = of_ranges.chain(of_runs).min().filter(|&time| time != NEVER);
    }

    /// Starts the time-outs of ranges that wait for a controller without a connection.
    pub(crate) fn start_clocks(&mut self, key: ControllerKey) {
        let io_timeout = self.controllers[key].options.io_timeout;
        for (_, op) in self.ops.iter_mut().filter(|(_, op)| op.controller == key) {
            if op.place != RangeList::Fresh {
                op.start_clock(self.clock, io_timeout);
                self.next_expiry = earliest(self.next_expiry, Some(op.expiry()));
            }
        }
        self.start_run_clocks(key);
    }

    /// Stops the time-outs of ranges that were not started and whose controller is connected again:
    /// they only wait for room.
    fn stop_clocks(&mut self) {
        for (_, op) in
            self.ops.iter_mut().filter(|(_, op)| op.deadline <= self.clock && op.began.is_none())
        {
            if self.controllers[op.controller].is_usable(op.namespace) {
                op.deadline = NEVER;
            }
        }
    }

    /// Aborts the commands of a range whose deadline has passed, or ends the association if they
    /// did not end within the abort time-out.
    fn expire_busy(&mut self, op_key: RangeKey, outbox: &mut Outbox) {
        let op = &self.ops[op_key];
        let key = op.controller;
        if let Some(RangeFailure::Expired(..)) = op.trouble {
            let cause = "a command did not end after it was aborted";
            let error = ErrorKind::ConnectionLost(cause).into();
            return self.end_association(key, error, outbox);
        }
        self.expire(op_key);
        self.abort_commands_of(key, op_key, outbox);
    }

    /// Records that the deadline of a range has passed.
    fn expire(&mut self, op_key: RangeKey) {
        let now = self.clock;
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
