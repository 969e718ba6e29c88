//! Sending: packets gathered in place into trains, trains into one system call.
#![expect(unsafe_code, reason = "sendmmsg takes pointers")]

use std::io;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};

use roce_proto::wire::{Bth, Flow, Icrc, Identification};
use socket2::SockAddr;

use super::raw::{self, ControlBuffer};
use super::trains::{Cuts, MAX_PACKETS, MAX_TRAINS, Train, Trains};
use crate::roce::icrc;
use crate::roce::wire::{ICRC_BYTES, Outgoing, WireCounters};

/// Pieces of payload gathered for one call: more than one for each packet.
const MAX_SLICES: usize = 2 * MAX_PACKETS;
/// Memory pieces of one call: those, and one for each packet's headers and the trailer before them.
const MAX_PIECES: usize = MAX_SLICES + 2 * MAX_PACKETS;
/// Headers of a typical packet and the zeros before them; inline payload counts as headers and takes more.
const HEADERS: usize = 64;
const BEGINS: &str = "a packet begins with the base transport header";
/// Pad and CRC.
const MAX_TRAILER: usize = 3 + ICRC_BYTES;

/// What waits for the next system call. Everything is allocated once.
pub(super) struct Batch {
    trains: Trains,
    packets: Box<[Packet]>,
    /// Of each packet, behind the zeros that its CRC wants before them.
    headers: Box<[u8]>,
    headers_used: usize,
    slices: Box<[*const [u8]]>,
    slices_used: usize,
    layout: Layout,
}

// SAFETY: the pointers in `slices` lead to memory that `Wire::send` promises to stay readable until `flush`; nothing
// is tied to a thread.
unsafe impl Send for Batch {}

/// A packet: where its parts are.
#[derive(Clone, Copy, Default)]
struct Packet {
    length: usize,
    /// Of the zeros before them, which count in.
    first_header: usize,
    headers: usize,
    first_slice: usize,
    slices: usize,
    pad_bytes: u8,
    /// Its CRC is to be wrong, on purpose.
    damaged: bool,
}

impl Batch {
    pub(super) fn new() -> Self {
        let nothing: &[u8] = &[];
        Self {
            trains: Trains::new(),
            packets: vec![Packet::default(); MAX_PACKETS].into(),
            headers: vec![0; MAX_PACKETS * HEADERS].into(),
            headers_used: 0,
            slices: vec![&raw const *nothing; MAX_SLICES].into(),
            slices_used: 0,
            layout: Layout::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.trains.is_empty()
    }

    /// Whether another packet like this fits before the next [`Batch::send`].
    pub(super) fn has_room(&self, packet: &Outgoing<'_>) -> bool {
        self.trains.has_room_for(packet, packet.length())
            && self.slices_used + packet.pieces.len() <= MAX_SLICES
            && self.headers_used + Icrc::ZEROS + packet.headers.len() <= self.headers.len()
    }

    /// Adds a packet, on purpose with a wrong CRC if `damaged`; it may be part of a train if the kernel `cuts` those.
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
        self.packets[index] = Packet {
            length,
            first_header,
            headers: Icrc::ZEROS + packet.headers.len(),
            first_slice,
            slices: packet.pieces.len(),
            pad_bytes: packet.pad_bytes,
            damaged,
        };
    }

    /// Sends everything, or gives up what the system does not take: the transport sends it again.
    pub(super) fn send(
        &mut self,
        from: SocketAddr,
        fd: &impl AsRawFd,
        cuts: &mut Cuts,
        counters: &mut WireCounters,
    ) -> SendOutcome {
        self.lay_out(from);
        let Layout { messages, messages_used, headers, .. } = &mut self.layout;
        let messages = &messages[..*messages_used];
        let mut outcome = SendOutcome::default();
        let mut sent = 0;
        let mut patience = 2 * messages.len();
        while sent < messages.len() {
            counters.send_calls += 1;
            match send_some(fd.as_raw_fd(), &mut headers[sent..messages.len()]) {
                Ok(count) => sent += count,
                Err(error) => match messages[sent].what_now(&error, cuts) {
                    Remedy::Again if patience > 0 => {
                        outcome.error_queued = true;
                        patience -= 1;
                    }
                    Remedy::Again | Remedy::DropOne => {
                        // A packet too long for the route leaves an entry there as well.
                        outcome.error_queued = true;
                        counters.send_drops += messages[sent].segments as u64;
                        sent += 1;
                    }
                    Remedy::DropAll => {
                        let rest = &messages[sent..];
                        counters.send_drops += rest.iter().map(|m| m.segments as u64).sum::<u64>();
                        sent = messages.len();
                    }
                },
            }
        }
        self.clear();
        outcome
    }

