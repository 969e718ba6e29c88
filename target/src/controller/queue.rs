//! NVMe queue of one connection, on the core that owns it.

use std::sync::Arc;
use std::task::Waker;

use nvme_proto::{Cid, Cntlid, Cqe, Nsid, Qid, Status};
use rdma::Time;

use super::associations::Associations;
use super::auth_state::QueueAuthState;
use super::command::{CommandOutcome, IoKind, IoWork};
use super::event::{AbortRequest, CloseReason, FlushJob, QueueEvent};
use super::hold::CommandHold;
use super::link::{Lost, QueueLink, QueueMessage};
use super::queue_auth::QueueAuth;
use super::stage::Epoch;
use super::state::Controller;
use super::support::{Opcodes, Support};
use crate::backend::BackendError;
use crate::inventory::ana::AnaStates;
use crate::inventory::index::NamespaceIndex;
use crate::inventory::namespace::Namespace;
use crate::inventory::port::Port;
use crate::inventory::published::{Exports, ExportsNumber};
use crate::inventory::subsystem::Subsystem;
use crate::limits::connection_quota::ConnectionPermit;
use crate::limits::peer::RemotePeer;
use crate::limits::{CONNECT_TIMEOUT, ENABLE_TIMEOUT, KNOWN_SUCCESSORS};
use crate::metrics::io_counters::{CoreIoCounters, CoreIoStats};
use crate::metrics::latency::Latency;

/// Parameters of a connection that the transport has accepted.
#[derive(Debug)]
pub struct Accepted {
    /// Port of the target that the host connected to.
    pub port: Arc<Port>,
    /// Queue identifier (QID) from the private data of the connection request.
    pub qid: Qid,
    /// Maximum queue size that its Connect command may request, as the transport negotiated.
    pub entries: u16,
    /// Address of the host, with its process if it is on this machine.
    pub peer: RemotePeer,
    /// Wakes the core that owns the connection; called from other cores.
    pub waker: Waker,
    /// Time at which the connection was accepted.
    pub now: Time,
    /// Flag that the connection manager sets when the connection has ended.
    pub lost: Arc<Lost>,
}

/// An NVMe queue. Its owner calls [`Queue::parse`] for each command and [`Queue::completion`] at
/// its end, [`Queue::poll`] in each turn, and [`Queue::close`] after the connection has ended.
#[derive(Debug)]
#[repr(C)]
pub struct Queue {
    pub(super) link: Arc<QueueLink>,
    /// I/O counters of the subsystem of the last Connect; those for unconnected queues before.
    pub(super) counters: CoreIoCounters,
    pub(super) qid: Qid,
    /// Size of the submission queue in entries: as negotiated, then as requested by Connect.
    pub(super) entries: u16,
    head: Head,
    pub(super) state: QueueState,
    /// Number of failed commands that are not yet counted against the peer.
    pub(super) failed: u64,
    pub(super) associations: Arc<Associations>,
    pub(super) port: Arc<Port>,
    io_stats: Arc<CoreIoStats>,
    pub(super) peer: RemotePeer,
}

/// State of a queue, which decides which commands it accepts.
#[derive(Debug)]
pub(super) enum QueueState {
    /// Only Connect, which the host has to send within `CONNECT_TIMEOUT` after `since`.
    Connecting { since: Time },
    /// Only authentication commands: Connect has succeeded, and the host has to authenticate.
    Authenticating(Membership),
    /// All commands of an admin or I/O queue, since Connect and, where it is demanded,
    /// authentication have succeeded.
    Live(Membership),
    /// No commands: the connection is ending.
    Ended,
}

/// Part of a queue in its association, since its Connect succeeded.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Membership {
    pub(super) controller: Arc<Controller>,
    /// Epoch in which the queue joined; its commands are refused in later ones (I/O queues only).
    pub(super) epoch: Epoch,
    /// Limits of the controller for each I/O command, which never change.
    pub(super) terms: IoTerms,
    /// Namespace of the last I/O command.
    last: Option<UsedNamespace>,
    /// Permit that counts the connection; `None` for a discovery controller.
    _place: Option<Box<ConnectionPermit>>,
    /// Start of the current Keep Alive interval (admin queue only).
    pub(super) interval_start: Time,
    /// Time since which the controller is not enabled; `None` while it is (admin queue only).
    pub(super) disabled_since: Option<Time>,
    /// Namespaces with a reused NSID that the host has identified (a cache of the controller's
    /// set).
    known: Vec<NamespaceIndex>,
    /// Whether this queue ended the association, so that it is counted once and timers are ignored.
    ended_association: bool,
    /// Authentication of the host on this queue; `None` if it is not demanded.
    pub(super) auth: Option<Box<QueueAuth>>,
}

