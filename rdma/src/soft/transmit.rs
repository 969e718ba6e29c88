//! Sending: packets gathered in place into trains, trains into one system call.
#![expect(unsafe_code, reason = "sendmmsg takes pointers")]

use std::io;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};

use socket2::SockAddr;

use super::raw::{self, ControlBuffer};
use crate::roce::icrc;
use crate::roce::wire::{ICRC_BYTES, Outgoing, WireCounters};

/// Messages that one call may carry.
const MAX_MESSAGES: usize = 64;
/// Packets gathered for one call.
const MAX_PACKETS: usize = 256;
/// Memory pieces gathered for one call: beyond the payload, one for each packet's headers and trailers.
const MAX_PIECES: usize = 4 * MAX_PACKETS;
/// What the kernel takes in one message.
const MAX_PIECES_OF_MESSAGE: usize = 1024;
/// Headers, pad and CRC of a typical packet; inline payload counts as headers and takes more.
const FRAMING: usize = 64;
/// Pad and CRC.
const MAX_TRAILER: usize = 3 + ICRC_BYTES;
/// Segments that every kernel with `UDP_SEGMENT` takes.
const MAX_SEGMENTS: usize = 64;
/// The largest UDP payload, over IPv6 with room for extension headers.
const MAX_TRAIN_BYTES: usize = 65_000;

/// What waits for the next system call. Everything is allocated once.
pub(super) struct Batch {
    /// Framing bytes of the packets, in order; pieces point into it, so it never moves.
    framing: Box<[u8]>,
    framing_used: usize,
    pieces: Box<[libc::iovec]>,
    pieces_used: usize,
    packets: usize,
    messages: Box<[Message]>,
    messages_used: usize,
    headers: Box<[libc::mmsghdr]>,
}

// SAFETY: the pointers in `pieces` and `headers` lead into this batch's own boxes, or to memory that
// `Wire::send` promises to stay readable until `flush`; nothing is tied to a thread.
unsafe impl Send for Batch {}

/// One message: a packet, or a train for one queue pair.
struct Message {
    to: SockAddr,
    peer: SocketAddr,
    qpn: u32,
    first_piece: usize,
    pieces: usize,
    /// Length of all segments but the last, which may be shorter.
    segment: usize,
    segments: usize,
    bytes: usize,
    control: ControlBuffer,
}

