//! Progress of jobs. An admin command that needs a flush waits until the I/O queues have finished
//! earlier commands; then the owner of the admin queue flushes.

use std::sync::Arc;

use nvme_proto::registers::ShutdownStatus;
use nvme_proto::{Cid, Status};
use rdma::Time;

use super::command::IoKind;
use super::dispatch::status_of;
use super::event::{AwaitedCommands, FlushJob, JobId, QueueEvent, Quiesce};
use super::hold::CommandHold;
use super::jobs::{ControllerJob, JobPurpose, Protect};
use super::link::QueueLink;
use super::state::{Controller, SharedState};
use crate::backend::BackendError;
use crate::inventory::namespace::Namespace;
use crate::inventory::persist::protection::ProtectionError;

/// Value in the hold of a job's commands. Its drop notifies the admin queue that they have ended.
#[derive(Debug)]
struct JobWait {
    admin: Arc<QueueLink>,
    job: JobId,
}

impl Drop for JobWait {
    fn drop(&mut self) {
        // The caller may hold a controller's lock, so the drop locks only the mailbox.
        self.admin.quiesced(self.job);
    }
}

impl SharedState {
    /// Drops all jobs, at a reset or shutdown; aborts the commands that wait for them.
    pub(super) fn abort_jobs(&mut self) {
        for job in std::mem::take(&mut self.jobs.open) {
            if let JobPurpose::Protect(protect) = job.purpose {
                self.members.complete(protect.cid, Status::ABORT_REQUESTED.into());
            }
        }
    }
}

impl Controller {
    /// Starts the flushes of a shutdown: once the running commands that change a medium have ended,
    /// all writable media are flushed. False if there is nothing to flush.
    pub(super) fn begin_shutdown(&self, shared: &mut SharedState) -> bool {
        let all = self.subsystem().map(|subsystem| subsystem.namespaces()).unwrap_or_default();
        let writable: Vec<_> = all.iter().filter(|namespace| namespace.writable).cloned().collect();
        let Some(admin) = shared.members.admin().filter(|_| !writable.is_empty()).cloned() else {
            return false;
        };
        let hold = CommandHold::new(JobWait {
            admin,
            job: shared.jobs.begin(JobPurpose::Shutdown, writable),
        });
        shared.members.quiesce(&Quiesce { commands: AwaitedCommands::Changes, hold });
        true
    }

    /// Starts to write protect a namespace: earlier commands of all hosts that change it end first,
    /// then they are flushed and the protection is stored in the state folder; then the response to
    /// `cid` is sent. `first`: whether the namespace was unprotected before. False if the admin
    /// queue that would respond has ended.
    pub(super) fn begin_protection(
        &self,
        cid: Cid,
        namespace: &Arc<Namespace>,
        first: bool,
    ) -> bool {
        let associations = self.associations.upgrade();
        let (Some(associations), Some(subsystem)) = (associations, self.subsystem()) else {
            return false;
        };
        let mut shared = self.shared();
        let Some(admin) = shared.members.admin().cloned() else { return false };
        let protect = Protect { cid, namespace: Arc::clone(namespace), protected: true, first };
        let purpose = JobPurpose::Protect(protect);
        let hold = CommandHold::new(JobWait {
            admin,
            job: shared.jobs.begin(purpose, vec![Arc::clone(namespace)]),
        });
        drop(shared);
        let quiesce = Quiesce { commands: AwaitedCommands::ChangesOf(namespace.index), hold };
        for controller in associations.controllers() {
            if controller.subsystem().is_some_and(|other| Arc::ptr_eq(other, subsystem)) {
                controller.shared().members.quiesce(&quiesce);
            }
        }
        true
    }

