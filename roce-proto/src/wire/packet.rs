//! Packets: transport headers, payload and invariant CRC.

use core::mem;

use thiserror::Error;

use crate::wire::{Bth, Message, Reth};

/// The most bytes that the headers of a packet take: an RDMA WRITE Only with immediate data.
pub const HEADERS_MAX_BYTES: usize = Bth::BYTES + Reth::BYTES + 4;

const ICRC_BYTES: usize = 4;

/// A packet as it arrived: the payload of one UDP datagram. Its invariant CRC has not been checked;
/// see [`crate::wire::verify`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// The base transport header.
    pub bth: Bth,
    /// Operation and extended headers.
    pub message: Message,
    /// The payload, without pad.
    pub payload: &'a [u8],
    /// The invariant CRC that the sender computed.
    pub icrc: u32,
}

/// The reason for which a datagram is not a packet. It is dropped and counted, without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PacketError {
    /// Shorter than its headers, pad and invariant CRC.
    #[error("packet cut short")]
    TooShort,
    /// A transport version other than 0.
    #[error("transport header version {0} is unknown")]
    Version(u8),
    /// Payload and pad together are not a multiple of four bytes.
    #[error("payload and pad are not a multiple of four bytes")]
    Unaligned,
    /// A congestion notification without BECN, or with more than its reserved bytes.
    #[error("congestion notification without BECN or with a payload")]
    Notification,
}

impl<'a> Packet<'a> {
    /// Parses the payload of one UDP datagram.
    ///
    /// # Errors
    /// It is not a packet.
    pub fn parse(datagram: &'a [u8]) -> Result<Self, PacketError> {
        let (covered, icrc) =
            datagram.split_last_chunk::<ICRC_BYTES>().ok_or(PacketError::TooShort)?;
        let (bth, rest) = covered.split_first_chunk().ok_or(PacketError::TooShort)?;
        let (opcode, bth, version) = Bth::parse(bth);
        if version != 0 {
            return Err(PacketError::Version(version));
        }
        let (message, padded) = Message::parse(opcode, rest).ok_or(PacketError::TooShort)?;
        if !padded.len().is_multiple_of(4) {
            return Err(PacketError::Unaligned);
        }
        let length =
            padded.len().checked_sub(usize::from(bth.pad_bytes)).ok_or(PacketError::TooShort)?;
        if matches!(message, Message::CongestionNotification) && (!bth.becn || !padded.is_empty()) {
            return Err(PacketError::Notification);
        }
        let icrc = u32::from_le_bytes(*icrc);
        Ok(Self { bth, message, payload: &padded[..length], icrc })
    }
}

/// The encoded headers of one packet.
#[derive(Clone, Copy, Debug)]
pub struct Headers {
    bytes: [u8; HEADERS_MAX_BYTES],
    length: u8,
}

impl Headers {
    /// Encodes `bth` and the extended headers of `message`. The pad count is the caller's to set.
    pub fn new(bth: &Bth, message: &Message) -> Self {
        let mut headers = Self { bytes: [0; HEADERS_MAX_BYTES], length: 0 };
        headers.length = Self::encode(bth, message, &mut headers.bytes);
        headers
    }

    /// Encodes them in place; returns how many bytes they take.
    pub(crate) fn encode(bth: &Bth, message: &Message, into: &mut [u8; HEADERS_MAX_BYTES]) -> u8 {
        let (first, mut rest) = into.split_first_chunk_mut().expect("longer than the first header");
        *first = bth.encode(message.opcode());
        let mut length = Bth::BYTES as u8;
        message.encode(|bytes| {
            let (here, behind) = mem::take(&mut rest).split_at_mut(bytes.len());
            here.copy_from_slice(bytes);
            rest = behind;
            length += bytes.len() as u8;
        });
        length
    }

    /// The bytes, ready to be sent.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// Bytes of pad that bring a payload of `length` bytes to a multiple of four: [`Bth::pad_bytes`].
pub const fn pad_bytes(length: u32) -> u8 {
    (length.wrapping_neg() & 3) as u8
}
