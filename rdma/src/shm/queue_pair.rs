//! Queue pairs: a requester, a responder and the end of a link.
#![expect(unsafe_code, reason = "inline requests name memory by address")]

use core::sync::atomic::AtomicU64;
use std::os::fd::BorrowedFd;

use super::agreement::LinkAgreement;
use super::link::{ShmClosing, ShmLink};
use super::requester::RingRequester;
use super::responder::RingResponder;
use super::sleep_word::PeerNews;
use super::sleep_word::publish_sleep;
use super::turn::{QpFailure, QpTurn};
use super::work_limits::WorkLimits;
use crate::software::numbers::QpNumber;
use crate::software::place;
use crate::software::regions::DomainId;
use crate::{PushError, QpConfig, RecvWr, SendWr, Time, WakeFor, WcStatus, WriteRoom};

/// A queue pair and its end of a link.
pub(super) struct ShmQueuePair {
    number: QpNumber,
    limits: WorkLimits,
    domain: DomainId,
    link: ShmLink,
    stage: QpStage,
    requester: RingRequester,
    responder: RingResponder,
    /// True while the queue pair is in its group's `due` list.
    due: bool,
}

enum QpStage {
    /// Requests wait for the connection to be established.
    Waiting,
    Connected(LinkAgreement),
    /// Requests are flushed as soon as they are pushed.
    Error,
}

impl ShmQueuePair {
    pub(super) fn new(
        number: QpNumber,
        limits: WorkLimits,
        domain: DomainId,
        link: ShmLink,
    ) -> Self {
        Self {
            number,
            limits,
            domain,
            link,
            stage: QpStage::Waiting,
            requester: RingRequester::new(limits),
            responder: RingResponder::new(limits),
            due: false,
        }
    }

    /// Sets whether it is in its group's `due` list; returns the previous value.
    pub(super) fn set_due(&mut self, due: bool) -> bool {
        core::mem::replace(&mut self.due, due)
    }

    /// The word in shared memory that changes whenever the peer has published something.
    pub(super) fn peer_news(&self) -> &AtomicU64 {
        self.link.peer_news()
    }

    pub(super) fn qpn(&self) -> u32 {
        self.number.get().value()
    }

    pub(super) fn serial(&self) -> u64 {
        self.number.serial()
    }

    pub(super) fn granted(&self) -> QpConfig {
        self.limits.config()
    }

    pub(super) fn domain(&self) -> DomainId {
        self.domain
    }

