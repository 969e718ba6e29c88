//! Data of a command: where the host has it, and where it is here in each step.
//!
//! The host names its data with a single SGL descriptor (NVMe RDMA transport, SGL support).

use nvme_proto::{Sgl, Status};

use super::list_progress::ListProgress;
use crate::controller::{CommandTransfer, CommandWork, IoKind, TransferDirection};
use crate::core_context::pool::{Buffer, UNIT_BYTES};

/// Memory of the host, as it named it with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyedMemory {
    /// Virtual address in the host's memory.
    pub(crate) address: u64,
    /// Remote key (rkey) of the host's memory.
    pub(crate) key: u32,
    /// Bytes of data to move.
    pub(crate) length: u32,
}

/// Data of a command on the side of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostData {
    /// Data from the host, in the command's capsule; offset and length in bytes.
    InCapsule { offset: u32, length: u32 },
    /// Data from the host, to be fetched from its memory.
    Fetched(KeyedMemory),
    /// Data for the host, to be written to its memory.
    Returned(KeyedMemory),
}

/// Data from the host that has arrived.
#[derive(Debug)]
pub(crate) enum ArrivedData {
    /// Part of the command's capsule; offset and length in bytes.
    Capsule {
        offset: u32,
        length: u32,
    },
    Buffer(Buffer),
}

/// Buffer whose bytes go to the host, once they are there.
#[derive(Debug)]
pub(crate) struct OutgoingData {
    pub(crate) buffer: Buffer,
    pub(crate) to: KeyedMemory,
}

/// Data of a command that is ready for execution.
#[derive(Debug)]
pub(crate) enum LocalData {
    /// The command moves no data.
    None,
    Arrived(ArrivedData),
    /// Buffer for data to the host.
    Outgoing(OutgoingData),
}

#[derive(Debug)]
pub(crate) enum ResponseData {
    /// None; a buffer of the command is freed when the response was sent.
    None(Option<Buffer>),
    Buffer(OutgoingData),
    /// Zeros, which need no buffer.
    Zeros(KeyedMemory),
}

/// Storage operation of an I/O command, with the memory that it uses.
#[derive(Debug)]
pub(crate) enum StorageStep {
    /// Flushes earlier writes before a Read with Force Unit Access (NVM, Read).
    FlushThenRead(OutgoingData),
    /// Flushes earlier writes before a Compare with Force Unit Access.
    FlushThenCompare(Buffer),
    /// Reads into the buffer.
    Read(OutgoingData),
    /// Reads the next range of a list.
    ReadRanges(OutgoingData, ListProgress),
    /// Writes the data of the host to the medium.
    Write(ArrivedData),
    /// Reads into the part of the buffer that [`medium_at`] returns, behind the host's data.
    Compare(Buffer),
    /// Deallocates the next range; the first `passed` ranges were started or are empty.
    Deallocate { ranges: ArrivedData, passed: usize },
    /// Flushes or writes zeroes, without data.
    Plain,
}

/// How the data of a command becomes [`LocalData`].
#[derive(Debug)]
pub(super) enum DataPlace {
    Ready(LocalData),
    /// The data needs a buffer of this many bytes.
    Buffer(u32),
}

impl HostData {
    /// Returns where the data of a command with this work goes. Only data of a Write at an odd
    /// place of the capsule is copied, since storage writes from page boundaries.
    pub(super) fn place(self, work: &CommandWork) -> DataPlace {
        let kind = match work {
            CommandWork::Io(work) => Some(work.kind),
            CommandWork::Control(_) => None,
        };
        match (self, kind) {
            (
                Self::InCapsule { length, .. }
                | Self::Fetched(KeyedMemory { length, .. })
                | Self::Returned(KeyedMemory { length, .. }),
                Some(IoKind::Compare { .. }),
            ) => DataPlace::Buffer(medium_at(length) + length),
            (Self::Fetched(memory) | Self::Returned(memory), _) => DataPlace::Buffer(memory.length),
            (Self::InCapsule { offset, length }, Some(IoKind::Write { .. }))
                if !(offset as usize).is_multiple_of(UNIT_BYTES) =>
            {
                DataPlace::Buffer(length)
            }
            (Self::InCapsule { offset, length }, _) => {
                DataPlace::Ready(LocalData::Arrived(ArrivedData::Capsule { offset, length }))
            }
        }
    }
}

