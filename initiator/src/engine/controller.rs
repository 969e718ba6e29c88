//! State of a controller in an engine, connected or not.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use feedrail_auth::HostSetup;
use nvme_proto::identify::NamespaceList;
use nvme_proto::{Cqe, Nsid, view};
use rdma::Time;

use crate::engine::arena::{Arena, NamespaceKey, RangeKey, WrittenNamespace};
use crate::engine::block_plan::Geometry;
use crate::engine::breaker::Admission;
use crate::engine::check_state::{Check, Checks};
use crate::engine::earliest;
use crate::engine::health::{Health, KeepAlive};
use crate::engine::list_use::ListUse;
use crate::engine::namespace_identity::NamespaceIdentity;
use crate::engine::path_access::PathAccess;
use crate::engine::range_op::RangeOp;
use crate::engine::range_queues::RangeQueues;
use crate::engine::raw::RawQueue;
use crate::engine::results::Outbox;
use crate::engine::session::{ControllerPhase, Session};
use crate::engine::shard_routes::TargetLoad;
use crate::engine::wire::Domain;
use crate::memory::bounce::BouncePool;
use crate::memory::region::{CurrentScope, ErasedScope};
use crate::types::error::{Error, ErrorKind, SubsystemAddress};
use crate::types::options::ControllerOptions;

/// Blocks that a command may change whose range is not decoded.
const ALL_BLOCKS: Range<u64> = 0..u64::MAX;

/// A controller with its connection and the operations that wait for it.
pub(crate) struct ControllerState {
    pub(crate) target: Arc<SubsystemAddress>,
    pub(crate) options: ControllerOptions,
    pub(crate) session: Session,
    pub(crate) health: Health,
    pub(crate) ranges: RangeQueues,
    pub(crate) raws: RawQueue,
    pub(crate) checks: Checks,
    pub(crate) namespaces: Arena<NamespaceKey, Attached>,
    pub(crate) bounce: BouncePool,
    /// Protection domain of the queue pairs of all associations, and of the memory that they
    /// access. Regions that outlive the controller see that it is gone, and release their
    /// registration.
    pub(crate) scope: Arc<dyn ErasedScope>,
    /// Keys with which the host authenticates, if it has a secret.
    pub(crate) credentials: Option<Arc<HostSetup>>,
    /// Holder of that scope, through which the handles follow a change of provider.
    pub(crate) current_scope: Arc<CurrentScope>,
}

/// A namespace for which there are handles.
pub(crate) struct Attached {
    pub(crate) nsid: Nsid,
    pub(crate) identity: NamespaceIdentity,
    pub(crate) geometry: Geometry,
    /// State of the access to it over this controller.
    pub(crate) access: PathAccess,
    /// Number of handles; at zero it is removed once no command to it is in flight.
    pub(crate) holders: usize,
    /// Error of all commands, if it is no longer the namespace that was opened.
    pub(crate) gone: Option<Error>,
    pub(crate) check: Check,
    /// Ranges that wait for the check or the access state.
    pub(crate) waiting: VecDeque<RangeKey>,
    /// Key of the namespace in the host's table of writes.
    pub(crate) written: WrittenNamespace,
    /// Whether its ranges are read with lists now.
    pub(crate) lists: ListUse,
}

impl ControllerState {
    /// Returns a controller that is not connected yet.
    pub(crate) fn new(
        target: Arc<SubsystemAddress>,
        options: ControllerOptions,
        session: Session,
        credentials: Option<Arc<HostSetup>>,
        Domain { scope, bounce }: Domain,
    ) -> Self {
        Self {
            target,
            options,
            session,
            health: Health::default(),
            ranges: RangeQueues::default(),
            raws: RawQueue::default(),
            checks: Checks::default(),
            namespaces: Arena::default(),
            bounce,
            credentials,
            current_scope: Arc::new(CurrentScope::new(Arc::clone(&scope))),
            scope,
        }
    }

