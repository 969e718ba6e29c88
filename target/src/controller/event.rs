//! Events that other parts of an association send to the core that owns a queue.

use nvme_proto::Cid;

use super::command::{CommandOutcome, IoWork};
use super::hold::CommandHold;
use crate::inventory::index::NamespaceIndex;

/// Action that the owner of a queue has to take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueEvent {
    /// Respond to a command that was [`Execution::Parked`](super::Execution::Parked).
    Complete {
        /// Command identifier chosen by the host.
        cid: Cid,
        /// Result and status of the response.
        outcome: CommandOutcome,
    },
    /// Execute a command again that was [`Execution::Postponed`](super::Execution::Postponed).
    Resume {
        /// Command identifier chosen by the host.
        cid: Cid,
    },
    /// Try to abort a command of this queue. If it can be aborted, respond to it with Command Abort
    /// Requested; report the result with [`Queue::answer_abort`](super::Queue::answer_abort).
    Abort(AbortRequest),
    /// Attach the hold that `Quiesce::of` returns to each running command of this queue until it
    /// ends. Whoever created the hold waits until all copies are dropped.
    Quiesce(Quiesce),
    /// Flush the medium of a namespace, and report the result with
    /// [`Queue::flushed`](super::Queue::flushed).
    Flush(FlushJob),
    /// Close the connection: the association ended, or this queue must not continue.
    Close(CloseReason),
}

/// Request to abort a command, from an Abort command of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbortRequest {
    /// CID of the command to abort.
    pub cid: Cid,
    /// CID of the Abort command on the admin queue.
    pub(super) asked_by: Cid,
}

/// Reason that a queue must close.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CloseReason {
    /// The host sent no Connect within `CONNECT_TIMEOUT`.
    #[error("no Connect command within {} s", crate::limits::CONNECT_TIMEOUT.as_secs())]
    ConnectTimeout,
    /// The host sent no command within its Keep Alive Timeout.
    #[error("keep alive time-out")]
    KeepAlive,
    /// The host did not enable the controller (CC.EN) in time.
    #[error("controller not enabled within {} s", crate::limits::ENABLE_TIMEOUT.as_secs())]
    EnableTimeout,
    /// The host did not authenticate in time.
    #[error("the host did not authenticate in time")]
    AuthenticationTimeout,
    /// The host was refused, or has refused the target.
    #[error("the host is not authenticated")]
    NotAuthenticated,
    /// The host authenticated by its name only, and now has to by a key.
    #[error("the host has to authenticate now")]
    AuthenticationRequired,
    /// The admin queue of the association ended.
    #[error("the admin queue of the association ended")]
    AssociationEnded,
    /// The connection was lost, and the host has connected the queue again.
    #[error("the connection was lost")]
    Lost,
    /// A newer discovery controller took the place of this one, since their number is limited.
    #[error("newer discovery controllers need its place")]
    Displaced,
    /// The host reset the controller, which ends its I/O queues.
    #[error("controller reset")]
    Reset,
    /// The list of hosts that may use the subsystem was changed, and this host is not in it.
    #[error("the host is no longer allowed to use the subsystem")]
    HostRemoved,
    /// The subsystem was removed, or is no longer served at the address of the connection.
    #[error("the subsystem is no longer served at this address")]
    ListenerRemoved,
    /// The target is stopping.
    #[error("the target is stopping")]
    Stopping,
}

/// Identifier of a job within its controller; below 2^31.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobId(pub(crate) u32);

/// Flush of a namespace's medium, ended by [`Queue::flushed`](super::Queue::flushed).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushJob {
    /// Namespace whose medium is flushed.
    pub namespace: NamespaceIndex,
    pub(super) job: JobId,
}

impl FlushJob {
    /// Job of the controller, which distinguishes concurrent flushes.
    pub fn job(&self) -> JobId {
        self.job
    }
}

/// Request to attach a hold to running commands of a queue: see [`QueueEvent::Quiesce`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quiesce {
    pub(super) commands: AwaitedCommands,
    pub(super) hold: CommandHold,
}

/// I/O commands of a queue that get the hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AwaitedCommands {
    All,
    /// I/O commands that change a medium.
    Changes,
    /// I/O commands that change the medium of this namespace.
    ChangesOf(NamespaceIndex),
}

impl Quiesce {
    /// Returns the hold for a command; `None` if the request is not about commands of its kind.
    pub(crate) fn of(&self, work: &IoWork) -> Option<CommandHold> {
        let changes = work.kind.changes_medium();
        let concerned = match self.commands {
            AwaitedCommands::All => true,
            AwaitedCommands::Changes => changes,
            AwaitedCommands::ChangesOf(namespace) => changes && namespace == work.namespace,
        };
        concerned.then(|| self.hold.clone())
    }
}