    /// Starts to clear a write protection: that is stored in the state folder first; then the
    /// response to `cid` is sent. False if there is no state folder.
    pub(super) fn begin_lifting(&self, cid: Cid, namespace: &Arc<Namespace>) -> bool {
        let mut shared = self.shared();
        let namespace = Arc::clone(namespace);
        let protect = Protect { cid, namespace, protected: false, first: false };
        let id = shared.jobs.begin(JobPurpose::Protect(protect), Vec::new());
        let later = self.keep(&mut shared, id);
        if !later {
            shared.jobs.take(id);
        }
        later
    }

    /// Writes the protection of a job to the state folder. Returns false if the job changes none.
    fn keep(&self, shared: &mut SharedState, id: JobId) -> bool {
        let associations = self.associations.upgrade();
        let (Some(associations), Some(subsystem)) = (associations, self.subsystem()) else {
            return false;
        };
        let Some(admin) = shared.members.admin().cloned() else { return false };
        let Some(ControllerJob { purpose: JobPurpose::Protect(protect), .. }) = shared.jobs.get(id)
        else {
            return false;
        };
        let done = move |result: Result<(), ProtectionError>| {
            if let Err(error) = &result {
                tracing::error!("a host's change of write protection is refused: {error}");
            }
            admin.kept(id, result.is_ok());
        };
        associations.inventory().keep_protection(
            subsystem,
            &protect.namespace,
            protect.protected,
            done,
        )
    }

    /// Ends a job after its protection was written to the state folder (`well`), or could not be.
    pub(super) fn kept(&self, id: JobId, well: bool) {
        let job = self.shared().jobs.take(id);
        let Some(ControllerJob { purpose: JobPurpose::Protect(protect), .. }) = job else { return };
        self.end_protection(&protect, if well { Status::SUCCESS } else { Status::INTERNAL_ERROR });
    }

    /// Responds to a change of write protection. If it failed, the namespace is as before.
    fn end_protection(&self, protect: &Protect, status: Status) {
        let lifts = match status.is_success() {
            true => !protect.protected,
            false => protect.first,
        };
        if lifts && protect.namespace.protect(false) {
            self.notify_namespace_changed(protect.namespace.nsid);
        }
        self.shared().members.complete(protect.cid, status.into());
    }

    /// Continues a job after the commands that it waited for, or one of its flushes, have ended.
    pub(super) fn go_on(&self, id: JobId) {
        let mut shared = self.shared();
        let Some(job) = shared.jobs.get(id) else { return };
        if let Some(namespace) = job.namespaces.pop() {
            let flush = FlushJob { namespace: namespace.index, job: id };
            if let Some(admin) = shared.members.admin() {
                admin.post(QueueEvent::Flush(flush));
            }
            return;
        }
        let flushed = job.error.is_none();
        if flushed && self.keep(&mut shared, id) {
            return;
        }
        let Some(ControllerJob { purpose, error, .. }) = shared.jobs.take(id) else { return };
        match purpose {
            JobPurpose::Shutdown if error.is_some() => shared.csts.set_cfs(true),
            JobPurpose::Shutdown => shared.csts.set_shst(ShutdownStatus::COMPLETE),
            JobPurpose::Protect(protect) => {
                drop(shared);
                self.end_protection(&protect, error.unwrap_or(Status::SUCCESS));
            }
        }
    }

    /// Records the result of a flush, and continues its job.
    pub(super) fn flushed(&self, now: Time, flush: FlushJob, result: Result<(), BackendError>) {
        if let Err(error) = result {
            let mut shared = self.shared();
            if let Some(job) = shared.jobs.get(flush.job) {
                job.error.get_or_insert(status_of(error, IoKind::Flush));
            }
            drop(shared);
            let associations = self.associations.upgrade();
            if associations.is_some_and(|associations| associations.log_rate().admit(now)) {
                tracing::error!(
                    cntlid = %self.cntlid, host = %self.host.nqn, namespace = %flush.namespace, %error,
                    "a flush failed that the host asked for with a shutdown or a write protection: \
                     what was written last may be lost"
                );
            }
        }
        self.go_on(flush.job);
    }
}
