//! One queue of one association, on the core that owns its connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Waker;

use nvme_proto::log::ErrorLogEntry;
use nvme_proto::{Cid, Command as Parsed, Cqe, Qid, Sqe, Status};
use rdma::Time;

use super::command::{
    AbortRequest, CloseReason, CommandOutcome, CommandTransfer, ControlCommand, ControlWork,
    Execution, IoWork, ParsedCommand, QueueEvent, TransferDirection,
};
use super::hold::CommandHold;
use super::jobs::FlushJob;
use super::life::Epoch;
use super::link::{Lost, Mail, QueueLink};
use super::{Associations, Controller, admin, error_log, fabrics, io};
use crate::backend::BackendError;
use crate::inventory::port::Port;
use crate::limits::connection_quota::ConnectionPermit;
use crate::limits::{CONNECT_TIMEOUT, ENABLE_TIMEOUT};
use crate::metrics::io_counters::{Tally, TallyIndex};

/// A connection that the transport accepted.
#[derive(Debug)]
pub struct Accepted {
    /// The port that it came in on.
    pub port: Arc<Port>,
    /// The queue id that it asked for.
    pub qid: Qid,
    /// Entries that its Connect command may ask for, as negotiated.
    pub entries: u16,
    /// Who connected.
    pub peer: SocketAddr,
    /// Wakes the core that owns the connection; called from other cores.
    pub waker: Waker,
    /// When.
    pub now: Time,
    /// Set when the connection manager knows that the connection has ended.
    pub lost: Arc<Lost>,
}

/// One NVMe queue. Its owner calls, for each command, [`Queue::parse`] and at its end
/// [`Queue::completion`]; each turn [`Queue::poll`]; at the end of the connection [`Queue::close`].
#[derive(Debug)]
pub struct Queue {
    pub(super) associations: Arc<Associations>,
    pub(super) port: Arc<Port>,
    pub(super) qid: Qid,
    pub(super) peer: SocketAddr,
    pub(super) link: Arc<QueueLink>,
    tally: Arc<Tally>,
    account: TallyIndex,
    /// Commands that failed, which its peer is not charged with yet.
    failed: u64,
    pub(super) state: QueueState,
    /// Submission queue entries: as negotiated, then as Connect says.
    pub(super) entries: u16,
    head: Head,
}

/// Which commands are legal.
#[derive(Debug)]
pub(super) enum QueueState {
    /// Only Connect.
    Connecting { since: Time },
    /// Those of the queue's kind.
    Live(Live),
    /// None; the connection is about to go.
    Ended,
}

#[derive(Debug)]
pub(super) struct Live {
    pub(super) controller: Arc<Controller>,
    /// Among the queues that hosts and its address may have. A discovery controller takes none.
    _place: Option<Box<ConnectionPermit>>,
    /// Start of the running keep-alive interval. Of the admin queue.
    pub(super) interval_start: Time,
    /// Since when the controller is not enabled. Of the admin queue.
    pub(super) disabled_since: Option<Time>,
    /// In which epoch it joined. Of an I/O queue.
    pub(super) epoch: Epoch,
    /// This queue ended the association, whose owner may take its time with that. It is one loss,
    /// and no timer counts then.
    ended_association: bool,
}

/// Submission queue head for flow control.
#[derive(Clone, Copy, Debug)]
pub(super) enum Head {
    At(u16),
    /// The host asked for no flow control.
    Disabled,
}

