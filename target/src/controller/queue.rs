//! One queue of an association, on the core that owns its connection.

use std::sync::Arc;
use std::task::Waker;

use nvme_proto::{Cid, Cntlid, Cqe, Qid};
use rdma::Time;

use super::associations::Associations;
use super::command::{CommandOutcome, IoKind, IoWork};
use super::event::{AbortRequest, CloseReason, FlushJob, QueueEvent};
use super::hold::CommandHold;
use super::link::{Lost, Mail, QueueLink};
use super::stage::Epoch;
use super::state::Controller;
use crate::backend::BackendError;
use crate::inventory::index::NamespaceIndex;
use crate::inventory::namespace::Namespace;
use crate::inventory::port::Port;
use crate::inventory::subsystem::Subsystem;
use crate::limits::connection_quota::ConnectionPermit;
use crate::limits::peer::RemotePeer;
use crate::limits::{CONNECT_TIMEOUT, ENABLE_TIMEOUT, KNOWN_SUCCESSORS};
use crate::metrics::io_counters::{CoreIoCounters, CoreIoStats};

/// A connection that the transport accepted.
#[derive(Debug)]
pub struct Accepted {
    /// Port that it came in on.
    pub port: Arc<Port>,
    /// Requested queue identifier (QID).
    pub qid: Qid,
    /// Most entries that its Connect command may ask for, as negotiated.
    pub entries: u16,
    /// Host that has connected.
    pub peer: RemotePeer,
    /// Wakes the core that owns the connection; called from other cores.
    pub waker: Waker,
    /// Time at which the connection was accepted.
    pub now: Time,
    /// Set once the connection manager knows that the connection has ended.
    pub lost: Arc<Lost>,
}

/// An NVMe queue. For each command its owner calls [`Queue::parse`] and at its end
/// [`Queue::completion`]; in each turn [`Queue::poll`]; at the end of the connection
/// [`Queue::close`].
#[derive(Debug)]
pub struct Queue {
    pub(super) associations: Arc<Associations>,
    pub(super) port: Arc<Port>,
    pub(super) qid: Qid,
    pub(super) peer: RemotePeer,
    pub(super) link: Arc<QueueLink>,
    io_stats: Arc<CoreIoStats>,
    /// Counters of its subsystem, from the execution of a Connect that names it.
    pub(super) counters: CoreIoCounters,
    /// Failed commands not yet counted against the peer.
    pub(super) failed: u64,
    pub(super) state: QueueState,
    /// Submission queue entries: first as negotiated, then as asked for by Connect.
    pub(super) entries: u16,
    head: Head,
}

/// State of a queue, which decides which commands it accepts.
#[derive(Debug)]
pub(super) enum QueueState {
    /// Connect only, since the given time.
    Connecting { since: Time },
    /// All commands of the queue's kind.
    Live(Live),
    /// None; the connection is about to end.
    Ended,
}

#[derive(Debug)]
pub(super) struct Live {
    pub(super) controller: Arc<Controller>,
    /// Permit of the connection; `None` for a discovery controller.
    _place: Option<Box<ConnectionPermit>>,
    /// Start of the current keep-alive interval (admin queue only).
    pub(super) interval_start: Time,
    /// Time since which the controller is not enabled (admin queue only).
    pub(super) disabled_since: Option<Time>,
    /// Epoch in which the queue joined (I/O queues only).
    pub(super) epoch: Epoch,
    /// Namespaces that took over an NSID and that the host knows.
    known: Vec<NamespaceIndex>,
    /// Whether this queue ended the association. Its owner may close it later; it is counted once
    /// and timers are ignored until then.
    ended_association: bool,
}

