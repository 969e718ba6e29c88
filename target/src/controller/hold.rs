//! What tells a controller that commands of its I/O queues are over, wherever they were under way.

use std::sync::Arc;

use super::Controller;
use super::link::QueueLink;

/// Kept by each command that something waits for. The controller hears of it when the last clone is dropped.
#[derive(Clone, Debug)]
#[must_use]
pub struct Hold(Arc<Awaited>);

#[derive(Debug)]
struct Awaited {
    controller: Arc<Controller>,
    link: Arc<QueueLink>,
}

impl Hold {
    /// For commands that storage works on though the connection of their queue has ended.
    pub(super) fn departure(controller: Arc<Controller>, link: Arc<QueueLink>) -> Self {
        Self(Arc::new(Awaited { controller, link }))
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        self.controller.queue_gone(&self.link);
    }
}

impl PartialEq for Hold {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Hold {}