impl ArrivedData {
    fn into_buffer(self) -> Option<Buffer> {
        match self {
            Self::Capsule { .. } => None,
            Self::Buffer(buffer) => Some(buffer),
        }
    }

    fn buffer(&self) -> Option<&Buffer> {
        match self {
            Self::Capsule { .. } => None,
            Self::Buffer(buffer) => Some(buffer),
        }
    }
}

impl LocalData {
    pub(crate) fn into_buffer(self) -> Option<Buffer> {
        match self {
            Self::None => None,
            Self::Arrived(data) => data.into_buffer(),
            Self::Outgoing(data) => Some(data.buffer),
        }
    }

    /// Returns the data of the response; only a successful command sends any.
    pub(crate) fn into_response(self, status: Status) -> ResponseData {
        match self {
            Self::Outgoing(data) if status.is_success() => ResponseData::Buffer(data),
            other => ResponseData::None(other.into_buffer()),
        }
    }
}

impl Default for ResponseData {
    fn default() -> Self {
        Self::None(None)
    }
}

impl ResponseData {
    pub(crate) fn into_buffer(self) -> Option<Buffer> {
        match self {
            Self::None(buffer) => buffer,
            Self::Buffer(data) => Some(data.buffer),
            Self::Zeros(_) => None,
        }
    }

    /// Bytes that are sent before the response.
    pub(crate) fn sent_bytes(&self) -> u32 {
        match self {
            Self::None(_) => 0,
            Self::Buffer(OutgoingData { to, .. }) | Self::Zeros(to) => to.length,
        }
    }
}

impl StorageStep {
    /// Returns the first step of a command.
    ///
    /// # Errors
    /// The data, if it does not belong to a command of this kind.
    pub(crate) fn first(kind: IoKind, data: LocalData) -> Result<Self, LocalData> {
        Ok(match (kind, data) {
            (IoKind::Read { fua: false }, LocalData::Outgoing(data)) => Self::Read(data),
            (IoKind::Read { fua: true }, LocalData::Outgoing(data)) => Self::FlushThenRead(data),
            (IoKind::ReadRanges { .. }, LocalData::Outgoing(data)) => {
                Self::ReadRanges(data, ListProgress::default())
            }
            (IoKind::Write { .. }, LocalData::Arrived(data)) => Self::Write(data),
            (IoKind::Compare { fua }, LocalData::Arrived(ArrivedData::Buffer(buffer))) => match fua
            {
                false => Self::Compare(buffer),
                true => Self::FlushThenCompare(buffer),
            },
            (IoKind::Deallocate, LocalData::Arrived(ranges)) => {
                Self::Deallocate { ranges, passed: 0 }
            }
            (IoKind::Flush | IoKind::WriteZeroes { .. }, LocalData::None) => Self::Plain,
            (_, data) => return Err(data),
        })
    }

    /// Returns the step that follows after a success.
    ///
    /// # Errors
    /// This step, if it is the last.
    pub(crate) fn next(self) -> Result<Self, Self> {
        match self {
            Self::FlushThenRead(data) => Ok(Self::Read(data)),
            Self::FlushThenCompare(buffer) => Ok(Self::Compare(buffer)),
            Self::Deallocate { .. } => Ok(self),
            last => Err(last),
        }
    }

