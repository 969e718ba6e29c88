//! The two kinds of controllers.

use std::sync::Arc;

use crate::inventory::subsystem::Subsystem;

/// The service that a controller gives access to.
#[derive(Clone, Debug)]
pub(crate) enum ControllerKind {
    /// The namespaces of a subsystem.
    Nvm(Arc<Subsystem>),
    /// The discovery log, without namespaces.
    Discovery,
}
