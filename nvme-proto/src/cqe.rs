//! Completion queue entries, which over fabrics are the response capsules.

use core::fmt;

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{Cid, Qid, Status, Truncated};

/// Completion queue entry. Over fabrics it is the whole response capsule of 16 bytes (Base, 4.2).
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Cqe {
    /// Command-specific result, bits 31:0.
    pub dw0: U32,
    /// Command-specific result, bits 63:32.
    pub dw1: U32,
    /// Submission queue head pointer; reserved if submission queue flow control is disabled.
    pub sqhd: U16,
    /// Identifier of the submission queue of the command.
    pub sqid: U16,
    /// Identifier of the command that completes.
    pub cid: U16,
    status: U16,
}

const _: () = assert!(size_of::<Cqe>() == 16);

impl Cqe {
    /// Creates a completion with result 0, SQHD 0 and SQID 0.
    pub const fn new(cid: Cid, status: Status) -> Self {
        Self {
            dw0: U32::ZERO,
            dw1: U32::ZERO,
            sqhd: U16::ZERO,
            sqid: U16::ZERO,
            cid: U16::new(cid.0),
            status: U16::new(status.to_wire()),
        }
    }

    /// Creates a completion with Successful Completion, result 0, SQHD 0 and SQID 0.
    pub const fn success(cid: Cid) -> Self {
        Self::new(cid, Status::SUCCESS)
    }

    /// Views received bytes as a response capsule.
    ///
    /// # Errors
    /// [`Truncated`] if there are fewer than 16 bytes. Further bytes are ignored.
    pub fn parse(bytes: &[u8]) -> Result<&Self, Truncated> {
        crate::view(bytes)
    }

    /// Sets the 32-bit result.
    pub const fn with_dw0(mut self, dw0: u32) -> Self {
        self.dw0 = U32::new(dw0);
        self
    }

    /// Sets the 64-bit result: dword 0 gets the low half.
    pub const fn with_result(mut self, result: u64) -> Self {
        self.dw0 = U32::new(result as u32);
        self.dw1 = U32::new((result >> 32) as u32);
        self
    }

    /// Sets submission queue head pointer and submission queue identifier.
    pub const fn with_queue(mut self, sqhd: u16, sqid: Qid) -> Self {
        self.sqhd = U16::new(sqhd);
        self.sqid = U16::new(sqid.0);
        self
    }

    /// Replaces the status, More and Do Not Retry included.
    pub const fn with_status(mut self, status: Status) -> Self {
        self.status = U16::new(status.to_wire());
        self
    }

    /// Identifier of the command that completes.
    pub const fn cid(&self) -> Cid {
        Cid(self.cid.get())
    }

    /// Returns the status without the phase tag, which is bit 0 of the last two bytes.
    pub const fn status(&self) -> Status {
        Status::from_wire(self.status.get())
    }

    /// Returns the 64-bit result: `dw0` is the low half, `dw1` the high half.
    pub const fn result(&self) -> u64 {
        self.dw0.get() as u64 | (self.dw1.get() as u64) << 32
    }
}

impl fmt::Debug for Cqe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Cqe {{ cid {}, {}, result {:#x}, sqhd {}, sqid {} }}",
            self.cid(),
            self.status(),
            self.result(),
            self.sqhd,
            self.sqid
        )
    }
}
