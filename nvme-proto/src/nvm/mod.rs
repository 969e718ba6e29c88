//! The NVM command set (NVM, 3).

mod dsm;
mod io;

pub use dsm::{DatasetManagement, DsmAttributes, DsmRange};
pub use io::{Flush, Io, WriteZeroes};

use crate::{DataTransfer, Nsid, NvmOpcode, Sqe, Status};

/// A command of the NVM command set. Fields of protection information, which this crate does not
/// support, are not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NvmCommand {
    /// Make completed writes durable.
    Flush(Flush),
    /// Write blocks from the host's data.
    Write(Io),
    /// Read blocks into the host's memory.
    Read(Io),
    /// Compare blocks with the host's data.
    Compare(Io),
    /// Zero blocks without data.
    WriteZeroes(WriteZeroes),
    /// Deallocate ranges, or hint at their use.
    DatasetManagement(DatasetManagement),
}

impl NvmCommand {
    /// Decodes an entry from an I/O queue.
    ///
    /// # Errors
    /// Invalid Command Opcode, with Do Not Retry, for all but the commands here. Reserved and
    /// unsupported hint fields are ignored.
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
            _ => Err(Status::INVALID_OPCODE.with_dnr()),
        }
    }

    /// Encodes the command; [`Sqe::with_cid`] and [`Sqe::with_data`] add the identifier and the
    /// data pointer.
    ///
    /// # Panics
    /// When a number of blocks is not in 1 to 65,536, or a number of ranges not in 1 to 256.
    pub fn to_sqe(&self) -> Sqe {
        match self {
            Self::Flush(command) => command.to_sqe(),
            Self::Write(io) => io.to_sqe(NvmOpcode::WRITE),
            Self::Read(io) => io.to_sqe(NvmOpcode::READ),
            Self::Compare(io) => io.to_sqe(NvmOpcode::COMPARE),
            Self::WriteZeroes(command) => command.to_sqe(),
            Self::DatasetManagement(command) => command.to_sqe(),
        }
    }

    /// The opcode that [`NvmCommand::to_sqe`] writes into byte 0 of the entry.
    pub const fn opcode(&self) -> NvmOpcode {
        match self {
            Self::Flush(_) => NvmOpcode::FLUSH,
            Self::Write(_) => NvmOpcode::WRITE,
            Self::Read(_) => NvmOpcode::READ,
            Self::Compare(_) => NvmOpcode::COMPARE,
            Self::WriteZeroes(_) => NvmOpcode::WRITE_ZEROES,
            Self::DatasetManagement(_) => NvmOpcode::DATASET_MANAGEMENT,
        }
    }

    /// The namespace that the command addresses.
    pub const fn nsid(&self) -> Nsid {
        match self {
            Self::Flush(command) => command.nsid,
            Self::Write(io) | Self::Read(io) | Self::Compare(io) => io.nsid,
            Self::WriteZeroes(command) => command.nsid,
            Self::DatasetManagement(command) => command.nsid,
        }
    }

    /// The data that the command moves, for a namespace with blocks of `block_bytes`.
    pub fn transfer(&self, block_bytes: u32) -> DataTransfer {
        match self {
            Self::Read(io) => DataTransfer::to_host(io.range.length_bytes(block_bytes)),
            Self::Write(io) | Self::Compare(io) => {
                DataTransfer::from_host(io.range.length_bytes(block_bytes))
            }
            Self::DatasetManagement(command) => DataTransfer::from_host(command.length_bytes()),
            Self::Flush(_) | Self::WriteZeroes(_) => DataTransfer::NONE,
        }
    }
}