    /// Gives the packets of each train their places and their CRCs.
    fn lay_out(&mut self, from: SocketAddr) {
        self.trains.couple_neighbours();
        self.layout.clear();
        for train in self.trains.iter() {
            self.layout.begin_message(from, train);
            for (index, at) in (0..).zip(self.trains.packets_of(train)) {
                let packet = &self.packets[at];
                let zeros_and_headers = &self.headers[packet.first_header..][..packet.headers];
                let slices = &self.slices[packet.first_slice..][..packet.slices];
                // SAFETY: they are readable until the batch was sent (`Wire::send`), which happens next.
                let pieces = slices.iter().map(|slice| unsafe { &**slice });
                self.layout.push(index, packet, zeros_and_headers, pieces);
            }
        }
        self.layout.fill_in_headers();
    }

    fn clear(&mut self) {
        self.trains.clear();
        self.headers_used = 0;
        self.slices_used = 0;
    }
}

/// The messages of a system call, as it takes them.
struct Layout {
    /// Headers and trailers of the packets, in order; pieces point into it, so it never moves.
    framing: Box<[u8]>,
    framing_used: usize,
    pieces: Box<[libc::iovec]>,
    pieces_used: usize,
    messages: Box<[Message]>,
    messages_used: usize,
    headers: Box<[libc::mmsghdr]>,
}

// SAFETY: the pointers in `pieces` and `headers` lead into these boxes, or to memory that `Wire::send` promises to stay
// readable until `flush`; nothing is tied to a thread.
unsafe impl Send for Layout {}

/// One message: a packet, or a train.
struct Message {
    to: SockAddr,
    peer: SocketAddr,
    flow: Option<Flow>,
    first_piece: usize,
    pieces: usize,
    /// Length of all segments but the last, which may be shorter.
    segment: usize,
    segments: usize,
    control: ControlBuffer,
}

impl Message {
    fn what_now(&self, error: &io::Error, cuts: &mut Cuts) -> Remedy {
        match error.raw_os_error() {
            // An error of an earlier packet is reported, and consumed thereby; nothing was sent.
            Some(libc::ECONNREFUSED | libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EINTR) => {
                Remedy::Again
            }
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => Remedy::DropAll,
            Some(libc::EIO | libc::EINVAL) if self.segments > 1 => {
                // The route's device cannot checksum trains. Their CRCs are those of a train, so they are lost.
                cuts.refused(self.peer);
                Remedy::DropOne
            }
            _ => Remedy::DropOne,
        }
    }
}

impl Layout {
    fn new() -> Self {
        let nowhere: SocketAddr = (std::net::Ipv4Addr::UNSPECIFIED, 0).into();
        let message = || Message {
            to: nowhere.into(),
            peer: nowhere,
            flow: None,
            first_piece: 0,
            pieces: 0,
            segment: 0,
            segments: 0,
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
        }
    }

    fn clear(&mut self) {
        self.framing_used = 0;
        self.pieces_used = 0;
        self.messages_used = 0;
    }

    /// `from` is the same each time.
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
    }

    /// Adds segment `index` of the message: it gets that identification, so it is part of the train for good.
    fn push<'a>(
        &mut self,
        index: u16,
        packet: &Packet,
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

    /// Copies bytes of ours behind each other, so that one packet's trailer and the next one's headers are
    /// one piece.
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

    /// Fills in the system call's arguments.
    fn fill_in_headers(&mut self) {
        let pieces = self.pieces.as_mut_ptr();
        let messages = &mut self.messages[..self.messages_used];
        for (message, header) in messages.iter_mut().zip(&mut self.headers) {
            let header = &mut header.msg_hdr;
            header.msg_name = message.to.as_ptr().cast_mut().cast();
            header.msg_namelen = message.to.len();
            header.msg_iov = pieces.wrapping_add(message.first_piece);
            header.msg_iovlen = message.pieces;
            message.control.describe_train(header, message.segment, message.segments);
        }
    }
}

/// What sending turned up besides.
#[derive(Default)]
pub(super) struct SendOutcome {
    /// The error queue of the socket may have something.
    pub(super) error_queued: bool,
}

enum Remedy {
    Again,
    DropOne,
    DropAll,
}

fn send_some(fd: RawFd, headers: &mut [libc::mmsghdr]) -> io::Result<usize> {
    let count = u32::try_from(headers.len()).expect("a bounded batch");
    // SAFETY: `fill_in_headers` made each header point at a name, pieces and control data that live in the layout, and
    // the pieces at memory that is readable until the batch was sent (`Wire::send`).
    let sent = unsafe { libc::sendmmsg(fd, headers.as_mut_ptr(), count, libc::MSG_DONTWAIT) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

const _: () = assert!(MAX_PIECES <= 1024, "the kernel takes no more in one message");
const _: () = assert!(mem::size_of::<usize>() == 8, "addresses on the wire have 64 bits");
