//! The two kinds of controllers.

use std::sync::Arc;

use crate::inventory::subsystem::Subsystem;

/// What a controller offers.
#[derive(Clone, Debug)]
pub(crate) enum ControllerKind {
    /// The namespaces of a subsystem.
    Nvm(Arc<Subsystem>),
    /// The discovery log.
    Discovery,
}
