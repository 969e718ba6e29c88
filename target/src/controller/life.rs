//! Controller life cycle by CC and CSTS: enable, reset, shutdown, end (Base, 3.5 and 3.6).

use nvme_proto::Status;
use nvme_proto::registers::{Cc, CcCss, Csts, ShutdownNotification, ShutdownStatus};

use super::event::CloseReason;
use super::features::Features;
use super::stage::RegisterPhase;
use super::state::{Controller, SharedState};
use crate::deliberate_bugs::{self, Bug};

impl Controller {
    /// Handles a write of CC (Base, 3.1.4.5): enable, reset, shut down, or none of these.
    ///
    /// # Errors
    /// COMMAND_SEQUENCE_ERROR if CC.EN is set while CSTS.RDY is still 1 from before the reset.
    pub(super) fn configure(&self, new: Cc) -> Result<(), Status> {
        let mut shared = self.shared();
        let old = shared.cc;
        if !old.en() && new.en() && shared.csts.rdy() {
            return Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr());
        }
        shared.cc = new;
        if old.en() && !new.en() {
            self.reset(&mut shared);
        } else if !old.en() && new.en() {
            self.enable(&mut shared, new);
        }
        if new.shn() != ShutdownNotification::NONE {
            self.shut_down(&mut shared);
        } else if old.shn() != ShutdownNotification::NONE {
            shared.csts.set_shst(ShutdownStatus::NORMAL);
        }
        Ok(())
    }

    fn enable(&self, shared: &mut SharedState, cc: Cc) {
        let sizes = cc.iosqes() == Cc::IOSQES && cc.iocqes() == Cc::IOCQES;
        let usable = cc.css() == CcCss::NVM && cc.mps() == 0 && cc.ams() == 0;
        if usable && (sizes || self.is_discovery()) {
            shared.csts = Csts::new().with_rdy(true);
            self.stage.set(RegisterPhase::Ready);
        } else {
            tracing::debug!(cntlid = %self.cntlid, peer = %self.peer, ?cc, "unsupported configuration");
            shared.csts.set_cfs(true);
            self.stage.set(RegisterPhase::Fatal);
        }
    }

    /// Starts a controller reset: ends I/O queues, aborts parked commands, and restores the
    /// defaults of features. CSTS.RDY becomes 0 when the I/O queues are gone and their commands
    /// that change the medium have ended.
    fn reset(&self, shared: &mut SharedState) {
        self.stage.set(RegisterPhase::Disabled);
        shared.members.close_io_queues(CloseReason::Reset);
        let waits = shared.members.is_leaving() && !deliberate_bugs::has(Bug::ResetEarly);
        shared.csts = Csts::new().with_rdy(waits);
        shared.abort_jobs();
        shared.abort_async_events();
        shared.features = Features::new(self.limits.io_queues);
    }

    /// Completes a reset, if there is one: no I/O queue is leaving now.
    pub(super) fn all_have_left(&self, shared: &mut SharedState) {
        if !shared.cc.en() {
            shared.csts.set_rdy(false);
        }
    }

    /// Starts a shutdown: refuses new commands, waits for running ones and flushes. If the flush
    /// fails, CSTS.CFS is set and the shutdown never completes.
    fn shut_down(&self, shared: &mut SharedState) {
        if shared.csts.shst() != ShutdownStatus::NORMAL {
            return;
        }
        tracing::debug!(cntlid = %self.cntlid, "shut down by the host");
        self.stage.set(RegisterPhase::ShutDown);
        shared.abort_jobs();
        shared.abort_async_events();
        let status = match self.begin_shutdown(shared) {
            true => ShutdownStatus::OCCURRING,
            false => ShutdownStatus::COMPLETE,
        };
        shared.csts.set_shst(status);
    }
}
