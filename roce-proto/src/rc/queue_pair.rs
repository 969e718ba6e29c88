//! The queue pair.

use crate::rc::{
    Completion, Connection, Counters, Limits, Memory, PostError, QpConfig, RecvRequest,
    SendRequest, Transmit,
};
use crate::wire::Packet;
use crate::{Qpn, Time};

/// A reliable-connection queue pair.
#[derive(Debug)]
pub struct QueuePair {
    qpn: Qpn,
    config: QpConfig,
    state: State,
}

/// The states of a queue pair (IBTA volume 1, 10.3.1), as far as they can be told apart from outside: a queue
/// pair is made in INIT, and connecting takes it through RTR to RTS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Requests may be posted and wait; packets are dropped.
    Init,
    /// Connected.
    ReadyToSend,
    /// Over: every request completes with [`crate::rc::Status::Flushed`].
    Error,
}

impl QueuePair {
    /// A queue pair in INIT. Allocates everything that it will ever need.
    pub fn new(qpn: Qpn, config: &QpConfig) -> Self {
        Self { qpn, config: config.granted(), state: State::Init }
    }

    /// Its number.
    pub const fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// What it was granted, which may differ from what was asked for: [`QpConfig::granted`].
    pub const fn granted(&self) -> QpConfig {
        self.config
    }

    /// Its state.
    pub const fn state(&self) -> State {
        self.state
    }

    /// Its counters.
    pub fn counters(&self) -> Counters {
        Counters::default()
    }

    /// Takes it from INIT to RTS. In any other state nothing happens.
    pub fn connect(&mut self, connection: &Connection) {
        let _ = connection;
    }

    /// Queues a send request; before [`QueuePair::connect`] it waits. In ERROR it completes at once as
    /// flushed.
    ///
    /// # Errors
    /// The request was not queued.
    pub fn post_send(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        let _ = request;
        Err(PostError::QueueFull)
    }

    /// Queues a receive; allowed before [`QueuePair::connect`]. In ERROR it completes at once as flushed.
    ///
    /// # Errors
    /// The request was not queued.
    pub fn post_recv(&mut self, request: &RecvRequest<'_>) -> Result<(), PostError> {
        let _ = request;
        Err(PostError::QueueFull)
    }

    /// Handles a packet whose invariant CRC is right and whose destination is this queue pair. The caller has
    /// made sure that it came from the connection's peer.
    pub fn handle_packet(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        memory: &mut impl Memory,
        limits: &mut Limits<'_>,
    ) {
        let _ = (now, packet, memory, limits);
    }

    /// Writes the next packet to send to `out` and returns true, or returns false if there is none now. It must
    /// be sent before the next call, and may be lost.
    pub fn poll_transmit(
        &mut self,
        now: Time,
        memory: &mut impl Memory,
        limits: &mut Limits<'_>,
        out: &mut Transmit,
    ) -> bool {
        let _ = (now, memory, limits, out);
        false
    }

    /// Whether [`QueuePair::poll_transmit`] may have something to send. It may still return false while the
    /// shared limits are used up: then it should be called again, in turn with the other queue pairs that share
    /// them, after a packet has been handled for any of these.
    pub fn wants_transmit(&self) -> bool {
        false
    }

    /// The next completion. They come in the order of the requests of each queue.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        None
    }

    /// Whether [`QueuePair::poll_completion`] has something.
    pub fn has_completions(&self) -> bool {
        false
    }

    /// When [`QueuePair::handle_deadline`] must be called, if nothing happens before. It may change with every
    /// other call.
    pub fn deadline(&self) -> Option<Time> {
        None
    }

    /// Does what is due at `now`: retransmission, the end of a receiver-not-ready wait, giving up.
    pub fn handle_deadline(&mut self, now: Time, limits: &mut Limits<'_>) {
        let _ = (now, limits);
    }

    /// Takes it to ERROR: its requests complete as flushed, what it holds of the shared limits is returned, it
    /// sends nothing any more, and nothing that arrives is placed. Call it before dropping a queue pair as well.
    pub fn fail(&mut self, limits: &mut Limits<'_>) {
        let _ = limits;
    }
}
