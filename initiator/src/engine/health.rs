//! Liveness of a target: Keep Alive, the silence time-out and the circuit breaker.

use std::time::Duration;

use rdma::Time;

use crate::engine::breaker::CircuitBreaker;

/// Liveness of a target.
#[derive(Default)]
pub(crate) struct Health {
    pub(crate) keep_alive: KeepAlive,
    /// Circuit breaker of the target, for ranges that have another replica or path.
    pub(crate) breaker: CircuitBreaker,
}

/// State of Keep Alive and of the silence time-out.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KeepAlive {
    pub(crate) next: Option<Time>,
    /// Time at which the Keep Alive in flight was sent.
    pub(crate) sent: Option<Time>,
    /// Time of the last response, or of the first command in flight if that is later.
    pub(crate) last_answer: Time,
    /// Time of the next test for silence, while responses are outstanding.
    pub(crate) watch: Option<Time>,
}

impl KeepAlive {
    /// Returns the state after a connect: the first Keep Alive is due after half the timeout.
    pub(crate) fn start(now: Time, timeout_ms: u32) -> Self {
        let next = (timeout_ms > 0).then(|| now + Self::interval(timeout_ms));
        Self { next, sent: None, last_answer: now, watch: None }
    }

    /// Returns the pause between Keep Alives: half the timeout, so that one of them may be late.
    pub(crate) fn interval(timeout_ms: u32) -> Duration {
        Duration::from_millis(u64::from(timeout_ms).div_ceil(2))
    }
}
