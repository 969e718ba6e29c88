//! Negative answers to unsupported requests: load alternate path (LAP) and service id resolution
//! (SIDR REQ).

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::mad::MadHeader;
use super::{Attribute, CommId, MAD_BYTES, MESSAGE_BYTES, Mad};

/// An unsupported request that is answered.
pub(super) enum Declined {
    Lap(Lap),
    Sidr(SidrReq),
}

/// Load alternate path (InfiniBand volume 1, 12.8.1): the fields that identify the connection.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, KnownLayout, Immutable, Unaligned)]
pub(super) struct Lap {
    local_comm_id: U32,
    remote_comm_id: U32,
}

/// Service id resolution request (12.11.1): the fields that the answer repeats.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, KnownLayout, Immutable, Unaligned)]
pub(super) struct SidrReq {
    request_id: U32,
    partition_key: U16,
    reserved: U16,
    service_id: U64,
}

/// Alternate path response (12.8.2).
#[repr(C)]
#[derive(IntoBytes, KnownLayout, Immutable, Unaligned)]
struct Apr {
    local_comm_id: U32,
    remote_comm_id: U32,
    info_length: u8,
    status: u8,
    rest: [u8; MESSAGE_BYTES - 10],
}

/// Service id resolution response (12.11.2).
#[repr(C)]
#[derive(IntoBytes, KnownLayout, Immutable, Unaligned)]
struct SidrRep {
    request_id: U32,
    status: u8,
    info_length: u8,
    reserved: U16,
    qpn: U32,
    service_id: U64,
    rest: [u8; MESSAGE_BYTES - 20],
}

const _: () = assert!(size_of::<Apr>() == MESSAGE_BYTES && size_of::<SidrRep>() == MESSAGE_BYTES);

impl Declined {
    /// Parses an unsupported request; returns its transaction id and the request.
    pub(super) fn parse(mad: &Mad) -> Option<(u64, Self)> {
        let (header, body) = MadHeader::ref_from_prefix(mad).ok()?;
        let request = match header.attribute() {
            Attribute::LAP => Self::Lap(Lap::read_from_prefix(body).ok()?.0),
            Attribute::SIDR_REQ => Self::Sidr(SidrReq::read_from_prefix(body).ok()?.0),
            _ => return None,
        };
        Some((header.transaction_id(), request))
    }
}

impl Lap {
    /// The sender's and the receiver's communication ids.
    pub(super) fn names(&self) -> (CommId, CommId) {
        (CommId(self.local_comm_id.get()), CommId(self.remote_comm_id.get()))
    }

    /// The APR: alternate paths are not supported, or the connection does not exist.
    pub(super) fn answer(&self, transaction_id: u64, connection_exists: bool) -> Mad {
        const INVALID_COMM_ID: u8 = 1;
        const UNSUPPORTED: u8 = 2;
        let answer = Apr {
            local_comm_id: self.remote_comm_id,
            remote_comm_id: self.local_comm_id,
            info_length: 0,
            status: if connection_exists { UNSUPPORTED } else { INVALID_COMM_ID },
            rest: [0; MESSAGE_BYTES - 10],
        };
        mad(Attribute::APR, transaction_id, answer.as_bytes())
    }
}

impl SidrReq {
    /// The SIDR REP: there is no such datagram service.
    pub(super) fn answer(&self, transaction_id: u64) -> Mad {
        const UNSUPPORTED: u8 = 1;
        let answer = SidrRep {
            request_id: self.request_id,
            status: UNSUPPORTED,
            info_length: 0,
            reserved: U16::ZERO,
            qpn: U32::ZERO,
            service_id: self.service_id,
            rest: [0; MESSAGE_BYTES - 20],
        };
        mad(Attribute::SIDR_REP, transaction_id, answer.as_bytes())
    }
}

fn mad(attribute: Attribute, transaction_id: u64, body: &[u8]) -> Mad {
    let mut mad = [0; MAD_BYTES];
    let (head, rest) = mad.split_at_mut(size_of::<MadHeader>());
    head.copy_from_slice(MadHeader::new(attribute, transaction_id).as_bytes());
    rest.copy_from_slice(body);
    mad
}
