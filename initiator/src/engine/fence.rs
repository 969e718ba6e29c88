//! The fence that keeps commands of a new connection from overtaking those of an earlier one.
//!
//! A write that was not answered when its association ended may still be carried out: storage takes
//! its time, and the target may not know of the end. Were the host to come back at once and write
//! the same blocks anew, the old write could land on the new one. So it comes back when the target
//! knows that each of the old connections is over (what it does about their writes is up to it:
//! ours refuses Connect until they are done), or when it must have found out by the lack of Keep
//! Alive.

use std::sync::Arc;
use std::time::Duration;

use rdma::{ConnId, Provider, Time};

use crate::engine::connections::ConnectionRole;
use crate::engine::controller::{BlockStage, ControllerPhase, Task};
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
    target: Arc<SubsystemAddress>,
    /// Its connections whose end the target has not confirmed.
    unconfirmed: Vec<ConnId>,
    /// When it knows anyway.
    until: Time,
}

impl<P: Provider> HostEngine<P> {
    /// Puts up a fence behind an association that is about to end, if it leaves anything behind.
    pub(crate) fn put_up_fence(&mut self, now: Time, key: usize) {
        let controller = &self.controllers[key];
        let mut queues = controller.queues.iter().map(|&queue| &self.queues[queue as usize]);
        if !queues.any(|queue| queue.awaiting().any(|(_, task)| self.may_change_something(task))) {
            return;
        }
        let conns =
            self.conns.of(key).filter(|(_, conn)| matches!(conn, ConnectionRole::Open { .. }));
        let unconfirmed = conns.map(|(id, _)| id).collect();
        let until = now + knows_after(controller.options.keep_alive_ms);
        self.fences.push(Fence { target: Arc::clone(&controller.target), unconfirmed, until });
    }

    pub(crate) fn may_change_something(&self, task: &Task) -> bool {
        match task {
            Task::Piece(piece) => {
                piece.stage == BlockStage::Transfer && self.ops[piece.op].is_write()
            }
            Task::Raw { again, .. } => again.is_none(),
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
            fence.unconfirmed.retain(|&other| other != conn);
        }
        self.take_down_fences(now);
    }

    /// Removes fences that have done their duty, and lets pass who waits there.
    pub(crate) fn take_down_fences(&mut self, now: Time) {
        let count = self.fences.len();
        self.fences.retain(|fence| fence.until > now && !fence.unconfirmed.is_empty());
        if self.fences.len() == count {
            return;
        }
        for (key, controller) in &mut self.controllers {
            if matches!(controller.phase, ControllerPhase::Fenced) {
                // It looks for other fences then.
                controller.phase = ControllerPhase::Resting(now);
                self.agenda.mark_ready(key);
            }
        }
    }

    /// Whether a controller must not be connected yet. Paths to a subsystem lead to the same
    /// namespaces.
    pub(crate) fn is_fenced(&self, key: usize) -> bool {
        let nqn = &self.controllers[key].target.nqn;
        self.fences.iter().any(|fence| fence.target.nqn == *nqn)
    }

    /// When the next fence falls by itself.
    pub(crate) fn next_fence(&self) -> Option<Time> {
        self.fences.iter().fold(None, |time, fence| earliest(time, Some(fence.until)))
    }
}

impl Fence {
    /// The connection manager of its connections is gone: none of their ends will be confirmed.
    pub(crate) fn forget_connections(&mut self) {
        self.unconfirmed = vec![ConnId(u64::MAX)];
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
