//! Events that the rest of an association sends to a queue's owner.

use nvme_proto::Cid;

use super::command::{CommandOutcome, IoWork};
use super::hold::CommandHold;
use crate::inventory::index::NamespaceIndex;

/// An action that the owner of a queue has to take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueEvent {
    /// A parked command ended: respond.
    Complete {
        /// The command, as the host numbered it.
        cid: Cid,
        /// Result and status to respond with.
        outcome: CommandOutcome,
    },
    /// The host wants a command of this queue aborted. Try, respond to the command itself if that
    /// worked (Command Abort Requested), and say so with
    /// [`Queue::answer_abort`](super::Queue::answer_abort).
    Abort(AbortRequest),
    /// A job waits for commands of this queue that were taken up before: each keeps the hold of
    /// `Settle::of` until it is over.
    Settle(Settle),
    /// The medium of a namespace is to be flushed. Tell [`Queue::flushed`](super::Queue::flushed)
    /// how that ended.
    Flush(FlushJob),
    /// The association ended, or this queue must not go on: close the connection.
    Close(CloseReason),
}

/// A wish to have a command aborted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AbortRequest {
    /// The command to abort.
    pub cid: Cid,
    /// The Abort command, on the admin queue.
    pub(super) asked_by: Cid,
}

/// Why a queue must close.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CloseReason {
    /// No Connect command came in time.
    #[error("no Connect command within {} s", crate::limits::CONNECT_TIMEOUT.as_secs())]
    ConnectTimeout,
    /// The host sent nothing for its keep-alive time-out.
    #[error("keep alive time-out")]
    KeepAlive,
    /// The host never enabled the controller.
    #[error("controller not enabled within {} s", crate::limits::ENABLE_TIMEOUT.as_secs())]
    EnableTimeout,
    /// The admin queue of the association ended.
    #[error("the admin queue of the association ended")]
    AssociationEnded,
    /// The connection has ended, and the host has connected another one as this queue.
    #[error("the connection was lost")]
    Lost,
    /// It is a discovery controller, whose number is limited.
    #[error("newer discovery controllers need its place")]
    Displaced,
    /// The host reset the controller, which ends its I/O queues.
    #[error("controller reset")]
    Reset,
    /// The hosts that may use the subsystem were changed.
    #[error("the host may not use the subsystem any more")]
    HostRemoved,
    /// The subsystem was removed, or is not served at the address of the connection any more.
    #[error("the subsystem is not served at this address any more")]
    ListenerRemoved,
    /// The target is stopping.
    #[error("the target is stopping")]
    Stopping,
}

/// Names a job of one controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JobId(pub(super) u32);

/// A flush of a namespace's medium, to be reported with [`Queue::flushed`](super::Queue::flushed).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushJob {
    /// The namespace whose medium is flushed.
    pub namespace: NamespaceIndex,
    pub(super) job: JobId,
}

impl FlushJob {
    /// Distinguishes flushes that are under way at once; below 2^31.
    pub fn number(&self) -> u32 {
        self.job.0
    }
}

/// Commands of an I/O queue are to be over: see [`QueueEvent::Settle`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settle {
    pub(super) commands: AwaitedCommands,
    pub(super) hold: CommandHold,
}

/// The commands that are to be over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AwaitedCommands {
    /// All I/O commands of the queue.
    All,
    /// Those that change a medium.
    Changes,
    /// Those that change the medium of this namespace.
    ChangesOf(NamespaceIndex),
}

impl Settle {
    /// The hold that a command keeps until it is over, if a job waits for commands of its kind.
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
