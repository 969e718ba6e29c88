//! Commands on their way between a transport and a controller.
//!
//! A transport hands each submission queue entry to [`Queue::parse`](super::Queue::parse) and gets
//! back a [`ParsedCommand`]: how much data must move which way, and what to do. It fetches data
//! from the host first, has [`CommandWork::Control`] done by
//! [`Queue::execute`](super::Queue::execute) and [`CommandWork::Io`] by its storage engine, moves
//! data to the host last, and makes the response with
//! [`Queue::completion`](super::Queue::completion).

use nvme_proto::{AdminCommand, DataDirection, DataTransfer, FabricsCommand, Nsid, Status};

use super::stage::Epoch;
use crate::inventory::index::NamespaceIndex;

/// A command that was found well-formed and allowed in its queue's state.
#[derive(Clone, Copy, Debug)]
pub struct ParsedCommand {
    /// Data that the command moves; the SGL must cover it exactly.
    pub transfer: Option<CommandTransfer>,
    /// The work that the command asks for.
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

/// Which way data moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferDirection {
    /// In-capsule data or RDMA READ.
    HostToController,
    /// RDMA WRITE into the host's memory.
    ControllerToHost,
}

/// The component that carries a command out.
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
    /// With the epoch in which it came.
    Admin(AdminCommand, Epoch),
}

/// A command on one namespace, in bytes. Range, protection and size were checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoWork {
    /// The namespace, as `Registry::namespace` knows it.
    pub namespace: NamespaceIndex,
    /// Its id in the subsystem.
    pub nsid: Nsid,
    /// Bytes of its logical blocks, as a power of two.
    pub lba_shift: u8,
    /// Its size in logical blocks.
    pub size_blocks: u64,
    /// The operation on the namespace.
    pub kind: IoKind,
    /// First byte in the namespace. 0 for Flush and Deallocate.
    pub offset_bytes: u64,
    /// Bytes of data for Read, Write and Compare, of the medium for Write Zeroes; 0 for Flush and
    /// Deallocate.
    pub length_bytes: u64,
}

/// The operation of an I/O command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoKind {
    /// Medium to host; with `fua`, earlier writes are on the medium first.
    Read {
        /// Force Unit Access: the bytes come from the medium, not from a volatile cache.
        fua: bool,
    },
    /// Zeros to host, which is all that the medium gives.
    ReadZeros,
    /// Host to medium; with `fua` it is on the medium before the response.
    Write {
        /// Force Unit Access: the response waits until the bytes are on the medium.
        fua: bool,
    },
    /// All earlier completed writes reach the medium.
    Flush,
    /// The range reads as zeros.
    WriteZeroes {
        /// Force Unit Access: the response waits until the zeros are on the medium.
        fua: bool,
        /// The space may be given back.
        deallocate: bool,
    },
    /// Host data is compared with the medium; a difference is Compare Failure.
    Compare {
        /// Force Unit Access, as of Read.
        fua: bool,
    },
    /// The host's ranges, which arrive as data and go through
    /// [`Queue::next_range`](super::Queue::next_range), hold nothing of value any more.
    Deallocate,
}

impl IoKind {
    /// Whether it changes the result of a later read.
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

/// The result of handing a control command to the controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Execution {
    /// It ended: move its data to the host if it succeeded, then respond.
    Complete(CommandOutcome),
    /// It stays open: [`Queue::poll`](super::Queue::poll) completes it later, or it is dropped when
    /// the queue ends. Give its buffer back; keep its slot.
    Parked,
    /// It ended; respond, then close the connection once the response was sent.
    Disconnect(CommandOutcome),
}

/// The transfer that an entry implies, for data that a controller moves; nothing for zero bytes.
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