impl Queue {
    /// A queue whose host has not sent Connect yet, on the core whose tally this is.
    pub fn new(associations: Arc<Associations>, tally: Arc<Tally>, accepted: Accepted) -> Self {
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
            tally,
            account: TallyIndex::NONE,
            failed: 0,
            state: QueueState::Connecting { since: accepted.now },
            entries: accepted.entries,
            head: Head::At(0),
        }
    }

    /// The queue's id.
    pub fn qid(&self) -> Qid {
        self.qid
    }

    /// Whether Connect succeeded and the association lives.
    pub fn is_live(&self) -> bool {
        matches!(self.state, QueueState::Live(_))
    }

    /// The controller, once connected.
    pub fn controller(&self) -> Option<&Arc<Controller>> {
        match &self.state {
            QueueState::Live(live) => Some(&live.controller),
            QueueState::Connecting { .. } | QueueState::Ended => None,
        }
    }

    /// Looks at a command before any of its data moved, and decides all that the entry alone
    /// decides.
    ///
    /// # Errors
    /// How to complete the command at once.
    pub fn parse(&mut self, now: Time, sqe: &Sqe) -> Result<ParsedCommand, CommandOutcome> {
        self.link.saw_command(now);
        self.parse_in_state(sqe).map_err(|outcome| match outcome.status.is_success() {
            true => outcome,
            false => self.refused(now, sqe, outcome),
        })
    }

    fn parse_in_state(&self, sqe: &Sqe) -> Result<ParsedCommand, CommandOutcome> {
        match (&self.state, Parsed::parse(self.qid, sqe)) {
            (QueueState::Connecting { .. }, parsed) => fabrics::parse_connecting(self, sqe, parsed),
            (QueueState::Live(live), Ok(Parsed::Nvm(command))) => io::parse(live, &command),
            (QueueState::Live(_), Ok(Parsed::Fabrics(command))) => {
                Ok(fabrics::parse_live(self.qid, command)?)
            }
            (QueueState::Live(live), Ok(Parsed::Admin(command))) => {
                Ok(admin::parse(&live.controller, command)?)
            }
            (QueueState::Live(_), Err(status)) => Err(status.into()),
            (QueueState::Ended, _) => Err(Status::ABORTED_SQ_DELETION.into()),
        }
    }

    /// Does a fabrics or admin command. Data from the host must be in `data`; data for the host is
    /// put there, every byte of it. `data` has the length of the command's transfer. May lock,
    /// never blocks for long.
    pub fn execute(
        &mut self,
        now: Time,
        cid: Cid,
        work: ControlWork,
        data: &mut [u8],
    ) -> Execution {
        let execution = match work.0 {
            ControlCommand::Fabrics(command) => fabrics::execute(self, now, cid, command, data),
            ControlCommand::Admin(command, epoch) => {
                admin::execute(self, cid, &command, epoch, data)
            }
        };
        match execution {
            Execution::Complete(outcome) if !outcome.status.is_success() => {
                let entry = error_log::of_command(self.qid, cid, outcome.status);
                Execution::Complete(self.failed(entry, outcome))
            }
            execution => execution,
        }
    }

    /// How an I/O command ends: the storage engine's error as a status, counted, and in the error
    /// log.
    pub fn finish_io(
        &mut self,
        cid: Cid,
        work: &IoWork,
        result: Result<(), BackendError>,
    ) -> CommandOutcome {
        match result {
            Ok(()) => {
                io::count(self.tally.of(self.account), work);
                CommandOutcome::SUCCESS
            }
            Err(BackendError::Cancelled) => self.io_failed(cid, work, Status::ABORT_REQUESTED),
            Err(error) => {
                let status = io::status_of(error, work.kind);
                let entry =
                    error_log::of_io(self.associations.registry(), self.qid, cid, work, status);
                // It is not the host that failed.
                self.log_failure(entry, status.into())
            }
        }
    }

    /// How an I/O command ends that failed for a reason that is not the medium's: the host's
    /// memory, an abort, Compare Failure.
    pub fn io_failed(&mut self, cid: Cid, work: &IoWork, status: Status) -> CommandOutcome {
        let entry = error_log::of_io(self.associations.registry(), self.qid, cid, work, status);
        self.failed(entry, status.into())
    }

    /// Checks the ranges of a Deallocate command, which are the data that came with it, before the
    /// first is begun.
    ///
    /// # Errors
    /// A range is outside the namespace; then none of them is to be deallocated.
    pub fn check_ranges(&self, work: &IoWork, data: &[u8]) -> Result<(), Status> {
        io::check_ranges(self.associations.registry(), work, data)
    }

    /// Where the first range begins that is not `passed` yet, and its length, both in bytes; then
    /// it is passed. Of ranges that were checked. Empty ones are passed by.
    pub fn next_range(&self, work: &IoWork, data: &[u8], passed: &mut usize) -> Option<(u64, u64)> {
        io::next_range(self.associations.registry(), work, data, passed)
    }

    /// Forgets a parked Asynchronous Event Request, to which no response is sent. False if there is
    /// none.
    pub fn give_up_event_request(&mut self, cid: Cid) -> bool {
        let known = self.controller().is_some_and(|controller| controller.give_up_event(cid));
        if known {
            self.advance();
        }
        known
    }

    /// The entry of a command is free again; the new head.
    fn advance(&mut self) -> u16 {
        match &mut self.head {
            Head::Disabled => 0xFFFF,
            Head::At(head) => {
                *head = if *head + 1 >= self.entries { 0 } else { *head + 1 };
                *head
            }
        }
    }

    /// The response to a command that ended. Its receive was posted again before.
    pub fn completion(&mut self, cid: Cid, outcome: CommandOutcome) -> Cqe {
        let head = self.advance();
        Cqe::new(cid, outcome.status).with_result(outcome.result).with_queue(head, self.qid)
    }

    /// What the owner must do next, if anything. Cheap when there is nothing; call it until it says
    /// so, each turn, and whenever [`Queue::deadline`] has come. After [`QueueEvent::Close`]
    /// nothing else follows.
    pub fn poll(&mut self, now: Time) -> Option<QueueEvent> {
        if let Some(reason) = self.overdue(now) {
            self.end(reason);
        }
        loop {
            match self.link.next_mail()? {
                Mail::Event(event) => return Some(event),
                Mail::Settled(job) => {
                    self.controller().inspect(|controller| controller.go_on(job));
                }
                Mail::Kept(job, well) => {
                    self.controller().inspect(|controller| controller.kept(job, well));
                }
            }
        }
    }

    /// Ends the association if nothing was heard of the host for so long that it may have come back
    /// over other connections: two timeouts, after which it relies on that. Returns whether the
    /// connection is to end.
    pub fn end_if_forsaken(&mut self, now: Time) -> bool {
        let QueueState::Live(live) = &self.state else { return false };
        let kato = live.controller.keep_alive();
        let forsaken = kato.is_some_and(|kato| now >= live.controller.last_command() + 2 * kato);
        // It is one loss, however many queues notice it.
        if forsaken && self.qid.is_admin() {
            self.end(CloseReason::KeepAlive);
        }
        forsaken
    }

    /// When [`Queue::poll`] must run again at the latest. Changes made by other cores come with a
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

    /// Tells how [`QueueEvent::Flush`] ended.
    pub fn flushed(&mut self, now: Time, flush: FlushJob, result: Result<(), BackendError>) {
        if let QueueState::Live(live) = &self.state {
            live.controller.flushed(now, flush, result);
        }
    }

    /// Tells what became of [`QueueEvent::Abort`].
    pub fn answer_abort(&mut self, abort: AbortRequest, aborted: bool) {
        if let QueueState::Live(live) = &self.state {
            live.controller.answer_abort(abort.asked_by, aborted);
        }
    }

    /// The connection is gone. An association ends with its admin queue. Of a queue that was
    /// connected there is something for the commands to keep that storage still works on and that
    /// change the medium, each until its operation is over: until then the host must not be told
    /// that it can go on.
    pub fn close(mut self) -> Option<CommandHold> {
        self.leave()
    }

    /// Counts and logs a command that was refused.
    fn refused(&mut self, now: Time, sqe: &Sqe, outcome: CommandOutcome) -> CommandOutcome {
        if matches!(self.state, QueueState::Connecting { .. }) && sqe.is_fabrics() {
            fabrics::tell_refused(self, now, outcome);
        }
        tracing::debug!(
            peer = %self.peer, qid = %self.qid, ?sqe, status = %outcome.status, "command refused"
        );
        self.failed(error_log::of_sqe(self.qid, sqe, outcome.status), outcome)
    }

    /// Counts a command that failed against its host; the error log says more about it.
    fn failed(&mut self, entry: ErrorLogEntry, outcome: CommandOutcome) -> CommandOutcome {
        self.failed += 1;
        self.log_failure(entry, outcome)
    }

    fn log_failure(&self, entry: ErrorLogEntry, outcome: CommandOutcome) -> CommandOutcome {
        self.tally.of(self.account).failed.add(1);
        let Some(controller) = self.controller() else { return outcome };
        controller.log_error(entry);
        CommandOutcome { status: outcome.status.with_more(), ..outcome }
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
        if let Some(subsystem) = controller.subsystem() {
            self.account = self.associations.registry().account_of(subsystem);
        }
        self.entries = entries;
        if !flow {
            self.head = Head::Disabled;
        }
        self.state = QueueState::Live(Live {
            controller,
            _place: place.map(Box::new),
            epoch,
            interval_start: now,
            disabled_since: Some(now),
            ended_association: false,
        });
    }

    /// A timer of this queue that ran out.
    fn overdue(&mut self, now: Time) -> Option<CloseReason> {
        match &mut self.state {
            QueueState::Connecting { since } if now >= *since + CONNECT_TIMEOUT => {
                Some(CloseReason::ConnectTimeout)
            }
            QueueState::Live(live) if self.qid.is_admin() => live.overdue(now),
            _ => None,
        }
    }

    fn end(&mut self, reason: CloseReason) {
        if let QueueState::Live(live) = &mut self.state
            && std::mem::replace(&mut live.ended_association, true)
        {
            return;
        }
        self.associations.peer_errors().add_lost(self.peer.ip());
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
            .add_failed(self.peer.ip(), std::mem::take(&mut self.failed));
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
    fn overdue(&mut self, now: Time) -> Option<CloseReason> {
        if self.disabled_since.is_some_and(|since| now >= since + ENABLE_TIMEOUT) {
            return Some(CloseReason::EnableTimeout);
        }
        let kato = self.controller.keep_alive()?;
        if now < self.interval_start + kato {
            return None;
        }
        // Traffic based: an interval in which a command came starts anew.
        let alive = self.controller.last_command() > self.interval_start;
        self.interval_start = now;
        (!alive).then_some(CloseReason::KeepAlive)
    }
}

/// The transfer that an entry implies, for data that a controller moves; nothing for zero bytes.
pub(super) fn transfer(
    of: nvme_proto::DataTransfer,
    most: u32,
) -> Result<Option<CommandTransfer>, Status> {
    let direction = match of.direction {
        nvme_proto::DataDirection::HostToController => TransferDirection::HostToController,
        nvme_proto::DataDirection::ControllerToHost => TransferDirection::ControllerToHost,
        nvme_proto::DataDirection::None | nvme_proto::DataDirection::Bidirectional => {
            return Ok(None);
        }
    };
    match u32::try_from(of.length_bytes) {
        Ok(0) => Ok(None),
        Ok(length_bytes) if length_bytes <= most => {
            Ok(Some(CommandTransfer { direction, length_bytes }))
        }
        _ => Err(Status::INVALID_FIELD.with_dnr()),
    }
}
