//! Authentication of a queue as operators see it, and their demand that it is repeated.

use std::sync::atomic::{AtomicU64, Ordering};

use feedrail_auth::{AuthEvent, Authenticated};
use rdma::Time;

/// Authentication of a queue as operators see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueAuthState {
    /// The host has not authenticated yet.
    Negotiating,
    /// The host has authenticated.
    Completed(Authenticated),
    /// The last transaction failed.
    Failed,
}

impl From<AuthEvent> for QueueAuthState {
    fn from(event: AuthEvent) -> Self {
        match event {
            AuthEvent::Authenticated(with) => Self::Completed(with),
            _ => Self::Failed,
        }
    }
}

/// Demand of an operator that the host of a controller authenticates again, on each queue.
#[derive(Debug, Default)]
pub(super) struct ProofDemand {
    /// Time of the demand in nanoseconds; 0 if there was none.
    asked_at: AtomicU64,
    /// Time at which queues are closed that have not authenticated since.
    due: AtomicU64,
}

impl ProofDemand {
    /// Demands that the host authenticates until `due`.
    pub(super) fn demand(&self, now: Time, due: Time) {
        self.due.store(due.as_nanos(), Ordering::Relaxed);
        self.asked_at.store(now.as_nanos(), Ordering::Release);
    }

    /// Time by which a host has to authenticate that did so at `proved_at`, if it has to.
    pub(super) fn due_after(&self, proved_at: Time) -> Option<Time> {
        let is_older = proved_at.as_nanos() < self.asked_at.load(Ordering::Acquire);
        is_older.then(|| Time::from_nanos(self.due.load(Ordering::Relaxed)))
    }
}
