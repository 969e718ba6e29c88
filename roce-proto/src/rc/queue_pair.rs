//! The queue pair, which combines requester, responder and completer.

use crate::rc::completer::Answers;
use crate::rc::completions::Completions;
use crate::rc::notification::NotificationPoint;
use crate::rc::requester::{Requester, SendFailure};
use crate::rc::responder::{RequestContext, Responder};
use crate::rc::selective_ack::SelectiveAck;
use crate::rc::{
    ConnectionParams, Memory, PostError, QueuePairConfig, QueuePairCounters, RecvRequest,
    SendRequest, SharedLimits, Transmit, WorkCompletion, WorkStatus,
};
use crate::wire::{Bth, Message, Opcode, Packet};
use crate::{Qpn, Time};

/// Number of packets after which the responder's and the requester's priority alternate.
const TURN_PACKETS: u32 = 32;

/// A reliable-connection queue pair.
#[derive(Debug)]
pub struct QueuePair {
    qpn: Qpn,
    config: QueuePairConfig,
    /// The sizes for which memory is allocated.
    room: QueuePairConfig,
    state: QueuePairState,
    requester: Requester,
    responder: Responder,
    completions: Completions,
    counters: QueuePairCounters,
    notification: NotificationPoint,
    turn: u32,
}

/// The states of a queue pair (IBTA volume 1, 10.3.1), as far as a caller can distinguish them: a
/// queue pair is created in INIT, and `connect` moves it through RTR to RTS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueuePairState {
    /// Requests may be posted and are not sent; received packets are dropped.
    Init,
    /// RTS: requests are sent and received packets are handled.
    ReadyToSend,
    /// ERROR: requests complete with [`WorkStatus::Flushed`].
    Error,
}

impl QueuePair {
    /// Creates a queue pair in INIT. It has memory for a few requests per queue; when more are
    /// posted, it allocates once for the granted sizes.
    pub fn new(qpn: Qpn, config: &QueuePairConfig) -> Self {
        let config = config.granted();
        let room = config.at_first();
        Self {
            qpn,
            config,
            room,
            state: QueuePairState::Init,
            requester: Requester::new(&config, &room),
            responder: Responder::new(&room),
            completions: Completions::new(&room),
            counters: QueuePairCounters::default(),
            notification: NotificationPoint::default(),
            turn: 0,
        }
    }

    /// The queue pair number.
    pub const fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// The granted sizes, which may differ from the requested ones: see
    /// [`QueuePairConfig::granted`].
    pub const fn granted(&self) -> QueuePairConfig {
        self.config
    }

    /// The state of the queue pair.
    pub const fn state(&self) -> QueuePairState {
        self.state
    }

    /// Counters since the queue pair was created.
    pub const fn counters(&self) -> QueuePairCounters {
        self.counters
    }

    /// Moves the queue pair from INIT to RTS. No effect in other states.
    pub fn connect(&mut self, connection: &ConnectionParams) {
        if self.state == QueuePairState::Init {
            self.requester.connect(connection);
            self.responder.connect(connection);
            self.state = QueuePairState::ReadyToSend;
        }
    }

    /// Queues a send request; it is sent after [`QueuePair::connect`]. In ERROR it completes
    /// immediately as flushed.
    ///
    /// # Errors
    /// [`PostError`]; the request was not queued.
    pub fn post_send(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        self.requester.queue.check(request)?;
        let taken = self.requester.queue.len() + self.completions.sends();
        if taken >= self.config.send_wr {
            return Err(PostError::QueueFull);
        }
        if taken >= self.room.send_wr {
            self.grow();
        }
        self.requester.queue.push(request);
        if self.state == QueuePairState::Error {
            self.flush(None, None);
        }
        Ok(())
    }

    /// Queues a receive request; allowed before [`QueuePair::connect`]. In ERROR it completes
    /// immediately as flushed.
    ///
    /// # Errors
    /// [`PostError`]; the request was not queued.
    pub fn post_recv(&mut self, request: &RecvRequest<'_>) -> Result<(), PostError> {
        self.responder.queue.check(request)?;
        let taken = self.responder.queue.len() + self.completions.receives();
        if taken >= self.config.recv_wr {
            return Err(PostError::QueueFull);
        }
        if taken >= self.room.recv_wr {
            self.grow();
        }
        self.responder.post(request);
        if self.state == QueuePairState::Error {
            self.flush(None, None);
        }
        Ok(())
    }

    /// Allocates memory for the granted sizes.
    #[cold]
    fn grow(&mut self) {
        self.room = self.config;
        self.requester.queue.grow(&self.config);
        self.responder.queue.grow(&self.config);
        self.completions.grow(&self.config);
    }

