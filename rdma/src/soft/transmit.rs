//! Sending: packets are gathered without copying their payload, and sent in trains with one system
//! call.
#![expect(unsafe_code, reason = "sendmmsg takes pointers")]

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use roce_proto::wire::{Bth, Flow, Icrc, Identification};
use socket2::SockAddr;

use super::raw::{self, ControlBuffer};
use super::trains::{GsoSupport, MAX_PACKETS, MAX_TRAINS, Train, TrainBuilder};
use crate::roce::icrc;
use crate::roce::wire::{ICRC_BYTES, Outgoing, WireCounters};

/// Maximum number of payload pieces in one system call: two per packet.
const MAX_SLICES: usize = 2 * MAX_PACKETS;
/// Maximum number of `iovec`s in one system call: the payload pieces, and per packet its headers
/// and its trailer.
const MAX_PIECES: usize = MAX_SLICES + 2 * MAX_PACKETS;
/// Bytes reserved per packet for its headers and the zeros before them; inline payload is part of
/// the headers and takes more.
const HEADERS: usize = 64;
const BEGINS: &str = "a packet begins with the base transport header";
/// Maximum length of a packet's trailer (pad and ICRC) in bytes.
const MAX_TRAILER: usize = 3 + ICRC_BYTES;

/// The packets of the next system call. All memory is allocated once.
pub(super) struct SendBatch {
    trains: TrainBuilder,
    packets: Box<[QueuedPacket]>,
    /// Headers of all packets, each after the zeros that its ICRC computation needs.
    headers: Box<[u8]>,
    headers_used: usize,
    slices: Box<[*const [u8]]>,
    slices_used: usize,
    layout: MessageLayout,
}

// SAFETY: the pointers in `slices` lead to memory that `Wire::send` promises to stay readable until
// `flush`; nothing is tied to a thread.
unsafe impl Send for SendBatch {}

/// The location of a packet's parts in the batch.
#[derive(Clone, Copy, Default)]
struct QueuedPacket {
    length: usize,
    /// Offset of the zeros before the headers; `headers` includes their length.
    first_header: usize,
    headers: usize,
    first_slice: usize,
    slices: usize,
    pad_bytes: u8,
    /// Whether the packet gets a wrong ICRC, as an injected fault.
    damaged: bool,
}

