//! A medium that is being closed.

use std::sync::{Arc, Weak};

use super::{Backend, FileId};

/// Backend of a removed namespace and the files that it has registered. Does not keep the files
/// open.
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
