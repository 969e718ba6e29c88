//! Commands of all command sets.

use crate::{AdminCommand, DataDirection, FabricsCommand, NvmCommand, Qid, Sqe, Status};

/// A command, by the command set that its queue and opcode select.
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
    /// Decodes an entry that came on queue `qid`. The caller checks whether the state of the queue
    /// allows the command.
    ///
    /// # Errors
    /// The status to complete the command with: Invalid Command Opcode, Invalid Field in Command,
    /// or the one that the command's own parsing returns; always with Do Not Retry.
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

/// The data that a command moves, as its fields imply. The SGL must describe at least as many
/// bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataTransfer {
    /// Direction of the transfer; [`DataDirection::None`] for a command without data.
    pub direction: DataDirection,
    /// Length in bytes; 0 when there is no direction.
    pub length_bytes: u64,
}

impl DataTransfer {
    /// The transfer of a command without data: length 0.
    pub const NONE: Self = Self { direction: DataDirection::None, length_bytes: 0 };

    pub(crate) const fn to_host(length_bytes: u64) -> Self {
        Self { direction: DataDirection::ControllerToHost, length_bytes }
    }

    pub(crate) const fn from_host(length_bytes: u64) -> Self {
        Self { direction: DataDirection::HostToController, length_bytes }
    }
}
