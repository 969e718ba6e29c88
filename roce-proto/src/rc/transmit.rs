//! Packets that a queue pair sends.

use crate::rc::{INLINE_MAX_BYTES, MemoryKey, SGE_MAX};
use crate::wire::{Bth, HEADERS_MAX_BYTES, Headers, Message, pad_bytes};

const ICRC_BYTES: usize = 4;

/// A packet to send: its headers, the location of its payload, and its pad. The caller reads the
/// pieces, computes the ICRC over headers, pieces and pad, and sends `[headers][pieces...][pad,
/// ICRC]`.
///
/// Inline payload directly follows the headers.
#[derive(Clone, Debug)]
pub struct Transmit {
    bytes: [u8; HEADERS_MAX_BYTES + INLINE_MAX_BYTES],
    length: u16,
    pieces: [PayloadPiece; SGE_MAX],
    piece_count: u8,
    pad_bytes: u8,
    payload_bytes: u16,
    continues: bool,
    retransmission: bool,
}

/// A piece of a packet's payload in registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PayloadPiece {
    /// The key with which access was checked.
    pub key: MemoryKey,
    /// Address of the first byte.
    pub addr: u64,
    /// Length in bytes, never zero.
    pub length: u32,
}

impl Transmit {
    /// Room for one packet; it can be reused.
    pub const fn new() -> Self {
        const NOTHING: PayloadPiece =
            PayloadPiece { key: MemoryKey::Local { lkey: 0 }, addr: 0, length: 0 };
        Self {
            bytes: [0; HEADERS_MAX_BYTES + INLINE_MAX_BYTES],
            length: 0,
            pieces: [NOTHING; SGE_MAX],
            piece_count: 0,
            pad_bytes: 0,
            payload_bytes: 0,
            continues: false,
            retransmission: false,
        }
    }

    /// The headers, followed by inline payload if any.
    pub fn headers(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    /// The pieces of the payload, in order.
    pub fn pieces(&self) -> &[PayloadPiece] {
        &self.pieces[..usize::from(self.piece_count)]
    }

    /// Number of zero bytes after the payload, 0..=3.
    pub const fn pad_bytes(&self) -> usize {
        self.pad_bytes as usize
    }

    /// Length of the payload in bytes, without pad.
    pub const fn payload_bytes(&self) -> usize {
        self.payload_bytes as usize
    }

    /// Whether the packet is a Middle or Last packet of a message.
    pub const fn continues_message(&self) -> bool {
        self.continues
    }

    /// Whether a packet with this PSN was sent before.
    pub const fn is_retransmission(&self) -> bool {
        self.retransmission
    }

    /// Length of the UDP payload in bytes, ICRC included.
    pub fn datagram_bytes(&self) -> usize {
        let pieces: u32 = self.pieces().iter().map(|piece| piece.length).sum();
        usize::from(self.length) + pieces as usize + self.pad_bytes() + ICRC_BYTES
    }

    /// Starts a packet; its `payload_bytes` of payload must be added next.
    pub(super) fn start(&mut self, mut bth: Bth, message: &Message, payload_bytes: u32) {
        bth.pad_bytes = pad_bytes(payload_bytes);
        let headers = self.bytes.first_chunk_mut().expect("there is room for the longest");
        self.length = Headers::encode(&bth, message, headers).into();
        self.piece_count = 0;
        self.pad_bytes = bth.pad_bytes;
        self.payload_bytes = payload_bytes as u16;
        self.continues = message.continues();
        self.retransmission = false;
    }

    pub(super) fn mark_retransmission(&mut self) {
        self.retransmission = true;
    }

    /// Adds payload in registered memory.
    pub(super) fn push_piece(&mut self, piece: PayloadPiece) {
        self.pieces[usize::from(self.piece_count)] = piece;
        self.piece_count += 1;
    }

    /// Adds inline payload, which is copied.
    pub(super) fn push_inline(&mut self, payload: &[u8]) {
        let start = usize::from(self.length);
        self.bytes[start..start + payload.len()].copy_from_slice(payload);
        self.length += payload.len() as u16;
    }
}

impl Default for Transmit {
    fn default() -> Self {
        Self::new()
    }
}
