//! Decoding of commands of all command sets.

use crate::{AdminCommand, DataDirection, FabricsCommand, NvmCommand, Qid, Sqe, Status};

/// Decoded command. Queue and opcode select the command set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// A fabrics command, on any queue.
    Fabrics(FabricsCommand),
    /// An admin command, on the admin queue.
    Admin(AdminCommand),
    /// A command of the NVM command set, on an I/O queue.
    Nvm(NvmCommand),
}

impl Command {
    /// Decodes a submission queue entry received on queue `qid`. The caller checks whether the
    /// state of the queue allows the command.
    ///
    /// # Errors
    /// Status for the completion, always with Do Not Retry: Invalid Field in Command for wrong
    /// flags, Invalid Command Opcode, or the status that decoding the command returns.
    pub fn parse(qid: Qid, sqe: &Sqe) -> Result<Self, Status> {
        sqe.check_flags()?;
        if sqe.is_fabrics() {
            FabricsCommand::parse(sqe).map(Self::Fabrics)
        } else if qid.is_admin() {
            AdminCommand::parse(sqe).map(Self::Admin)
        } else {
            NvmCommand::parse(sqe).map(Self::Nvm)
        }
    }
}

/// Data transfer that the fields of a command imply. The SGL must describe at least as many bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataTransfer {
    /// Direction of the transfer; [`DataDirection::None`] for a command without data.
    pub direction: DataDirection,
    /// Length in bytes; 0 for [`DataDirection::None`].
    pub length_bytes: u64,
}

impl DataTransfer {
    /// No data is transferred.
    pub const NONE: Self = Self { direction: DataDirection::None, length_bytes: 0 };

    pub(crate) const fn to_host(length_bytes: u64) -> Self {
        Self { direction: DataDirection::ControllerToHost, length_bytes }
    }

    pub(crate) const fn from_host(length_bytes: u64) -> Self {
        Self { direction: DataDirection::HostToController, length_bytes }
    }
}
