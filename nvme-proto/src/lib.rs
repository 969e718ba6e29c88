//! NVMe and NVMe over Fabrics on the wire: typed, length-checked, `no_std`, no I/O and no clock.
//!
//! Sources, each cited by section in the items: *NVM Express Base Specification*, revision 2.1
//! ("Base"); *NVM Express NVM Command Set Specification*, revision 1.1 ("NVM"); *NVM Express RDMA
//! Transport Specification*, revision 1.1 ("RDMA").
//!
//! Reading order: [`Sqe`], [`Cqe`], [`Status`] and [`SglDescriptor`] are the bytes of a command and
//! its completion. [`Command::parse`] gives the bytes a meaning: [`FabricsCommand`],
//! [`AdminCommand`] or [`NvmCommand`]; each command's `to_sqe` is the way back. Data structures
//! ([`identify`], [`log`], [`fabrics::ConnectData`], [`rdma_cm`]) are little-endian, unaligned
//! views of a buffer, reached with [`view`] or with zerocopy's own traits.
//!
//! Two layers of meaning are kept apart: a buffer that is too short is [`Truncated`]; a command
//! whose fields break a rule is refused with the [`Status`] that goes back to the host. Codes are
//! open: an unknown value survives parsing and prints as hexadecimal. Reserved fields are ignored
//! on receipt.
//!
//! Not implemented: PRPs, fused operations, metadata and protection information, reservations,
//! namespace management, Format NVM, Sanitize, firmware commands, Copy, Verify, authentication, the
//! TCP transport, command sets other than NVM, and what only PCIe uses. Commands that have no
//! variant here are refused with Invalid Command Opcode.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

#[macro_use]
mod open_enum;

pub mod admin;
pub mod async_event;
mod capsule;
mod command;
mod cqe;
pub mod fabrics;
pub mod feature;
mod host_id;
mod id;
pub mod identify;
mod lba;
pub mod log;
mod nqn;
pub mod nvm;
mod opcode;
pub mod rdma_cm;
pub mod registers;
mod reserved;
mod sgl;
mod sqe;
mod status;
mod text;
mod view;

#[cfg(test)]
mod tests;

pub use zerocopy::little_endian::{U16, U32, U64, U128};
pub use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

pub use admin::AdminCommand;
pub use capsule::CommandCapsule;
pub use command::{Command, DataTransfer};
pub use cqe::Cqe;
pub use fabrics::FabricsCommand;
pub use host_id::{HostId, InvalidHostId};
pub use id::{Cid, Cntlid, Csi, Nsid, Qid};
pub use lba::{LbaFormat, LbaRange};
pub use nqn::{HostNqn, InvalidNqn, Nqn, NqnField};
pub use nvm::NvmCommand;
pub use opcode::{AdminOpcode, DataDirection, FABRICS_OPCODE, FabricsType, NvmOpcode};
pub use reserved::Reserved;
pub use sgl::{Sgl, SglDescriptor, SglType};
pub use sqe::{Psdt, Sqe, SqeFlags};
pub use status::{CommandStatus, ConnectStatus, Status, StatusCodeType};
pub use text::AsciiField;
pub use view::{Truncated, view};
