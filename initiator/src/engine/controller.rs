//! The state of a controller in an engine, connected or not.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use nvme_proto::feature::AsyncEventConfig;
use nvme_proto::registers::Cc;
use nvme_proto::{Cntlid, Nsid, Sqe};
use rdma::{Provider, Time};
use slab::Slab;

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
use crate::engine::write_table::WrittenNamespace;
use crate::memory::bounce::{BounceChunk, BouncePool};
use crate::memory::region::{CurrentScope, RegistrationScope};
use crate::types::error::{Error, ErrorKind, SubsystemAddress, UnreachableCause};
use crate::types::options::{Class, ControllerOptions};

/// The limits of a controller on its present connection.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ControllerLimits {
    /// Controller identifier (CNTLID), assigned in the Connect response.
    pub cntlid: Cntlid,
    /// I/O queues that are connected.
    pub io_queues: u16,
    /// Commands that may be in flight on an I/O queue.
    pub queue_depth: u16,
    /// Bytes that one command may transfer.
    pub max_transfer_bytes: u64,
    /// Bytes of data that an I/O command capsule may carry.
    pub in_capsule_bytes: u32,
    /// Whether Flush means anything: a volatile write cache is present.
    pub volatile_write_cache: bool,
    /// Command Quiesce Time (CQT) in milliseconds, 0 if it is not reported: how long the target's
    /// storage may continue writes when the target has found out that this host is lost.
    pub command_quiesce_ms: u16,
    /// Commands that the controller takes on a queue, outstanding together.
    pub(crate) max_commands: u16,
}

