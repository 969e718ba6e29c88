//! Ranges of plans on their way to a controller: they become [`RangeOp`]s one by one, as the
//! controller takes commands, so that a plan of a million ranges costs what its entries take.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use rdma::{Provider, Time};

use crate::engine::controller::{ControllerPhase, ControllerState};
use crate::engine::plan_state::PlanState;
use crate::engine::range::Advance;
use crate::engine::range_op::{NEVER, RangeDirection, RangeOp, Submission};
use crate::engine::results::{Outbox, PlanKey, RangeCompletion, RangeService, ResultSink, RingKey};
use crate::engine::{HostEngine, earliest};
use crate::memory::region::{ErasedScope, Keys};
use crate::types::error::{Error, ErrorKind};
use crate::types::options::{BatchOptions, Class};

/// The bytes that one of several plans is issued at a time. Doubled, a plan of 480 rows of 2 KiB
/// beside one of long ranges has its last row sent after half as many of their commands.
const TURN_BYTES: u64 = 128 << 10;

/// How long a plan waits for a target that was lost before, while connecting to it is tried.
const TRIAL: Duration = Duration::from_secs(1);

/// The ranges of a plan on one controller.
pub(crate) struct PlanRun {
    pub(crate) plan: PlanKey,
    pub(crate) state: Arc<PlanState>,
    /// Key of the controller in its engine.
    pub(crate) controller: usize,
    pub(crate) ranges: RangeNumbers,
    pub(crate) options: BatchOptions,
    /// The range whose commands are being issued.
    current: Option<usize>,
    /// When it came into its engine's hands.
    began: Time,
    /// When the plan's deadline passes.
    due: Time,
    /// When it has been without a connection for too long, while that counts.
    deadline: Time,
}

/// Numbers of ranges in their plan, in ascending order.
pub(crate) enum RangeNumbers {
    /// All numbers of a range.
    All(Range<u32>),
    /// Numbers of the ranges, where several controllers share a plan.
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

    fn peek(&self) -> Option<u32> {
        match self {
            Self::All(range) => (!range.is_empty()).then_some(range.start),
            Self::Some(numbers) => numbers.as_slice().first().copied(),
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
        controller: usize,
        ranges: RangeNumbers,
        options: BatchOptions,
    ) -> Self {
        let (current, began, due, deadline) = (None, Time::ZERO, NEVER, NEVER);
        Self { plan, state, controller, ranges, options, current, began, due, deadline }
    }

    /// When the engine must look at it again.
    pub(crate) fn expiry(&self) -> Time {
        self.deadline.min(self.due)
    }

    /// Whether a namespace is that of a range that is to be issued.
    fn next_namespace(&self) -> Option<usize> {
        self.ranges.peek().map(|index| self.state.entry(index).1.namespace)
    }
}

/// Source of the next command of a class.
pub(crate) enum IssueLine {
    /// A range of a ring or batch, or one that is tried again.
    Range(usize),
    /// A run of a plan.
    Run(usize),
}

/// Result of the attempt to issue a command of a run.
pub(crate) enum RunStep {
    /// A command was issued, or a range ended without one.
    Issued,
    /// The next range of the run waits for the check of its namespace: others come first.
    Held,
    /// Queues or chunks are used up: wait.
    Stalled,
}

/// Whose turn it is, of the ranges that wait and of the plans: each is issued a number of bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IssueTurns {
    ranges_left: u64,
    run_left: u64,
}

impl Default for IssueTurns {
    fn default() -> Self {
        Self { ranges_left: TURN_BYTES, run_left: TURN_BYTES }
    }
}

impl IssueTurns {
    /// Bytes of ranges that wait were issued.
    pub(crate) fn of_ranges(&mut self, bytes: u64) {
        self.ranges_left = self.ranges_left.saturating_sub(bytes);
    }

    /// Bytes of a plan were issued; true if the next plan is to be issued.
    fn of_run(&mut self, bytes: u64) -> bool {
        self.run_left = self.run_left.saturating_sub(bytes);
        let is_over = self.run_left == 0;
        if is_over {
            *self = Self::default();
        }
        is_over
    }
}

impl<P: Provider> ControllerState<P> {
    /// Source of the next command of a class; the last `held` plans in line cannot be.
    pub(crate) fn next_line(&self, class: Class, held: usize) -> Option<IssueLine> {
        let runs = &self.runs[class as usize];
        let run = if held < runs.len() { runs.front() } else { None };
        let range = self.ready[class as usize].front();
        match (range, run) {
            (Some(&range), None) => Some(IssueLine::Range(range)),
            (Some(&range), Some(_)) if self.turns[class as usize].ranges_left > 0 => {
                Some(IssueLine::Range(range))
            }
            (_, Some(&run)) => Some(IssueLine::Run(run)),
            (None, None) => None,
        }
    }