    /// Records that `packet`, which is passed to [`QueuePair::handle_packet`] next, was received
    /// with ECN Congestion Experienced.
    pub fn handle_congestion(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        limits: &mut SharedLimits<'_>,
    ) {
        if self.state != QueuePairState::ReadyToSend || !in_default_partition(&packet.bth) {
            return;
        }
        match kind(&packet.message) {
            PacketKind::Answer if packet.message.is_read_response() => {
                limits.window.response_marked(now);
            }
            PacketKind::Request | PacketKind::Answer => {}
            PacketKind::Notification | PacketKind::Neither => return,
        }
        self.counters.ecn_marked_packets += 1;
        self.notification.marked(now);
    }

    /// Handles a packet for this queue pair. The caller has checked its ICRC, and that it came from
    /// the connection's peer.
    pub fn handle_packet(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        memory: &mut impl Memory,
        limits: &mut SharedLimits<'_>,
    ) {
        if !in_default_partition(&packet.bth) {
            self.counters.packets_dropped += 1;
            return;
        }
        match (self.state, kind(&packet.message)) {
            (QueuePairState::ReadyToSend, PacketKind::Request) => {
                self.handle_request(packet, memory, limits)
            }
            (QueuePairState::ReadyToSend, PacketKind::Answer) => {
                self.handle_answer(now, packet, memory, limits);
            }
            (QueuePairState::ReadyToSend, PacketKind::Notification) => {
                self.counters.notifications_handled += 1;
                limits.window.congested(now);
            }
            (QueuePairState::Error, PacketKind::Request) => {
                self.counters.packets_dropped += 1;
                self.responder.handle_after_refusal(packet.bth.psn);
            }
            _ => self.counters.packets_dropped += 1,
        }
    }

    /// Writes the next packet to `out`; returns false if none may be sent now. The caller sends it
    /// before the next call; it may be lost.
    pub fn poll_transmit(
        &mut self,
        now: Time,
        memory: &mut impl Memory,
        limits: &mut SharedLimits<'_>,
        out: &mut Transmit,
    ) -> bool {
        let responder_first = (self.turn / TURN_PACKETS).is_multiple_of(2);
        let sent = match self.state {
            QueuePairState::Init => false,
            QueuePairState::Error => self.transmit_answer(memory, limits, out),
            QueuePairState::ReadyToSend if self.notification.take(now) => {
                self.counters.notifications_sent += 1;
                self.requester.emit_notification(out);
                true
            }
            QueuePairState::ReadyToSend if responder_first => {
                self.transmit_answer(memory, limits, out)
                    || self.transmit_request(now, memory, limits, out)
            }
            QueuePairState::ReadyToSend => {
                self.transmit_request(now, memory, limits, out)
                    || self.transmit_answer(memory, limits, out)
            }
        };
        if sent {
            self.turn = self.turn.wrapping_add(1);
            self.counters.packets_sent += 1;
            self.counters.payload_bytes_sent += out.payload_bytes() as u64;
            self.counters.packets_retransmitted += u64::from(out.is_retransmission());
        }
        sent
    }

    /// Whether [`QueuePair::poll_transmit`] may have a packet. It may still return false if a
    /// shared limit is reached: then it must be called again, in turn with the other queue pairs
    /// that share the limits, after a packet was handled for any of them, and when
    /// [`ReadBudget::forget`](crate::rc::ReadBudget::forget) returns true.
    pub fn wants_transmit(&self) -> bool {
        match self.state {
            QueuePairState::Init => false,
            QueuePairState::ReadyToSend => {
                self.notification.is_due() || self.responder.wants() || self.requester.wants()
            }
            QueuePairState::Error => self.responder.wants(),
        }
    }

    /// The next completion. Send requests complete in order.
    pub fn poll_completion(&mut self) -> Option<WorkCompletion> {
        self.completions.pop()
    }

    /// Whether [`QueuePair::poll_completion`] has a completion.
    pub const fn has_completions(&self) -> bool {
        !self.completions.is_empty()
    }

    /// The time by which [`QueuePair::handle_deadline`] must be called. It may change with any
    /// other call.
    pub fn deadline(&self) -> Option<Time> {
        self.requester.deadline()
    }

    /// Handles the timers that have expired at `now`: retransmission, RNR wait, and failure of the
    /// queue pair after too long a silence.
    pub fn handle_deadline(&mut self, now: Time, limits: &mut SharedLimits<'_>) {
        if let Err(failure) = self.requester.handle_deadline(now, limits, &mut self.counters) {
            self.enter_error(Some(failure), None, limits);
        }
    }

    /// Moves the queue pair to ERROR: its requests complete as flushed, its share of the shared
    /// limits is released, and it neither sends nor places anything afterwards. Must also be called
    /// before a queue pair is dropped.
    pub fn fail(&mut self, limits: &mut SharedLimits<'_>) {
        self.enter_error(None, None, limits);
        self.responder.silence();
    }

    fn handle_request(
        &mut self,
        packet: &Packet<'_>,
        memory: &mut impl Memory,
        limits: &mut SharedLimits<'_>,
    ) {
        let mut with = RequestContext {
            qpn: self.qpn,
            memory,
            completions: &mut self.completions,
            counters: &mut self.counters,
        };
        let spoke = self.responder.wants();
        match self.responder.handle(packet, &mut with) {
            // Responses to the peer's RDMA READs take precedence over acknowledgements.
            Ok(()) if !spoke && !self.responder.has_replies() => self.turn = TURN_PACKETS,
            Ok(()) => {}
            Err(refusal) => self.enter_error(None, refusal.receive, limits),
        }
    }

