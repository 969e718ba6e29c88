//! Fences, which order the commands of a new connection after those of an ended one.
//!
//! The target may still execute a write that was in flight when its association ended: its storage
//! may be slow, and it may not have detected the end. If the host reconnected immediately and wrote
//! the same blocks again, the old write could overwrite the new one. So it reconnects when the
//! target has confirmed the end of all old connections (how it treats their writes is up to the
//! target: Feedrail's refuses Connect until they are done), or when the target must have detected
//! the end by the lack of Keep Alive and its Command Quiesce Time (CQT) has passed as well. If a
//! target reports no CQT, its storage may take longer without the host knowing.
//!
//! Writes to the same blocks over other controllers of the host wait longer: `WriteTable`. The
//! target has confirmed the end of connections, but its storage may still execute their writes, for
//! which it refuses only Connect. So these writes wait until the controller is connected again, or
//! that time has passed.

use std::sync::Arc;
use std::time::Duration;

use rdma::{ConnId, Time};

use crate::engine::arena::{ControllerKey, NamespaceKey};
use crate::engine::connections::ConnectionRole;
use crate::engine::controller::ControllerState;
use crate::engine::range_queues::{BlockStage, RangeCommand};
use crate::engine::results::Outbox;
use crate::engine::session::ControllerPhase;
use crate::engine::task::Task;
use crate::engine::write_table::{FenceKey, UnansweredChange};
use crate::engine::{HostEngine, earliest};
use crate::types::error::SubsystemAddress;

/// Allowance for delays of the target's timers and of packets. With twice as much, a host
/// reconnects 1 s later after an end that the target did not confirm.
const MARGIN: Duration = Duration::from_secs(1);
/// Keep Alive Timeout that is assumed for connections without one, whose end a target need not
/// detect: the value of most hosts. With twice as much, a host reconnects after 21 s, not 11 s.
const WITHOUT_KEEP_ALIVE: Duration = Duration::from_secs(5);

/// An ended association whose commands in flight may still be executed.
pub(crate) struct Fence {
    key: FenceKey,
    target: Arc<SubsystemAddress>,
    stage: FenceStage,
    /// Time at which the target must have detected the end and its CQT has passed. Extended while
    /// the target responds that it still executes commands.
    until: Time,
}

/// Whether the target has confirmed the end of an association.
enum FenceStage {
    /// The end of these connections was not confirmed.
    Unconfirmed(Vec<ConnId>),
    /// The end of all connections was confirmed, that of the last one at this time.
    Confirmed(Time),
}

impl HostEngine {
    /// Adds a fence for an association that is about to end with commands that may be executed
    /// later.
    pub(crate) fn put_up_fence(&mut self, key: ControllerKey, outbox: &mut Outbox) {
        let now = self.clock;
        let controller = &self.controllers[key];
        let queues = controller.session.queues.iter().map(|&queue| &self.queues[queue]);
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
        let quiesce = Duration::from_millis(controller.session.limits.command_quiesce_ms.into());
        let until = now + knows_after(controller.options.keep_alive_ms) + quiesce;
        let target = Arc::clone(&controller.target);
        self.fences.push(Fence { key: fence, target, stage, until });
    }

    /// Returns the change that a command in flight may still make.
    fn unanswered_change(
        &self,
        controller: &ControllerState,
        task: &Task,
    ) -> Option<UnansweredChange> {
        let nsid =
            |number: NamespaceKey| controller.namespaces.get(number).map(|attached| attached.nsid);
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
            | Task::Authentication
            | Task::Shutdown => false,
        }
    }

    /// Records that the target has confirmed the end of a connection.
    pub(crate) fn confirm_end(&mut self, conn: ConnId) {
        for fence in &mut self.fences {
            if let FenceStage::Unconfirmed(connections) = &mut fence.stage {
                connections.retain(|&other| other != conn);
                fence.stage = FenceStage::new(self.clock, std::mem::take(connections));
            }
        }
        self.let_reconnect();
    }

    /// Removes the fences whose time has passed.
    pub(crate) fn take_down_fences(&mut self, outbox: &mut Outbox) {
        let now = self.clock;
        if self.take_down_where(|fence| fence.until <= now, outbox) {
            self.let_reconnect();
        }
    }

    /// Removes fences of a target to which a connection was established that was requested at
    /// `asked`: commands of associations whose end it had confirmed by then have ended.
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

    /// Keeps the fences of a target that responds Connect Controller Busy until the next attempt to
    /// connect has a result.
    pub(crate) fn prolong_fences(&mut self, key: ControllerKey) {
        let controller = &self.controllers[key];
        let (target, options) = (&controller.target, &controller.options);
        let until = self.clock + options.reconnect_delay + options.connect_timeout;
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

    /// Allows controllers that wait for fences to try to connect again.
    fn let_reconnect(&mut self) {
        for (key, controller) in self.controllers.iter_mut() {
            if matches!(controller.session.phase, ControllerPhase::Fenced) {
                controller.session.phase = ControllerPhase::Resting(self.clock);
                self.ready_list.mark_ready(key);
            }
        }
    }

    /// Returns whether a controller must not be connected yet.
    pub(crate) fn is_fenced(&self, key: ControllerKey) -> bool {
        let target = &self.controllers[key].target;
        let mut fences = self.fences.iter();
        fences.any(|fence| {
            fence.target == *target && matches!(fence.stage, FenceStage::Unconfirmed(_))
        })
    }

    /// Returns when the next fence expires.
    pub(crate) fn next_fence(&self) -> Option<Time> {
        self.fences.iter().fold(None, |time, fence| earliest(time, Some(fence.until)))
    }
}

impl Fence {
    /// Records that the connection manager was replaced, so that no end will be confirmed.
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

/// Returns the time until a target must have detected the loss of a connection. It checks once per
/// timeout whether it received anything, so up to two timeouts may pass after the last command;
/// Linux rounds the timeout up to seconds.
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
