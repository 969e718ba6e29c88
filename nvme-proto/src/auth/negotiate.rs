//! AUTH_Negotiate: what a host offers.

use core::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::codes::{AuthProtocol, AuthTransaction, ConcatenatedChannel, DhGroupId, HashId};
use super::wire::{AuthHeader, COMMON, InvalidAuthMessage, MessageWriter, split};
use crate::Reserved;

/// AUTH_Negotiate (Base, 8.3.4.4.1): begins a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthNegotiate<'a> {
    /// Identifier of the transaction that begins.
    pub transaction: AuthTransaction,
    /// Secure channel that the host asks for.
    pub concatenation: ConcatenatedChannel,
    /// Offered protocols; at most 255.
    pub protocols: &'a [DhChapDescriptor],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct NegotiateHead {
    header: AuthHeader,
    sc_c: u8,
    napd: u8,
}

impl<'a> AuthNegotiate<'a> {
    /// AUTH_TYPE and AUTH_ID of the message.
    pub(super) const KIND: (u8, u8) = (COMMON, 0x00);

    /// Returns the descriptor of DH-HMAC-CHAP, if the host offers it.
    pub fn dh_hmac_chap(&self) -> Option<&'a DhChapDescriptor> {
        self.protocols.iter().find(|offer| offer.protocol() == AuthProtocol::DH_HMAC_CHAP)
    }

    pub(super) fn parse(bytes: &'a [u8]) -> Result<(Self, usize), InvalidAuthMessage> {
        let (head, rest) = split::<NegotiateHead>(bytes)?;
        let count = usize::from(head.napd);
        let length = size_of::<NegotiateHead>() + count * size_of::<DhChapDescriptor>();
        let (protocols, _) = <[DhChapDescriptor]>::ref_from_prefix_with_elems(rest, count)
            .map_err(|_| InvalidAuthMessage::Length { needed: length, received: bytes.len() })?;
        let message = Self {
            transaction: head.header.transaction(),
            concatenation: ConcatenatedChannel(head.sc_c),
            protocols,
        };
        Ok((message, length))
    }

    pub(super) fn write(&self, writer: &mut MessageWriter<'_>) {
        let protocols = &self.protocols[..self.protocols.len().min(usize::from(u8::MAX))];
        writer.put(&NegotiateHead {
            header: AuthHeader::new(Self::KIND, self.transaction),
            sc_c: self.concatenation.0,
            napd: protocols.len() as u8,
        });
        writer.put(protocols);
    }
}

/// Authentication protocol descriptor of 64 bytes. Those after AuthID have the format of
/// DH-HMAC-CHAP if AuthID names it (Base, 8.3.4.5.2).
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DhChapDescriptor {
    authid: u8,
    reserved_1: Reserved<1>,
    halen: u8,
    dhlen: u8,
    hashes: [u8; Self::LIST_BYTES],
    groups: [u8; Self::LIST_BYTES],
}

const _: () = assert!(size_of::<DhChapDescriptor>() == 64);

impl DhChapDescriptor {
    /// Most identifiers that a list has.
    pub const LIST_BYTES: usize = 30;

    /// Creates the descriptor of DH-HMAC-CHAP; `None` if a list is empty or has more than 30
    /// identifiers.
    pub fn new(hashes: &[HashId], groups: &[DhGroupId]) -> Option<Self> {
        let lengths = 1..=Self::LIST_BYTES;
        if !lengths.contains(&hashes.len()) || !lengths.contains(&groups.len()) {
            return None;
        }
        let mut descriptor = Self {
            authid: AuthProtocol::DH_HMAC_CHAP.0,
            reserved_1: Reserved::ZERO,
            halen: hashes.len() as u8,
            dhlen: groups.len() as u8,
            hashes: [0; Self::LIST_BYTES],
            groups: [0; Self::LIST_BYTES],
        };
        descriptor.hashes.iter_mut().zip(hashes).for_each(|(to, from)| *to = from.0);
        descriptor.groups.iter_mut().zip(groups).for_each(|(to, from)| *to = from.0);
        Some(descriptor)
    }

    /// Protocol that the descriptor is for.
    pub const fn protocol(&self) -> AuthProtocol {
        AuthProtocol(self.authid)
    }

    /// Returns the hash functions in the host's order; `None` if their number is 0 or above 30.
    pub fn hashes(&self) -> Option<impl Iterator<Item = HashId>> {
        list(&self.hashes, self.halen).map(|list| list.iter().copied().map(HashId))
    }

    /// Returns the groups in the host's order; `None` if their number is 0 or above 30.
    pub fn groups(&self) -> Option<impl Iterator<Item = DhGroupId>> {
        list(&self.groups, self.dhlen).map(|list| list.iter().copied().map(DhGroupId))
    }
}

fn list(bytes: &[u8], length: u8) -> Option<&[u8]> {
    bytes.get(..usize::from(length)).filter(|list| !list.is_empty())
}

impl fmt::Debug for DhChapDescriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DhChapDescriptor")
            .field("protocol", &self.protocol())
            .field("hashes", &list(&self.hashes, self.halen))
            .field("groups", &list(&self.groups, self.dhlen))
            .finish()
    }
}
