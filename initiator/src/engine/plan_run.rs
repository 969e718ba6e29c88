//! Ranges of plans that wait for a controller. They become [`RangeOp`]s one by one, as the queues
//! have room, so that a plan of a million ranges takes little more memory than its entries.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use rdma::Time;

use crate::engine::arena::{ControllerKey, NamespaceKey, PlanKey, RangeKey, RunKey};
use crate::engine::completion::RangeService;
use crate::engine::issue::Advance;
use crate::engine::plan_state::PlanState;
use crate::engine::range_op::{NEVER, RangeOp, Submission};
use crate::engine::range_owner::RangeOwner;
use crate::engine::results::Outbox;
use crate::engine::session::ControllerPhase;
use crate::engine::{HostEngine, earliest};
use crate::types::error::{Error, ErrorKind};
use crate::types::options::BatchOptions;

/// Time for which a new plan waits for a target that was lost, while the host tries to connect.
const TRIAL: Duration = Duration::from_secs(1);

/// The ranges of a plan on one controller that were not started.
pub(crate) struct PlanRun {
    pub(crate) plan: PlanKey,
    pub(crate) state: Arc<PlanState>,
    pub(crate) controller: ControllerKey,
    pub(crate) ranges: RangeNumbers,
    pub(crate) options: BatchOptions,
    /// Range whose commands are being sent.
    current: Option<RangeKey>,
    /// Time at which its engine took it.
    pub(crate) began: Time,
    /// Deadline of the plan.
    pub(crate) due: Time,
    /// Time at which it has waited too long for a connection; never while that is established.
    deadline: Time,
}

/// Indexes of ranges in their plan, in ascending order.
pub(crate) enum RangeNumbers {
    /// All indexes of an interval.
    All(Range<u32>),
    /// Selected indexes, if several controllers share a plan.
    Some(std::vec::IntoIter<u32>),
}

impl From<Vec<u32>> for RangeNumbers {
    fn from(numbers: Vec<u32>) -> Self {
        Self::Some(numbers.into_iter())
    }
}

impl RangeNumbers {
    fn next(&mut self) -> Option<u32> {
        match self {
            Self::All(range) => range.next(),
            Self::Some(numbers) => numbers.next(),
        }
    }

    pub(crate) fn peek(&self) -> Option<u32> {
        match self {
            Self::All(range) => (!range.is_empty()).then_some(range.start),
            Self::Some(numbers) => numbers.as_slice().first().copied(),
        }
    }

    /// Returns the index at this place, counted from the next one.
    pub(crate) fn nth(&self, place: usize) -> Option<u32> {
        match self {
            Self::All(range) => range.clone().nth(place),
            Self::Some(numbers) => numbers.as_slice().get(place).copied(),
        }
    }

    /// Takes out the next `count` indexes.
    pub(crate) fn skip(&mut self, count: u32) {
        for _ in 0..count {
            self.next();
        }
    }

    fn take(&mut self) -> Vec<u32> {
        match self {
            Self::All(range) => std::mem::take(range).collect(),
            Self::Some(numbers) => std::mem::take(numbers).collect(),
        }
    }
}

impl PlanRun {
    pub(crate) fn new(
        plan: PlanKey,
        state: Arc<PlanState>,
        controller: ControllerKey,
        ranges: RangeNumbers,
        options: BatchOptions,
    ) -> Self {
        let (current, began, due, deadline) = (None, Time::ZERO, NEVER, NEVER);
        Self { plan, state, controller, ranges, options, current, began, due, deadline }
    }

    /// Returns when the engine must check its deadlines.
    pub(crate) fn expiry(&self) -> Time {
        self.deadline.min(self.due)
    }

    /// Returns whether commands of a range are being sent.
    pub(crate) fn is_sending(&self) -> bool {
        self.current.is_some()
    }

