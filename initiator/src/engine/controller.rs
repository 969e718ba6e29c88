//! State of a controller in an engine, connected or not.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use nvme_proto::feature::AsyncEventConfig;
use nvme_proto::registers::Cc;
use nvme_proto::{Cntlid, Nsid, Sqe};
use rdma::Time;

use crate::engine::arena::{Arena, NamespaceKey, QueueKey, RangeKey, RunKey, WrittenNamespace};
use crate::engine::block_plan::{BlockStep, Geometry};
use crate::engine::breaker::{Admission, CircuitBreaker};
use crate::engine::change_count::ChangeCount;
use crate::engine::checks::{Check, CheckTask, Checks};
use crate::engine::namespace_identity::NamespaceIdentity;
use crate::engine::path_access::{AnaTable, PathAccess};
use crate::engine::plan_run::IssueTurns;
use crate::engine::reconnect_delay::Retries;
use crate::engine::reply::Promise;
use crate::engine::shard_routes::TargetLoad;
use crate::engine::wire::Domain;
use crate::memory::bounce::{BounceChunk, BouncePool};
use crate::memory::region::{CurrentScope, ErasedScope};
use crate::types::error::{Error, ErrorKind, SubsystemAddress, UnreachableCause};
use crate::types::options::{Class, ControllerOptions};

/// Limits of a controller on its current connection.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ControllerLimits {
    /// Controller identifier (CNTLID), assigned in the Connect response.
    pub cntlid: Cntlid,
    /// Number of connected I/O queues.
    pub io_queues: u16,
    /// Commands that may be in flight on an I/O queue.
    pub queue_depth: u16,
    /// Most bytes that a command transfers.
    pub max_transfer_bytes: u64,
    /// Most bytes of data in an I/O command capsule.
    pub in_capsule_bytes: u32,
    /// Whether the controller has a volatile write cache, without which Flush has no effect.
    pub volatile_write_cache: bool,
    /// Command Quiesce Time (CQT) in milliseconds, 0 if it is not reported: how long writes may
    /// still be executed after the target has detected the loss of this host.
    pub command_quiesce_ms: u16,
    /// Maximum Outstanding Commands (MAXCMD) of a queue.
    pub(crate) max_commands: u16,
}

impl ControllerLimits {
    /// Limits of a controller before it is identified.
    pub(crate) const NONE: Self = Self {
        cntlid: Cntlid::DYNAMIC,
        io_queues: 0,
        queue_depth: 0,
        max_transfer_bytes: 4096,
        in_capsule_bytes: 0,
        volatile_write_cache: false,
        command_quiesce_ms: 0,
        max_commands: u16::MAX,
    };
}

/// A controller with its connection and the operations that wait for it.
pub(crate) struct ControllerState {
    pub(crate) target: Arc<SubsystemAddress>,
    pub(crate) options: ControllerOptions,
    pub(crate) phase: ControllerPhase,
    /// Number of attempts to connect so far.
    pub(crate) epoch: u64,
    /// Keys of the queues of the current association in the engine; the admin queue is the first.
    pub(crate) queues: Vec<QueueKey>,
    pub(crate) next_queue: usize,
    pub(crate) limits: ControllerLimits,
    /// Asynchronous Events that the host enables: those that it uses and the controller supports.
    pub(crate) notices: AsyncEventConfig,
    /// States of the ANA groups; `None` if the controller does not report them.
    pub(crate) ana: Option<AnaTable>,
    /// Value of CC that enabled the controller.
    pub(crate) cc: Cc,
    pub(crate) bounce: BouncePool,
    /// Protection domain of the queue pairs of all associations, and of the memory that they
    /// access. Regions that outlive the controller see that it is gone, and release their
    /// registration.
    pub(crate) scope: Arc<dyn ErasedScope>,
    /// Holder of that scope, through which the handles follow a change of provider.
    pub(crate) current_scope: Arc<CurrentScope>,
    pub(crate) keep_alive: KeepAlive,
    /// Circuit breaker of the target, for ranges that have another replica or path.
    pub(crate) breaker: CircuitBreaker,
    /// Schedule of the attempts to reconnect.
    pub(crate) retries: Retries,
    /// Missing connection: since when, and why.
    pub(crate) outage: Option<Outage>,
    /// State of the first connect until it has succeeded or failed.
    pub(crate) first: Option<FirstConnect>,
    pub(crate) namespaces: Arena<NamespaceKey, Attached>,
    pub(crate) checks: Checks,
    /// Count of changes of the Discovery Log Page.
    pub(crate) log_changes: ChangeCount,
    /// Count of changes of the namespaces.
    pub(crate) namespace_changes: ChangeCount,
    /// Ranges with commands to send, by class.
    pub(crate) ready: [VecDeque<RangeKey>; Class::COUNT],
    /// Plans with ranges that were not started, by class.
    pub(crate) runs: [VecDeque<RunKey>; Class::COUNT],
    /// Turns of ranges and plans, by class.
    pub(crate) turns: [IssueTurns; Class::COUNT],
    /// Bytes of ranges in progress for which no command was sent.
    pub(crate) unissued_bytes: u64,
    /// Commands of ranges in flight.
    pub(crate) in_flight: CommandsInFlight,
    /// Commands of background ranges in flight.
    pub(crate) background: CommandsInFlight,
    /// Blocks that were read and modified for partial writes, and must be written.
    pub(crate) modified: VecDeque<RangeCommand>,
    /// Writes that wait for another write to the same blocks, which is in progress or fenced.
    pub(crate) blocked: VecDeque<RangeKey>,
    /// Ranges that wait before a retry, each with the time of the retry.
    pub(crate) delayed: Vec<(Time, RangeKey)>,
    /// Commands other than those of ranges that were not sent yet.
    pub(crate) raw: VecDeque<Raw>,
    /// Commands that wait for the check of their namespace, or for a fence.
    pub(crate) unchecked: VecDeque<Raw>,
    /// Time before which none of the commands other than those of ranges expires.
    pub(crate) raw_expiry: Option<Time>,
    /// Whether the last handle was dropped, so that the controller is shut down.
    pub(crate) closing: bool,
}

