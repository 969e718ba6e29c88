//! Commands, whatever their set.

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
    /// Gives an entry that came on queue `qid` its meaning. Whether the queue's state allows the
    /// command is for the controller to say.
    ///
    /// # Errors
    /// The status to complete the command with: Invalid Command Opcode, Invalid Field in Command,
    /// or what the command's own parsing says; always with Do Not Retry.
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
    /// Which way.
    pub direction: DataDirection,
    /// How many bytes; 0 when there is no direction.
    pub length_bytes: u64,
}

impl DataTransfer {
    /// No data.
    pub const NONE: Self = Self { direction: DataDirection::None, length_bytes: 0 };

    pub(crate) const fn to_host(length_bytes: u64) -> Self {
        Self { direction: DataDirection::ControllerToHost, length_bytes }
    }

    pub(crate) const fn from_host(length_bytes: u64) -> Self {
        Self { direction: DataDirection::HostToController, length_bytes }
    }
}