/// Limits of a controller for I/O commands: a copy beside the other fields that a command reads.
#[derive(Debug)]
pub(super) struct IoTerms {
    pub(super) ana: Arc<AnaStates>,
    pub(super) opcodes: Opcodes,
    pub(super) support: Support,
    pub(super) max_transfer_bytes: u32,
}

/// Namespace that the host of a queue may use, in one generation of the exports.
#[derive(Clone, Copy, Debug)]
struct UsedNamespace {
    generation: ExportsNumber,
    nsid: Nsid,
    slot: u32,
}

impl Membership {
    /// Returns the namespace with an NSID, if the host may use it.
    ///
    /// # Errors
    /// Invalid Namespace or Format, if it may not.
    #[inline]
    pub(super) fn namespace<'a>(
        &mut self,
        exports: &'a Exports,
        nsid: Nsid,
    ) -> Result<&'a Namespace, Status> {
        if let Some(last) = self.last
            && last.nsid == nsid
            && last.generation == exports.generation()
            && let Some(namespace) = exports.in_slot(last.slot)
        {
            return Ok(namespace);
        }
        self.find_namespace(exports, nsid)
    }

    #[cold]
    fn find_namespace<'a>(
        &mut self,
        exports: &'a Exports,
        nsid: Nsid,
    ) -> Result<&'a Namespace, Status> {
        let of = self.controller.subsystem();
        let found = of.and_then(|subsystem| exports.list(subsystem.index).get(nsid));
        let found = found.filter(|namespace| namespace.is_visible_to(&self.controller.host));
        let namespace = found.ok_or(Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr())?;
        if namespace.takes_over && !self.knows(namespace) {
            return Err(Status::INVALID_NAMESPACE_OR_FORMAT.with_dnr());
        }
        let (generation, slot) = (exports.generation(), namespace.index.slot);
        self.last = Some(UsedNamespace { generation, nsid, slot });
        Ok(namespace)
    }

    /// Whether the host knows this namespace, whose NSID belonged to another namespace before.
    /// Takes the controller's lock only for the first command.
    fn knows(&mut self, namespace: &Namespace) -> bool {
        if self.known.contains(&namespace.index) {
            return true;
        }
        let knows = self.controller.knows(namespace);
        if knows {
            if self.known.len() >= KNOWN_SUCCESSORS {
                self.known.clear();
            }
            self.known.push(namespace.index);
        }
        knows
    }
}

/// Submission Queue Head Pointer (SQHD) of responses.
#[derive(Clone, Copy, Debug)]
pub(super) enum Head {
    /// Index of the head entry.
    At(u16),
    /// The host disabled flow control: SQHD is 0xFFFF.
    Disabled,
}

impl Queue {
    /// Creates a queue that waits for Connect. `io_stats` are the counters of its core.
    pub fn new(
        associations: Arc<Associations>,
        io_stats: Arc<CoreIoStats>,
        accepted: Accepted,
    ) -> Self {
        Self {
            associations,
            port: accepted.port,
            qid: accepted.qid,
            peer: accepted.peer,
            link: Arc::new(QueueLink::new(
                accepted.qid,
                accepted.waker,
                accepted.now,
                accepted.lost,
            )),
            counters: Arc::clone(&io_stats.unconnected),
            io_stats,
            failed: 0,
            state: QueueState::Connecting { since: accepted.now },
            entries: accepted.entries,
            head: Head::At(0),
        }
    }

    /// Queue identifier (QID); 0 is the admin queue.
    pub fn qid(&self) -> Qid {
        self.qid
    }

    /// CNTLID of the controller while the queue is connected.
    pub(crate) fn cntlid(&self) -> Option<Cntlid> {
        self.controller().map(|controller| controller.cntlid)
    }

    /// Whether [`Queue::leave`] was called.
    pub(crate) fn has_left(&self) -> bool {
        matches!(self.state, QueueState::Ended)
    }

    /// Whether the queue accepts all commands: Connect and authentication have succeeded, and the
    /// queue has not left the association.
    pub(crate) fn is_live(&self) -> bool {
        matches!(self.state, QueueState::Live(_))
    }

    /// Controller while the queue is live.
    pub(crate) fn controller(&self) -> Option<&Arc<Controller>> {
        match &self.state {
            QueueState::Live(live) => Some(&live.controller),
            _ => None,
        }
    }

    /// Part of the queue in its association, also before the host has authenticated.
    pub(super) fn membership(&self) -> Option<&Membership> {
        match &self.state {
            QueueState::Authenticating(membership) | QueueState::Live(membership) => {
                Some(membership)
            }
            QueueState::Connecting { .. } | QueueState::Ended => None,
        }
    }

