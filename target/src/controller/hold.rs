//! Holds: running I/O commands keep one each, so that something can wait for their end.

use std::fmt;
use std::sync::Arc;

/// Shared token that a running command keeps until it ends. When the last copy is dropped, the
/// value in it is dropped, which continues whatever waited for the commands.
#[derive(Clone, Debug)]
#[must_use]
pub struct CommandHold(Arc<dyn fmt::Debug + Send + Sync>);

impl CommandHold {
    /// Creates a hold; `waiting` is dropped with the last clone.
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