    /// Assigns another protection domain to a controller without a connection, whose memory is then
    /// registered there.
    pub(crate) fn enter(&mut self, domain: Domain) {
        self.current_scope.set(Arc::clone(&domain.scope));
        (self.scope, self.bounce) = (domain.scope, domain.bounce);
    }

    /// Returns whether the queue that was connected last has to be authenticated: the target
    /// requires it, or this host wants to know who the target is.
    pub(crate) fn wants_authentication(&self) -> bool {
        let demands = |setup: &Arc<HostSetup>| setup.controller_key.is_some();
        self.session.auth.is_required || self.credentials.as_ref().is_some_and(demands)
    }

    /// Handles that a connection was established without authentication.
    pub(crate) fn note_no_authentication(&mut self, outbox: &mut Outbox) {
        if self.credentials.is_some() {
            let target = &self.target;
            tracing::info!(%target, "the target requires no authentication, so the secret is unused");
        }
        for promise in std::mem::take(&mut self.session.auth.waiting) {
            let what = "the target requires no authentication";
            let error = Error::from(ErrorKind::Invalid(what)).of_target(&self.target);
            promise.keep(Err(error), outbox);
        }
    }

    /// Returns the load of the controller, by which replicas and paths are selected.
    pub(crate) fn load(&self, now: Time) -> TargetLoad {
        match self.health.breaker.admission(now) {
            _ if self.session.refusal().is_some() => TargetLoad::Lost,
            _ if !self.session.is_live() => TargetLoad::Away,
            Admission::Yes => {
                TargetLoad::Serving(self.ranges.in_flight.bytes + self.ranges.unissued_bytes)
            }
            Admission::Probe => TargetLoad::Probe,
            Admission::No => TargetLoad::Avoided,
        }
    }

    /// Returns whether a namespace is accessible over it now.
    pub(crate) fn is_path_to(&self, namespace: NamespaceKey) -> bool {
        let attached = self.namespaces.get(namespace);
        self.session.is_live() && attached.is_some_and(|attached| attached.access.is_usable())
    }

    /// Returns whether commands of ranges or of checks are in flight.
    pub(crate) fn owes_answers(&self) -> bool {
        self.ranges.in_flight.commands > 0 || self.checks.are_under_way()
    }

    /// Starts the silence time-out if no response was outstanding; called before a command is sent.
    pub(crate) fn expect_answer(&mut self, now: Time) {
        if !self.owes_answers() {
            self.health.keep_alive.last_answer = now;
        }
        if self.health.keep_alive.watch.is_none() {
            self.health.keep_alive.watch = self.options.silence().map(|silence| now + silence / 2);
        }
    }

    /// Returns whether it is a discovery controller, which has no I/O queues.
    pub(crate) fn is_discovery(&self) -> bool {
        self.options.io_queues == 0
    }

    /// Returns an open namespace.
    ///
    /// # Errors
    /// The namespace was closed, or is no longer the one that was opened.
    pub(crate) fn namespace(&self, key: NamespaceKey) -> Result<&Attached, Error> {
        let attached = self.namespaces.get(key).ok_or(ErrorKind::Closed)?;
        match &attached.gone {
            Some(error) => Err(error.clone()),
            None => Ok(attached),
        }
    }

    /// Returns the error of an operation without a result in time: the cause of the missing
    /// connection, the access state of the namespace, or a time-out.
    pub(crate) fn no_result(&self, namespace: Option<NamespaceKey>, after: Duration) -> Error {
        let attached = namespace.and_then(|number| self.namespaces.get(number));
        let obstacle = attached.and_then(|attached| attached.access.obstacle());
        let cause = self.session.outage.as_ref().map(|outage| outage.cause.clone());
        let kind = match (cause, obstacle) {
            (Some(cause), _) => ErrorKind::Lost { after, cause: Box::new(cause) },
            (None, Some(status)) => ErrorKind::Status(status),
            (None, None) => ErrorKind::TimedOut { after },
        };
        Error::new(kind).of_target(&self.target)
    }

    /// Returns whether ranges of a namespace wait only for room in the queues. True for a namespace
    /// that was closed, whose ranges then fail.
    pub(crate) fn is_usable(&self, namespace: NamespaceKey) -> bool {
        self.session.is_live() && self.namespaces.get(namespace).is_none_or(Attached::is_ready)
    }

