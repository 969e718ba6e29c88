//! Kinds of controllers: I/O controllers and discovery controllers.

use std::sync::Arc;

use crate::inventory::subsystem::Subsystem;

/// Kind of a controller, with the subsystem of an I/O controller.
#[derive(Clone, Debug)]
pub(crate) enum ControllerKind {
    /// I/O controller, with access to the namespaces of a subsystem.
    Nvm(Arc<Subsystem>),
    /// Discovery controller, which has a discovery log and no namespaces.
    Discovery,
}
