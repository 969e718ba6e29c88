//! What tells a controller that commands of its I/O queues are over, wherever they were under way.

use std::sync::Arc;

use super::Controller;
use super::jobs::JobId;
use super::link::QueueLink;

/// Kept by each command that something waits for. The controller hears of it when the last clone is
/// dropped.
#[derive(Clone, Debug)]
#[must_use]
pub struct CommandHold(Arc<Awaited>);

#[derive(Debug)]
enum Awaited {
    /// A queue is gone with its last command.
    Departure { controller: Arc<Controller>, link: Arc<QueueLink> },
    /// A job of the admin queue goes on.
    Job { admin: Arc<QueueLink>, job: JobId },
}

impl CommandHold {
    /// For commands that storage works on though the connection of their queue has ended.
    pub(super) fn departure(controller: Arc<Controller>, link: Arc<QueueLink>) -> Self {
        Self(Arc::new(Awaited::Departure { controller, link }))
    }

    /// For commands that a job of the admin queue waits for.
    pub(super) fn job(admin: Arc<QueueLink>, job: JobId) -> Self {
        Self(Arc::new(Awaited::Job { admin, job }))
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        match self {
            Self::Departure { controller, link } => controller.queue_gone(link),
            // Under the lock of a controller perhaps: its mailbox is all that this may touch.
            Self::Job { admin, job } => admin.settled(*job),
        }
    }
}

impl PartialEq for CommandHold {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for CommandHold {}
