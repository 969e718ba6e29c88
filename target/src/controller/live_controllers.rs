//! Live controllers of a target, by CNTLID.

use std::collections::BTreeMap;
use std::sync::Arc;

use nvme_proto::Cntlid;

use super::state::Controller;
use crate::limits::displacing_set::DisplacingSet;
use crate::limits::{CntlidRange, MAX_ASSOCIATIONS};

/// Live controllers, locked by the control path only.
#[derive(Debug)]
pub(super) struct LiveControllers {
    /// Controllers of configured subsystems.
    pub(super) hosts: Controllers,
    /// Controllers of the discovery service, with a separate range of CNTLIDs.
    pub(super) discovery: Controllers,
    /// Discovery controllers that may be displaced, oldest first.
    pub(super) discovery_by_age: DisplacingSet<Cntlid>,
}

/// Live controllers by CNTLID.
#[derive(Debug)]
pub(super) struct Controllers {
    live: BTreeMap<u16, Arc<Controller>>,
    ids: CntlidRange,
    next: u16,
}

impl LiveControllers {
    /// Controllers of the discovery service or of subsystems.
    pub(super) fn of(&mut self, is_discovery: bool) -> &mut Controllers {
        if is_discovery { &mut self.discovery } else { &mut self.hosts }
    }
}

impl Controllers {
    pub(super) fn new(ids: CntlidRange) -> Self {
        Self { live: BTreeMap::new(), ids, next: ids.first }
    }

    /// Controller with the CNTLID.
    pub(super) fn get(&self, cntlid: Cntlid) -> Option<Arc<Controller>> {
        self.live.get(&cntlid.0).cloned()
    }

    /// All of them by CNTLID.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Controller>> {
        self.live.values()
    }

    /// Removes a controller that has ended.
    pub(super) fn remove(&mut self, cntlid: Cntlid) {
        self.live.remove(&cntlid.0);
    }

    /// Adds a controller unless there are too many.
    pub(super) fn add(
        &mut self,
        make: impl FnOnce(Cntlid) -> Controller,
    ) -> Option<Arc<Controller>> {
        if self.live.len() >= MAX_ASSOCIATIONS.min(self.ids.count()) {
            return None;
        }
        let id = self.free_id();
        let controller = Arc::new(make(Cntlid(id)));
        self.live.insert(id, Arc::clone(&controller));
        Some(controller)
    }

    /// Next CNTLID in turn without a live controller. There are fewer controllers than CNTLIDs.
    fn free_id(&mut self) -> u16 {
        loop {
            let id = self.next;
            self.next = self.ids.next(id);
            if !self.live.contains_key(&id) {
                return id;
            }
        }
    }
}
