//! The fence that keeps commands of a new connection from overtaking those of an earlier one.
//!
//! A write that was not answered when its association ended may still be carried out: storage takes
//! its time, and the target may not know of the end. Were the host to come back immediately and
//! write the same blocks again, the old write could land on the new one. So it comes back when the
//! target knows that each of the old connections has ended (what it does about their writes is up
//! to it: ours refuses Connect until they are done), or when it must have found out by the lack of
//! Keep Alive and its Command Quiesce Time (CQT) has passed as well. A target that reports none may
//! have storage that continues for longer, which no host can know.
//!
//! Other controllers of the host that reach the namespace keep writes to the same blocks back for
//! longer: `WriteTable`. The target has confirmed the end of connections, but may have storage that
//! still works on their writes, and what it refuses until then is Connect. So they wait until the
//! controller is connected again, or that time has passed.

use std::sync::Arc;
use std::time::Duration;

use rdma::{ConnId, Provider, Time};

use crate::engine::connections::ConnectionRole;
use crate::engine::controller::{BlockStage, ControllerPhase, ControllerState, RangeCommand, Task};
use crate::engine::results::Outbox;
use crate::engine::write_table::{FenceKey, UnansweredChange};
use crate::engine::{HostEngine, earliest};
use crate::types::error::SubsystemAddress;

/// The time that a target may take beyond its timeouts, and packets to arrive. Doubled, a host
/// comes back 1 s later after an end that the target did not confirm.
const MARGIN: Duration = Duration::from_secs(1);
/// The timeout that stands for Keep Alive where a target has none, and need not find out at all: as
/// long as most hosts use. Doubled, a host comes back to such a target after 21 s, not 11 s.
const WITHOUT_KEEP_ALIVE: Duration = Duration::from_secs(5);

/// An association that ended with commands that may still change something.
pub(crate) struct Fence {
    key: FenceKey,
    target: Arc<SubsystemAddress>,
    stage: FenceStage,
    /// When the target must know of the end, its storage has had the time that it asks for, and it
    /// has not said that it still works on something.
    until: Time,
}

/// Confirmation by the target of the end of an association.
enum FenceStage {
    /// The target has not confirmed the end of these connections.
    Unconfirmed(Vec<ConnId>),
    /// The target had confirmed the last at this time.
    Confirmed(Time),
}

impl<P: Provider> HostEngine<P> {
    /// Puts up a fence behind an association that is about to end, if it leaves anything behind.
    pub(crate) fn put_up_fence(&mut self, now: Time, key: usize, outbox: &mut Outbox) {
        let controller = &self.controllers[key];
        let queues = controller.queues.iter().map(|&queue| &self.queues[queue as usize]);
        let tasks = queues.flat_map(|queue| queue.awaiting().map(|(_, task)| task));
        let changes: Vec<_> =
            tasks.filter_map(|task| self.unanswered_change(controller, task)).collect();
        if changes.is_empty() {
            return;
        }
        let fence = outbox.writes.put_up(controller.target.nqn, changes);
        let connections = self
            .connections
            .of(key)
            .filter(|(_, conn)| matches!(conn, ConnectionRole::Open { .. }));
        let stage = FenceStage::new(now, connections.map(|(id, _)| id).collect());
        let quiesce = Duration::from_millis(controller.limits.command_quiesce_ms.into());
        let until = now + knows_after(controller.options.keep_alive_ms) + quiesce;
        let target = Arc::clone(&controller.target);
        self.fences.push(Fence { key: fence, target, stage, until });
    }

    /// The change that an unanswered command may still make.
    fn unanswered_change(
        &self,
        controller: &ControllerState<P>,
        task: &Task,
    ) -> Option<UnansweredChange> {
        let nsid = |number: usize| controller.namespaces.get(number).map(|attached| attached.nsid);
        self.may_change_something(task).then(|| match task {
            Task::Piece(RangeCommand { op, step, .. }) => {
                let blocks = step.slba..step.slba + u64::from(step.blocks);
                nsid(self.ops[*op].namespace).map_or(UnansweredChange::Subsystem, |nsid| {
                    UnansweredChange::Blocks(nsid, blocks)
                })
            }
            Task::Raw { namespace, .. } => namespace
                .and_then(nsid)
                .map_or(UnansweredChange::Subsystem, UnansweredChange::Namespace),
            _ => UnansweredChange::Subsystem,
        })
    }