    pub(crate) fn next_namespace(&self) -> Option<NamespaceKey> {
        self.ranges.peek().map(|index| self.state.entry(index).1.namespace)
    }
}

/// Result of an attempt to send a command of a run.
pub(crate) enum RunStep {
    /// A command was sent, or a range ended without one.
    Issued,
    /// The next range of the run waits for the check of its namespace, or for another write to its
    /// blocks, so other runs come first.
    Held,
    /// No queue has room, or no bounce chunk is free.
    Stalled,
}

impl HostEngine {
    /// Queues a new run for its controller, or ends it if that is not possible.
    pub(crate) fn start_run(&mut self, run_key: RunKey, outbox: &mut Outbox) {
        let now = self.clock;
        let Some(run) = self.runs.get_mut(run_key) else { return };
        let Some(controller) = self.controllers.get_mut(run.controller) else {
            self.end_run(run_key, &ErrorKind::Closed.into(), outbox);
            return;
        };
        if let ControllerPhase::Dead(error) = &controller.session.phase {
            let error = error.clone().of_target(&controller.target);
            self.end_run(run_key, &error, outbox);
            return;
        }
        if run.options.has_no_time() {
            let error = Error::from(ErrorKind::TimedOut { after: Duration::ZERO });
            let error = error.of_target(&controller.target);
            let count = self.end_run(run_key, &error, outbox);
            self.counters.timeouts += count as u64;
            return;
        }
        controller.session.reconnect_now(now);
        run.began = now;
        if let Some(limit) = run.options.deadline {
            run.due = run.state.due(now, limit);
        }
        let namespace = run.next_namespace();
        if !namespace.is_some_and(|namespace| controller.is_usable(namespace)) {
            let is_lost = controller.session.refusal().is_some();
            let timeout = controller.options.io_timeout;
            run.deadline = now + if is_lost { timeout.min(TRIAL) } else { timeout };
        }
        self.next_expiry = earliest(self.next_expiry, Some(run.expiry()));
        controller.ranges.runs[run.options.class as usize].push_back(run_key);
        self.ready_list.mark_ready(run.controller);
    }

    /// Sends the next command of a run, which is the first in its line.
    pub(crate) fn issue_run(
        &mut self,
        key: ControllerKey,
        run_key: RunKey,
        outbox: &mut Outbox,
    ) -> RunStep {
        if let Some(step) = self.issue_list(key, run_key, outbox) {
            return step;
        }
        let Some(op_key) = self.current_range(key, run_key, outbox) else {
            return self.step_over(key, run_key);
        };
        match self.advance(key, op_key, outbox) {
            Advance::Issued(bytes) => {
                self.note_issued(key, run_key, op_key, bytes);
                RunStep::Issued
            }
            Advance::Done => {
                self.detach_from_run(op_key);
                RunStep::Issued
            }
            Advance::Stalled => RunStep::Stalled,
            Advance::Unchecked | Advance::Blocked => self.hold_run(key, run_key),
        }
    }

    /// Returns the range of a run that is being sent, or starts the next one.
    fn current_range(
        &mut self,
        key: ControllerKey,
        run_key: RunKey,
        outbox: &mut Outbox,
    ) -> Option<RangeKey> {
        let run = &self.runs[run_key];
        if run.current.is_some() {
            return run.current;
        }
        let namespace = run.next_namespace()?;
        let attached = self.controllers[key].namespace(namespace);
        if attached.is_ok_and(|attached| !attached.is_ready()) {
            return None;
        }
        self.begin_range(key, run_key, outbox)
    }

    /// Skips a run without a range to send, or removes it if it has ended.
    fn step_over(&mut self, key: ControllerKey, run_key: RunKey) -> RunStep {
        match self.runs[run_key].ranges.peek() {
            None => {
                self.remove_run(run_key);
                RunStep::Issued
            }
            Some(_) => self.hold_run(key, run_key),
        }
    }

