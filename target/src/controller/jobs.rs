//! Jobs: flushes that an admin command requires before its response.

use std::sync::Arc;

use nvme_proto::{Cid, Status};

use super::event::JobId;
use crate::inventory::namespace::Namespace;

/// Jobs of one controller that have not ended.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    pub(super) next: u32,
    pub(super) open: Vec<ControllerJob>,
}

#[derive(Debug)]
pub(super) struct ControllerJob {
    pub(super) id: JobId,
    pub(super) purpose: JobPurpose,
    pub(super) namespaces: Vec<Arc<Namespace>>,
    /// Status for the first flush that failed.
    pub(super) error: Option<Status>,
}

/// Reason for which a job flushes.
#[derive(Debug)]
pub(super) enum JobPurpose {
    /// Shutdown (CC.SHN): earlier writes are durable when CSTS.SHST reports completion.
    Shutdown,
    /// Set Features (Namespace Write Protection Config).
    Protect(Protect),
}

/// Change of the write protection of one namespace.
#[derive(Debug)]
pub(super) struct Protect {
    /// CID of the Set Features command, which waits for the end of the job.
    pub(super) cid: Cid,
    pub(super) namespace: Arc<Namespace>,
    /// True sets the protection, false clears it.
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
