//! Packets on their way out.

use crate::rc::{INLINE_MAX_BYTES, MemoryKey, SGE_MAX};
use crate::wire::{Bth, HEADERS_MAX_BYTES, Headers, Message, pad_bytes};

const ICRC_BYTES: usize = 4;

/// One packet to send: its headers, where its payload is, and its pad. The provider finds the
/// pieces, computes the invariant CRC over headers, pieces and pad, and sends
/// `[headers][pieces...][pad, CRC]`.
///
/// Inline payload follows the headers in the same bytes.
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

/// A piece of a packet's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PayloadPiece {
    /// The key that was checked for it.
    pub key: MemoryKey,
    /// Address of the first byte.
    pub addr: u64,
    /// Length in bytes, never zero.
    pub length: u32,
}

impl Transmit {
    /// Room for one packet; use it again and again.
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

    /// Headers, and inline payload if any.
    pub fn headers(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    /// Where the payload is, in order.
    pub fn pieces(&self) -> &[PayloadPiece] {
        &self.pieces[..usize::from(self.piece_count)]
    }

    /// Bytes of pad behind the payload, 0..=3; they are zero.
    pub const fn pad_bytes(&self) -> usize {
        self.pad_bytes as usize
    }

    /// Bytes of payload, without pad.
    pub const fn payload_bytes(&self) -> usize {
        self.payload_bytes as usize
    }

    /// Whether it continues the message of the packet before it.
    pub const fn continues_message(&self) -> bool {
        self.continues
    }

    /// Whether a packet with this sequence number left before.
    pub const fn is_retransmission(&self) -> bool {
        self.retransmission
    }

    /// The length of the whole UDP payload, invariant CRC included.
    pub fn datagram_bytes(&self) -> usize {
        let pieces: u32 = self.pieces().iter().map(|piece| piece.length).sum();
        usize::from(self.length) + pieces as usize + self.pad_bytes() + ICRC_BYTES
    }

    /// Starts a packet with `payload_bytes` of payload, which is still to be added.
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

    /// Adds payload that is somewhere else.
    pub(super) fn push_piece(&mut self, piece: PayloadPiece) {
        self.pieces[usize::from(self.piece_count)] = piece;
        self.piece_count += 1;
    }

    /// Adds payload by value.
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
