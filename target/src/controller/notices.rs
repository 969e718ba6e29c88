//! Asynchronous events: which controllers report a change, if their host enabled the event.

use std::sync::Arc;

use nvme_proto::async_event::AsyncEvent;
use nvme_proto::log::CriticalWarning;
use nvme_proto::{Cid, Nsid, Status};

use super::command::CommandOutcome;
use super::state::{Controller, SharedState};

impl Controller {
    pub(super) fn request_event(&self, cid: Cid) -> Result<Option<AsyncEvent>, Status> {
        self.shared().async_events.request(cid)
    }

    /// Drops an outstanding Asynchronous Event Request; false if none has the CID.
    pub(super) fn give_up_event(&self, cid: Cid) -> bool {
        self.shared().async_events.take_request(cid)
    }

    /// Reports that a medium of the subsystem is degraded (SMART critical warning, reliability).
    pub(crate) fn reliability_degraded(&self) {
        let mut shared = self.shared();
        let wanted = shared.features.async_events.smart_critical_warnings();
        if !self.is_ready() || !CriticalWarning::from_bits(wanted).reliability() {
            return;
        }
        shared.notify(AsyncEvent::RELIABILITY_DEGRADED);
    }

    /// Reports that a namespace's attributes have changed.
    pub(crate) fn namespace_changed(&self, nsid: Nsid) {
        let mut shared = self.shared();
        // Under the lock: a host that enables the controller later sees the change in Identify.
        if !self.is_ready() {
            return;
        }
        shared.async_events.add_changed(nsid);
        if !shared.features.async_events.namespace_attribute() {
            return;
        }
        shared.notify(AsyncEvent::NAMESPACE_ATTRIBUTE_CHANGED);
    }

    /// Reports that ANA states have changed.
    pub(crate) fn ana_changed(&self) {
        let mut shared = self.shared();
        if self.is_ready() && shared.features.async_events.ana_change() {
            shared.notify(AsyncEvent::ANA_CHANGED);
        }
    }

    /// Reports that the discovery log may have changed.
    pub(crate) fn discovery_log_changed(&self) {
        let mut shared = self.shared();
        if self.is_ready() && shared.features.async_events.discovery_log() {
            shared.notify(AsyncEvent::DISCOVERY_LOG_CHANGED);
        }
    }

    /// Notifies the other controllers that see the namespace; the host of this one made the change.
    pub(super) fn notify_namespace_changed(&self, nsid: Nsid) {
        let associations = self.associations.upgrade();
        let (Some(associations), Some(subsystem)) = (associations, self.subsystem()) else {
            return;
        };
        for other in associations.controllers() {
            let same = other.subsystem().is_some_and(|of| Arc::ptr_eq(of, subsystem));
            let sees = || other.namespace(nsid).is_some();
            if same && other.cntlid != self.cntlid && sees() {
                other.namespace_changed(nsid);
            }
        }
    }
}

impl SharedState {
    fn notify(&mut self, event: AsyncEvent) {
        if let Some(cid) = self.async_events.raise(event) {
            self.members.complete(cid, CommandOutcome::success(event.into_bits().into()));
        }
    }

    pub(super) fn abort_async_events(&mut self) {
        for cid in self.async_events.reset() {
            self.members.complete(cid, Status::ABORT_REQUESTED.into());
        }
    }
}