    pub(super) fn membership_mut(&mut self) -> Option<&mut Membership> {
        match &mut self.state {
            QueueState::Authenticating(membership) | QueueState::Live(membership) => {
                Some(membership)
            }
            QueueState::Connecting { .. } | QueueState::Ended => None,
        }
    }

    /// Drops a parked Asynchronous Event Request without a response; false if none has this CID.
    pub(crate) fn give_up_event_request(&mut self, cid: Cid) -> bool {
        let known = self.controller().is_some_and(|controller| controller.give_up_event(cid));
        if known {
            self.advance();
        }
        known
    }

    /// Advances the submission queue head by the entry of a command, and returns SQHD.
    fn advance(&mut self) -> u16 {
        match &mut self.head {
            Head::Disabled => 0xFFFF,
            Head::At(head) => {
                *head = if *head + 1 >= self.entries { 0 } else { *head + 1 };
                *head
            }
        }
    }

    /// Returns the completion queue entry for a command. The caller has posted its receive again.
    pub fn completion(&mut self, cid: Cid, outcome: CommandOutcome) -> Cqe {
        let head = self.advance();
        Cqe::new(cid, outcome.status).with_result(outcome.result).with_queue(head, self.qid)
    }

    /// Returns the next action of the owner, if any. Call it in each turn, and at
    /// [`Queue::deadline`], until it returns `None`, which is cheap. Nothing follows
    /// [`QueueEvent::Close`].
    pub fn poll(&mut self, now: Time) -> Option<QueueEvent> {
        if let Some(reason) = self.check_timeouts(now) {
            self.settle_authentication(now);
            self.end(reason);
        }
        loop {
            match self.link.next_mail()? {
                QueueMessage::Event(event) => return Some(event),
                QueueMessage::Quiesced(job) => {
                    self.membership().inspect(|of| of.controller.go_on(job));
                }
                QueueMessage::ProtectionStored(job, well) => {
                    self.membership().inspect(|of| of.controller.kept(job, well));
                }
                QueueMessage::Computed(result) => {
                    if let Some(cid) = self.computed(now, result) {
                        return Some(QueueEvent::Resume { cid });
                    }
                }
            }
        }
    }

    /// Ends the association after two Keep Alive Timeouts without a command: the host may rely on
    /// that and have connected again. Returns whether the connection has to end.
    pub(crate) fn end_if_abandoned(&mut self, now: Time) -> bool {
        let Some(Membership { controller, .. }) = self.membership() else { return false };
        let kato = controller.keep_alive();
        let abandoned = kato.is_some_and(|kato| now >= controller.last_command() + 2 * kato);
        // Counted once, although every queue of the association notices it.
        if abandoned && self.qid.is_admin() {
            self.end(CloseReason::KeepAlive);
        }
        abandoned
    }

    /// Latest time at which [`Queue::poll`] must run again, unless another core wakes the owner.
    pub fn deadline(&self) -> Option<Time> {
        match &self.state {
            QueueState::Connecting { since } => Some(*since + CONNECT_TIMEOUT),
            QueueState::Authenticating(membership) => membership.auth_deadline(),
            QueueState::Live(live) if self.qid.is_admin() && !live.ended_association => {
                let keep_alive =
                    live.controller.keep_alive().map(|kato| live.interval_start + kato);
                let enable = live.disabled_since.map(|since| since + ENABLE_TIMEOUT);
                [keep_alive, enable, live.auth_deadline()].into_iter().flatten().min()
            }
            QueueState::Live(live) => live.auth_deadline(),
            QueueState::Ended => None,
        }
    }

    /// Reports the result of [`QueueEvent::Flush`].
    pub fn flushed(&mut self, now: Time, flush: FlushJob, result: Result<(), BackendError>) {
        self.membership().inspect(|of| of.controller.flushed(now, flush, result));
    }

    /// Reports the result of [`QueueEvent::Abort`].
    pub fn answer_abort(&mut self, abort: AbortRequest, aborted: bool) {
        self.membership().inspect(|of| of.controller.answer_abort(abort.asked_by, aborted));
    }

    /// Removes the queue, as [`Queue::leave`] does.
    pub fn close(mut self) -> Option<CommandHold> {
        self.leave()
    }

    /// Selects the counters for later commands: those of a subsystem, or of unconnected queues.
    pub(super) fn count_for(&mut self, subsystem: Option<&Subsystem>) {
        self.counters = match subsystem {
            Some(subsystem) => self.io_stats.open(subsystem.index),
            None => Arc::clone(&self.io_stats.unconnected),
        };
    }