impl SendBatch {
    /// Creates a batch for a socket with this traffic class.
    pub(super) fn new(socket_class: u8) -> Self {
        let nothing: &[u8] = &[];
        Self {
            trains: TrainBuilder::new(),
            packets: vec![QueuedPacket::default(); MAX_PACKETS].into(),
            headers: vec![0; MAX_PACKETS * HEADERS].into(),
            headers_used: 0,
            slices: vec![&raw const *nothing; MAX_SLICES].into(),
            slices_used: 0,
            layout: MessageLayout::new(socket_class),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.trains.is_empty()
    }

    /// Whether this packet fits before the next [`SendBatch::send`].
    pub(super) fn has_room(&self, packet: &Outgoing<'_>) -> bool {
        self.trains.has_room_for(packet, packet.length())
            && self.slices_used + packet.pieces.len() <= MAX_SLICES
            && self.headers_used + Icrc::ZEROS + packet.headers.len() <= self.headers.len()
    }

    /// Adds a packet. `cuts` says whether GSO is supported for its peer; `damaged` gives it a
    /// wrong ICRC.
    pub(super) fn push(&mut self, packet: &Outgoing<'_>, cuts: bool, damaged: bool) {
        let (first_header, first_slice) = (self.headers_used, self.slices_used);
        self.headers_used += Icrc::ZEROS + packet.headers.len();
        let (zeros, headers) =
            self.headers[first_header..self.headers_used].split_at_mut(Icrc::ZEROS);
        zeros.fill(0);
        let (first, rest) = headers.split_first_chunk_mut::<{ Bth::BYTES }>().expect(BEGINS);
        let (bth, extension) = packet.headers.split_first_chunk().expect(BEGINS);
        *first = *bth;
        rest.copy_from_slice(extension);
        self.slices_used += packet.pieces.len();
        let slices = &mut self.slices[first_slice..self.slices_used];
        for (slice, piece) in slices.iter_mut().zip(packet.pieces) {
            *slice = &raw const **piece;
        }
        let length = packet.length();
        let index = self.trains.add(packet, length, cuts);
        self.packets[index] = QueuedPacket {
            length,
            first_header,
            headers: Icrc::ZEROS + packet.headers.len(),
            first_slice,
            slices: packet.pieces.len(),
            pad_bytes: packet.pad_bytes,
            damaged,
        };
    }

    /// Sends all packets. Those that the system does not accept now go to the end of `backlog`;
    /// those that it refuses for good, or for which the backlog has no room, are dropped, and the
    /// transport retransmits them.
    pub(super) fn send(
        &mut self,
        from: SocketAddr,
        outlet: &mut impl Outlet,
        cuts: &mut GsoSupport,
        backlog: &mut Backlog,
        counters: &mut WireCounters,
    ) -> SendOutcome {
        self.lay_out(from);
        let MessageLayout { messages, messages_used, headers, pieces, .. } = &mut self.layout;
        let (messages, headers) = (&messages[..*messages_used], &mut headers[..*messages_used]);
        let mut outcome = SendOutcome::default();
        let mut sent = 0;
        if backlog.is_empty() {
            sent = send_all(messages, headers, outlet, cuts, counters, &mut outcome);
        }
        for message in &messages[sent..] {
            let pieces = &pieces[message.first_piece..][..message.pieces];
            if !backlog.keep(message, pieces) {
                counters.send_drops += message.segments as u64;
            }
        }
        self.clear();
        outcome
    }

    /// Lays out the messages and computes the ICRCs.
    fn lay_out(&mut self, from: SocketAddr) {
        self.trains.append_first_packet_to_previous_train();
        self.layout.clear();
        for train in self.trains.iter() {
            self.layout.begin_message(from, train);
            for (index, at) in (0..).zip(self.trains.packets_of(train)) {
                let packet = &self.packets[at];
                let zeros_and_headers = &self.headers[packet.first_header..][..packet.headers];
                let slices = &self.slices[packet.first_slice..][..packet.slices];
                // SAFETY: they are readable until the batch was sent (`Wire::send`), which happens
                // next.
                let pieces = slices.iter().map(|slice| unsafe { &**slice });
                self.layout.push(index, packet, zeros_and_headers, pieces);
            }
        }
        self.layout.fill_in_headers();
    }

    /// Discards all packets; their payload is not accessed any longer.
    pub(super) fn clear(&mut self) {
        self.trains.clear();
        self.headers_used = 0;
        self.slices_used = 0;
    }
}

/// The messages in the form that `sendmmsg` needs.
struct MessageLayout {
    /// Headers and trailers of all packets, in order; `iovec`s point into it, so it is never
    /// reallocated.
    framing: Box<[u8]>,
    framing_used: usize,
    pieces: Box<[libc::iovec]>,
    pieces_used: usize,
    messages: Box<[UdpMessage]>,
    messages_used: usize,
    headers: Box<[libc::mmsghdr]>,
    socket_class: u8,
}

// SAFETY: the pointers in `pieces` and `headers` lead into these boxes, or to memory that
// `Wire::send` promises to stay readable until `flush`; nothing is tied to a thread.
unsafe impl Send for MessageLayout {}

/// A message: one packet or a train.
#[derive(Clone)]
struct UdpMessage {
    to: SockAddr,
    peer: SocketAddr,
    flow: Option<Flow>,
    first_piece: usize,
    pieces: usize,
    /// Length of each segment except the last, which may be shorter.
    segment: usize,
    segments: usize,
    /// Set if it differs from the socket's.
    traffic_class: Option<u8>,
    control: ControlBuffer,
}

impl UdpMessage {
    /// The reaction to an error; `again` if this message has already been retried.
    fn what_now(&self, error: &io::Error, again: bool, cuts: &mut GsoSupport) -> Remedy {
        match error.raw_os_error() {
            // The error belongs to an earlier packet and is cleared by the call; nothing was sent.
            Some(libc::ECONNREFUSED | libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EINTR) => {
                Remedy::Again
            }
            Some(libc::EAGAIN) => Remedy::Wait(Shortage::Buffer),
            Some(libc::ENOBUFS | libc::ENOMEM) => Remedy::Wait(Shortage::System),
            // An ICMP message may cause this too, although `IP_PMTUDISC_PROBE` ignores its
            // contents.
            Some(libc::EMSGSIZE) if !again => Remedy::Again,
            Some(libc::EIO | libc::EINVAL) if self.segments > 1 => {
                // The route's device does not support GSO. The ICRCs were computed for a train, so
                // its packets are dropped.
                cuts.refused(self.peer);
                Remedy::DropOne
            }
            _ => Remedy::DropOne,
        }
    }
}

impl MessageLayout {
    fn new(socket_class: u8) -> Self {
        let nowhere: SocketAddr = (std::net::Ipv4Addr::UNSPECIFIED, 0).into();
        let message = || UdpMessage {
            to: nowhere.into(),
            peer: nowhere,
            flow: None,
            first_piece: 0,
            pieces: 0,
            segment: 0,
            segments: 0,
            traffic_class: None,
            control: ControlBuffer::default(),
        };
        Self {
            framing: vec![0; MAX_PACKETS * (HEADERS + MAX_TRAILER)].into(),
            framing_used: 0,
            pieces: vec![raw::NO_PIECE; MAX_PIECES].into(),
            pieces_used: 0,
            messages: (0..MAX_TRAINS).map(|_| message()).collect(),
            messages_used: 0,
            headers: vec![raw::NO_MESSAGE; MAX_TRAINS].into(),
            socket_class,
        }
    }

