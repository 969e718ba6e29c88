//! The NVM command set (NVM, 3).

mod dsm;
mod io;
mod read_ranges;

pub use dsm::{DatasetManagement, DsmAttributes, DsmRange};
pub use io::{Flush, Io, WriteZeroes};
pub use read_ranges::{ListedRange, ReadRanges};

use crate::{DataTransfer, Nsid, NvmOpcode, Sqe, Status};

/// Command of the NVM command set. Fields for protection information, which this crate does not
/// support, are not decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NvmCommand {
    /// Makes the data of completed writes non-volatile.
    Flush(Flush),
    /// Writes the host's data to blocks.
    Write(Io),
    /// Reads blocks into the host's memory.
    Read(Io),
    /// Compares blocks with the host's data.
    Compare(Io),
    /// Sets blocks to zero, without a data transfer.
    WriteZeroes(WriteZeroes),
    /// Deallocates ranges of blocks, or gives hints on their use.
    DatasetManagement(DatasetManagement),
    /// Reads several ranges of bytes, a vendor-specific command of Feedrail.
    ReadRanges(ReadRanges),
}

impl NvmCommand {
    /// Decodes a submission queue entry of an I/O queue.
    ///
    /// # Errors
    /// Invalid Command Opcode with Do Not Retry, if this enum has no variant for the opcode.
    /// Reserved fields and unsupported hints are ignored.
    #[inline]
    pub fn parse(sqe: &Sqe) -> Result<Self, Status> {
        match NvmOpcode(sqe.opcode) {
            NvmOpcode::FLUSH => Ok(Self::Flush(Flush::parse(sqe))),
            NvmOpcode::WRITE => Ok(Self::Write(Io::parse(sqe))),
            NvmOpcode::READ => Ok(Self::Read(Io::parse(sqe))),
            NvmOpcode::COMPARE => Ok(Self::Compare(Io::parse(sqe))),
            NvmOpcode::WRITE_ZEROES => Ok(Self::WriteZeroes(WriteZeroes::parse(sqe))),
            NvmOpcode::DATASET_MANAGEMENT => {
                Ok(Self::DatasetManagement(DatasetManagement::parse(sqe)))
            }
            NvmOpcode::READ_RANGES => Ok(Self::ReadRanges(ReadRanges::parse(sqe))),
            _ => Err(Status::INVALID_OPCODE.with_dnr()),
        }
    }

    /// Encodes the command; [`Sqe::with_cid`] and [`Sqe::with_data`] add the identifier and the
    /// data pointer.
    ///
    /// # Panics
    /// If a number of blocks, or of ranges of Read Ranges, is not in 1 to 65,536, or that of ranges
    /// of Dataset Management is not in 1 to 256.
    pub fn to_sqe(&self) -> Sqe {
        match self {
            Self::Flush(command) => command.to_sqe(),
            Self::Write(io) => io.to_sqe(NvmOpcode::WRITE),
            Self::Read(io) => io.to_sqe(NvmOpcode::READ),
            Self::Compare(io) => io.to_sqe(NvmOpcode::COMPARE),
            Self::WriteZeroes(command) => command.to_sqe(),
            Self::DatasetManagement(command) => command.to_sqe(),
            Self::ReadRanges(command) => command.to_sqe(),
        }
    }

    /// Opcode that [`NvmCommand::to_sqe`] writes into byte 0 of the entry.
    pub const fn opcode(&self) -> NvmOpcode {
        match self {
            Self::Flush(_) => NvmOpcode::FLUSH,
            Self::Write(_) => NvmOpcode::WRITE,
            Self::Read(_) => NvmOpcode::READ,
            Self::Compare(_) => NvmOpcode::COMPARE,
            Self::WriteZeroes(_) => NvmOpcode::WRITE_ZEROES,
            Self::DatasetManagement(_) => NvmOpcode::DATASET_MANAGEMENT,
            Self::ReadRanges(_) => NvmOpcode::READ_RANGES,
        }
    }

    /// Namespace that the command addresses.
    pub const fn nsid(&self) -> Nsid {
        match self {
            Self::Flush(command) => command.nsid,
            Self::Write(io) | Self::Read(io) | Self::Compare(io) => io.nsid,
            Self::WriteZeroes(command) => command.nsid,
            Self::DatasetManagement(command) => command.nsid,
            Self::ReadRanges(command) => command.nsid,
        }
    }

    /// Returns the data transfer, for a namespace with blocks of `block_bytes` bytes.
    pub fn transfer(&self, block_bytes: u32) -> DataTransfer {
        match self {
            Self::Read(io) => DataTransfer::to_host(io.range.length_bytes(block_bytes)),
            Self::Write(io) | Self::Compare(io) => {
                DataTransfer::from_host(io.range.length_bytes(block_bytes))
            }
            Self::DatasetManagement(command) => DataTransfer::from_host(command.length_bytes()),
            Self::ReadRanges(command) => DataTransfer::to_host(command.length_bytes.into()),
            Self::Flush(_) | Self::WriteZeroes(_) => DataTransfer::NONE,
        }
    }
}