    /// Counts the duration of a successful Read or Write.
    #[inline]
    pub(crate) fn count_latency(&self, work: &IoWork, latency: Latency) {
        match work.kind {
            IoKind::Read { .. } | IoKind::ReadZeros | IoKind::ReadRanges { .. } => {
                self.counters.reads.count(latency);
            }
            IoKind::Write { .. } => self.counters.writes.count(latency),
            _ => {}
        }
    }

    pub(super) fn connected(
        &mut self,
        now: Time,
        controller: Arc<Controller>,
        epoch: Epoch,
        place: Option<ConnectionPermit>,
        entries: u16,
        flow: bool,
    ) {
        self.count_for(controller.subsystem().map(|subsystem| &**subsystem));
        self.entries = entries;
        if !flow {
            self.head = Head::Disabled;
        }
        let auth = controller
            .authenticates
            .then(|| Box::new(QueueAuth::new(now, &self.associations, &controller)));
        let is_live = auth.is_none();
        if !is_live {
            self.link.set_auth_state(QueueAuthState::Negotiating);
        }
        let terms = IoTerms {
            ana: Arc::clone(&controller.ana),
            opcodes: controller.io_opcodes,
            support: controller.support,
            max_transfer_bytes: controller.limits.max_transfer_bytes,
        };
        let membership = Membership {
            controller,
            epoch,
            terms,
            last: None,
            _place: place.map(Box::new),
            known: Vec::new(),
            interval_start: now,
            disabled_since: Some(now),
            ended_association: false,
            auth,
        };
        self.state = match is_live {
            true => QueueState::Live(membership),
            false => QueueState::Authenticating(membership),
        };
    }

    /// Checks the timers of this queue. Returns the reason to close if one has expired.
    fn check_timeouts(&mut self, now: Time) -> Option<CloseReason> {
        match &mut self.state {
            QueueState::Connecting { since } if now >= *since + CONNECT_TIMEOUT => {
                Some(CloseReason::ConnectTimeout)
            }
            QueueState::Authenticating(membership) => membership.check_auth_timeout(now),
            QueueState::Live(live) if self.qid.is_admin() => live.check_timeouts(now),
            QueueState::Live(live) => live.check_auth_timeout(now),
            QueueState::Connecting { .. } | QueueState::Ended => None,
        }
    }

    fn end(&mut self, reason: CloseReason) {
        if let Some(membership) = self.membership_mut()
            && std::mem::replace(&mut membership.ended_association, true)
        {
            return;
        }
        self.associations.peer_errors().add_lost(self.peer.address.ip());
        if reason == CloseReason::KeepAlive {
            self.associations.count_keep_alive_loss();
        }
        match self.membership().filter(|_| self.qid.is_admin()) {
            Some(membership) => membership.controller.end(reason),
            None => self.link.close(reason),
        }
    }

    /// Leaves the association after the connection has ended; the association ends with its admin
    /// queue. If the queue was connected, the caller attaches the returned hold to each command
    /// that storage still executes and that changes the medium: the host must not continue before
    /// these have ended.
    pub(crate) fn leave(&mut self) -> Option<CommandHold> {
        self.associations
            .peer_errors()
            .add_failed(self.peer.address.ip(), std::mem::take(&mut self.failed));
        match std::mem::replace(&mut self.state, QueueState::Ended) {
            QueueState::Authenticating(membership) | QueueState::Live(membership) => {
                Some(membership.controller.queue_left(&self.link))
            }
            QueueState::Connecting { .. } | QueueState::Ended => None,
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        drop(self.leave());
    }
}

impl Membership {
    fn check_timeouts(&mut self, now: Time) -> Option<CloseReason> {
        if let Some(reason) = self.check_auth_timeout(now) {
            return Some(reason);
        }
        if self.disabled_since.is_some_and(|since| now >= since + ENABLE_TIMEOUT) {
            return Some(CloseReason::EnableTimeout);
        }
        let kato = self.controller.keep_alive()?;
        if now < self.interval_start + kato {
            return None;
        }
        // Traffic based keep alive: a command in the interval restarts it. An interval that is
        // checked late ends the next one early, by two timeouts after the last command.
        let last_command = self.controller.last_command();
        let alive = last_command > self.interval_start;
        self.interval_start = now.min(last_command + kato);
        (!alive).then_some(CloseReason::KeepAlive)
    }

    /// Time by which the host has to send its next authentication message.
    fn auth_deadline(&self) -> Option<Time> {
        self.auth.as_ref()?.deadline(&self.controller)
    }

    fn check_auth_timeout(&mut self, now: Time) -> Option<CloseReason> {
        let auth = self.auth.as_mut().filter(|_| !self.ended_association)?;
        let is_late = auth.deadline(&self.controller).is_some_and(|deadline| now >= deadline);
        (is_late && auth.timed_out(now, &self.controller))
            .then_some(CloseReason::AuthenticationTimeout)
    }
}
