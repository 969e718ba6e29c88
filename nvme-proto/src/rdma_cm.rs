//! Private data of the RDMA connection manager's messages (RDMA, 3.2 and 3.3).

use core::fmt;

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{Cntlid, Qid, Reserved};

/// Private data of the request to connect.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Request {
    recfmt: U16,
    qid: U16,
    hrqsize: U16,
    hsqsize_z: U16,
    cntlid: U16,
    reserved_10: Reserved<22>,
}

const _: () = assert!(size_of::<Request>() == 32);

impl Request {
    /// A request for queue `qid`. `receive_entries` is how many responses the host takes at once,
    /// `send_entries` how many commands it sends at once (1 to 65,536; zero-based on the wire).
    ///
    /// # Panics
    /// When `send_entries` is not in 1 to 65,536.
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

    /// The private data of a received request. What follows it is padding. Whether the sizes and the
    /// queue will do is for the controller to say.
    ///
    /// # Errors
    /// What to reject it with: Invalid Private Data Length when there are fewer than 32 bytes, Invalid RECFMT,
    /// Invalid HRQSIZE when the host takes no response at all.
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

    /// Which queue.
    pub const fn qid(&self) -> Qid {
        Qid(self.qid.get())
    }

    /// The controller, of an I/O queue; of the admin queue, nothing.
    pub const fn cntlid(&self) -> Cntlid {
        Cntlid(self.cntlid.get())
    }

    /// Entries of the host's receive queue, HRQSIZE: responses that it takes at once.
    pub const fn receive_entries(&self) -> u16 {
        self.hrqsize.get()
    }

    /// Entries of the host's send queue, HSQSIZE: commands that it sends at once, 1 to 65,536.
    pub const fn send_entries(&self) -> u32 {
        self.hsqsize_z.get() as u32 + 1
    }
}

/// Private data of the acceptance.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Accept {
    recfmt: U16,
    crqsize: U16,
    reserved_4: Reserved<28>,
}

const _: () = assert!(size_of::<Accept>() == 32);

impl Accept {
    /// An acceptance. `receive_entries` is how many commands the controller takes at once.
    pub const fn new(receive_entries: u16) -> Self {
        Self { recfmt: U16::ZERO, crqsize: U16::new(receive_entries), reserved_4: Reserved::ZERO }
    }

    /// The private data of a received acceptance; `None` when there are fewer than 32 bytes or the record
    /// format is not 0. What follows it is padding.
    pub fn parse(private_data: &[u8]) -> Option<&Self> {
        let accept: &Self = crate::view(private_data).ok()?;
        (accept.recfmt == U16::ZERO).then_some(accept)
    }

    /// Entries of the controller's receive queue, CRQSIZE: commands that it takes at once.
    pub const fn receive_entries(&self) -> u16 {
        self.crqsize.get()
    }
}

/// Private data of the rejection, which has the reason "consumer defined".
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
    /// A rejection.
    pub const fn new(status: RejectStatus) -> Self {
        Self { recfmt: U16::ZERO, status: U16::new(status.0) }
    }

    /// The private data of a received rejection; `None` when there are fewer than 4 bytes or the record
    /// format is not 0. What follows it is padding.
    pub fn parse(private_data: &[u8]) -> Option<&Self> {
        let reject: &Self = crate::view(private_data).ok()?;
        (reject.recfmt == U16::ZERO).then_some(reject)
    }

    /// Why.
    pub const fn status(&self) -> RejectStatus {
        RejectStatus(self.status.get())
    }
}

open_enum! {
    /// Why a controller rejects a connection, STS.
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

impl fmt::LowerHex for RejectStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}