impl Live {
    /// Whether the host means this namespace, whose NSID belonged to another namespace before.
    /// Takes a lock for the first command only.
    pub(super) fn knows(&mut self, namespace: &Namespace) -> bool {
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

/// Submission queue head for flow control.
#[derive(Clone, Copy, Debug)]
pub(super) enum Head {
    At(u16),
    /// The host disabled flow control.
    Disabled,
}

impl Queue {
    /// A queue whose host has not sent Connect yet, with the counters of its core.
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

    /// Queue identifier; 0 is the admin queue.
    pub fn qid(&self) -> Qid {
        self.qid
    }

    /// CNTLID of its controller, once connected.
    pub(crate) fn cntlid(&self) -> Option<Cntlid> {
        self.controller().map(|controller| controller.cntlid)
    }

    /// Whether Connect succeeded and the association lives.
    pub(crate) fn is_live(&self) -> bool {
        matches!(self.state, QueueState::Live(_))
    }

    /// Controller of the queue, once connected.
    pub(crate) fn controller(&self) -> Option<&Arc<Controller>> {
        match &self.state {
            QueueState::Live(live) => Some(&live.controller),
            QueueState::Connecting { .. } | QueueState::Ended => None,
        }
    }

    /// Drops a parked Asynchronous Event Request, which gets no response; false if none has the
    /// CID.
    pub(crate) fn give_up_event_request(&mut self, cid: Cid) -> bool {
        let known = self.controller().is_some_and(|controller| controller.give_up_event(cid));
        if known {
            self.advance();
        }
        known
    }

    /// Frees the entry of a command; returns the new head.
    fn advance(&mut self) -> u16 {
        match &mut self.head {
            Head::Disabled => 0xFFFF,
            Head::At(head) => {
                *head = if *head + 1 >= self.entries { 0 } else { *head + 1 };
                *head
            }
        }
    }

    /// Response to a command that ended. Its receive was posted again before.
    pub fn completion(&mut self, cid: Cid, outcome: CommandOutcome) -> Cqe {
        let head = self.advance();
        Cqe::new(cid, outcome.status).with_result(outcome.result).with_queue(head, self.qid)
    }

    /// Next action of the owner, if any. Call it in each turn and at [`Queue::deadline`] until it
    /// returns `None`, which is cheap. Nothing follows [`QueueEvent::Close`].
    pub fn poll(&mut self, now: Time) -> Option<QueueEvent> {
        if let Some(reason) = self.check_timeouts(now) {
            self.end(reason);
        }
        loop {
            match self.link.next_mail()? {
                Mail::Event(event) => return Some(event),
                Mail::Quiesced(job) => {
                    self.controller().inspect(|controller| controller.go_on(job));
                }
                Mail::Kept(job, well) => {
                    self.controller().inspect(|controller| controller.kept(job, well));
                }
            }
        }
    }

    /// Ends the association after two Keep Alive Timeouts without a command: the host may rely on
    /// that and have reconnected. Returns whether the connection has to end.
    pub(crate) fn end_if_abandoned(&mut self, now: Time) -> bool {
        let QueueState::Live(live) = &self.state else { return false };
        let kato = live.controller.keep_alive();
        let abandoned = kato.is_some_and(|kato| now >= live.controller.last_command() + 2 * kato);
        // Counted once, however many queues notice it.
        if abandoned && self.qid.is_admin() {
            self.end(CloseReason::KeepAlive);
        }
        abandoned
    }

    /// Latest time at which [`Queue::poll`] must run again. Changes made by other cores come with a
    /// wake-up.
    pub fn deadline(&self) -> Option<Time> {
        match &self.state {
            QueueState::Connecting { since } => Some(*since + CONNECT_TIMEOUT),
            QueueState::Live(live) if self.qid.is_admin() && !live.ended_association => {
                let keep_alive =
                    live.controller.keep_alive().map(|kato| live.interval_start + kato);
                let enable = live.disabled_since.map(|since| since + ENABLE_TIMEOUT);
                [keep_alive, enable].into_iter().flatten().min()
            }
            QueueState::Live(_) | QueueState::Ended => None,
        }
    }

    /// Reports the result of [`QueueEvent::Flush`].
    pub fn flushed(&mut self, now: Time, flush: FlushJob, result: Result<(), BackendError>) {
        if let QueueState::Live(live) = &self.state {
            live.controller.flushed(now, flush, result);
        }
    }

    /// Reports the result of [`QueueEvent::Abort`].
    pub fn answer_abort(&mut self, abort: AbortRequest, aborted: bool) {
        if let QueueState::Live(live) = &self.state {
            live.controller.answer_abort(abort.asked_by, aborted);
        }
    }

    /// Ends the queue after its connection is gone; the association ends with its admin queue. A
    /// connected queue returns a hold, to be kept by each command that storage still executes and
    /// that changes the medium: the host must not be told to continue until they have ended.
    pub fn close(mut self) -> Option<CommandHold> {
        self.leave()
    }

    /// Counts later commands for a subsystem, or for none.
    pub(super) fn count_for(&mut self, subsystem: Option<&Subsystem>) {
        self.counters = match subsystem {
            Some(subsystem) => self.io_stats.open(subsystem.index),
            None => Arc::clone(&self.io_stats.unconnected),
        };
    }

    /// Counts the duration of a successful I/O command.
    #[inline]
    pub(crate) fn count_latency(&self, work: &IoWork, latency_nanos: u64) {
        match work.kind {
            IoKind::Read { .. } | IoKind::ReadZeros => self.counters.reads.count(latency_nanos),
            IoKind::Write { .. } => self.counters.writes.count(latency_nanos),
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
        self.state = QueueState::Live(Live {
            controller,
            _place: place.map(Box::new),
            epoch,
            known: Vec::new(),
            interval_start: now,
            disabled_since: Some(now),
            ended_association: false,
        });
    }

    /// Checks the timers of this queue; returns the reason to close if one expired.
    fn check_timeouts(&mut self, now: Time) -> Option<CloseReason> {
        match &mut self.state {
            QueueState::Connecting { since } if now >= *since + CONNECT_TIMEOUT => {
                Some(CloseReason::ConnectTimeout)
            }
            QueueState::Live(live) if self.qid.is_admin() => live.check_timeouts(now),
            _ => None,
        }
    }

    fn end(&mut self, reason: CloseReason) {
        if let QueueState::Live(live) = &mut self.state
            && std::mem::replace(&mut live.ended_association, true)
        {
            return;
        }
        self.associations.peer_errors().add_lost(self.peer.address.ip());
        if reason == CloseReason::KeepAlive {
            self.associations.count_keep_alive_loss();
        }
        match &self.state {
            QueueState::Live(live) => live.controller.end(reason),
            QueueState::Connecting { .. } | QueueState::Ended => self.link.close(reason),
        }
    }

    fn leave(&mut self) -> Option<CommandHold> {
        self.associations
            .peer_errors()
            .add_failed(self.peer.address.ip(), std::mem::take(&mut self.failed));
        match std::mem::replace(&mut self.state, QueueState::Ended) {
            QueueState::Live(live) => Some(live.controller.queue_left(&self.link)),
            QueueState::Connecting { .. } | QueueState::Ended => None,
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        drop(self.leave());
    }
}

impl Live {
    fn check_timeouts(&mut self, now: Time) -> Option<CloseReason> {
        if self.disabled_since.is_some_and(|since| now >= since + ENABLE_TIMEOUT) {
            return Some(CloseReason::EnableTimeout);
        }
        let kato = self.controller.keep_alive()?;
        if now < self.interval_start + kato {
            return None;
        }
        // Traffic based: an interval with a command starts again.
        let alive = self.controller.last_command() > self.interval_start;
        self.interval_start = now;
        (!alive).then_some(CloseReason::KeepAlive)
    }
}
