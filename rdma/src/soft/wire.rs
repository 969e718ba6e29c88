//! The sockets of one group or connection manager as a [`Wire`].
#![expect(unsafe_code, reason = "packets are gathered where their payload lies")]

use core::time::Duration;
use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use super::faults::Filter;
use super::receive::{self, Inbox, QueuedError, ReceiveOutcome};
use super::socket::Sockets;
use super::trains::GsoSupport;
use super::transmit::{Backlog, Outlet, SendBatch, Shortage};
use crate::Time;
use crate::roce::wire::{Arrived, Datagram, Outgoing, Wire, WireCounters};

/// Peers known to be unreachable that wait to be asked for; more are forgotten.
const MAX_UNREACHABLE: usize = 256;
/// Entries taken from an error queue at once: more than its share of the receive buffer holds.
const MAX_ERRORS: usize = 1 << 16;

/// The pause before packets that the system did not take are sent again, where no descriptor tells
/// of room. Doubled, they leave up to 1 ms later.
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(1);

/// A socket that sends, behind the faults that are asked for.
struct Filtered<'a> {
    socket: &'a UdpSocket,
    filter: Option<&'a mut Filter>,
}

impl Outlet for Filtered<'_> {
    fn send_messages(&mut self, headers: &mut [libc::mmsghdr]) -> io::Result<usize> {
        let Some(filter) = &mut self.filter else { return self.socket.send_messages(headers) };
        if filter.is_busy() {
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        }
        let count = filter.taken_at_once(headers.len());
        self.socket.send_messages(&mut headers[..count])
    }
}

/// UDP sockets as a way in and out.
pub struct SoftWire {
    sockets: Sockets,
    /// Where the receiver is bound.
    endpoint: SocketAddr,
    /// The address that packets are sent from.
    source: SocketAddr,
    inbox: Inbox,
    filter: Option<Box<Filter>>,
    batch: SendBatch,
    backlog: Backlog,
    /// Why something is in the backlog, and when to try again at the latest.
    shortage: Option<(Shortage, Time)>,
    cuts: GsoSupport,
    unreachable: VecDeque<SocketAddr>,
    counters: WireCounters,
}

impl SoftWire {
    pub(super) fn new(sockets: Sockets, endpoint: SocketAddr, filter: Option<Filter>) -> Self {
        Self {
            source: sockets.source(endpoint),
            endpoint,
            cuts: GsoSupport::new(sockets.gso),
            batch: SendBatch::new(sockets.traffic_class),
            sockets,
            inbox: Inbox::new(),
            filter: filter.map(Box::new),
            backlog: Backlog::default(),
            shortage: None,
            unreachable: VecDeque::with_capacity(MAX_UNREACHABLE),
            counters: WireCounters::default(),
        }
    }

    fn sender(&self) -> &UdpSocket {
        self.sockets.sender()
    }

    fn send_batch(&mut self, now: Time) {
        let mut outlet =
            Filtered { socket: self.sockets.sender(), filter: self.filter.as_deref_mut() };
        let Self { batch, backlog, cuts, counters, .. } = self;
        let mut outcome = backlog.send(&mut outlet, cuts, counters);
        if !batch.is_empty() {
            let more = batch.send(self.source, &mut outlet, cuts, backlog, counters);
            outcome.shortage = outcome.shortage.or(more.shortage);
            outcome.error_queued |= more.error_queued;
        }
        self.shortage = outcome.shortage.map(|shortage| (shortage, now + TRY_AGAIN_AFTER));
        if outcome.error_queued {
            self.drain_errors(true);
        }
    }

    /// Empties the error queue of the sender or the receiver.
    fn drain_errors(&mut self, of_sender: bool) {
        for _ in 0..MAX_ERRORS {
            let socket = if of_sender { self.sender() } else { &self.sockets.receiver };
            match receive::next_error(socket) {
                Some(QueuedError::Unreachable(peer))
                    if self.unreachable.len() < MAX_UNREACHABLE =>
                {
                    self.unreachable.push_back(peer);
                }
                Some(_) => {}
                None => return,
            }
        }
    }
}

impl Wire for SoftWire {
    fn receive(&mut self, now: Time, mut handle: impl FnMut(Datagram<'_>)) -> Arrived {
        let (count, more) = match self.inbox.fetch(&self.sockets.receiver, &mut self.counters) {
            ReceiveOutcome::All(count) => (count, false),
            ReceiveOutcome::Full(count) => (count, true),
            ReceiveOutcome::Error => {
                self.drain_errors(false);
                (0, true)
            }
        };
        let datagrams = match &mut self.filter {
            None => self.inbox.for_each(count, self.endpoint, &mut handle),
            Some(filter) => {
                filter.release(now, &mut handle);
                let mut pass = |datagram: Datagram<'_>| filter.pass(now, datagram, &mut handle);
                self.inbox.for_each(count, self.endpoint, &mut pass)
            }
        };
        Arrived { datagrams, more }
    }

    unsafe fn send(&mut self, now: Time, packet: &Outgoing<'_>) {
        if !self.batch.has_room(packet) {
            self.send_batch(now);
        }
        let damaged = self.filter.as_mut().is_some_and(|filter| filter.damages_sent());
        self.batch.push(packet, self.cuts.are_for(packet.to), damaged);
    }

    fn flush(&mut self, now: Time) {
        if !self.batch.is_empty() || self.is_blocked() {
            self.send_batch(now);
        }
    }

    fn is_blocked(&self) -> bool {
        self.shortage.is_some()
    }

    fn awaits_room(&self) -> bool {
        matches!(self.shortage, Some((Shortage::Buffer, _)))
    }

    fn discard(&mut self) {
        self.batch.clear();
    }

    fn deadline(&self) -> Option<Time> {
        let held_back = self.filter.as_ref().and_then(|filter| filter.deadline());
        held_back.into_iter().chain(self.shortage.map(|(_, again)| again)).min()
    }

    fn next_unreachable(&mut self) -> Option<SocketAddr> {
        self.unreachable.pop_front()
    }

    fn check_sender(&mut self) {
        if self.sockets.sender.is_some() {
            self.drain_errors(true);
        }
    }

    fn fds(&self) -> [Option<BorrowedFd<'_>>; 2] {
        [Some(self.sockets.receiver.as_fd()), self.sockets.sender.as_ref().map(AsFd::as_fd)]
    }

    fn overflows(&self) -> u32 {
        self.inbox.overflows()
    }

    fn counters(&self) -> WireCounters {
        self.counters
    }
}
