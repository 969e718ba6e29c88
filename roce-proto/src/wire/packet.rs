//! Packets: transport headers, payload and invariant CRC.

use core::mem;

use thiserror::Error;

use crate::wire::{Bth, Message, Reth};

/// Maximum length of a packet's headers in bytes: RDMA WRITE Only with immediate data.
pub const HEADERS_MAX_BYTES: usize = Bth::BYTES + Reth::BYTES + 4;

const ICRC_BYTES: usize = 4;

/// A parsed packet: the payload of a UDP datagram. Its ICRC is not checked; see
/// [`crate::wire::verify`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// The base transport header.
    pub bth: Bth,
    /// The operation, with its extended headers.
    pub message: Message,
    /// The payload, without pad.
    pub payload: &'a [u8],
    /// The ICRC at the end of the packet.
    pub icrc: u32,
}

/// Reason why a datagram is not a valid packet. It is dropped and counted without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PacketError {
    /// The datagram is shorter than its headers, pad and ICRC.
    #[error("packet cut short")]
    TooShort,
    /// The transport version is not 0.
    #[error("transport header version {0} is unknown")]
    Version(u8),
    /// The length of payload and pad is not a multiple of four.
    #[error("payload and pad are not a multiple of four bytes")]
    Unaligned,
    /// The packet is a congestion notification without BECN, or with more than its reserved bytes.
    #[error("congestion notification without BECN or with a payload")]
    Notification,
}

impl<'a> Packet<'a> {
    /// Parses the payload of one UDP datagram.
    ///
    /// # Errors
    /// [`PacketError`], if the datagram is not a valid packet.
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
    /// Encodes `bth` and the extended headers of `message`. The caller sets `bth.pad_bytes`.
    pub fn new(bth: &Bth, message: &Message) -> Self {
        let mut headers = Self { bytes: [0; HEADERS_MAX_BYTES], length: 0 };
        headers.length = Self::encode(bth, message, &mut headers.bytes);
        headers
    }

    /// Encodes the headers into a buffer; returns their length.
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

    /// The encoded bytes, in wire order.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

/// The number of pad bytes for a payload of `length` bytes: [`Bth::pad_bytes`].
pub const fn pad_bytes(length: u32) -> u8 {
    (length.wrapping_neg() & 3) as u8
}
