//! Admin commands (Base, 5).

use bitfield_struct::bitfield;
use zerocopy::little_endian::U32;

use crate::feature::{GetFeatures, SetFeatures};
use crate::identify::Identify;
use crate::log::GetLogPage;
use crate::{AdminOpcode, Cid, DataTransfer, Qid, Sqe, Status};

/// Admin command, other than the fabrics commands that the admin queue also takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdminCommand {
    /// Reads a part of a log page.
    GetLogPage(GetLogPage),
    /// Reads the structure or list of 4,096 bytes that CNS selects.
    Identify(Identify),
    /// Requests that the controller aborts one command.
    Abort(Abort),
    /// Changes the value of a feature of the controller or of a namespace.
    SetFeatures(SetFeatures),
    /// Reads a value of a feature, or its capabilities.
    GetFeatures(GetFeatures),
    /// Completes when an event occurs, see [`crate::async_event`].
    AsyncEventRequest,
    /// Restarts the keep alive timer of the controller; the command has no fields.
    KeepAlive,
}

impl AdminCommand {
    /// Decodes a submission queue entry of the admin queue.
    ///
    /// # Errors
    /// All with Do Not Retry: Invalid Command Opcode if this enum has no variant for the opcode,
    /// else the status that decoding the command returns. Reserved fields are ignored.
    pub fn parse(sqe: &Sqe) -> Result<Self, Status> {
        match AdminOpcode(sqe.opcode) {
            AdminOpcode::GET_LOG_PAGE => GetLogPage::parse(sqe).map(Self::GetLogPage),
            AdminOpcode::IDENTIFY => Ok(Self::Identify(Identify::parse(sqe))),
            AdminOpcode::ABORT => Ok(Self::Abort(Abort::parse(sqe))),
            AdminOpcode::SET_FEATURES => SetFeatures::parse(sqe).map(Self::SetFeatures),
            AdminOpcode::GET_FEATURES => Ok(Self::GetFeatures(GetFeatures::parse(sqe))),
            AdminOpcode::ASYNC_EVENT_REQUEST => Ok(Self::AsyncEventRequest),
            AdminOpcode::KEEP_ALIVE => Ok(Self::KeepAlive),
            _ => Err(Status::INVALID_OPCODE.with_dnr()),
        }
    }

    /// Encodes the command; [`Sqe::with_cid`] and [`Sqe::with_data`] add the identifier and the
    /// data pointer.
    ///
    /// # Panics
    /// If a value does not fit its field, see `to_sqe` of the command.
    pub fn to_sqe(&self) -> Sqe {
        match self {
            Self::GetLogPage(command) => command.to_sqe(),
            Self::Identify(command) => command.to_sqe(),
            Self::Abort(command) => command.to_sqe(),
            Self::SetFeatures(command) => command.to_sqe(),
            Self::GetFeatures(command) => command.to_sqe(),
            Self::AsyncEventRequest => Sqe::new(AdminOpcode::ASYNC_EVENT_REQUEST.0),
            Self::KeepAlive => Sqe::new(AdminOpcode::KEEP_ALIVE.0),
        }
    }

    /// Opcode that [`AdminCommand::to_sqe`] writes into byte 0 of the entry.
    pub const fn opcode(&self) -> AdminOpcode {
        match self {
            Self::GetLogPage(_) => AdminOpcode::GET_LOG_PAGE,
            Self::Identify(_) => AdminOpcode::IDENTIFY,
            Self::Abort(_) => AdminOpcode::ABORT,
            Self::SetFeatures(_) => AdminOpcode::SET_FEATURES,
            Self::GetFeatures(_) => AdminOpcode::GET_FEATURES,
            Self::AsyncEventRequest => AdminOpcode::ASYNC_EVENT_REQUEST,
            Self::KeepAlive => AdminOpcode::KEEP_ALIVE,
        }
    }

    /// Direction and length of the data that the command transfers.
    pub const fn transfer(&self) -> DataTransfer {
        match self {
            Self::GetLogPage(command) => DataTransfer::to_host(command.length_bytes),
            Self::Identify(_) => DataTransfer::to_host(Identify::DATA_BYTES as u64),
            Self::SetFeatures(command) => command.transfer(),
            Self::GetFeatures(command) => command.transfer(),
            Self::Abort(_) | Self::AsyncEventRequest | Self::KeepAlive => DataTransfer::NONE,
        }
    }
}

/// Abort (Base, 5.1.1). Dword 0 of its completion is [`Abort::DONE`] or [`Abort::NOT_DONE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abort {
    /// Submission queue of the command to abort.
    pub sqid: Qid,
    /// Identifier of the command to abort.
    pub cid: Cid,
}

impl Abort {
    /// Dword 0: the command was aborted. Its completion, Command Abort Requested, is sent before
    /// that of Abort.
    pub const DONE: u32 = 0;
    /// Dword 0: the command was not aborted, for example because it has completed already.
    pub const NOT_DONE: u32 = 1;

    fn parse(sqe: &Sqe) -> Self {
        let dw10 = AbortDw10::from_bits(sqe.cdw10.get());
        Self { sqid: Qid(dw10.sqid()), cid: Cid(dw10.cid()) }
    }

    /// Encodes the command; [`Sqe::with_cid`] and [`Sqe::with_data`] add the identifier and the
    /// data pointer.
    pub fn to_sqe(&self) -> Sqe {
        let mut sqe = Sqe::new(AdminOpcode::ABORT.0);
        let dw10 = AbortDw10::new().with_sqid(self.sqid.0).with_cid(self.cid.0);
        sqe.cdw10 = U32::new(dw10.into_bits());
        sqe
    }
}

#[bitfield(u32)]
#[derive(PartialEq, Eq)]
struct AbortDw10 {
    sqid: u16,
    cid: u16,
}