/// Totals of commands in flight.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CommandsInFlight {
    pub(crate) commands: usize,
    /// Bytes that the commands transfer for their ranges.
    pub(crate) bytes: u64,
}

impl CommandsInFlight {
    pub(crate) fn add(&mut self, bytes: u64) {
        self.commands += 1;
        self.bytes += bytes;
    }

    pub(crate) fn remove(&mut self, bytes: u64) {
        self.commands -= 1;
        self.bytes -= bytes;
    }
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

/// A namespace for which there are handles.
pub(crate) struct Attached {
    pub(crate) nsid: Nsid,
    pub(crate) identity: NamespaceIdentity,
    pub(crate) geometry: Geometry,
    /// State of the access to it over this controller.
    pub(crate) access: PathAccess,
    /// Number of handles; at zero it is removed once no command to it is in flight.
    pub(crate) holders: usize,
    /// Error of all commands, if it is no longer the namespace that was opened.
    pub(crate) gone: Option<Error>,
    pub(crate) check: Check,
    /// Ranges that wait for the check or the access state.
    pub(crate) waiting: VecDeque<RangeKey>,
    /// Key of the namespace in the host's table of writes.
    pub(crate) written: WrittenNamespace,
}

/// A read or write command for a part of a range.
pub(crate) struct RangeCommand {
    pub(crate) op: RangeKey,
    /// First byte in the namespace that it covers.
    pub(crate) start: u64,
    pub(crate) step: BlockStep,
    /// Bounce chunk of its blocks; `None` if they are transferred directly.
    pub(crate) chunk: Option<BounceChunk>,
    pub(crate) stage: BlockStage,
    /// Time at which it was pushed to its queue.
    pub(crate) sent: Time,
}

/// Step of the transfer of its blocks that a [`RangeCommand`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockStage {
    /// Read, or Write of blocks whose bytes are all known.
    Transfer,
    /// Read of blocks that a partial write modifies.
    Fetch,
}

/// A command that does not belong to a range, with at most a bounce chunk of data.
pub(crate) struct Raw {
    pub(crate) sqe: Sqe,
    pub(crate) data: RawData,
    pub(crate) queue: QueueKind,
    /// Open namespace that it is for; it fails once that namespace was replaced.
    pub(crate) namespace: Option<NamespaceKey>,
    /// Set when the engine takes it.
    pub(crate) deadline: Time,
    /// Whether it has no side effects, so that it is sent again if its connection is lost.
    pub(crate) repeatable: bool,
    /// Whether it may change state that others can see, so that a lost one is fenced.
    pub(crate) alters: bool,
    pub(crate) promise: Promise<RawReply>,
}

/// Data of a [`Raw`] command; `length` is in bytes.
#[derive(Clone)]
pub(crate) enum RawData {
    None,
    ToController(Vec<u8>),
    ToHost { length: u32 },
}

