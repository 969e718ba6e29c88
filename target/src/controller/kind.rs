//! Kinds of controllers: I/O and discovery.

use std::sync::Arc;

use crate::inventory::subsystem::Subsystem;

/// Service that a controller gives access to.
#[derive(Clone, Debug)]
pub(crate) enum ControllerKind {
    /// The namespaces of a subsystem.
    Nvm(Arc<Subsystem>),
    /// The discovery log, without namespaces.
    Discovery,
}