    /// Buffer that the operation uses or a later one will use.
    pub(crate) fn buffer(&self) -> Option<&Buffer> {
        match self {
            Self::FlushThenRead(data) | Self::Read(data) | Self::ReadRanges(data, _) => {
                Some(&data.buffer)
            }
            Self::FlushThenCompare(buffer) | Self::Compare(buffer) => Some(buffer),
            Self::Write(data) | Self::Deallocate { ranges: data, .. } => data.buffer(),
            Self::Plain => None,
        }
    }

    pub(crate) fn into_buffer(self) -> Option<Buffer> {
        match self {
            Self::FlushThenRead(data) | Self::Read(data) | Self::ReadRanges(data, _) => {
                Some(data.buffer)
            }
            Self::FlushThenCompare(buffer) | Self::Compare(buffer) => Some(buffer),
            Self::Write(data) | Self::Deallocate { ranges: data, .. } => data.into_buffer(),
            Self::Plain => None,
        }
    }

    /// Returns the data of the response; only a successful Read sends any.
    pub(crate) fn into_response(self, status: Status) -> ResponseData {
        match self {
            Self::Read(data) if status.is_success() => ResponseData::Buffer(data),
            other => ResponseData::None(other.into_buffer()),
        }
    }

    /// Number of ranges of a Deallocate that were started or are empty; otherwise 0.
    pub(crate) fn ranges_passed(&self) -> usize {
        match self {
            Self::Deallocate { passed, .. } => *passed,
            _ => 0,
        }
    }
}

/// Returns where, in the buffer of a Compare, the data of the medium begins: after `length` bytes
/// of host data, rounded up to a page for direct I/O.
pub(super) fn medium_at(length: u32) -> u32 {
    length.next_multiple_of(UNIT_BYTES as u32)
}

/// Returns the remote key that the response must invalidate (Send with Invalidate), whether or not
/// the command succeeds.
pub(super) fn invalidated_key(descriptor: &Result<Sgl, Status>) -> Option<u32> {
    match *descriptor {
        Ok(Sgl::Keyed { key, invalidate: true, length, .. }) if length > 0 => Some(key),
        _ => None,
    }
}

/// Locates the data of a command that moves data, by its parsed descriptor. `received` is the
/// length in bytes of the in-capsule data that arrived with it.
///
/// The length of a descriptor may be more than the command moves, but not less.
///
/// # Errors
/// The status with which the command fails, for an invalid descriptor.
pub(super) fn locate(
    descriptor: Result<Sgl, Status>,
    transfer: CommandTransfer,
    received: u32,
) -> Result<HostData, Status> {
    match descriptor? {
        Sgl::Keyed { address, length, key, .. } => {
            covers(length, transfer.length_bytes)?;
            let memory = KeyedMemory { address, key, length: transfer.length_bytes };
            Ok(match transfer.direction {
                TransferDirection::HostToController => HostData::Fetched(memory),
                TransferDirection::ControllerToHost => HostData::Returned(memory),
            })
        }
        Sgl::InCapsule { offset, length } => {
            if transfer.direction == TransferDirection::ControllerToHost {
                return Err(Status::SGL_DESCRIPTOR_TYPE_INVALID.with_dnr());
            }
            let end = offset.checked_add(u64::from(length));
            if end.is_none_or(|end| end > u64::from(received)) {
                return Err(Status::SGL_OFFSET_INVALID.with_dnr());
            }
            covers(length, transfer.length_bytes)?;
            // The offset is within the received bytes, so it fits in 32 bits.
            Ok(HostData::InCapsule { offset: offset as u32, length: transfer.length_bytes })
        }
        // Only one descriptor is allowed (MSDBD in Identify Controller is 1).
        Sgl::LastSegment { .. } => Err(Status::SGL_DESCRIPTOR_TYPE_INVALID.with_dnr()),
    }
}

fn covers(length: u32, needed: u32) -> Result<(), Status> {
    if length < needed {
        return Err(Status::DATA_SGL_LENGTH_INVALID.with_dnr());
    }
    Ok(())
}

#[cfg(test)]
mod tests;