    fn clear(&mut self) {
        self.framing_used = 0;
        self.pieces_used = 0;
        self.messages_used = 0;
    }

    /// Begins a message; `from` must be the same in all calls.
    fn begin_message(&mut self, from: SocketAddr, train: &Train) {
        let message = &mut self.messages[self.messages_used];
        self.messages_used += 1;
        if message.peer != train.peer {
            message.to = train.peer.into();
            message.peer = train.peer;
            message.flow = Flow::new(from, train.peer);
        }
        message.first_piece = self.pieces_used;
        message.pieces = 0;
        message.segment = train.segment;
        message.segments = train.segments;
        let class = train.traffic_class;
        message.traffic_class = (class != self.socket_class).then_some(class);
    }

    /// Adds segment `index` of the message. Its ICRC covers the identification that this index
    /// implies, so the segment must stay in this position.
    fn push<'a>(
        &mut self,
        index: u16,
        packet: &QueuedPacket,
        zeros_and_headers: &[u8],
        pieces: impl Iterator<Item = &'a [u8]> + Clone,
    ) {
        let id = Identification::segment(index);
        let flow = self.messages[self.messages_used - 1].flow;
        let start =
            flow.map(|flow| Icrc::behind_zeros(&flow, id, packet.length, zeros_and_headers));
        let mut crc = icrc::finish(start, pieces.clone(), packet.pad_bytes);
        crc[0] ^= u8::from(packet.damaged);
        self.push_framing(&zeros_and_headers[Icrc::ZEROS..]);
        for piece in pieces {
            self.push_piece(piece.as_ptr(), piece.len());
        }
        self.push_framing(&[0; 3][..usize::from(packet.pad_bytes)]);
        self.push_framing(&crc);
    }

    /// Copies headers or a trailer; a trailer and the next packet's headers become one `iovec`.
    fn push_framing(&mut self, bytes: &[u8]) {
        let start = self.framing_used;
        let end = start + bytes.len();
        self.framing[start..end].copy_from_slice(bytes);
        self.framing_used = end;
        let message = &self.messages[self.messages_used - 1];
        let base = self.framing[start..end].as_ptr();
        if message.pieces > 0 {
            let last = &mut self.pieces[self.pieces_used - 1];
            if last.iov_base.addr() + last.iov_len == base.addr() {
                last.iov_len += bytes.len();
                return;
            }
        }
        self.push_piece(base, bytes.len());
    }

    fn push_piece(&mut self, base: *const u8, length: usize) {
        if length == 0 {
            return;
        }
        self.pieces[self.pieces_used] =
            libc::iovec { iov_base: base.cast_mut().cast(), iov_len: length };
        self.pieces_used += 1;
        self.messages[self.messages_used - 1].pieces += 1;
    }

    /// Fills in the headers for the system call.
    fn fill_in_headers(&mut self) {
        let pieces = self.pieces.as_mut_ptr();
        let messages = &mut self.messages[..self.messages_used];
        for (message, header) in messages.iter_mut().zip(&mut self.headers) {
            let place = (pieces.wrapping_add(message.first_piece), message.pieces);
            message.fill_in(place, &mut header.msg_hdr);
        }
    }
}

impl UdpMessage {
    /// Fills in a header: destination, `iovec`s and control messages.
    fn fill_in(&mut self, pieces: (*mut libc::iovec, usize), header: &mut libc::msghdr) {
        header.msg_name = self.to.as_ptr().cast_mut().cast();
        header.msg_namelen = self.to.len();
        (header.msg_iov, header.msg_iovlen) = pieces;
        let Self { segment, segments, traffic_class, peer, .. } = *self;
        self.control.describe(header, segment, segments, traffic_class, peer);
    }
}

/// Result of sending, apart from the number of messages.
#[derive(Default)]
pub(super) struct SendOutcome {
    /// Whether the socket's error queue may have entries.
    pub(super) error_queued: bool,
    /// The reason why the system accepts no further messages; `None` if it does.
    pub(super) shortage: Option<Shortage>,
}

/// A temporary shortage that stops sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shortage {
    /// The socket's send buffer is full; the socket becomes writable later.
    Buffer,
    /// Kernel memory or a device queue is exhausted; there is no notification of its end.
    System,
}

