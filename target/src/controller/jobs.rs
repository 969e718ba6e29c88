//! Jobs: work on media that an admin command asks for.

use std::sync::Arc;

use nvme_proto::{Cid, Status};

use super::event::JobId;
use crate::inventory::namespace::Namespace;

/// Running jobs of one controller.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    pub(super) next: u32,
    pub(super) open: Vec<ControllerJob>,
}

#[derive(Debug)]
pub(super) struct ControllerJob {
    pub(super) id: JobId,
    pub(super) purpose: JobPurpose,
    /// Namespaces that are still to be flushed.
    pub(super) namespaces: Vec<Arc<Namespace>>,
    pub(super) error: Option<Status>,
}

#[derive(Debug)]
pub(super) enum JobPurpose {
    /// Shutdown (CC.SHN): earlier writes are durable when CSTS.SHST reports completion.
    Shutdown,
    /// Set Features, Namespace Write Protection Config.
    Protect(Protect),
}

/// Change of write protection.
#[derive(Debug)]
pub(super) struct Protect {
    pub(super) cid: Cid,
    pub(super) namespace: Arc<Namespace>,
    /// Whether to set or clear the protection.
    pub(super) protected: bool,
    /// Whether the namespace was unprotected before.
    pub(super) first: bool,
}

impl Jobs {
    pub(super) fn begin(&mut self, purpose: JobPurpose, namespaces: Vec<Arc<Namespace>>) -> JobId {
        let id = JobId(self.next);
        self.next = (self.next + 1) & (u32::MAX >> 1);
        self.open.push(ControllerJob { id, purpose, namespaces, error: None });
        id
    }

    pub(super) fn get(&mut self, id: JobId) -> Option<&mut ControllerJob> {
        self.open.iter_mut().find(|job| job.id == id)
    }

    pub(super) fn take(&mut self, id: JobId) -> Option<ControllerJob> {
        let at = self.open.iter().position(|job| job.id == id)?;
        Some(self.open.swap_remove(at))
    }
}