    fn hold_run(&mut self, key: ControllerKey, run_key: RunKey) -> RunStep {
        self.controllers[key].ranges.rotate_runs(self.runs[run_key].options.class);
        RunStep::Held
    }

    /// Accounts for a command that was sent; it is the turn of the next run if this one has used
    /// its bytes.
    pub(crate) fn note_issued(
        &mut self,
        key: ControllerKey,
        run_key: RunKey,
        op_key: RangeKey,
        bytes: u64,
    ) {
        // The command may have ended the association, which removes the run.
        let Some(run) = self.runs.get(run_key) else { return };
        let class = run.options.class;
        if self.controllers[key].ranges.turns[class as usize].of_run(bytes) {
            self.controllers[key].ranges.rotate_runs(class);
        }
        if self.ops.get(op_key).is_some_and(RangeOp::is_issued) {
            self.detach_from_run(op_key);
        }
        let run = &self.runs[run_key];
        if run.current.is_none() && run.ranges.peek().is_none() {
            self.remove_run(run_key);
        }
    }

    /// Starts the next range of a run that can be transferred. Those before it end.
    fn begin_range(
        &mut self,
        key: ControllerKey,
        run_key: RunKey,
        outbox: &mut Outbox,
    ) -> Option<RangeKey> {
        let run = &mut self.runs[run_key];
        while let Some(index) = run.ranges.next() {
            let (entry, route) = run.state.entry(index);
            let owner = RangeOwner::Plan { plan: run.plan, index };
            let controller = &self.controllers[key];
            let Some(mut slice) = outbox.part(run.plan, entry.dst, entry.length) else {
                break;
            };
            let keys = run.state.keys(route);
            let keys = match controller.namespace(route.namespace) {
                Err(error) => Err(error),
                Ok(_) if keys.scope == controller.scope.id() => Ok(keys),
                // The provider was changed after the plan was submitted.
                Ok(_) => slice.keys(&*controller.scope).map_err(Error::from),
            };
            let keys = match keys {
                Ok(keys) if entry.length > 0 => keys,
                ended => {
                    self.counters.ranges += u64::from(ended.is_ok());
                    self.counters.ranges_failed += u64::from(ended.is_err());
                    let result = ended.map(drop);
                    let result = result.map_err(|error| error.of_target(&controller.target));
                    outbox.complete(owner, slice, result, RangeService::default());
                    continue;
                }
            };
            let submission = Submission {
                controller: key,
                namespace: route.namespace,
                direction: run.state.direction(),
                offset: entry.offset,
                slice,
                keys: Ok(keys),
                owner,
                options: run.options,
            };
            let op = RangeOp::new(submission, keys);
            let op = op.in_run(run_key, run.began, run.due);
            let op_key = self.insert_op(op);
            self.runs[run_key].current = Some(op_key);
            return Some(op_key);
        }
        None
    }

    /// Removes a range from the run that sends it.
    pub(crate) fn leave_run(&mut self, run_key: RunKey, op_key: RangeKey) {
        if let Some(run) = self.runs.get_mut(run_key)
            && run.current == Some(op_key)
        {
            run.current = None;
            // The next turn removes the run if it has ended.
            self.ready_list.mark_ready(run.controller);
        }
    }

    /// Removes a run. The range that it was sending is queued by itself.
    fn remove_run(&mut self, run_key: RunKey) -> PlanRun {
        let run = self.runs.remove(run_key);
        if let Some(controller) = self.controllers.get_mut(run.controller) {
            controller.ranges.runs[run.options.class as usize].retain(|&other| other != run_key);
        }
        if let Some(op_key) = run.current {
            self.queue_first(op_key);
        }
        run
    }

    /// Ends the ranges of a run that were not started; returns how many.
    fn end_run(&mut self, run_key: RunKey, error: &Error, outbox: &mut Outbox) -> usize {
        let mut run = self.remove_run(run_key);
        let ranges = run.ranges.take();
        self.counters.ranges_failed += ranges.len() as u64;
        outbox.end_unsent(run.plan, &ranges, error);
        ranges.len()
    }