    pub(crate) fn may_change_something(&self, task: &Task) -> bool {
        match task {
            Task::Piece(piece) => {
                piece.stage == BlockStage::Transfer && self.ops[piece.op].is_write()
            }
            Task::Raw { alters, .. } => *alters,
            Task::Opening
            | Task::KeepAlive
            | Task::Check(_)
            | Task::EventConfig
            | Task::AsyncEvent
            | Task::Abort
            | Task::Shutdown => false,
        }
    }

    /// The target knows of the end of a connection.
    pub(crate) fn confirm_end(&mut self, now: Time, conn: ConnId) {
        for fence in &mut self.fences {
            if let FenceStage::Unconfirmed(connections) = &mut fence.stage {
                connections.retain(|&other| other != conn);
                fence.stage = FenceStage::new(now, std::mem::take(connections));
            }
        }
        self.let_reconnect(now);
    }

    /// Removes fences whose time has passed.
    pub(crate) fn take_down_fences(&mut self, now: Time, outbox: &mut Outbox) {
        if self.take_down_where(|fence| fence.until <= now, outbox) {
            self.let_reconnect(now);
        }
    }

    /// A target has taken a connection that was asked for at a time: it has ended what those left
    /// behind whose end it had confirmed by then.
    pub(crate) fn take_down_fences_of(
        &mut self,
        target: &SubsystemAddress,
        asked: Time,
        outbox: &mut Outbox,
    ) {
        let is_over = |fence: &Fence| match fence.stage {
            FenceStage::Confirmed(time) => *fence.target == *target && time <= asked,
            FenceStage::Unconfirmed(_) => false,
        };
        self.take_down_where(is_over, outbox);
    }

    /// A target says that it still works on what was left behind. Until the next attempt to connect
    /// has an answer its fences stay up.
    pub(crate) fn prolong_fences(&mut self, now: Time, key: usize) {
        let controller = &self.controllers[key];
        let (target, options) = (&controller.target, &controller.options);
        let until = now + options.reconnect_delay + options.connect_timeout;
        for fence in self.fences.iter_mut().filter(|fence| fence.target == *target) {
            fence.until = fence.until.max(until);
        }
    }

    fn take_down_where(&mut self, which: impl Fn(&Fence) -> bool, outbox: &mut Outbox) -> bool {
        let count = self.fences.len();
        for fence in self.fences.extract_if(.., |fence| which(fence)) {
            outbox.writes.take_down(fence.key);
        }
        self.fences.len() < count
    }

    /// Controllers that wait to be connected look for fences again.
    fn let_reconnect(&mut self, now: Time) {
        for (key, controller) in &mut self.controllers {
            if matches!(controller.phase, ControllerPhase::Fenced) {
                controller.phase = ControllerPhase::Resting(now);
                self.ready_list.mark_ready(key);
            }
        }
    }

    /// Whether a controller must not be connected yet.
    pub(crate) fn is_fenced(&self, key: usize) -> bool {
        let target = &self.controllers[key].target;
        let mut fences = self.fences.iter();
        fences.any(|fence| {
            fence.target == *target && matches!(fence.stage, FenceStage::Unconfirmed(_))
        })
    }

    /// When the next fence falls by itself.
    pub(crate) fn next_fence(&self) -> Option<Time> {
        self.fences.iter().fold(None, |time, fence| earliest(time, Some(fence.until)))
    }
}

impl Fence {
    /// The connection manager of its connections is gone: none of their ends will be confirmed.
    pub(crate) fn forget_connections(&mut self) {
        if let FenceStage::Unconfirmed(connections) = &mut self.stage {
            *connections = vec![ConnId(u64::MAX)];
        }
    }
}

impl FenceStage {
    fn new(now: Time, unconfirmed: Vec<ConnId>) -> Self {
        match unconfirmed.is_empty() {
            true => Self::Confirmed(now),
            false => Self::Unconfirmed(unconfirmed),
        }
    }
}

/// How long a target may believe in a connection on which it hears nothing. It looks once per
/// timeout whether it heard anything, so it may be two timeouts after the last command that it
/// sees; Linux rounds them up to seconds.
fn knows_after(keep_alive_ms: u32) -> Duration {
    let timeout = match keep_alive_ms {
        0 => WITHOUT_KEEP_ALIVE,
        _ => Duration::from_secs(u64::from(keep_alive_ms.div_ceil(1000))),
    };
    2 * timeout + MARGIN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_has_two_timeouts_and_a_second() {
        let seconds = |keep_alive_ms| knows_after(keep_alive_ms).as_secs_f64();
        assert_eq!([1, 1_000, 1_001, 5_000].map(seconds), [3.0, 3.0, 5.0, 11.0]);
        assert_eq!(seconds(0), 11.0, "without keep alive");
        assert!(seconds(u32::MAX) > 8_000_000.0);
    }
}
