//! Decoding of commands of all command sets.

use crate::{AdminCommand, FabricsCommand, NvmCommand, Qid, Sqe, Status};

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
