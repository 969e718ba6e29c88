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

/// A well-formed command that is allowed in its queue's state.
#[derive(Clone, Copy, Debug)]
pub struct ParsedCommand {
    /// Data that the command moves; the SGL must describe exactly this length.
    pub transfer: Option<CommandTransfer>,
    /// Work that the command asks for.
    pub work: CommandWork,
}

/// Data that a command moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandTransfer {
    /// Direction of the transfer.
    pub direction: TransferDirection,
    /// Length in bytes; never 0, never above the controller's maximum data transfer size.
    pub length_bytes: u32,
}

/// Direction in which data moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferDirection {
    /// In-capsule data or RDMA READ.
    HostToController,
    /// RDMA WRITE into the host's memory.
    ControllerToHost,
}

/// Component that executes a command.
#[derive(Clone, Copy, Debug)]
pub enum CommandWork {
    /// The controller, on the control path.
    Control(ControlWork),
    /// The storage engine, on the core of the connection.
    Io(IoWork),
}

/// A fabrics or admin command.
#[derive(Clone, Copy, Debug)]
pub struct ControlWork(pub(super) ControlCommand);

impl ControlWork {
    /// Whether it is an Asynchronous Event Request.
    pub(crate) fn is_event_request(&self) -> bool {
        matches!(self.0, ControlCommand::Admin(AdminCommand::AsyncEventRequest, _))
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) enum ControlCommand {
    Fabrics(FabricsCommand),
    /// Admin command, and the epoch in which it arrived.
    Admin(AdminCommand, Epoch),
}

/// I/O command for one namespace, in bytes, with checked range, protection and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoWork {
    /// Index of the namespace, for `Registry::namespace`.
    pub namespace: NamespaceIndex,
    /// NSID in the subsystem.
    pub nsid: Nsid,
    /// Bytes per logical block as a power of two.
    pub lba_shift: u8,
    /// Size of the namespace in logical blocks.
    pub size_blocks: u64,
    /// Operation on the namespace.
    pub kind: IoKind,
    /// First byte in the namespace. 0 for Flush and Deallocate.
    pub offset_bytes: u64,
    /// Length in bytes: of the data for Read, Write and Compare, of the range for Write Zeroes; 0
    /// for Flush and Deallocate.
    pub length_bytes: u64,
}

/// Operation of an I/O command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoKind {
    /// Reads from the medium; with `fua`, flushes earlier writes first.
    Read {
        /// Force Unit Access: the bytes come from the medium, not from a volatile cache.
        fua: bool,
    },
    /// Sends zeros, for a medium that always reads as zeros.
    ReadZeros,
    /// Writes to the medium; with `fua` the bytes are durable before the response.
    Write {
        /// Force Unit Access: the response waits until the bytes are on the medium.
        fua: bool,
    },
    /// Makes all earlier completed writes durable.
    Flush,
    /// Makes the range read as zeros.
    WriteZeroes {
        /// Force Unit Access: the response waits until the zeros are on the medium.
        fua: bool,
        /// Whether the space may be returned to the file system.
        deallocate: bool,
    },
    /// Compares host data with the medium; a difference is Compare Failure.
    Compare {
        /// Force Unit Access, as for Read.
        fua: bool,
    },
    /// Deallocates the host's ranges, which arrive as data and are parsed by
    /// [`Queue::next_range`](super::Queue::next_range).
    Deallocate,
}

impl IoKind {
    /// Whether it changes the bytes that a later read returns.
    pub(crate) fn changes_medium(self) -> bool {
        match self {
            Self::Write { .. } | Self::WriteZeroes { .. } | Self::Deallocate => true,
            Self::Read { .. } | Self::ReadZeros | Self::Flush | Self::Compare { .. } => false,
        }
    }
}

/// Result and status of a command that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandOutcome {
    /// Dwords 0 (low half) and 1 of the response.
    pub result: u64,
    /// Status field of the completion queue entry, without the phase tag.
    pub status: Status,
}

impl CommandOutcome {
    /// Success with result 0.
    pub const SUCCESS: Self = Self { result: 0, status: Status::SUCCESS };

    /// Success with a result.
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

/// Result of passing a control command to the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Execution {
    /// The command ended: move its data to the host if it succeeded, then respond.
    Complete(CommandOutcome),
    /// The command stays open: [`Queue::poll`](super::Queue::poll) completes it later, or it is
    /// dropped when the queue ends. Return its buffer; keep its slot.
    Parked,
    /// The command ended; respond, then close the connection once the response was sent.
    Disconnect(CommandOutcome),
}

/// Transfer that an entry implies, for data that a controller moves; `None` for zero bytes.
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
