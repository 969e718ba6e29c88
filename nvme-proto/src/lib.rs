//! Wire formats of NVMe and NVMe over Fabrics: typed, length-checked, `no_std`, without I/O and
//! clock.
//!
//! Sources, cited by section in the items: *NVM Express Base Specification*, revision 2.1 ("Base");
//! *NVM Express NVM Command Set Specification*, revision 1.1 ("NVM"); *NVM Express RDMA Transport
//! Specification*, revision 1.1 ("RDMA").
//!
//! Reading order: [`Sqe`], [`Cqe`], [`Status`] and [`SglDescriptor`] are the bytes of a command and
//! its completion. [`Command::parse`] decodes a command to a [`FabricsCommand`], [`AdminCommand`]
//! or [`NvmCommand`]; `to_sqe` of each command encodes it. Data structures ([`identify`], [`log`],
//! [`fabrics::ConnectData`], [`rdma_cm`]) are little-endian, unaligned views of a buffer, created
//! with [`view`] or with the traits of zerocopy.
//!
//! There are two kinds of errors: a buffer that is too short is [`Truncated`]; a command with
//! invalid fields is refused with the [`Status`] for its completion. Unknown values of codes are
//! kept and displayed as hexadecimal. Reserved fields are ignored on receipt.
//!
//! Not implemented: PRPs, fused operations, metadata and protection information, reservations,
//! namespace management, Format NVM, Sanitize, firmware commands, Copy, Verify, the TCP transport,
//! secure channels, command sets other than NVM, and features of PCIe only. Commands without a
//! variant here are refused with Invalid Command Opcode.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

#[macro_use]
mod open_enum;

pub mod admin;
pub mod async_event;
pub mod auth;
mod capsule;
mod command;
mod cqe;
mod data_transfer;
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
pub use command::Command;
pub use cqe::Cqe;
pub use data_transfer::DataTransfer;
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
