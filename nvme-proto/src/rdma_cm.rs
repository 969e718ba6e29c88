//! Private data of the RDMA connection manager's messages (RDMA, on connection establishment).

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{Cntlid, Qid, Reserved};

/// Private data of the request (REQ), which the host sends.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct ConnectRequest {
    recfmt: U16,
    qid: U16,
    hrqsize: U16,
    hsqsize_z: U16,
    cntlid: U16,
    reserved_10: Reserved<22>,
}

const _: () = assert!(size_of::<ConnectRequest>() == 32);

impl ConnectRequest {
    /// Creates a request for queue `qid`. `receive_entries` is the number of receives that the host
    /// has posted for responses, `send_entries` the most commands that it sends at a time (1 to
    /// 65,536; zero-based on the wire).
    ///
    /// # Panics
    /// If `send_entries` is not in 1 to 65,536.
    pub fn new(qid: Qid, cntlid: Cntlid, receive_entries: u16, send_entries: u32) -> Self {
        let hsqsize_z = send_entries.checked_sub(1).and_then(|z| u16::try_from(z).ok());
        Self {
            recfmt: U16::ZERO,
            qid: U16::new(qid.0),
            hrqsize: U16::new(receive_entries),
            hsqsize_z: U16::new(hsqsize_z.expect("a queue has 1 to 65,536 entries")),
            cntlid: U16::new(cntlid.0),
            reserved_10: Reserved::ZERO,
        }
    }

    /// Views the private data of a received request; bytes after the first 32 are padding. The
    /// caller checks the sizes and the queue.
    ///
    /// # Errors
    /// Status for the rejection: Invalid Private Data Length if there are fewer than 32 bytes,
    /// Invalid RECFMT if the record format is not 0, Invalid HRQSIZE if the host's receive queue
    /// has no entry.
    pub fn parse(private_data: &[u8]) -> Result<&Self, RejectStatus> {
        let request: &Self =
            crate::view(private_data).map_err(|_| RejectStatus::INVALID_PRIVATE_DATA_LENGTH)?;
        if request.recfmt != U16::ZERO {
            return Err(RejectStatus::INVALID_RECFMT);
        }
        if request.hrqsize == U16::ZERO {
            return Err(RejectStatus::INVALID_HRQSIZE);
        }
        Ok(request)
    }

    /// Identifier of the queue that the connection is for, QID.
    pub const fn qid(&self) -> Qid {
        Qid(self.qid.get())
    }

    /// Controller of an I/O queue, CNTLID; without meaning for the admin queue.
    pub const fn cntlid(&self) -> Cntlid {
        Cntlid(self.cntlid.get())
    }

    /// Number of entries of the host's receive queue, HRQSIZE.
    pub const fn receive_entries(&self) -> u16 {
        self.hrqsize.get()
    }

    /// Number of entries of the host's send queue, HSQSIZE: the most outstanding commands, 1 to
    /// 65,536.
    pub const fn send_entries(&self) -> u32 {
        self.hsqsize_z.get() as u32 + 1
    }
}

/// Private data of the acceptance (REP), which the controller sends.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct ConnectAccept {
    recfmt: U16,
    crqsize: U16,
    reserved_4: Reserved<28>,
}

const _: () = assert!(size_of::<ConnectAccept>() == 32);

impl ConnectAccept {
    /// Creates an acceptance. `receive_entries` is the number of receives that the controller has
    /// posted for commands.
    pub const fn new(receive_entries: u16) -> Self {
        Self { recfmt: U16::ZERO, crqsize: U16::new(receive_entries), reserved_4: Reserved::ZERO }
    }

    /// Views the private data of a received acceptance; `None` if there are fewer than 32 bytes or
    /// the record format is not 0. Bytes after the first 32 are padding.
    pub fn parse(private_data: &[u8]) -> Option<&Self> {
        let accept: &Self = crate::view(private_data).ok()?;
        (accept.recfmt == U16::ZERO).then_some(accept)
    }

    /// Number of entries of the controller's receive queue, CRQSIZE.
    pub const fn receive_entries(&self) -> u16 {
        self.crqsize.get()
    }
}

/// Private data of the rejection (REJ), which the controller sends with the reason "consumer
/// defined".
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Reject {
    recfmt: U16,
    status: U16,
}

const _: () = assert!(size_of::<Reject>() == 4);

impl Reject {
    /// Creates a rejection with record format 0.
    pub const fn new(status: RejectStatus) -> Self {
        Self { recfmt: U16::ZERO, status: U16::new(status.0) }
    }

