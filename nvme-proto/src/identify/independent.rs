//! I/O Command Set Independent Identify Namespace, CNS 08h.

use bitfield_struct::bitfield;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Nmic, Nsattr};
use crate::Reserved;

/// I/O Command Set Independent Identify Namespace (Base, 5.1.13.2).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct IdentifyNamespaceIndependent {
    /// Common features; bit 3: NGUID and EUI64 are never reused, bit 4: rotational medium.
    pub nsfeat: u8,
    /// Multi-path and sharing capabilities.
    pub nmic: Nmic,
    /// Reservation capabilities.
    pub rescap: u8,
    /// Format progress indicator.
    pub fpi: u8,
    /// ANA group identifier.
    pub anagrpid: U32,
    /// Attributes.
    pub nsattr: Nsattr,
    reserved_9: u8,
    /// NVM set identifier.
    pub nvmsetid: U16,
    /// Endurance group identifier.
    pub endgid: U16,
    /// Status.
    pub nstat: Nstat,
    reserved_15: Reserved<4081>,
}

const _: () = assert!(size_of::<IdentifyNamespaceIndependent>() == 4096);
const _: () = assert!(core::mem::offset_of!(IdentifyNamespaceIndependent, nstat) == 14);

/// Namespace status, NSTAT.
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Nstat {
    /// Ready for commands that need the medium.
    pub nrdy: bool,
    #[bits(7)]
    __: u8,
}
