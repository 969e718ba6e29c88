//! Work on media that a command of the admin queue asks for, as a list.

use std::sync::Arc;

use nvme_proto::{Cid, Status};

use super::event::JobId;
use crate::inventory::namespace::Namespace;

/// The jobs of one controller.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    pub(super) next: u32,
    pub(super) open: Vec<ControllerJob>,
}

#[derive(Debug)]
pub(super) struct ControllerJob {
    pub(super) id: JobId,
    pub(super) purpose: JobPurpose,
    /// Yet to be flushed.
    pub(super) namespaces: Vec<Arc<Namespace>>,
    pub(super) error: Option<Status>,
}

#[derive(Debug)]
pub(super) enum JobPurpose {
    /// CC.SHN: earlier writes are durable when CSTS.SHST says that the shutdown is complete.
    Shutdown,
    /// Set Features, Namespace Write Protection Config.
    Protect(Protect),
}

/// A change of write protection.
#[derive(Debug)]
pub(super) struct Protect {
    pub(super) cid: Cid,
    pub(super) namespace: Arc<Namespace>,
    /// Protected, or not any more.
    pub(super) protected: bool,
    /// The namespace was not protected before.
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
