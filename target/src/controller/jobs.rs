//! Work on media that a command of the admin queue asks for: I/O queues finish earlier commands,
//! then the owner of the admin queue flushes.

use std::sync::Arc;

use nvme_proto::registers::ShutdownStatus;
use nvme_proto::{Cid, Status};
use rdma::Time;

use super::command::{IoKind, QueueEvent};
use super::hold::CommandHold;
use super::{Controller, SharedState, io};
use crate::backend::BackendError;
use crate::inventory::namespace::{Namespace, NamespaceIndex};
use crate::inventory::persist::protection::ProtectionError;

/// Names a job of one controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JobId(u32);

/// A flush of a namespace's medium, to be reported with [`Queue::flushed`](super::Queue::flushed).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushJob {
    /// The namespace.
    pub namespace: NamespaceIndex,
    job: JobId,
}

impl FlushJob {
    /// Distinguishes flushes that are under way at once; below 2^31.
    pub fn number(&self) -> u32 {
        self.job.0
    }
}

/// The jobs of one controller.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    next: u32,
    open: Vec<ControllerJob>,
}

#[derive(Debug)]
struct ControllerJob {
    id: JobId,
    purpose: JobPurpose,
    /// Yet to be flushed.
    namespaces: Vec<Arc<Namespace>>,
    error: Option<Status>,
}

#[derive(Debug)]
enum JobPurpose {
    /// CC.SHN: what was written is safe when CSTS.SHST says that the shutdown is complete.
    Shutdown,
    /// Set Features, Namespace Write Protection Config.
    Protect(Protect),
}

/// A change of write protection.
#[derive(Debug)]
struct Protect {
    cid: Cid,
    namespace: Arc<Namespace>,
    /// Protected, or not any more.
    protected: bool,
    /// The namespace was not protected before.
    first: bool,
}

impl Jobs {
    fn begin(&mut self, purpose: JobPurpose, namespaces: Vec<Arc<Namespace>>) -> JobId {
        let id = JobId(self.next);
        self.next = (self.next + 1) & (u32::MAX >> 1);
        self.open.push(ControllerJob { id, purpose, namespaces, error: None });
        id
    }

    fn get(&mut self, id: JobId) -> Option<&mut ControllerJob> {
        self.open.iter_mut().find(|job| job.id == id)
    }

    fn take(&mut self, id: JobId) -> Option<ControllerJob> {
        let at = self.open.iter().position(|job| job.id == id)?;
        Some(self.open.swap_remove(at))
    }
}

impl SharedState {
    /// Gives up all jobs, as a reset does.
    pub(super) fn abort_jobs(&mut self) {
        for job in std::mem::take(&mut self.jobs.open) {
            if let JobPurpose::Protect(protect) = job.purpose {
                self.members.complete(protect.cid, Status::ABORT_REQUESTED.into());
            }
        }
    }
}

impl Controller {
    /// Begins a shutdown whose I/O queues take no more commands: flushes the medium of all that can
    /// be written when the commands are over that they have. False if there is nothing to do.
    pub(super) fn begin_shutdown(&self, shared: &mut SharedState) -> bool {
        let all = self.subsystem().map_or(&[][..], |subsystem| subsystem.namespaces());
        let writable: Vec<_> = all.iter().filter(|namespace| namespace.writable).cloned().collect();
        let Some(admin) = shared.members.admin().filter(|_| !writable.is_empty()).cloned() else {
            return false;
        };
        let hold = CommandHold::job(admin, shared.jobs.begin(JobPurpose::Shutdown, writable));
        for link in shared.members.io_queues() {
            link.post(QueueEvent::Settle(Settle { namespace: None, hold: hold.clone() }));
        }
        true
    }

    /// Write protects a namespace: commands that came earlier end first, on all queues of all
    /// hosts, and are flushed. The response to `cid` comes when that is done, and kept for later
    /// runs. `first` says that it was not protected before. False if there is nobody to respond to.
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
        let hold = CommandHold::job(admin, shared.jobs.begin(purpose, vec![Arc::clone(namespace)]));
        drop(shared);
        for controller in associations.controllers() {
            if controller.subsystem().is_some_and(|other| Arc::ptr_eq(other, subsystem)) {
                let settle = Settle { namespace: Some(namespace.index), hold: hold.clone() };
                for link in controller.shared().members.io_queues() {
                    link.post(QueueEvent::Settle(settle.clone()));
                }
            }
        }
        true
    }

    /// Lifts a write protection when that is kept for later runs; the response to `cid` comes then.
    /// False if nothing is kept.
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

    /// Has what a job wants kept for later runs. False if nothing is kept.
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
        associations.registry().keep_protection(
            subsystem,
            &protect.namespace,
            protect.protected,
            done,
        )
    }

    /// What a job wants kept for later runs is kept, or can not be.
    pub(super) fn kept(&self, id: JobId, well: bool) {
        let job = self.shared().jobs.take(id);
        let Some(ControllerJob { purpose: JobPurpose::Protect(protect), .. }) = job else { return };
        self.end_protection(&protect, if well { Status::SUCCESS } else { Status::INTERNAL_ERROR });
    }

    /// Responds to a change of write protection. One that failed has changed nothing.
    fn end_protection(&self, protect: &Protect, status: Status) {
        let lifts = match status.is_success() {
            true => !protect.protected,
            false => protect.first,
        };
        if lifts && protect.namespace.protect(false) {
            self.tell_namespace_changed(protect.namespace.nsid);
        }
        self.shared().members.complete(protect.cid, status.into());
    }

    /// Goes on with a job: commands that it waited for are over, or a flush is.
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

    /// How a flush ended.
    pub(super) fn flushed(&self, now: Time, flush: FlushJob, result: Result<(), BackendError>) {
        if let Err(error) = result {
            let mut shared = self.shared();
            if let Some(job) = shared.jobs.get(flush.job) {
                job.error.get_or_insert(io::status_of(error, IoKind::Flush));
            }
            drop(shared);
            let associations = self.associations.upgrade();
            if associations.is_some_and(|associations| associations.chatter().admit(now)) {
                tracing::error!(
                    cntlid = %self.cntlid, host = %self.host.nqn, namespace = flush.namespace.0, %error,
                    "a flush failed that the host asked for with a shutdown or a write protection: \
                     what was written last may be lost"
                );
            }
        }
        self.go_on(flush.job);
    }
}

/// Commands of an I/O queue are to be over: see [`QueueEvent::Settle`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settle {
    /// Those on this namespace; all if there is none.
    namespace: Option<NamespaceIndex>,
    hold: CommandHold,
}

impl Settle {
    /// What a command has to keep until it is over, if it is one of those that are waited for.
    pub fn of(&self, work: &super::IoWork) -> Option<CommandHold> {
        let concerned = self.namespace.is_none_or(|namespace| namespace == work.namespace);
        (concerned && work.kind.changes_medium()).then(|| self.hold.clone())
    }
}
