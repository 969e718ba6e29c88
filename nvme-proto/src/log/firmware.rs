//! Firmware Slot Information, 03h.

use bitfield_struct::bitfield;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{AsciiField, Reserved};

/// Firmware Slot Information (Base, 5.1.12.1.4).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct FirmwareSlotLog {
    /// Slot of the running firmware, and slot for the next reset.
    pub active: FirmwareSlots,
    reserved_1: Reserved<7>,
    /// Firmware revisions in slots 1 to 7; zeros for a slot that is empty or does not exist.
    pub revisions: [AsciiField<8>; 7],
    reserved_64: Reserved<448>,
}

const _: () = assert!(size_of::<FirmwareSlotLog>() == 512);

/// Active firmware info, AFI.
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct FirmwareSlots {
    /// Slot of the running firmware, 1 to 7.
    #[bits(3)]
    pub current: u8,
    __: bool,
    /// Slot that the next reset activates; 0 if not reported.
    #[bits(3)]
    pub next: u8,
    __: bool,
}
