//! Messages of DH-HMAC-CHAP: challenge, reply and success.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::codes::{AuthTransaction, DhGroupId, HashId};
use super::wire::{AuthHeader, DH_HMAC_CHAP, InvalidAuthMessage, MessageWriter, split, take};
use crate::Reserved;

/// DH-HMAC-CHAP_Challenge (Base, 8.3.4.5.3): the controller's choice and its challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthChallenge<'a> {
    /// Transaction that the message belongs to.
    pub transaction: AuthTransaction,
    /// Hash function that the controller selected.
    pub hash: HashId,
    /// Group that the controller selected.
    pub group: DhGroupId,
    /// Sequence number S1, not 0.
    pub sequence: u32,
    /// Challenge C1, whose length is HL; at most 255 bytes.
    pub challenge: &'a [u8],
    /// Diffie-Hellman exponential of the controller; empty with the null group.
    pub dh_value: &'a [u8],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ChallengeHead {
    header: AuthHeader,
    hl: u8,
    reserved_7: Reserved<1>,
    hashid: u8,
    dhgid: u8,
    dhvlen: U16,
    seqnum: U32,
}

impl<'a> AuthChallenge<'a> {
    /// AUTH_TYPE and AUTH_ID of the message.
    pub(super) const KIND: (u8, u8) = (DH_HMAC_CHAP, 0x01);

    pub(super) fn parse(bytes: &'a [u8]) -> Result<(Self, usize), InvalidAuthMessage> {
        let (head, mut rest) = split::<ChallengeHead>(bytes)?;
        let (hash_bytes, dh_bytes) = (usize::from(head.hl), usize::from(head.dhvlen.get()));
        let length = size_of::<ChallengeHead>() + hash_bytes + dh_bytes;
        let mut next = |count| take(&mut rest, count, length, bytes.len());
        let message = Self {
            transaction: head.header.transaction(),
            hash: HashId(head.hashid),
            group: DhGroupId(head.dhgid),
            sequence: head.seqnum.get(),
            challenge: next(hash_bytes)?,
            dh_value: next(dh_bytes)?,
        };
        Ok((message, length))
    }

    pub(super) fn write(&self, writer: &mut MessageWriter<'_>) {
        writer.put(&ChallengeHead {
            header: AuthHeader::new(Self::KIND, self.transaction),
            hl: self.challenge.len() as u8,
            reserved_7: Reserved::ZERO,
            hashid: self.hash.0,
            dhgid: self.group.0,
            dhvlen: U16::new(self.dh_value.len() as u16),
            seqnum: U32::new(self.sequence),
        });
        writer.put(self.challenge);
        writer.put(self.dh_value);
    }
}

/// DH-HMAC-CHAP_Reply (Base, 8.3.4.5.4): the host's response, and its challenge if it wants the
/// controller to authenticate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthReply<'a> {
    /// Transaction that the message belongs to.
    pub transaction: AuthTransaction,
    /// Sequence number S2; 0 with a challenge that serves a secure channel only.
    pub sequence: u32,
    /// Response R1, whose length is HL; at most 255 bytes.
    pub response: &'a [u8],
    /// Challenge C2, as long as the response; `None` if CVALID is 0.
    pub challenge: Option<&'a [u8]>,
    /// Diffie-Hellman exponential of the host; empty with the null group.
    pub dh_value: &'a [u8],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ReplyHead {
    header: AuthHeader,
    hl: u8,
    reserved_7: Reserved<1>,
    cvalid: u8,
    reserved_9: Reserved<1>,
    dhvlen: U16,
    seqnum: U32,
}

impl<'a> AuthReply<'a> {
    /// AUTH_TYPE and AUTH_ID of the message.
    pub(super) const KIND: (u8, u8) = (DH_HMAC_CHAP, 0x02);

    pub(super) fn parse(bytes: &'a [u8]) -> Result<(Self, usize), InvalidAuthMessage> {
        let (head, mut rest) = split::<ReplyHead>(bytes)?;
        let (hash_bytes, dh_bytes) = (usize::from(head.hl), usize::from(head.dhvlen.get()));
        let length = size_of::<ReplyHead>() + 2 * hash_bytes + dh_bytes;
        let mut next = |count| take(&mut rest, count, length, bytes.len());
        let (response, challenge) = (next(hash_bytes)?, next(hash_bytes)?);
        let message = Self {
            transaction: head.header.transaction(),
            sequence: head.seqnum.get(),
            response,
            challenge: flag(head.cvalid, "CVALID")?.then_some(challenge),
            dh_value: next(dh_bytes)?,
        };
        Ok((message, length))
    }