    /// The socket to sleep on.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.link.bell()
    }

    /// Clears the bell; returns whether the peer is gone.
    pub(super) fn silence_bell(&mut self) -> bool {
        self.link.silence();
        self.link.hung_up()
    }

    /// Starts to carry out requests, unless the queue pair has failed before.
    pub(super) fn connect(&mut self, agreement: LinkAgreement) {
        if matches!(self.stage, QpStage::Waiting) {
            self.stage = QpStage::Connected(agreement);
        }
    }

    /// Queues a send request.
    ///
    /// # Safety
    /// The memory that the request names is as [`crate::Group::push_send`] asks for.
    pub(super) unsafe fn push_send(&mut self, wr: &SendWr<'_>) -> Result<(), PushError> {
        let captured = wr.sges.iter().map(|sge| {
            // SAFETY: the caller keeps the memory of a request readable until it completes, and it
            // is read before this returns. Used for inline requests only.
            unsafe { place::bytes(sge.addr, sge.length as usize) }
        });
        self.requester.push(wr, captured)
    }

    /// Whether there is room for `total` bytes of RDMA WRITEs that the caller places.
    pub(super) fn has_write_room(&mut self, total: u32) -> bool {
        let connected = matches!(self.stage, QpStage::Connected(_));
        connected && self.requester.has_write_room(&self.link, total)
    }

    /// Reserves room for the first of `total` bytes of RDMA WRITEs that the caller places.
    pub(super) fn write_room(&mut self, total: u32) -> Option<WriteRoom> {
        let connected = matches!(self.stage, QpStage::Connected(_));
        if connected { self.requester.write_room(&self.link, total) } else { None }
    }

    /// Sends what the caller has placed in a room, and rings the peer if it sleeps.
    pub(super) fn send_room(&mut self, room: &WriteRoom, addr: u64, rkey: u32) -> bool {
        if !matches!(self.stage, QpStage::Connected(_)) {
            return false;
        }
        let sent = self.requester.send_room(&self.link, room, addr, rkey);
        if sent == Some(true) {
            self.link.tell(PeerNews { records: true, read: false });
        }
        sent.is_some()
    }

    /// Queues a receive for the peer's messages.
    pub(super) fn push_recv(&mut self, wr: &RecvWr<'_>) -> Result<(), PushError> {
        self.responder.push(wr)
    }

    /// Whether a message of the peer waits for a receive to be posted.
    pub(super) fn is_starved(&self) -> bool {
        self.responder.is_starved()
    }

    /// Whether it is in ERROR, so that pushed requests must be flushed.
    pub(super) fn has_failed(&self) -> bool {
        matches!(self.stage, QpStage::Error)
    }

    /// Completes all requests with [`WcStatus::FLUSHED`].
    pub(super) fn flush(&mut self, turn: &mut QpTurn<'_>) {
        self.requester.flush(turn, WcStatus::FLUSHED);
        self.responder.flush(turn);
    }

    /// Writes pushed requests to the ring.
    pub(super) fn hand_over(&mut self, turn: &mut QpTurn<'_>) {
        let QpStage::Connected(agreement) = self.stage else { return };
        let result = self
            .requester
            .retire(turn, &self.link)
            .and_then(|_| self.requester.transmit(turn, &self.link, &agreement))
            // Requests that need no peer, such as binds, are done already.
            .and_then(|_| self.requester.retire(turn, &self.link));
        self.end_turn(turn, result);
    }

    /// Does all pending work; returns whether there was any.
    pub(super) fn progress(&mut self, turn: &mut QpTurn<'_>) -> bool {
        let QpStage::Connected(agreement) = self.stage else { return false };
        // Read before the rings, so that what the peer wrote before it closed is processed.
        let closing = self.link.peer_closing();
        let result = self.work(turn, &agreement);
        let result = match (result, closing) {
            (Ok(_), Some(ShmClosing::Failed)) if self.requester.has_outstanding() => {
                Err(QpFailure(WcStatus::RETRY_EXCEEDED))
            }
            (Ok(_), Some(_)) => Err(QpFailure(WcStatus::FLUSHED)),
            (result, _) => result,
        };
        self.end_turn(turn, result)
    }

    fn work(
        &mut self,
        turn: &mut QpTurn<'_>,
        agreement: &LinkAgreement,
    ) -> Result<bool, QpFailure> {
        let Self { link, requester, responder, .. } = self;
        let mut busy = requester.take_answers(turn, link, agreement)?;
        busy |= requester.retire(turn, link)?;
        busy |= responder.take_requests(turn, link, agreement)?;
        busy |= responder.give_answers(turn, link)?;
        busy |= requester.transmit(turn, link, agreement)?;
        busy |= requester.retire(turn, link)?;
        Ok(busy)
    }

    /// Rings the peer for news of this turn, and moves the queue pair to ERROR after a failure.
    fn end_turn(&mut self, turn: &mut QpTurn<'_>, result: Result<bool, QpFailure>) -> bool {
        let PeerNews { records, read } = turn.news;
        if records || read {
            self.link.tell(turn.news);
        }
        turn.news = PeerNews::default();
        match result {
            Ok(busy) => busy,
            Err(QpFailure(status)) => {
                self.fail_with(turn, status, ShmClosing::Failed);
                true
            }
        }
    }

    /// Fails the queue pair if the peer has made no progress for too long.
    pub(super) fn check_time(&mut self, turn: &mut QpTurn<'_>) {
        let QpStage::Connected(agreement) = self.stage else { return };
        if let Err(QpFailure(status)) = self.requester.check_time(turn, &agreement) {
            self.fail_with(turn, status, ShmClosing::Failed);
        }
    }

    /// Time at which [`ShmQueuePair::check_time`] may fail the queue pair.
    pub(super) fn deadline(&self) -> Option<Time> {
        match &self.stage {
            QpStage::Connected(agreement) => self.requester.deadline(agreement),
            QpStage::Waiting | QpStage::Error => None,
        }
    }

    /// Moves the queue pair to ERROR, and flushes all requests.
    pub(super) fn fail(&mut self, turn: &mut QpTurn<'_>, how: ShmClosing) {
        self.fail_with(turn, WcStatus::FLUSHED, how);
    }

    fn fail_with(&mut self, turn: &mut QpTurn<'_>, status: WcStatus, how: ShmClosing) {
        if matches!(self.stage, QpStage::Error) {
            return;
        }
        self.stage = QpStage::Error;
        self.link.close(how);
        self.requester.flush(turn, status);
        self.responder.flush(turn);
    }

    /// Closes the link, unless that was done on a failure.
    pub(super) fn leave(&self) {
        if !matches!(self.stage, QpStage::Error) {
            self.link.close(ShmClosing::Ended);
        }
    }

    /// Requests that the peer rings for `what`. The caller then checks [`ShmQueuePair::has_news`].
    pub(super) fn fall_asleep(&mut self, what: WakeFor) {
        if matches!(self.stage, QpStage::Connected(_)) {
            self.link.fall_asleep(self.wanted(what));
        }
    }

    /// Whether the peer was asked to ring since [`ShmQueuePair::wake_up`]. It rings once.
    pub(super) fn is_armed(&self) -> bool {
        self.link.is_asleep(WakeFor::Arrivals)
    }

    /// Requests that the peer rings for news that have become relevant since the group armed
    /// itself; returns whether there may be work already.
    pub(super) fn stay_asleep(&mut self, what: WakeFor) -> bool {
        let asks =
            matches!(self.stage, QpStage::Connected(_)) && !self.link.is_asleep(self.wanted(what));
        if asks {
            self.fall_asleep(what);
            publish_sleep();
        }
        asks && self.has_news()
    }

    /// The news that the peer has to ring for. A queue pair that waits for ring space also needs to
    /// know when the peer has read.
    fn wanted(&self, what: WakeFor) -> WakeFor {
        let blocked = self.requester.is_blocked() || self.responder.is_blocked();
        if blocked { WakeFor::Everything } else { what }
    }

    /// Withdraws the request to ring; returns whether there was one.
    pub(super) fn wake_up(&mut self) -> bool {
        let was_armed = self.is_armed();
        if was_armed {
            self.link.wake_up();
        }
        was_armed
    }

    /// Whether there may be work. Called after all queue pairs have asked to be rung and after
    /// [`publish_sleep`], it detects news for which no peer rings.
    pub(super) fn has_news(&self) -> bool {
        matches!(self.stage, QpStage::Connected(_))
            && (self.link.peer_closing().is_some()
                || self.requester.has_news(&self.link)
                || (self.responder.has_news(&self.link)))
    }
}