impl ControllerLimits {
    /// Limits of a controller that said nothing yet.
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

/// A controller, its connection and what waits for it.
pub(crate) struct ControllerState<P: Provider> {
    pub(crate) target: Arc<SubsystemAddress>,
    pub(crate) options: ControllerOptions,
    pub(crate) phase: ControllerPhase,
    /// Attempts to connect so far.
    pub(crate) epoch: u64,
    /// Queues of the present association, as the engine numbers them; the admin queue first.
    pub(crate) queues: Vec<u32>,
    pub(crate) next_queue: usize,
    pub(crate) limits: ControllerLimits,
    /// The changes that it can tell of, of those that the host wants to hear of.
    pub(crate) notices: AsyncEventConfig,
    /// The states of its ANA groups, if it has such groups.
    pub(crate) ana: Option<AnaTable>,
    /// The value of CC that enabled the controller.
    pub(crate) cc: Cc,
    pub(crate) bounce: BouncePool<P>,
    /// Protection domain of the queue pairs of all its associations, and of the memory that they
    /// may reach. Regions that outlive the controller learn from it that they need not be kept
    /// registered.
    pub(crate) scope: Arc<RegistrationScope<P>>,
    /// Where its handles find that scope.
    pub(crate) current_scope: Arc<CurrentScope>,
    pub(crate) keep_alive: KeepAlive,
    /// Whether ranges are read from it that have a choice.
    pub(crate) breaker: CircuitBreaker,
    /// When the next attempt to connect follows the last.
    pub(crate) retries: Retries,
    /// Time since which the connection is missing, and why.
    pub(crate) outage: Option<Outage>,
    /// State of the first connect until it has succeeded or failed.
    pub(crate) first: Option<FirstConnect>,
    pub(crate) namespaces: Slab<Attached>,
    pub(crate) checks: Checks,
    /// Changes of the discovery log page.
    pub(crate) log_changes: ChangeCount,
    /// Changes of the namespaces.
    pub(crate) namespace_changes: ChangeCount,
    /// Ranges with commands to issue, by class.
    pub(crate) ready: [VecDeque<usize>; Class::COUNT],
    /// Plans with ranges that have no issued command, by class.
    pub(crate) runs: [VecDeque<usize>; Class::COUNT],
    /// Whose turn it is, by class.
    pub(crate) turns: [IssueTurns; Class::COUNT],
    /// Bytes of ranges in progress that no command was issued for.
    pub(crate) unissued_bytes: u64,
    /// Commands in flight of ranges.
    pub(crate) in_flight: CommandsInFlight,
    /// Commands in flight of the class that gives way.
    pub(crate) background: CommandsInFlight,
    /// Edge blocks that were read and modified, and are to be written.
    pub(crate) modified: VecDeque<RangeCommand>,
    /// Writes that share a block with another write of this host, in progress or unanswered.
    pub(crate) blocked: VecDeque<usize>,
    /// Ranges that are tried again at a later time.
    pub(crate) delayed: Vec<(Time, usize)>,
    /// Commands that are not reads or writes of ranges, not issued yet.
    pub(crate) raw: VecDeque<Raw>,
    /// Commands that wait for the check of their namespace, or behind a fence.
    pub(crate) unchecked: VecDeque<Raw>,
    /// None of those, issued or not, expires before this time.
    pub(crate) raw_expiry: Option<Time>,
    /// The last handle was dropped.
    pub(crate) closing: bool,
}

/// Commands of ranges in flight.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CommandsInFlight {
    pub(crate) commands: usize,
    /// Bytes of the ranges that they are part of.
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

/// Where a controller is in its life.
pub(crate) enum ControllerPhase {
    /// Connecting, for the first time or again.
    Opening(Opening),
    /// Usable; connected since this time.
    Live(Time),
    /// Disconnected; the next attempt comes at this time.
    Resting(Time),
    /// Disconnected; the target may still carry out what was asked of it before.
    Fenced,
    /// Told to shut down; disconnected when it confirms, or at this time.
    Closing(Time),
    /// Given up: it could not be connected at first, or cannot be used.
    Dead(Error),
}

/// An attempt to connect.
pub(crate) struct Opening {
    pub(crate) step: OpeningStep,
    pub(crate) since: Time,
    pub(crate) deadline: Time,
    /// When CSTS is to be read again.
    pub(crate) poll_at: Option<Time>,
    /// Holds the data of the attempt's commands.
    pub(crate) chunk: BounceChunk,
    /// Bytes of a page of MDTS.
    pub(crate) page_bytes: u64,
    /// Entries of an I/O queue.
    pub(crate) queue_entries: u16,
}

impl Opening {
    /// The error of an attempt whose time has passed. `silence` is why no peer may have answered.
    pub(crate) fn no_answer(&self, silence: rdma::ConnectFailure) -> Error {
        let what = "the target takes connections and answers no commands; look into its log";
        let kind = match self.step {
            OpeningStep::Connection => ErrorKind::Unreachable(UnreachableCause::of(silence)),
            _ => ErrorKind::ConnectionLost(what),
        };
        kind.into()
    }
}

/// The connect that a caller asked for and waits for.
pub(crate) struct FirstConnect {
    pub(crate) promise: Promise<ControllerLimits>,
    pub(crate) busy: Option<BusyTarget>,
}

impl FirstConnect {
    pub(crate) fn new(promise: Promise<ControllerLimits>) -> Self {
        Self { promise, busy: None }
    }
}

/// A target that has yet to end an earlier controller of this host.
pub(crate) struct BusyTarget {
    /// The error of the last attempt.
    pub(crate) refusal: Error,
    /// When it is asked again for the last time.
    pub(crate) until: Time,
}

/// The event that an attempt to connect is waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpeningStep {
    /// The RDMA connection of a queue.
    Connection,
    /// The response to Connect on that queue.
    Connect,
    /// The response to Property Get of CAP.
    Capabilities,
    /// The response to setting CC.EN.
    Enable,
    /// CSTS.RDY, read by Property Get until it is set.
    Ready,
    /// The response to Identify Controller.
    Identify,
    /// Set Features, Number of Queues.
    QueueCount,
}

/// When Keep Alive was sent and is to be sent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KeepAlive {
    pub(crate) next: Option<Time>,
    /// The one that is not answered yet.
    pub(crate) sent: Option<Time>,
    /// When the target last answered anything, or since when it owes an answer.
    pub(crate) last_answer: Time,
    /// When to look whether it is silent, while it owes answers.
    pub(crate) watch: Option<Time>,
}

impl KeepAlive {
    /// The state after a connect: the first is due after half the timeout.
    pub(crate) fn start(now: Time, timeout_ms: u32) -> Self {
        let next = (timeout_ms > 0).then(|| now + Self::interval(timeout_ms));
        Self { next, sent: None, last_answer: now, watch: None }
    }

    /// Twice in a timeout, so that one may be late.
    pub(crate) fn interval(timeout_ms: u32) -> Duration {
        Duration::from_millis(u64::from(timeout_ms).div_ceil(2))
    }
}