    fn runs_where(&self, which: impl Fn(&PlanRun) -> bool) -> Vec<RunKey> {
        self.runs.iter().filter(|(_, run)| which(run)).map(|(key, _)| key).collect()
    }

    /// Removes ranges from runs that wait for a connection or an access state and for which
    /// `elsewhere` finds another replica, and adds them to `given`.
    pub(crate) fn give_away_runs(
        &mut self,
        elsewhere: &mut dyn FnMut(PlanKey, u32, bool) -> bool,
        given: &mut Vec<(PlanKey, u32)>,
    ) {
        for run_key in self.runs_where(|run| run.state.is_replicated()) {
            let run = &mut self.runs[run_key];
            let Some(controller) = self.controllers.get(run.controller) else { continue };
            if controller.namespaces.iter().all(|(number, _)| controller.is_path_to(number)) {
                continue;
            }
            let (plan, state) = (run.plan, Arc::clone(&run.state));
            let mut kept = run.ranges.take();
            kept.retain(|&range| {
                let namespace = state.entry(range).1.namespace;
                let is_given = !controller.is_path_to(namespace) && elsewhere(plan, range, false);
                if is_given {
                    given.push((plan, range));
                }
                !is_given
            });
            let is_over = kept.is_empty() && run.current.is_none();
            run.ranges = kept.into();
            if is_over && !self.fresh.runs.contains(&run_key) {
                self.remove_run(run_key);
            }
        }
    }

    /// Cancels the ranges of a plan that were not started; returns how many.
    pub(crate) fn cancel_runs(&mut self, plan: PlanKey, outbox: &mut Outbox) -> usize {
        let error = ErrorKind::Cancelled.into();
        let runs = self.runs_where(|run| run.plan == plan);
        runs.into_iter().map(|run| self.end_run(run, &error, outbox)).sum()
    }

    /// Fails the ranges of a controller that were not started.
    pub(crate) fn fail_runs(&mut self, key: ControllerKey, error: &Error, outbox: &mut Outbox) {
        for run in self.runs_where(|run| run.controller == key) {
            self.end_run(run, error, outbox);
        }
    }

    /// Starts the time-outs of runs that wait for a controller without a connection.
    pub(crate) fn start_run_clocks(&mut self, key: ControllerKey) {
        let controller = &self.controllers[key];
        let since = controller.session.outage.as_ref().map_or(self.clock, |outage| outage.since);
        for (_, run) in self.runs.iter_mut().filter(|(_, run)| run.controller == key) {
            run.deadline = since.max(run.began) + controller.options.io_timeout;
            self.next_expiry = earliest(self.next_expiry, Some(run.expiry()));
        }
    }

    /// Fails ranges that were not started and whose deadline has passed. If the controller is
    /// connected again, the time-out is stopped: they only wait for room.
    pub(crate) fn expire_runs(&mut self, outbox: &mut Outbox) {
        let now = self.clock;
        for run_key in self.runs_where(|run| run.expiry() <= now) {
            let run = &mut self.runs[run_key];
            let Some(controller) = self.controllers.get(run.controller) else { continue };
            let namespace = run.next_namespace();
            let after = match run.options.deadline {
                Some(limit) if run.due <= now => limit,
                _ if namespace
                    .map_or(controller.session.is_live(), |it| controller.is_usable(it)) =>
                {
                    run.deadline = NEVER;
                    continue;
                }
                _ => controller.options.io_timeout,
            };
            let lost = controller.session.refusal().filter(|_| run.due > now).cloned();
            let error = lost.unwrap_or_else(|| controller.no_result(namespace, after));
            let count = self.end_run(run_key, &error, outbox);
            self.counters.timeouts += count as u64;
        }
    }
}
