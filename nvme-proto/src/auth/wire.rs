//! Bytes of authentication messages: their header, reading and writing.

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::codes::{AuthTransaction, FailureExplanation};
use crate::{Reserved, Truncated};

/// First six bytes of every message: AUTH_TYPE, AUTH_ID and T_ID.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct AuthHeader {
    pub(super) auth_type: u8,
    pub(super) auth_id: u8,
    reserved_2: Reserved<2>,
    t_id: U16,
}

/// AUTH_TYPE of messages that all authentication protocols have.
pub(super) const COMMON: u8 = 0x00;
/// AUTH_TYPE of messages of DH-HMAC-CHAP.
pub(super) const DH_HMAC_CHAP: u8 = 0x01;

impl AuthHeader {
    pub(super) fn new((auth_type, auth_id): (u8, u8), transaction: AuthTransaction) -> Self {
        let t_id = U16::new(transaction.0);
        Self { auth_type, auth_id, reserved_2: Reserved::ZERO, t_id }
    }

    pub(super) fn transaction(&self) -> AuthTransaction {
        AuthTransaction(self.t_id.get())
    }
}

/// Reason that bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidAuthMessage {
    /// No message has these identifiers.
    #[error("no authentication message has type {auth_type:#04x} and identifier {auth_id:#04x}")]
    Unknown {
        /// Authentication type, AUTH_TYPE: byte 0.
        auth_type: u8,
        /// Authentication identifier, AUTH_ID: byte 1.
        auth_id: u8,
    },
    /// There are fewer bytes than the fixed part of the message has.
    #[error(transparent)]
    Truncated(#[from] Truncated),
    /// There are fewer bytes than the length fields of the message say.
    #[error("an authentication message needs {needed} bytes, got {received}")]
    Length {
        /// Length in bytes that the fields of the message give.
        needed: usize,
        /// Number of bytes that were received.
        received: usize,
    },
    /// A field has a reserved value.
    #[error("{field} of an authentication message is {value}, not 0 or 1")]
    Reserved {
        /// Name of the field.
        field: &'static str,
        /// Value that was received.
        value: u8,
    },
}

impl InvalidAuthMessage {
    /// Explanation for the failure message with which the receiver answers.
    pub const fn explanation(self) -> FailureExplanation {
        match self {
            Self::Unknown { .. } => FailureExplanation::INCORRECT_MESSAGE,
            _ => FailureExplanation::INCORRECT_PAYLOAD,
        }
    }
}

/// Splits the fixed part of a message from the rest.
pub(super) fn split<T>(bytes: &[u8]) -> Result<(&T, &[u8]), Truncated>
where
    T: FromBytes + KnownLayout + Immutable + Unaligned,
{
    T::ref_from_prefix(bytes).map_err(|_| Truncated::of::<T>(bytes.len()))
}

/// Takes `count` bytes from the front of `rest`. The error has the length of the whole message.
pub(super) fn take<'a>(
    rest: &mut &'a [u8],
    count: usize,
    needed: usize,
    received: usize,
) -> Result<&'a [u8], InvalidAuthMessage> {
    let (front, back) =
        rest.split_at_checked(count).ok_or(InvalidAuthMessage::Length { needed, received })?;
    *rest = back;
    Ok(front)
}

/// Buffer that a message is written to. `length` also counts bytes that did not fit.
pub(super) struct MessageWriter<'a> {
    buffer: &'a mut [u8],
    length: usize,
}

impl<'a> MessageWriter<'a> {
    pub(super) fn new(buffer: &'a mut [u8]) -> Self {
        Self { buffer, length: 0 }
    }

    /// Returns the message; `None` if it did not fit.
    pub(super) fn into_message(self) -> Option<&'a [u8]> {
        self.buffer.get(..self.length)
    }

    pub(super) fn put<T: IntoBytes + Immutable + ?Sized>(&mut self, part: &T) {
        let bytes = part.as_bytes();
        if let Some(room) = self.buffer.get_mut(self.length..self.length + bytes.len()) {
            room.copy_from_slice(bytes);
        }
        self.length += bytes.len();
    }

    pub(super) fn zeros(&mut self, count: usize) {
        if let Some(room) = self.buffer.get_mut(self.length..self.length + count) {
            room.fill(0);
        }
        self.length += count;
    }
}