/// A time without a connection.
#[derive(Clone, Debug)]
pub(crate) struct Outage {
    pub(crate) since: Time,
    /// When the last attempt to connect was begun.
    pub(crate) tried: Time,
    pub(crate) cause: Error,
    /// The error that fails everything, since the target has been away for too long.
    pub(crate) lost: Option<Error>,
}

impl Outage {
    pub(crate) fn begin(since: Time, cause: Error) -> Self {
        Self { since, tried: since, cause, lost: None }
    }
}

/// A namespace that a caller holds a handle of.
pub(crate) struct Attached {
    pub(crate) nsid: Nsid,
    pub(crate) identity: NamespaceIdentity,
    pub(crate) geometry: Geometry,
    /// How it can be reached over this controller.
    pub(crate) access: PathAccess,
    /// How many handles there are; at zero the namespace is forgotten once nothing is in progress.
    pub(crate) holders: usize,
    /// Why it can no longer be used.
    pub(crate) gone: Option<Error>,
    pub(crate) check: Check,
    /// Ranges that wait for the check.
    pub(crate) waiting: VecDeque<usize>,
    /// Name of the namespace among those that the host writes to.
    pub(crate) written: WrittenNamespace,
}

/// A command of a range.
pub(crate) struct RangeCommand {
    pub(crate) op: usize,
    /// First byte of the range that it covers.
    pub(crate) start: u64,
    pub(crate) step: BlockStep,
    /// Where its blocks go if not straight to the caller's memory.
    pub(crate) chunk: Option<BounceChunk>,
    pub(crate) stage: BlockStage,
    /// When it was handed to its queue.
    pub(crate) sent: Time,
}

/// Which command of its blocks a [`RangeCommand`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockStage {
    /// The only one, or the one that writes.
    Transfer,
    /// Reads the blocks that a partial write is to modify.
    Fetch,
}

/// A command that is not part of a range, with at most a chunk of data.
pub(crate) struct Raw {
    pub(crate) sqe: Sqe,
    pub(crate) data: RawData,
    pub(crate) queue: QueueKind,
    /// The opened namespace that it is for, if any: it fails once that namespace was replaced.
    pub(crate) namespace: Option<usize>,
    /// Set when it comes into the engine's hands.
    pub(crate) deadline: Time,
    /// True if it only asks: when its connection goes down it is sent again over the next.
    pub(crate) repeatable: bool,
    /// True if it may change something that others see.
    pub(crate) alters: bool,
    pub(crate) promise: Promise<RawReply>,
}

/// The data of a [`Raw`] command.
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

/// Which kind of queue a command belongs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueKind {
    Admin,
    Io,
}

/// The answer to a successful [`Raw`] command.
#[derive(Debug)]
pub(crate) struct RawReply {
    pub(crate) result: u64,
    pub(crate) data: Vec<u8>,
}

/// The work of the engine when a command finishes.
pub(crate) enum Task {
    /// Part of a range.
    Piece(RangeCommand),
    /// A command of its own.
    Raw {
        promise: Promise<RawReply>,
        chunk: Option<BounceChunk>,
        to_host: u32,
        namespace: Option<usize>,
        deadline: Time,
        /// The command, if it is sent again when its connection goes down.
        again: Option<Sqe>,
        /// True if it may change something that others see.
        alters: bool,
    },
    /// The next answer of [`Opening`].
    Opening,
    KeepAlive,
    /// A command that finds out whether a namespace is what it was.
    Check(CheckTask),
    /// The configuration of asynchronous events.
    EventConfig,
    /// Answered when something happens.
    AsyncEvent,
    /// The command that it names ends by itself, aborted or not.
    Abort,
    Shutdown,
}

/// The shortest time between two attempts to connect to a target that was lost, however much is
/// asked of it.
const RECONNECT_NOW_INTERVAL: Duration = Duration::from_millis(50);

impl<P: Provider> ControllerState<P> {
    /// Chunks of bounce memory: resident only as far as they are used.
    pub(crate) const CHUNKS: u16 = 128;

