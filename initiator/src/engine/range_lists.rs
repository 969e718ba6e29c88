//! Ranges that leave the lists of waiting ranges, or return to them.

use std::collections::VecDeque;
use std::mem;

use crate::engine::HostEngine;
use crate::engine::arena::{ControllerKey, NamespaceKey, PlanKey, RangeKey, RingKey};
use crate::engine::range_op::{RangeFailure, RangeList, RangeOp};
use crate::engine::range_owner::RangeOwner;
use crate::engine::results::Outbox;
use crate::types::error::{Error, ErrorKind};

impl HostEngine {
    pub(crate) fn fail_ranges(&mut self, key: ControllerKey, error: &Error, outbox: &mut Outbox) {
        self.fail_ranges_where(key, |_| true, error, outbox);
        self.fail_runs(key, error, outbox);
    }

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
    pub(crate) fn finish_all(&mut self, ops: Vec<RangeKey>, outbox: &mut Outbox) {
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
    pub(crate) fn unqueue(&mut self, key: ControllerKey, op_key: RangeKey) {
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
    pub(crate) fn resume_delayed(&mut self, key: ControllerKey) {
        let controller = &mut self.controllers[key];
        if controller.session.is_live() {
            controller.ranges.resume_delayed(self.clock, &self.ops);
        }
    }
}