    /// Queues writes and commands that waited for writes of this host; false if none waited.
    pub(crate) fn resume_writes(&mut self, ops: &Arena<RangeKey, RangeOp>) -> bool {
        // Commands that wait for the check of their namespace are set aside again.
        self.ranges.resume_writes(ops) | self.raws.resume()
    }

    /// Removes ranges from the lists of waiting ranges.
    pub(crate) fn retain_waiting(&mut self, keep: impl Fn(RangeKey) -> bool) {
        self.ranges.retain(&keep);
        for attached in self.namespaces.values_mut() {
            attached.waiting.retain(|&queued| keep(queued));
        }
    }

    /// Schedules checks of the open namespaces that `which` selects.
    pub(crate) fn check_where(&mut self, which: impl Fn(Nsid) -> bool) {
        for (number, attached) in self.namespaces.iter_mut() {
            if attached.gone.is_some() || !which(attached.nsid) {
                continue;
            }
            match &mut attached.check {
                Check::Due => {}
                Check::Namespace { stale } | Check::Descriptors { stale, .. } => *stale = true,
                Check::Passed => {
                    attached.check = Check::Due;
                    self.checks.due.push_back(number);
                }
            }
        }
    }

    /// Schedules checks of the namespaces in a Changed Namespace List.
    pub(crate) fn check_changed(&mut self, cqe: &Cqe, data: &[u8]) {
        match view::<NamespaceList>(data) {
            // The specification requires a sorted list. If it is not sorted, all namespaces are
            // checked.
            Ok(list) if cqe.status().is_success() && *list != NamespaceList::TOO_MANY => {
                let changed: Vec<Nsid> = list.iter().collect();
                let sorted = changed.is_sorted();
                self.check_where(|nsid| !sorted || changed.binary_search(&nsid).is_ok());
            }
            _ => self.check_where(|_| true),
        }
    }

    /// Discards the state of the checks after the connection was lost.
    pub(crate) fn forget_checks(&mut self) {
        self.checks.forget();
        for attached in self.namespaces.values_mut() {
            attached.check = Check::Passed;
        }
    }

    /// Returns whether there is a command to send, which is then the first in line. Those before it
    /// are set aside if they wait for a check or a fence, or fail if their namespace has
    /// changed.
    pub(crate) fn takes_raw(&mut self, outbox: &mut Outbox) -> bool {
        while let Some(raw) = self.raws.waiting.front() {
            let Some(number) = raw.namespace else { return true };
            let alters = raw.alters;
            let passed = self.namespace(number).map(|attached| {
                let mut is_fenced = || outbox.writes.is_fenced(attached.written, &ALL_BLOCKS);
                attached.check.is_passed() && !(alters && is_fenced())
            });
            if matches!(passed, Ok(true)) {
                return true;
            }
            match passed {
                Ok(_) => self.raws.set_aside(),
                Err(error) => {
                    if let Some(raw) = self.raws.waiting.pop_front() {
                        raw.promise.keep(Err(error), outbox);
                    }
                }
            }
        }
        false
    }

    /// Returns when the next action of the controller is due.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let live = match &self.session.phase {
            ControllerPhase::Dead(_) => return None,
            ControllerPhase::Live(_) => {
                let KeepAlive { next, watch, .. } = self.health.keep_alive;
                let checks = self.checks.next(self.options.admin_timeout);
                let own = earliest(checks, self.session.auth.deadline());
                earliest(own, earliest(earliest(next, watch), self.ranges.next_delayed()))
            }
            _ => None,
        };
        let session = self.session.deadline(self.options.loss_timeout);
        earliest(live, earliest(session, self.raws.expiry))
    }
}

impl Attached {
    /// Returns whether commands may be sent to it: its check has passed, and they do not wait for
    /// its access state.
    pub(crate) fn is_ready(&self) -> bool {
        self.check.is_passed() && self.access.obstacle().is_none()
    }
}