    /// Moves the controller to an engine of another provider, where it has no connection yet.
    pub(crate) fn moved<Q: Provider>(
        self,
        scope: Arc<RegistrationScope<Q>>,
        bounce: BouncePool<Q>,
    ) -> ControllerState<Q> {
        let Self {
            target,
            options,
            phase,
            epoch,
            queues,
            next_queue,
            limits,
            notices,
            ana,
            cc,
            bounce: _,
            scope: _,
            current_scope,
            keep_alive,
            breaker,
            retries,
            outage,
            first,
            namespaces,
            checks,
            log_changes,
            namespace_changes,
            ready,
            runs,
            turns,
            unissued_bytes,
            in_flight,
            background,
            modified,
            blocked,
            delayed,
            raw,
            unchecked,
            raw_expiry,
            closing,
        } = self;
        current_scope.set(Arc::clone(&scope) as _);
        ControllerState {
            target,
            options,
            phase,
            epoch,
            queues,
            next_queue,
            limits,
            notices,
            ana,
            cc,
            bounce,
            scope,
            current_scope,
            keep_alive,
            breaker,
            retries,
            outage,
            first,
            namespaces,
            checks,
            log_changes,
            namespace_changes,
            ready,
            runs,
            turns,
            unissued_bytes,
            in_flight,
            background,
            modified,
            blocked,
            delayed,
            raw,
            unchecked,
            raw_expiry,
            closing,
        }
    }

    pub(crate) fn is_live(&self) -> bool {
        matches!(self.phase, ControllerPhase::Live(_))
    }

    /// Something is asked of it. If it was lost the next attempt to connect comes immediately, but
    /// not sooner than [`RECONNECT_NOW_INTERVAL`] after the last.
    pub(crate) fn reconnect_now(&mut self, now: Time) {
        if let Some(outage) = self.outage.as_ref().filter(|outage| outage.lost.is_some())
            && let ControllerPhase::Resting(time) = &mut self.phase
        {
            *time = (*time).min(now.max(outage.tried + RECONNECT_NOW_INTERVAL));
        }
    }

    /// Load of the controller, for ranges that have a choice.
    pub(crate) fn load(&self, now: Time) -> TargetLoad {
        match self.breaker.admission(now) {
            _ if self.refusal().is_some() => TargetLoad::Lost,
            _ if !self.is_live() => TargetLoad::Away,
            Admission::Yes => TargetLoad::Serving(self.in_flight.bytes + self.unissued_bytes),
            Admission::Probe => TargetLoad::Probe,
            Admission::No => TargetLoad::Avoided,
        }
    }

    /// Whether commands to a namespace are served over it now.
    pub(crate) fn is_path_to(&self, namespace: usize) -> bool {
        let attached = self.namespaces.get(namespace);
        self.is_live() && attached.is_some_and(|attached| attached.access.is_usable())
    }

    /// Whether it owes answers to commands of ranges or of checks.
    pub(crate) fn owes_answers(&self) -> bool {
        self.in_flight.commands > 0 || self.checks.are_under_way()
    }

    /// A command is about to be sent whose answer is waited for.
    pub(crate) fn expect_answer(&mut self, now: Time) {
        if !self.owes_answers() {
            self.keep_alive.last_answer = now;
        }
        if self.keep_alive.watch.is_none() {
            self.keep_alive.watch = self.options.silence().map(|silence| now + silence / 2);
        }
    }

    /// Whether it is a discovery controller, which has no I/O queues.
    pub(crate) fn is_discovery(&self) -> bool {
        self.options.io_queues == 0
    }

    /// Why nothing can be asked of it now.
    pub(crate) fn refusal(&self) -> Option<&Error> {
        match &self.phase {
            ControllerPhase::Dead(error) => Some(error),
            _ => self.outage.as_ref().and_then(|outage| outage.lost.as_ref()),
        }
    }

    /// The namespace under `key`, unless it can no longer be used.
    pub(crate) fn namespace(&self, key: usize) -> Result<&Attached, Error> {
        let attached = self.namespaces.get(key).ok_or(ErrorKind::Closed)?;
        match &attached.gone {
            Some(error) => Err(error.clone()),
            None => Ok(attached),
        }
    }
}

impl Attached {
    /// Whether commands to it may be sent: it is what it was, and they do not wait for its access
    /// state.
    pub(crate) fn is_ready(&self) -> bool {
        self.check.is_passed() && self.access.obstacle().is_none()
    }
}
