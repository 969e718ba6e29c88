//! Command capsules: an entry, and the data that follows it.

use zerocopy::FromBytes;

use crate::{Sgl, SglDescriptor, Sqe, Status, Truncated};

/// A command capsule: the entry, and the in-capsule data that really arrived (Base, 2.2 and 4.1;
/// RDMA, on capsules).
#[derive(Clone, Copy, Debug)]
pub struct CommandCapsule<'a> {
    /// The first 64 bytes of the capsule.
    pub sqe: &'a Sqe,
    /// The bytes after the entry, as many as arrived; empty without in-capsule data.
    pub data: &'a [u8],
}

impl<'a> CommandCapsule<'a> {
    /// Splits received bytes. The in-capsule data offset is 0, so data starts right after the
    /// entry.
    ///
    /// # Errors
    /// [`Truncated`] when there is not even a whole entry.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Truncated> {
        match Sqe::ref_from_prefix(bytes) {
            Ok((sqe, data)) => Ok(Self { sqe, data }),
            Err(_) => Err(Truncated::of::<Sqe>(bytes.len())),
        }
    }

    /// The part of the in-capsule data that a descriptor describes.
    ///
    /// # Errors
    /// With Do Not Retry: SGL Offset Invalid when it starts past the data received, Data SGL Length
    /// Invalid when it ends past it.
    pub fn in_capsule(&self, offset: u64, length: u32) -> Result<&'a [u8], Status> {
        let start = usize::try_from(offset).ok();
        let rest = start.and_then(|start| self.data.get(start..));
        let rest = rest.ok_or(Status::SGL_OFFSET_INVALID.with_dnr())?;
        rest.get(..length as usize).ok_or(Status::DATA_SGL_LENGTH_INVALID.with_dnr())
    }

    /// The descriptors that describe the command's data: those of the last segment in the capsule,
    /// or the one in the entry.
    ///
    /// # Errors
    /// With Do Not Retry: SGL Offset Invalid when the segment starts past the data received,
    /// Invalid SGL Segment Descriptor when it is empty, not a multiple of 16 bytes, or ends past
    /// the data received.
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