impl Batch {
    pub(super) fn new() -> Self {
        let nowhere: SocketAddr = (std::net::Ipv4Addr::UNSPECIFIED, 0).into();
        let message = || Message {
            to: nowhere.into(),
            peer: nowhere,
            qpn: 0,
            first_piece: 0,
            pieces: 0,
            segment: 0,
            segments: 0,
            bytes: 0,
            control: ControlBuffer::default(),
        };
        Self {
            framing: vec![0; MAX_PACKETS * FRAMING].into(),
            framing_used: 0,
            pieces: vec![raw::NO_PIECE; MAX_PIECES].into(),
            pieces_used: 0,
            packets: 0,
            messages: (0..MAX_MESSAGES).map(|_| message()).collect(),
            messages_used: 0,
            headers: vec![raw::NO_MESSAGE; MAX_MESSAGES].into(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.messages_used == 0
    }

    /// Whether another packet like this fits before the next [`Batch::send`].
    pub(super) fn has_room(&self, packet: &Outgoing<'_>) -> bool {
        self.messages_used < MAX_MESSAGES
            && self.packets < MAX_PACKETS
            && self.pieces_used + packet.pieces.len() + 2 <= MAX_PIECES
            && self.framing_used + packet.headers.len() + MAX_TRAILER <= self.framing.len()
    }

    /// Adds a packet, to the train before it if it fits there; on purpose with a wrong CRC if `damaged`.
    pub(super) fn push(
        &mut self,
        from: SocketAddr,
        packet: &Outgoing<'_>,
        gso: bool,
        damaged: bool,
    ) {
        let length = packet.length();
        if !(gso && self.continues_train(packet, length)) {
            self.begin_message(packet, length);
        }
        let message = &mut self.messages[self.messages_used - 1];
        let index = u16::try_from(message.segments).expect("a train has at most 64 segments");
        message.segments += 1;
        message.bytes += length;
        self.packets += 1;
        let mut crc = icrc::compute(from, packet, index);
        crc[0] ^= u8::from(damaged);
        self.push_framing(packet.headers);
        for piece in packet.pieces {
            self.push_piece(piece);
        }
        self.push_framing(&[0; 3][..usize::from(packet.pad_bytes)]);
        self.push_framing(&crc);
    }

    /// The i-th segment of a train gets identification i, so it is part of the train for good.
    fn continues_train(&self, packet: &Outgoing<'_>, length: usize) -> bool {
        let Some(train) = self.messages[..self.messages_used].last() else { return false };
        train.qpn == packet.destination_qpn
            && train.peer == packet.to
            && length <= train.segment
            && train.bytes == train.segment * train.segments
            && train.segments < MAX_SEGMENTS
            && train.bytes + length <= MAX_TRAIN_BYTES
            && train.pieces + packet.pieces.len() + 2 <= MAX_PIECES_OF_MESSAGE
    }

    fn begin_message(&mut self, packet: &Outgoing<'_>, length: usize) {
        let message = &mut self.messages[self.messages_used];
        self.messages_used += 1;
        if message.peer != packet.to {
            message.to = packet.to.into();
            message.peer = packet.to;
        }
        message.qpn = packet.destination_qpn;
        message.first_piece = self.pieces_used;
        message.pieces = 0;
        message.segment = length;
        message.segments = 0;
        message.bytes = 0;
    }

    /// Copies bytes of ours behind each other, so that one packet's trailer and the next one's headers are
    /// one piece.
    fn push_framing(&mut self, bytes: &[u8]) {
        let start = self.framing_used;
        let end = start + bytes.len();
        self.framing[start..end].copy_from_slice(bytes);
        self.framing_used = end;
        let message = &mut self.messages[self.messages_used - 1];
        let base = self.framing[start..end].as_ptr();
        if message.pieces > 0 {
            let last = &mut self.pieces[self.pieces_used - 1];
            if last.iov_base.addr() + last.iov_len == base.addr() {
                last.iov_len += bytes.len();
                return;
            }
        }
        self.push_piece_at(base, bytes.len());
    }

    fn push_piece(&mut self, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.push_piece_at(bytes.as_ptr(), bytes.len());
        }
    }

    fn push_piece_at(&mut self, base: *const u8, length: usize) {
        if length == 0 {
            return;
        }
        self.pieces[self.pieces_used] =
            libc::iovec { iov_base: base.cast_mut().cast(), iov_len: length };
        self.pieces_used += 1;
        self.messages[self.messages_used - 1].pieces += 1;
    }

    /// Sends everything, or gives up what the system does not take: the transport sends it again.
    pub(super) fn send(
        &mut self,
        fd: &impl AsRawFd,
        gso: &mut bool,
        counters: &mut WireCounters,
    ) -> SendOutcome {
        self.prepare();
        let mut outcome = SendOutcome::default();
        let mut sent = 0;
        let mut patience = 2 * self.messages_used;
        while sent < self.messages_used {
            counters.send_calls += 1;
            match send_some(fd.as_raw_fd(), &mut self.headers[sent..self.messages_used]) {
                Ok(count) => sent += count,
                Err(error) => match self.what_now(sent, &error, gso) {
                    Remedy::Again if patience > 0 => {
                        outcome.error_queued = true;
                        patience -= 1;
                    }
                    Remedy::Again | Remedy::DropOne => {
                        // A packet too long for the route leaves an entry there as well.
                        outcome.error_queued = true;
                        counters.send_drops += self.messages[sent].segments as u64;
                        sent += 1;
                    }
                    Remedy::DropAll => {
                        let rest = &self.messages[sent..self.messages_used];
                        counters.send_drops += rest.iter().map(|m| m.segments as u64).sum::<u64>();
                        sent = self.messages_used;
                    }
                },
            }
        }
        self.clear();
        outcome
    }

    fn what_now(&self, sent: usize, error: &io::Error, gso: &mut bool) -> Remedy {
        match error.raw_os_error() {
            // An error of an earlier packet is reported, and consumed thereby; nothing was sent.
            Some(libc::ECONNREFUSED | libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EINTR) => {
                Remedy::Again
            }
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => Remedy::DropAll,
            Some(libc::EIO | libc::EINVAL) if self.messages[sent].segments > 1 => {
                // The device cannot checksum trains. Their CRCs are those of a train, so they are lost.
                *gso = false;
                Remedy::DropOne
            }
            _ => Remedy::DropOne,
        }
    }

    /// Fills in the system call's arguments.
    fn prepare(&mut self) {
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

    fn clear(&mut self) {
        self.framing_used = 0;
        self.pieces_used = 0;
        self.messages_used = 0;
        self.packets = 0;
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
    // SAFETY: `prepare` made each header point at a name, pieces and control data that live in the batch, and
    // the pieces at memory that is readable until the batch was sent (`Wire::send`).
    let sent = unsafe { libc::sendmmsg(fd, headers.as_mut_ptr(), count, libc::MSG_DONTWAIT) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

const _: () = assert!(mem::size_of::<usize>() == 8, "addresses on the wire have 64 bits");