    fn rotate_runs(&mut self, class: Class) {
        let runs = &mut self.runs[class as usize];
        if !runs.is_empty() {
            runs.rotate_left(1);
        }
    }
}

impl<P: Provider> HostEngine<P> {
    /// Puts ranges that came in since the last turn in line, unless they were cancelled.
    pub(crate) fn start_run(&mut self, now: Time, run_key: usize, outbox: &mut Outbox) {
        let Some(run) = self.runs.get_mut(run_key) else { return };
        let Some(controller) = self.controllers.get_mut(run.controller) else {
            self.end_run(run_key, &ErrorKind::Closed.into(), outbox);
            return;
        };
        if let ControllerPhase::Dead(error) = &controller.phase {
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
        controller.reconnect_now(now);
        run.began = now;
        if let Some(limit) = run.options.deadline {
            run.due = run.state.due(now, limit);
        }
        let namespace = run.next_namespace();
        if !namespace.is_some_and(|namespace| controller.is_usable(namespace)) {
            let is_lost = controller.refusal().is_some();
            let timeout = controller.options.io_timeout;
            run.deadline = now + if is_lost { timeout.min(TRIAL) } else { timeout };
        }
        self.next_expiry = earliest(self.next_expiry, Some(run.expiry()));
        controller.runs[run.options.class as usize].push_back(run_key);
        self.ready_list.mark_ready(run.controller);
    }

    /// Issues the next command of a run, the first in its line.
    pub(crate) fn issue_run(
        &mut self,
        now: Time,
        key: usize,
        run_key: usize,
        outbox: &mut Outbox,
    ) -> RunStep {
        let Some(op_key) = self.current_range(key, run_key, outbox) else {
            return self.step_over(key, run_key);
        };
        match self.advance(now, key, op_key, outbox) {
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

    /// The range of a run that is being issued, or its next one.
    fn current_range(&mut self, key: usize, run_key: usize, outbox: &mut Outbox) -> Option<usize> {
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

    /// A run without a range to issue: it is at its end, or waits.
    fn step_over(&mut self, key: usize, run_key: usize) -> RunStep {
        match self.runs[run_key].ranges.peek() {
            None => {
                self.remove_run(run_key);
                RunStep::Issued
            }
            Some(_) => self.hold_run(key, run_key),
        }
    }

    fn hold_run(&mut self, key: usize, run_key: usize) -> RunStep {
        self.controllers[key].rotate_runs(self.runs[run_key].options.class);
        RunStep::Held
    }

    /// A command was issued: the next plan comes, if this one had its turn.
    fn note_issued(&mut self, key: usize, run_key: usize, op_key: usize, bytes: u64) {
        // The command may have brought the association down, and the run with it.
        let Some(run) = self.runs.get(run_key) else { return };
        let class = run.options.class;
        if self.controllers[key].turns[class as usize].of_run(bytes) {
            self.controllers[key].rotate_runs(class);
        }
        if self.ops.get(op_key).is_some_and(RangeOp::is_issued) {
            self.detach_from_run(op_key);
        }
        let run = &self.runs[run_key];
        if run.current.is_none() && run.ranges.peek().is_none() {
            self.remove_run(run_key);
        }
    }

    /// Makes the next range of a run one in progress. Those before it that cannot be read end.
    fn begin_range(&mut self, key: usize, run_key: usize, outbox: &mut Outbox) -> Option<usize> {
        let run = &mut self.runs[run_key];
        while let Some(index) = run.ranges.next() {
            let (entry, route) = run.state.entry(index);
            let target = &self.controllers[key].target;
            let admitted = self.controllers[key].namespace(route.namespace);
            let result = admitted.map(drop).map_err(|error| error.of_target(target));
            let Some(mut slice) = outbox.destination(run.plan, entry.dst, entry.length) else {
                break;
            };
            let keys = run.state.keys(route);
            let scope = &self.controllers[key].scope;
            let keys = match keys.scope == scope.id() {
                true => Ok(keys),
                // The provider has changed since the plan was submitted.
                false => slice.keys(&**scope).map_err(|error| Error::from(error).of_target(target)),
            };
            let result = result.and(keys.as_ref().map(drop).map_err(Error::clone));
            if result.is_err() || entry.length == 0 {
                let counters = &mut self.counters;
                counters.ranges += u64::from(result.is_ok());
                counters.ranges_failed += u64::from(result.is_err());
                let completion = RangeCompletion { token: index.into(), slice, result };
                outbox.complete(ResultSink::Plan(run.plan), completion, RangeService::default());
                continue;
            }
            let keys = keys.unwrap_or(Keys::NONE);
            let submission = Submission {
                controller: key,
                namespace: route.namespace,
                direction: RangeDirection::Read,
                offset: entry.offset,
                slice,
                keys: Ok(keys),
                ring: RingKey::NONE,
                token: index.into(),
                options: run.options,
                paths: None,
            };
            let op = RangeOp::new(submission, ResultSink::Plan(run.plan), keys);
            let op = op.in_run(run_key, run.began, run.due);
            let op_key = self.insert_op(op);
            self.runs[run_key].current = Some(op_key);
            return Some(op_key);
        }
        None
    }

    /// Removes a range from the run that issues it.
    pub(crate) fn leave_run(&mut self, run_key: usize, op_key: usize) {
        if let Some(run) = self.runs.get_mut(run_key)
            && run.current == Some(op_key)
        {
            run.current = None;
            // A run that is at its end is to be removed.
            self.ready_list.mark_ready(run.controller);
        }
    }

    /// Forgets a run. A range of it that is being issued is put in line by itself.
    fn remove_run(&mut self, run_key: usize) -> PlanRun {
        let run = self.runs.remove(run_key);
        if let Some(controller) = self.controllers.get_mut(run.controller) {
            controller.runs[run.options.class as usize].retain(|&other| other != run_key);
        }
        if let Some(op_key) = run.current {
            self.queue_first(op_key);
        }
        run
    }

    /// Ends the ranges of a run that were not begun; returns how many.
    fn end_run(&mut self, run_key: usize, error: &Error, outbox: &mut Outbox) -> usize {
        let mut run = self.remove_run(run_key);
        let ranges = run.ranges.take();
        self.counters.ranges_failed += ranges.len() as u64;
        outbox.end_unsent(run.plan, &ranges, error);
        ranges.len()
    }

    fn runs_where(&self, which: impl Fn(&PlanRun) -> bool) -> Vec<usize> {
        self.runs.iter().filter(|(_, run)| which(run)).map(|(key, _)| key).collect()
    }

    /// Takes those ranges out of runs that wait for a connection or an access state, and for which
    /// `elsewhere` finds another path.
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

    /// Ends the ranges of a plan that were not begun; returns how many.
    pub(crate) fn cancel_runs(&mut self, plan: PlanKey, outbox: &mut Outbox) -> usize {
        let error = ErrorKind::Cancelled.into();
        let runs = self.runs_where(|run| run.plan == plan);
        runs.into_iter().map(|run| self.end_run(run, &error, outbox)).sum()
    }

    /// Fails the ranges of a controller that were not begun.
    pub(crate) fn fail_runs(&mut self, key: usize, error: &Error, outbox: &mut Outbox) {
        for run in self.runs_where(|run| run.controller == key) {
            self.end_run(run, error, outbox);
        }
    }

    /// The connection is gone: from now on the time of ranges that wait for it counts.
    pub(crate) fn start_run_clocks(&mut self, now: Time, key: usize) {
        let controller = &self.controllers[key];
        let since = controller.outage.as_ref().map_or(now, |outage| outage.since);
        for (_, run) in self.runs.iter_mut().filter(|(_, run)| run.controller == key) {
            run.deadline = since.max(run.began) + controller.options.io_timeout;
            self.next_expiry = earliest(self.next_expiry, Some(run.expiry()));
        }
    }

    /// Fails ranges that were not begun and whose time has passed. Where the connection is back
    /// they wait for their turn only.
    pub(crate) fn expire_runs(&mut self, now: Time, outbox: &mut Outbox) {
        for run_key in self.runs_where(|run| run.expiry() <= now) {
            let run = &mut self.runs[run_key];
            let Some(controller) = self.controllers.get(run.controller) else { continue };
            let namespace = run.next_namespace();
            let after = match run.options.deadline {
                Some(limit) if run.due <= now => limit,
                _ if namespace.map_or(controller.is_live(), |it| controller.is_usable(it)) => {
                    run.deadline = NEVER;
                    continue;
                }
                _ => controller.options.io_timeout,
            };
            let lost = controller.refusal().filter(|_| run.due > now).cloned();
            let error = lost.unwrap_or_else(|| controller.no_result(namespace, after));
            let count = self.end_run(run_key, &error, outbox);
            self.counters.timeouts += count as u64;
        }
    }
}
