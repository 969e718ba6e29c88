//! Connection of a controller: its phase, and the attempts to connect.

use std::time::Duration;

use feedrail_auth::HostAuthError;
use nvme_proto::Sqe;
use nvme_proto::fabrics::{PropertySet, PropertySize};
use nvme_proto::registers::{Cc, Property, ShutdownNotification};
use rdma::Time;

use crate::engine::arena::QueueKey;
use crate::engine::auth_exchange::AuthSession;
use crate::engine::earliest;
use crate::engine::limits::ControllerLimits;
use crate::engine::reconnect_delay::Retries;
use crate::engine::reply::Promise;
use crate::memory::bounce::BounceChunk;
use crate::types::authentication_failure::AuthenticationFailure;
use crate::types::error::{Error, ErrorKind, UnreachableCause};

/// Shortest pause between two attempts to connect to a lost target when operations are submitted to
/// it.
const RECONNECT_NOW_INTERVAL: Duration = Duration::from_millis(50);

/// Connection of a controller, or the lack of one.
pub(crate) struct Session {
    pub(crate) phase: ControllerPhase,
    /// Number of attempts to connect so far.
    pub(crate) epoch: u64,
    /// Queues of the current association; the admin queue is the first.
    pub(crate) queues: Vec<QueueKey>,
    /// Number of the I/O queue that was used last.
    pub(crate) last_queue: usize,
    pub(crate) limits: ControllerLimits,
    /// Value of CC that enabled the controller.
    pub(crate) cc: Cc,
    /// Schedule of the attempts to reconnect.
    pub(crate) retries: Retries,
    /// Missing connection: since when, and why.
    pub(crate) outage: Option<Outage>,
    /// State of the first connect until it has succeeded or failed.
    pub(crate) first: Option<FirstConnect>,
    pub(crate) auth: AuthSession,
    /// Whether the last handle was dropped, so that the controller is shut down.
    pub(crate) closing: bool,
}

impl Session {
    /// Returns the state of a new controller, which is connected at the next turn.
    pub(crate) fn new(retries: Retries, opened: Promise<ControllerLimits>) -> Self {
        Self {
            phase: ControllerPhase::Resting(Time::ZERO),
            epoch: 0,
            queues: Vec::new(),
            last_queue: 0,
            limits: ControllerLimits::NONE,
            cc: Cc::default(),
            retries,
            outage: None,
            first: Some(FirstConnect::new(opened)),
            auth: AuthSession::default(),
            closing: false,
        }
    }

    pub(crate) fn is_live(&self) -> bool {
        matches!(self.phase, ControllerPhase::Live(_))
    }

    /// Returns the queue for admin commands, if there is a connection.
    pub(crate) fn admin_queue(&self) -> Option<QueueKey> {
        self.queues.first().copied()
    }

    /// Returns the queues for I/O commands.
    pub(crate) fn io_queues(&self) -> &[QueueKey] {
        self.queues.get(1..).unwrap_or_default()
    }

    /// Returns the next I/O queue that `has_room`, in round-robin order.
    pub(crate) fn next_io_queue(
        &mut self,
        has_room: impl Fn(QueueKey) -> bool,
    ) -> Option<QueueKey> {
        let io = self.queues.get(1..)?;
        for _ in 0..io.len() {
            self.last_queue = (self.last_queue + 1) % io.len();
            let queue = io[self.last_queue];
            if has_room(queue) {
                return Some(queue);
            }
        }
        None
    }

    /// Returns the error of all operations, if the controller is unusable or lost.
    pub(crate) fn refusal(&self) -> Option<&Error> {
        match &self.phase {
            ControllerPhase::Dead(error) => Some(error),
            _ => self.outage.as_ref().and_then(|outage| outage.lost.as_ref()),
        }
    }

    /// Schedules the next attempt to connect to a lost target immediately, but not sooner than
    /// [`RECONNECT_NOW_INTERVAL`] after the last. Called when an operation is submitted.
    pub(crate) fn reconnect_now(&mut self, now: Time) {
        if let Some(outage) = self.outage.as_ref().filter(|outage| outage.lost.is_some())
            && let ControllerPhase::Resting(time) = &mut self.phase
        {
            *time = (*time).min(now.max(outage.tried + RECONNECT_NOW_INTERVAL));
        }
    }

    /// Returns the Property Set command that starts a normal shutdown.
    pub(crate) fn shutdown_sqe(&self) -> Sqe {
        set_cc(self.cc.with_shn(ShutdownNotification::NORMAL))
    }

