//! Command capsules: a submission queue entry, and the data that follows it.

use zerocopy::FromBytes;

use crate::{Sgl, SglDescriptor, Sqe, Status, Truncated};

/// Command capsule: the submission queue entry, and the in-capsule data that was received (Base,
/// 2.2 and 4.1; RDMA, on capsules).
#[derive(Clone, Copy, Debug)]
pub struct CommandCapsule<'a> {
    /// The first 64 bytes of the capsule.
    pub sqe: &'a Sqe,
    /// The received bytes after the entry; empty without in-capsule data.
    pub data: &'a [u8],
}

impl<'a> CommandCapsule<'a> {
    /// Splits a received message. The in-capsule data offset (ICDOFF) is 0, so data starts right
    /// after the entry.
    ///
    /// # Errors
    /// [`Truncated`] if there are fewer than 64 bytes.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Truncated> {
        match Sqe::ref_from_prefix(bytes) {
            Ok((sqe, data)) => Ok(Self { sqe, data }),
            Err(_) => Err(Truncated::of::<Sqe>(bytes.len())),
        }
    }

    /// Returns the part of the in-capsule data that an SGL descriptor describes.
    ///
    /// # Errors
    /// All with Do Not Retry: SGL Offset Invalid if the part starts behind the end of the received
    /// data, Data SGL Length Invalid if only its end is behind that.
    pub fn in_capsule(&self, offset: u64, length: u32) -> Result<&'a [u8], Status> {
        let start = usize::try_from(offset).ok();
        let rest = start.and_then(|start| self.data.get(start..));
        let rest = rest.ok_or(Status::SGL_OFFSET_INVALID.with_dnr())?;
        rest.get(..length as usize).ok_or(Status::DATA_SGL_LENGTH_INVALID.with_dnr())
    }

    /// Returns the SGL descriptors of the command's data: those of the last segment, which is in
    /// the capsule, or else the one in the entry.
    ///
    /// # Errors
    /// All with Do Not Retry: SGL Offset Invalid if the segment starts behind the end of the
    /// received data; Invalid SGL Segment Descriptor if it is empty, not a multiple of 16 bytes, or
    /// its end is behind that.
    pub fn descriptors(&self) -> Result<&'a [SglDescriptor], Status> {
        let Ok(Sgl::LastSegment { offset, length }) = self.sqe.dptr.parse() else {
            return Ok(core::slice::from_ref(&self.sqe.dptr));
        };
        let invalid = Status::INVALID_SGL_SEGMENT_DESCRIPTOR.with_dnr();
        let bytes = self.in_capsule(offset, length).map_err(|status| {
            if status.is(Status::SGL_OFFSET_INVALID) { status } else { invalid }
        })?;
        match <[SglDescriptor]>::ref_from_bytes(bytes) {
            Ok(descriptors) if !descriptors.is_empty() => Ok(descriptors),
            _ => Err(invalid),
        }
    }
}
