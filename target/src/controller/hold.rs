//! Holds: each counts a command of an I/O queue, on any core, until it ends.

use std::fmt;
use std::sync::Arc;

/// Token kept by each command that something waits for.
#[derive(Clone, Debug)]
#[must_use]
pub struct CommandHold(Arc<dyn fmt::Debug + Send + Sync>);

impl CommandHold {
    /// Creates a hold for commands: `waiting` is dropped with the last clone.
    pub(super) fn new(waiting: impl fmt::Debug + Send + Sync + 'static) -> Self {
        Self(Arc::new(waiting))
    }
}

impl PartialEq for CommandHold {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for CommandHold {}