    fn handle_answer(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        memory: &mut impl Memory,
        limits: &mut SharedLimits<'_>,
    ) {
        if packet.bth.becn && !self.requester.reports_overflow() {
            // From a peer that is not Feedrail.
            limits.window.congested(now);
        }
        let cause = self.requester.cause_of_loss(packet.bth.becn);
        let mut with = Answers {
            now,
            limits: &mut *limits,
            completions: &mut self.completions,
            counters: &mut self.counters,
            cause,
        };
        let psn = packet.bth.psn;
        let result = match &packet.message {
            Message::Acknowledge(aeth) => self.requester.handle_acknowledge(psn, aeth, &mut with),
            Message::SelectiveAcknowledge(aeth, latest) => {
                let ack = SelectiveAck::parse(psn.next(), *latest, packet.payload);
                self.requester.handle_selective_acknowledge(aeth, ack, &mut with)
            }
            message => {
                let (aeth, payload) = (message.aeth(), packet.payload);
                self.requester.handle_response(psn, aeth, payload, memory, &mut with)
            }
        };
        if let Err(failure) = result {
            self.enter_error(Some(failure), None, limits);
        }
    }

    fn transmit_answer(
        &mut self,
        memory: &impl Memory,
        limits: &mut SharedLimits<'_>,
        out: &mut Transmit,
    ) -> bool {
        let overflowed = limits.overflowed;
        match self.responder.poll(self.qpn, memory, overflowed, &mut self.counters, out) {
            Ok(sent) => sent,
            Err(refusal) => {
                self.enter_error(None, refusal.receive, limits);
                // Only the NAK is left to send.
                let refusal = self.responder.poll(self.qpn, memory, false, &mut self.counters, out);
                refusal.unwrap_or(false)
            }
        }
    }

    fn transmit_request(
        &mut self,
        now: Time,
        memory: &mut impl Memory,
        limits: &mut SharedLimits<'_>,
        out: &mut Transmit,
    ) -> bool {
        match self.requester.poll(now, self.qpn, memory, limits, &mut self.completions, out) {
            Ok(sent) => sent,
            Err(failure) => {
                self.enter_error(Some(failure), None, limits);
                false
            }
        }
    }

    /// Moves the queue pair to ERROR. `failure` is the send request that failed, `receive` the
    /// status of the receive in use, if not flushed.
    fn enter_error(
        &mut self,
        failure: Option<SendFailure>,
        receive: Option<WorkStatus>,
        limits: &mut SharedLimits<'_>,
    ) {
        if self.state != QueuePairState::Error {
            self.state = QueuePairState::Error;
            self.requester.abandon(limits);
            self.flush(failure, receive);
        }
    }

    /// Completes all queued requests.
    fn flush(&mut self, failure: Option<SendFailure>, mut receive: Option<WorkStatus>) {
        let queue = &mut self.requester.queue;
        while queue.len() > 0 {
            let status = match failure {
                Some(failure) if failure.position == queue.head() => failure.status,
                _ => WorkStatus::Flushed,
            };
            let entry = queue.pop();
            self.completions.push_send(&entry, status);
        }
        while let Some(entry) = self.responder.queue.pop() {
            let status = receive.take().unwrap_or(WorkStatus::Flushed);
            self.completions.push_failed_receive(&entry, status);
        }
    }
}

/// The part of the queue pair that handles a packet.
enum PacketKind {
    /// A request, handled by the responder.
    Request,
    /// A response or acknowledgement, handled by the completer.
    Answer,
    /// A congestion notification packet, handled by the window.
    Notification,
    /// Any other packet, which is dropped.
    Neither,
}

const fn kind(message: &Message) -> PacketKind {
    /// CmpSwap and FetchAdd, which are not supported.
    const ATOMICS: [Opcode; 2] = [Opcode(0x13), Opcode(0x14)];
    match message {
        Message::Acknowledge(_)
        | Message::SelectiveAcknowledge(..)
        | Message::ReadResponseFirst(_)
        | Message::ReadResponseMiddle
        | Message::ReadResponseLast(_)
        | Message::ReadResponseOnly(_) => PacketKind::Answer,
        Message::Other(opcode) if opcode.0 == ATOMICS[0].0 || opcode.0 == ATOMICS[1].0 => {
            PacketKind::Request
        }
        Message::CongestionNotification => PacketKind::Notification,
        Message::Other(_) | Message::UdSendOnly(_) => PacketKind::Neither,
        _ => PacketKind::Request,
    }
}

/// Whether the partition key is the default one, with full or limited membership.
const fn in_default_partition(bth: &Bth) -> bool {
    bth.pkey | 0x8000 == Bth::DEFAULT_PKEY
}