    /// Returns when the next action for the connection is due.
    pub(crate) fn deadline(&self, loss_timeout: Duration) -> Option<Time> {
        let phase = match &self.phase {
            ControllerPhase::Opening(opening) => earliest(Some(opening.deadline), opening.poll_at),
            ControllerPhase::Resting(time) | ControllerPhase::Closing(time) => Some(*time),
            ControllerPhase::Live(_) | ControllerPhase::Fenced | ControllerPhase::Dead(_) => None,
        };
        let outage = self.outage.as_ref().filter(|outage| outage.lost.is_none());
        earliest(phase, outage.map(|outage| outage.since + loss_timeout))
    }
}

/// Returns the Property Set command for CC.
pub(crate) fn set_cc(cc: Cc) -> Sqe {
    let value = u64::from(cc.into_bits());
    PropertySet { property: Property::CC, size: PropertySize::FourBytes, value }.to_sqe()
}

/// State of a controller's connection.
pub(crate) enum ControllerPhase {
    /// Connecting, for the first time or again.
    Opening(Opening),
    /// Ready for commands; connected since this time.
    Live(Time),
    /// Disconnected until this time, at which the next attempt starts.
    Resting(Time),
    /// Disconnected until the target has confirmed the end of the last association, or must have
    /// detected it, since it may still execute commands of it.
    Fenced,
    /// Shutting down; disconnected when the target confirms, or at this time.
    Closing(Time),
    /// Unusable: the first connect failed, or the target has no support for what is needed.
    Dead(Error),
}

/// State of an attempt to connect.
pub(crate) struct Opening {
    pub(crate) step: OpeningStep,
    pub(crate) since: Time,
    pub(crate) deadline: Time,
    /// Time at which CSTS is read again.
    pub(crate) poll_at: Option<Time>,
    /// Bounce chunk for the data of the attempt's commands.
    pub(crate) chunk: BounceChunk,
    /// Page size in bytes, by which MDTS is scaled.
    pub(crate) page_bytes: u64,
    /// Entries of an I/O queue, limited by CAP.MQES.
    pub(crate) queue_entries: u16,
}

impl Opening {
    /// Returns the error of an attempt that exceeded its deadline. `silence` is the reason to
    /// report if the peer did not respond at all.
    pub(crate) fn no_answer(&self, silence: rdma::ConnectFailure) -> Error {
        let what = "the target takes connections and answers no commands; look into its log";
        let kind = match self.step {
            OpeningStep::Connection => ErrorKind::Unreachable(UnreachableCause::of(silence)),
            OpeningStep::Authentication => {
                let reason = AuthenticationFailure::Failed(HostAuthError::TimedOut);
                ErrorKind::Authentication { reason }
            }
            _ => ErrorKind::ConnectionLost(what),
        };
        kind.into()
    }
}

/// The connect that the caller waits for.
pub(crate) struct FirstConnect {
    pub(crate) promise: Promise<ControllerLimits>,
    pub(crate) busy: Option<BusyTarget>,
}

impl FirstConnect {
    pub(crate) fn new(promise: Promise<ControllerLimits>) -> Self {
        Self { promise, busy: None }
    }
}

/// A target that has not yet ended an earlier controller of this host.
pub(crate) struct BusyTarget {
    /// Error of the last attempt.
    pub(crate) refusal: Error,
    /// Time after which no further attempt is made.
    pub(crate) until: Time,
}

/// The response or event that an attempt to connect waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpeningStep {
    /// Establishment of the RDMA connection of a queue.
    Connection,
    /// Response to Connect on that queue.
    Connect,
    /// End of the authentication of that queue.
    Authentication,
    /// Response to Property Get of CAP.
    Capabilities,
    /// Response to Property Set of CC.EN.
    Enable,
    /// CSTS.RDY, which is read by Property Get until it is set.
    Ready,
    /// Response to Identify Controller.
    Identify,
    /// Response to Set Features, Number of Queues.
    QueueCount,
}

/// A period without a connection.
#[derive(Clone, Debug)]
pub(crate) struct Outage {
    pub(crate) since: Time,
    /// Start of the last attempt to connect.
    pub(crate) tried: Time,
    pub(crate) cause: Error,
    /// Error of all operations once the loss time-out has passed.
    pub(crate) lost: Option<Error>,
}

impl Outage {
    pub(crate) fn begin(since: Time, cause: Error) -> Self {
        Self { since, tried: since, cause, lost: None }
    }
}