impl RawData {
    pub(crate) fn length(&self) -> u32 {
        match self {
            Self::None => 0,
            Self::ToController(bytes) => u32::try_from(bytes.len()).unwrap_or(u32::MAX),
            Self::ToHost { length } => *length,
        }
    }
}

/// Kind of queue on which a command is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueKind {
    Admin,
    Io,
}

/// Response to a successful [`Raw`] command.
#[derive(Debug)]
pub(crate) struct RawReply {
    pub(crate) result: u64,
    pub(crate) data: Vec<u8>,
}

/// Purpose of a command in flight, by which its response is handled.
pub(crate) enum Task {
    /// A command of a range.
    Piece(RangeCommand),
    /// A [`Raw`] command, whose result is sent to `promise`.
    Raw {
        promise: Promise<RawReply>,
        chunk: Option<BounceChunk>,
        to_host: u32,
        namespace: Option<NamespaceKey>,
        deadline: Time,
        /// The command, if it is sent again after the loss of its connection.
        again: Option<Sqe>,
        /// Whether it may change state that others can see.
        alters: bool,
    },
    /// A command of [`Opening`].
    Opening,
    KeepAlive,
    /// A command of the checks.
    Check(CheckTask),
    /// Set Features, Asynchronous Event Configuration.
    EventConfig,
    /// Asynchronous Event Request, which completes at the next event.
    AsyncEvent,
    /// Abort. Its result is not used: the aborted command completes by itself.
    Abort,
    Shutdown,
}

/// Shortest pause between two attempts to connect to a lost target when operations are submitted to
/// it.
const RECONNECT_NOW_INTERVAL: Duration = Duration::from_millis(50);

impl ControllerState {
    /// Assigns another protection domain to a controller without a connection, whose memory is then
    /// registered there.
    pub(crate) fn enter(&mut self, domain: Domain) {
        self.current_scope.set(Arc::clone(&domain.scope));
        (self.scope, self.bounce) = (domain.scope, domain.bounce);
    }

    pub(crate) fn is_live(&self) -> bool {
        matches!(self.phase, ControllerPhase::Live(_))
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

    /// Returns the load of the controller, by which replicas and paths are selected.
    pub(crate) fn load(&self, now: Time) -> TargetLoad {
        match self.breaker.admission(now) {
            _ if self.refusal().is_some() => TargetLoad::Lost,
            _ if !self.is_live() => TargetLoad::Away,
            Admission::Yes => TargetLoad::Serving(self.in_flight.bytes + self.unissued_bytes),
            Admission::Probe => TargetLoad::Probe,
            Admission::No => TargetLoad::Avoided,
        }
    }

    /// Returns whether a namespace is accessible over it now.
    pub(crate) fn is_path_to(&self, namespace: NamespaceKey) -> bool {
        let attached = self.namespaces.get(namespace);
        self.is_live() && attached.is_some_and(|attached| attached.access.is_usable())
    }

    /// Returns whether commands of ranges or of checks are in flight.
    pub(crate) fn owes_answers(&self) -> bool {
        self.in_flight.commands > 0 || self.checks.are_under_way()
    }

    /// Starts the silence time-out if no response was outstanding; called before a command is sent.
    pub(crate) fn expect_answer(&mut self, now: Time) {
        if !self.owes_answers() {
            self.keep_alive.last_answer = now;
        }
        if self.keep_alive.watch.is_none() {
            self.keep_alive.watch = self.options.silence().map(|silence| now + silence / 2);
        }
    }

    /// Returns whether it is a discovery controller, which has no I/O queues.
    pub(crate) fn is_discovery(&self) -> bool {
        self.options.io_queues == 0
    }

    /// Returns the error of all operations, if the controller is unusable or lost.
    pub(crate) fn refusal(&self) -> Option<&Error> {
        match &self.phase {
            ControllerPhase::Dead(error) => Some(error),
            _ => self.outage.as_ref().and_then(|outage| outage.lost.as_ref()),
        }
    }

    /// Returns an open namespace.
    ///
    /// # Errors
    /// The namespace was closed, or is no longer the one that was opened.
    pub(crate) fn namespace(&self, key: NamespaceKey) -> Result<&Attached, Error> {
        let attached = self.namespaces.get(key).ok_or(ErrorKind::Closed)?;
        match &attached.gone {
            Some(error) => Err(error.clone()),
            None => Ok(attached),
        }
    }
}

impl Attached {
    /// Returns whether commands may be sent to it: its check has passed, and they do not wait for
    /// its access state.
    pub(crate) fn is_ready(&self) -> bool {
        self.check.is_passed() && self.access.obstacle().is_none()
    }
}