    pub(super) fn write(&self, writer: &mut MessageWriter<'_>) {
        writer.put(&ReplyHead {
            header: AuthHeader::new(Self::KIND, self.transaction),
            hl: self.response.len() as u8,
            reserved_7: Reserved::ZERO,
            cvalid: u8::from(self.challenge.is_some()),
            reserved_9: Reserved::ZERO,
            dhvlen: U16::new(self.dh_value.len() as u16),
            seqnum: U32::new(self.sequence),
        });
        writer.put(self.response);
        match self.challenge {
            Some(challenge) => writer.put(challenge),
            None => writer.zeros(self.response.len()),
        }
        writer.put(self.dh_value);
    }
}

/// DH-HMAC-CHAP_Success1 (Base, 8.3.4.5.5): the host is authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthSuccess1<'a> {
    /// Transaction that the message belongs to.
    pub transaction: AuthTransaction,
    /// Length of the selected hash function in bytes, HL.
    pub hash_bytes: u8,
    /// Response R2 of HL bytes; `None` if RVALID is 0.
    pub response: Option<&'a [u8]>,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Success1Head {
    header: AuthHeader,
    hl: u8,
    reserved_7: Reserved<1>,
    rvalid: u8,
    reserved_9: Reserved<7>,
}

impl<'a> AuthSuccess1<'a> {
    /// AUTH_TYPE and AUTH_ID of the message.
    pub(super) const KIND: (u8, u8) = (DH_HMAC_CHAP, 0x03);

    /// Decodes the message. Linux and SPDK leave a response out that is not valid, so its bytes
    /// need not be there.
    pub(super) fn parse(bytes: &'a [u8]) -> Result<(Self, usize), InvalidAuthMessage> {
        let (head, mut rest) = split::<Success1Head>(bytes)?;
        let hash_bytes = if flag(head.rvalid, "RVALID")? { usize::from(head.hl) } else { 0 };
        let length = size_of::<Success1Head>() + hash_bytes;
        let response = take(&mut rest, hash_bytes, length, bytes.len())?;
        let message = Self {
            transaction: head.header.transaction(),
            hash_bytes: head.hl,
            response: (head.rvalid == 1).then_some(response),
        };
        Ok((message, length))
    }

    pub(super) fn write(&self, writer: &mut MessageWriter<'_>) {
        writer.put(&Success1Head {
            header: AuthHeader::new(Self::KIND, self.transaction),
            hl: self.hash_bytes,
            reserved_7: Reserved::ZERO,
            rvalid: u8::from(self.response.is_some()),
            reserved_9: Reserved::ZERO,
        });
        match self.response {
            Some(response) => writer.put(response),
            None => writer.zeros(usize::from(self.hash_bytes)),
        }
    }
}

/// DH-HMAC-CHAP_Success2 (Base, 8.3.4.5.6): the controller is authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthSuccess2 {
    /// Transaction that the message belongs to.
    pub transaction: AuthTransaction,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Success2Head {
    header: AuthHeader,
    reserved_6: Reserved<10>,
}

impl AuthSuccess2 {
    /// AUTH_TYPE and AUTH_ID of the message.
    pub(super) const KIND: (u8, u8) = (DH_HMAC_CHAP, 0x04);

    pub(super) fn parse(bytes: &[u8]) -> Result<(Self, usize), InvalidAuthMessage> {
        let (head, _) = split::<Success2Head>(bytes)?;
        Ok((Self { transaction: head.header.transaction() }, size_of::<Success2Head>()))
    }

    pub(super) fn write(&self, writer: &mut MessageWriter<'_>) {
        let header = AuthHeader::new(Self::KIND, self.transaction);
        writer.put(&Success2Head { header, reserved_6: Reserved::ZERO });
    }
}

/// Decodes CVALID or RVALID, whose other values are reserved.
fn flag(value: u8, name: &'static str) -> Result<bool, InvalidAuthMessage> {
    match value {
        0 => Ok(false),
        1 => Ok(true),
        value => Err(InvalidAuthMessage::Reserved { field: name, value }),
    }
}
