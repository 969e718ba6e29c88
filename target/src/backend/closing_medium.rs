//! Medium of a removed namespace, until all cores have finished their operations on it.

use std::sync::{Arc, Weak};

use super::{Backend, FileId};

/// Backend of a removed namespace, and the files of it that rings may have registered. The weak
/// reference does not keep the files open.
#[derive(Clone, Debug)]
pub(crate) struct ClosingMedium {
    pub(crate) backend: Weak<dyn Backend>,
    pub(crate) files: Vec<FileId>,
}

impl ClosingMedium {
    pub(crate) fn of(backend: &Arc<dyn Backend>, files: Vec<FileId>) -> Self {
        Self { backend: Arc::downgrade(backend), files }
    }
}
