//! Events sent to a queue's owner by other parts of its association.

use nvme_proto::Cid;

use super::command::{CommandOutcome, IoWork};
use super::hold::CommandHold;
use crate::inventory::index::NamespaceIndex;

/// Action that the owner of a queue has to take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueEvent {
    /// Respond to a parked command that has ended.
    Complete {
        /// Command identifier chosen by the host.
        cid: Cid,
        /// Result and status of the response.
        outcome: CommandOutcome,
    },
    /// Try to abort a command of this queue for the host. On success respond to it with Command
    /// Abort Requested; report the result with [`Queue::answer_abort`](super::Queue::answer_abort).
    Abort(AbortRequest),
    /// Attach the hold of `Quiesce::of` to each running command of this queue until it ends,
    /// because a job waits for them.
    Quiesce(Quiesce),
    /// Flush the medium of a namespace, and report the result with
    /// [`Queue::flushed`](super::Queue::flushed).
    Flush(FlushJob),
    /// Close the connection: the association ended, or this queue must not continue.
    Close(CloseReason),
}

/// Request to abort a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbortRequest {
    /// Command that is to be aborted.
    pub cid: Cid,
    /// Abort command on the admin queue.
    pub(super) asked_by: Cid,
}

/// Reason that a queue must close.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CloseReason {
    /// No Connect command came in time.
    #[error("no Connect command within {} s", crate::limits::CONNECT_TIMEOUT.as_secs())]
    ConnectTimeout,
    /// The host sent no command for its Keep Alive Timeout.
    #[error("keep alive time-out")]
    KeepAlive,
    /// The host never enabled the controller.
    #[error("controller not enabled within {} s", crate::limits::ENABLE_TIMEOUT.as_secs())]
    EnableTimeout,
    /// The admin queue of the association ended.
    #[error("the admin queue of the association ended")]
    AssociationEnded,
    /// The connection has ended, and the host has reconnected the queue.
    #[error("the connection was lost")]
    Lost,
    /// A newer discovery controller took its place, since their number is limited.
    #[error("newer discovery controllers need its place")]
    Displaced,
    /// The host reset the controller, which ends its I/O queues.
    #[error("controller reset")]
    Reset,
    /// The hosts that may use the subsystem were changed.
    #[error("the host is no longer allowed to use the subsystem")]
    HostRemoved,
    /// The subsystem was removed, or is no longer served at the address of the connection.
    #[error("the subsystem is no longer served at this address")]
    ListenerRemoved,
    /// The target is stopping.
    #[error("the target is stopping")]
    Stopping,
}

/// Number of a job of one controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JobId(pub(super) u32);

/// A flush of a namespace's medium, to be reported with [`Queue::flushed`](super::Queue::flushed).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushJob {
    /// Namespace whose medium is flushed.
    pub namespace: NamespaceIndex,
    pub(super) job: JobId,
}

impl FlushJob {
    /// Number that distinguishes concurrent flushes; below 2^31.
    pub fn number(&self) -> u32 {
        self.job.0
    }
}

/// Request to attach a hold to running commands of an I/O queue: see [`QueueEvent::Quiesce`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quiesce {
    pub(super) commands: AwaitedCommands,
    pub(super) hold: CommandHold,
}

/// Commands that a job waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AwaitedCommands {
    /// All I/O commands of the queue.
    All,
    /// I/O commands that change a medium.
    Changes,
    /// I/O commands that change the medium of this namespace.
    ChangesOf(NamespaceIndex),
}

impl Quiesce {
    /// Hold for a command, if the job waits for commands of its kind.
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