enum Remedy {
    Again,
    DropOne,
    Wait(Shortage),
}

/// Sends messages until the system refuses one; returns the number sent or dropped.
fn send_all(
    messages: &[UdpMessage],
    headers: &mut [libc::mmsghdr],
    outlet: &mut impl Outlet,
    cuts: &mut GsoSupport,
    counters: &mut WireCounters,
    outcome: &mut SendOutcome,
) -> usize {
    let mut sent = 0;
    let mut retries_left = 2 * messages.len();
    let mut retried = None;
    while sent < messages.len() {
        counters.send_calls += 1;
        let error = match outlet.send_messages(&mut headers[sent..]) {
            Ok(count) => {
                sent += count;
                continue;
            }
            Err(error) => error,
        };
        let again = retried.replace(sent) == Some(sent);
        match messages[sent].what_now(&error, again, cuts) {
            Remedy::Again if retries_left > 0 => {
                outcome.error_queued = true;
                retries_left -= 1;
            }
            Remedy::Again | Remedy::DropOne => {
                // A packet that is too long for the route also adds an entry to the error queue.
                outcome.error_queued = true;
                counters.send_drops += messages[sent].segments as u64;
                sent += 1;
            }
            Remedy::Wait(shortage) => {
                outcome.shortage = Some(shortage);
                break;
            }
        }
    }
    sent
}

/// The socket, or a substitute that injects failures.
pub(super) trait Outlet {
    /// Sends messages that [`UdpMessage::fill_in`] has filled in; returns the number accepted.
    fn send_messages(&mut self, headers: &mut [libc::mmsghdr]) -> io::Result<usize>;
}

impl Outlet for &UdpSocket {
    fn send_messages(&mut self, headers: &mut [libc::mmsghdr]) -> io::Result<usize> {
        let count = u32::try_from(headers.len()).expect("a bounded batch");
        let (fd, headers) = (self.as_raw_fd(), headers.as_mut_ptr());
        // SAFETY: each header points at a name, pieces and control data that live in the layout or
        // the backlog that it was filled in from, and the pieces at memory of the backlog, or such
        // as is readable until the batch was sent (`Wire::send`).
        let sent = unsafe { libc::sendmmsg(fd, headers, count, libc::MSG_DONTWAIT) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }
}

/// Copies of messages that the system did not accept yet: the original memory is only valid until
/// the batch was sent. Memory is allocated on first need.
#[derive(Default)]
pub(super) struct Backlog {
    messages: VecDeque<KeptPacket>,
    bytes: Vec<u8>,
}

struct KeptPacket {
    message: UdpMessage,
    start: usize,
    end: usize,
}

/// Maximum bytes in a backlog: those of one batch, and room for further packets. Messages beyond it
/// are dropped, and the transport retransmits them.
const MAX_KEPT: usize = 1 << 20;

impl Backlog {
    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Copies a message; returns false if the backlog is full.
    fn keep(&mut self, message: &UdpMessage, pieces: &[libc::iovec]) -> bool {
        let length: usize = pieces.iter().map(|piece| piece.iov_len).sum();
        let start = self.bytes.len();
        if start + length > MAX_KEPT {
            return false;
        }
        for piece in pieces {
            let (base, length) = (piece.iov_base.cast::<u8>(), piece.iov_len);
            // SAFETY: the pieces are those of a layout whose batch is being sent, so they are
            // readable (`Wire::send`).
            self.bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(base, length) });
        }
        let message = message.clone();
        self.messages.push_back(KeptPacket { message, start, end: start + length });
        true
    }

    /// Sends the kept messages until the system refuses one.
    pub(super) fn send(
        &mut self,
        outlet: &mut impl Outlet,
        cuts: &mut GsoSupport,
        counters: &mut WireCounters,
    ) -> SendOutcome {
        let mut outcome = SendOutcome::default();
        while let Some(KeptPacket { message, start, end }) = self.messages.front_mut() {
            let bytes = &mut self.bytes[*start..*end];
            let mut piece =
                libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
            let mut header = raw::NO_MESSAGE;
            message.fill_in((&raw mut piece, 1), &mut header.msg_hdr);
            let (messages, headers) = (std::slice::from_ref(&*message), &mut [header]);
            if send_all(messages, headers, outlet, cuts, counters, &mut outcome) == 0 {
                return outcome;
            }
            self.messages.pop_front();
        }
        self.bytes.clear();
        outcome
    }
}

const _: () = assert!(MAX_PIECES <= 1024, "the kernel takes no more in one message");
const _: () = assert!(mem::size_of::<usize>() == 8, "addresses on the wire have 64 bits");

#[cfg(test)]
mod tests;
