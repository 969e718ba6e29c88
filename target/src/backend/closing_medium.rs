//! A medium that is about to be closed.

use std::sync::{Arc, Weak};

use super::{Backend, FileId};

/// The backend of a removed namespace, and its files. It keeps no file open.
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