    /// Views the private data of a received rejection; `None` if there are fewer than 4 bytes or
    /// the record format is not 0. Bytes after the first 4 are padding.
    pub fn parse(private_data: &[u8]) -> Option<&Self> {
        let reject: &Self = crate::view(private_data).ok()?;
        (reject.recfmt == U16::ZERO).then_some(reject)
    }

    /// Reason for the rejection, STS.
    pub const fn status(&self) -> RejectStatus {
        RejectStatus(self.status.get())
    }
}

open_enum! {
    /// Reason for which a controller rejects a connection, STS.
    pub struct RejectStatus(u16) {
        INVALID_PRIVATE_DATA_LENGTH = 0x01, "Invalid Private Data Length";
        INVALID_RECFMT = 0x02, "Invalid RECFMT";
        INVALID_QID = 0x03, "Invalid QID";
        INVALID_HSQSIZE = 0x04, "Invalid HSQSIZE";
        INVALID_HRQSIZE = 0x05, "Invalid HRQSIZE";
        NO_RESOURCES = 0x06, "No Resources";
        INVALID_IRD = 0x07, "Invalid IRD";
        INVALID_ORD = 0x08, "Invalid ORD";
        INVALID_CNTLID = 0x09, "Invalid CNTLID";
    }
}

impl core::error::Error for RejectStatus {}

#[cfg(test)]
mod tests {
    use std::format;

    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn the_request_layout_matches_linux() {
        let request = ConnectRequest::new(Qid(1), Cntlid(2), 128, 128);
        let mut bytes = [0; 56];
        bytes[..10].copy_from_slice(&[0, 0, 1, 0, 0x80, 0, 0x7F, 0, 2, 0]);
        assert_eq!(request.as_bytes(), &bytes[..32]);
        assert_eq!(ConnectRequest::parse(&bytes), Ok(&request), "padding follows it");
        assert_eq!((request.receive_entries(), request.send_entries()), (128, 128));
    }

    #[test]
    fn a_bad_request_gets_the_specified_reject() {
        let good = ConnectRequest::new(Qid::ADMIN, Cntlid(0), 32, 32);
        let refused = |at: usize, value: u8| {
            let mut bytes = [0; 32];
            bytes.copy_from_slice(good.as_bytes());
            bytes[at] = value;
            ConnectRequest::parse(&bytes).err()
        };
        assert_eq!(refused(0, 0), None);
        assert_eq!(refused(0, 1), Some(RejectStatus::INVALID_RECFMT));
        assert_eq!(refused(1, 1), Some(RejectStatus::INVALID_RECFMT));
        assert_eq!(refused(4, 0), Some(RejectStatus::INVALID_HRQSIZE));
        let short = ConnectRequest::parse(&good.as_bytes()[..31]).err();
        assert_eq!(short, Some(RejectStatus::INVALID_PRIVATE_DATA_LENGTH));
        assert_eq!(
            ConnectRequest::parse(&[]).err(),
            Some(RejectStatus::INVALID_PRIVATE_DATA_LENGTH)
        );
    }

    #[test]
    fn queue_sizes_reach_their_limits() {
        let request = ConnectRequest::new(Qid(u16::MAX), Cntlid::DYNAMIC, u16::MAX, 65_536);
        assert_eq!((request.receive_entries(), request.send_entries()), (u16::MAX, 65_536));
    }

    #[test]
    fn answers_round_trip() {
        let mut padded = [0; 196];
        padded[..32].copy_from_slice(ConnectAccept::new(128).as_bytes());
        assert_eq!(ConnectAccept::parse(&padded).map(ConnectAccept::receive_entries), Some(128));
        assert_eq!(ConnectAccept::parse(&padded[..31]), None);
        padded[0] = 1;
        assert_eq!(ConnectAccept::parse(&padded), None);

        let reject = Reject::new(RejectStatus::NO_RESOURCES);
        assert_eq!(reject.as_bytes(), [0, 0, 6, 0]);
        assert_eq!(
            Reject::parse(&[0, 0, 6, 0, 0]).map(Reject::status),
            Some(RejectStatus::NO_RESOURCES)
        );
        assert_eq!(Reject::parse(&[0, 0, 6]), None);
        assert_eq!(Reject::parse(&[1, 0, 6, 0]), None);
        assert_eq!(format!("{}", RejectStatus::INVALID_HSQSIZE), "Invalid HSQSIZE");
        assert_eq!(format!("{}", RejectStatus(77)), "0x4d");
    }
}
