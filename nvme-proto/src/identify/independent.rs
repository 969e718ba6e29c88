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
    /// Reservation capabilities; 0 if the namespace does not support reservations.
    pub rescap: u8,
    /// Format progress indicator; bit 7: supported, bits 6:0: percentage left to format.
    pub fpi: u8,
    /// ANA group of the namespace; 0 without ANA reporting.
    pub anagrpid: U32,
    /// Attributes: whether the namespace is write protected.
    pub nsattr: Nsattr,
    reserved_9: u8,
    /// NVM set of the namespace; 0 where NVM sets are not supported.
    pub nvmsetid: U16,
    /// Endurance group of the namespace; 0 where endurance groups are not supported.
    pub endgid: U16,
    /// Status: whether the namespace is ready.
    pub nstat: Nstat,
    reserved_15: Reserved<4081>,
}

const _: () = assert!(size_of::<IdentifyNamespaceIndependent>() == 4096);
const _: () = assert!(core::mem::offset_of!(IdentifyNamespaceIndependent, nstat) == 14);

/// Namespace status, NSTAT: byte 14 of the structure.
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Nstat {
    /// The namespace is ready for commands that access its medium.
    pub nrdy: bool,
    #[bits(7)]
    __: u8,
}
