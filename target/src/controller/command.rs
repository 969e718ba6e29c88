//! Commands between a transport and a controller.
//!
//! A transport passes each submission queue entry to [`Queue::parse`](super::Queue::parse) and gets
//! a [`ParsedCommand`]: the data to move and the work to do. It first fetches data from the host,
//! then passes [`CommandWork::Control`] to [`Queue::execute`](super::Queue::execute) and
//! [`CommandWork::Io`] to its storage engine, then moves data to the host, and finally builds the
//! response with [`Queue::completion`](super::Queue::completion).

use nvme_proto::{AdminCommand, DataDirection, DataTransfer, FabricsCommand, Nsid, Status};

use super::stage::Epoch;
use crate::inventory::index::NamespaceIndex;

/// A submission queue entry that passed all checks, with the data to move and the work to do.
#[derive(Clone, Copy, Debug)]
pub struct ParsedCommand {
    /// Data that the command moves, whose length the SGL must cover; `None` if it moves none.
    pub transfer: Option<CommandTransfer>,
    /// Operation to execute, and the component that executes it.
    pub work: CommandWork,
}

/// Direction and length of the data of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandTransfer {
    /// Whether the host sends or receives the data.
    pub direction: TransferDirection,
    /// Length in bytes; never 0, never above the controller's maximum data transfer size.
    pub length_bytes: u32,
}

/// Direction of a data transfer, as seen by the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferDirection {
    /// Data from the host: in the capsule, or fetched by RDMA READ.
    HostToController,
    /// Data to the host's memory, by RDMA WRITE.
    ControllerToHost,
}

/// Work of a command, by the component that executes it.
#[derive(Clone, Copy, Debug)]
pub enum CommandWork {
    /// Executed by the controller, with [`Queue::execute`](super::Queue::execute).
    Control(ControlWork),
    /// Executed by the storage engine of the core that owns the connection.
    Io(IoWork),
}

/// A fabrics or admin command that was parsed.
#[derive(Clone, Copy, Debug)]
pub struct ControlWork(pub(super) ControlCommand);

impl ControlWork {
    pub(crate) fn is_event_request(&self) -> bool {
        matches!(self.0, ControlCommand::Admin(AdminCommand::AsyncEventRequest, _))
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum ControlCommand {
    Fabrics(FabricsCommand),
    /// Admin command, and the epoch in which it arrived. A controller reset aborts it.
    Admin(AdminCommand, Epoch),
}

/// I/O command for one namespace. Range, write protection and transfer size were checked, and
/// blocks were converted to bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoWork {
    /// Index of the namespace, for `Inventory::namespace`.
    pub namespace: NamespaceIndex,
    /// NSID of the namespace in its subsystem.
    pub nsid: Nsid,
    /// Logical block size in bytes, as a power of two.
    pub lba_shift: u8,
    /// Size of the namespace in logical blocks.
    pub size_blocks: u64,
    /// Operation, with its flags.
    pub kind: IoKind,
    /// Offset of the first byte in the namespace. 0 for Flush, Deallocate and Read Ranges.
    pub offset_bytes: u64,
    /// Length in bytes: of the data for Read, Read Ranges, Write and Compare, of the range for
    /// Write Zeroes; 0 for Flush and Deallocate.
    pub length_bytes: u64,
}

/// Operation of an I/O command, as the storage engine executes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoKind {
    /// Reads from the medium.
    Read {
        /// Force Unit Access: earlier writes are flushed first, to read from the medium.
        fua: bool,
    },
    /// Returns zeros without storage, for a medium that always reads as zeros.
    ReadZeros,
    /// Reads the ranges of the list in the capsule, as far as that waits for nothing.
    ReadRanges {
        /// Number of ranges; once they were read, of those that were.
        ranges: u32,
    },
    /// Writes to the medium.
    Write {
        /// Force Unit Access: the response waits until the bytes are on the medium.
        fua: bool,
    },
    /// Makes all writes durable that completed before.
    Flush,
    /// Makes the range read as zeros.
    WriteZeroes {
        /// Force Unit Access: the response waits until the zeros are on the medium.
        fua: bool,
        /// Deallocate bit: the file system may free the space.
        deallocate: bool,
    },
    /// Compares the host's data with the medium. If they differ, the status is Compare Failure.
    Compare {
        /// Force Unit Access, as for Read.
        fua: bool,
    },
    /// Deallocates the host's ranges, which arrive as data and are parsed by
    /// [`Queue::next_range`](super::Queue::next_range).
    Deallocate,
}

impl IoKind {
    /// Whether the operation can change the bytes that a later read returns.
    pub(crate) fn changes_medium(self) -> bool {
        match self {
            Self::Write { .. } | Self::WriteZeroes { .. } | Self::Deallocate => true,
            Self::Read { .. }
            | Self::ReadZeros
            | Self::ReadRanges { .. }
            | Self::Flush
            | Self::Compare { .. } => false,
        }
    }
}

/// Result and status of the response to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandOutcome {
    /// Dword 0 (low half) and dword 1 of the completion queue entry.
    pub result: u64,
    /// Status field of the completion queue entry, without the phase tag.
    pub status: Status,
}

impl CommandOutcome {
    /// Success with result 0.
    pub const SUCCESS: Self = Self { result: 0, status: Status::SUCCESS };

    /// Returns Success with `result`, which is dwords 0 and 1 of the response.
    pub const fn success(result: u64) -> Self {
        Self { result, status: Status::SUCCESS }
    }
}

impl From<Status> for CommandOutcome {
    fn from(status: Status) -> Self {
        Self { result: 0, status }
    }
}

impl From<Result<u64, Status>> for CommandOutcome {
    fn from(result: Result<u64, Status>) -> Self {
        result.map_or_else(Self::from, Self::success)
    }
}

/// Next step of a command after [`Queue::execute`](super::Queue::execute).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Execution {
    /// Move the data to the host if the command succeeded, then respond.
    Complete(CommandOutcome),
    /// Keep the slot of the command and free its buffer: [`Queue::poll`](super::Queue::poll)
    /// completes the command later, or it is dropped when the queue ends.
    Parked,
    /// Keep the slot and the buffer of the command:
    /// [`QueueEvent::Resume`](super::QueueEvent::Resume) tells when to execute it again, or it
    /// is dropped when the queue ends.
    Postponed,
    /// Move the data to the host, respond, and close the connection once the response was sent,
    /// whatever other commands run.
    CompleteAndClose(CommandOutcome),
    /// Respond, then close the connection once the response was sent.
    Disconnect(CommandOutcome),
}

/// Returns the transfer that an entry implies, of at most `most` bytes; `None` for zero bytes.
#[inline]
pub(super) fn transfer(of: DataTransfer, most: u32) -> Result<Option<CommandTransfer>, Status> {
    let direction = match of.direction {
        DataDirection::HostToController => TransferDirection::HostToController,
        DataDirection::ControllerToHost => TransferDirection::ControllerToHost,
        DataDirection::None | DataDirection::Bidirectional => {
            return Ok(None);
        }
    };
    match u32::try_from(of.length_bytes) {
        Ok(0) => Ok(None),
        Ok(length_bytes) if length_bytes <= most => {
            Ok(Some(CommandTransfer { direction, length_bytes }))
        }
        _ => Err(Status::INVALID_FIELD.with_dnr()),
    }
}
