//! SMART / Health Information, 02h.

use bitfield_struct::bitfield;
use zerocopy::little_endian::{U16, U32, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Reserved;

/// SMART / Health Information (Base, 5.1.12.1.3).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct SmartLog {
    /// Critical warnings, one bit for each cause.
    pub critical_warning: CriticalWarning,
    /// Composite temperature in kelvins.
    pub composite_temperature_k: U16,
    /// Available spare in percent.
    pub available_spare: u8,
    /// Available spare threshold in percent.
    pub available_spare_threshold: u8,
    /// Used part of the expected life in percent; may exceed 100.
    pub percentage_used: u8,
    /// Critical warnings of the endurance groups.
    pub endurance_critical_warning: u8,
    reserved_7: Reserved<25>,
    /// Data read by the host in units of 512,000 bytes, rounded up.
    pub data_units_read: U128,
    /// Data written by the host in units of 512,000 bytes, rounded up.
    pub data_units_written: U128,
    /// Read and Compare commands completed.
    pub host_read_commands: U128,
    /// Write commands that the controller completed.
    pub host_write_commands: U128,
    /// Minutes that the controller was busy with I/O commands.
    pub controller_busy_minutes: U128,
    /// Number of power cycles so far.
    pub power_cycles: U128,
    /// Hours with power; time in non-operational power states may be missing.
    pub power_on_hours: U128,
    /// Losses of power without a preceding shutdown notification.
    pub unsafe_shutdowns: U128,
    /// Unrecovered data integrity errors.
    pub media_errors: U128,
    /// Number of Error Information Log Entries over the life of the controller.
    pub error_log_entries: U128,
    /// Minutes at or above the warning composite temperature (WCTEMP).
    pub warning_temperature_minutes: U32,
    /// Minutes at or above the critical composite temperature (CCTEMP).
    pub critical_temperature_minutes: U32,
    /// Temperature sensors in kelvins; 0 where a sensor is missing.
    pub temperature_sensors_k: [U16; 8],
    /// Number of transitions to lower power, for thermal management temperatures 1 and 2.
    pub thermal_transitions: [U32; 2],
    /// Seconds at lower power, for thermal management temperatures 1 and 2.
    pub thermal_seconds: [U32; 2],
    reserved_232: Reserved<280>,
}

const _: () = assert!(size_of::<SmartLog>() == 512);
const _: () = assert!(core::mem::offset_of!(SmartLog, data_units_read) == 32);
const _: () = assert!(core::mem::offset_of!(SmartLog, temperature_sensors_k) == 200);

/// Critical warnings of the SMART log page. A set bit means that the condition exists now.
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct CriticalWarning {
    /// Bit 0: available spare below the threshold.
    pub spare: bool,
    /// Bit 1: temperature out of range.
    pub temperature: bool,
    /// Bit 2: the reliability of the subsystem is degraded.
    pub reliability: bool,
    /// Bit 3: all media are read-only.
    pub read_only: bool,
    /// Bit 4: backup of the volatile memory failed.
    pub backup: bool,
    /// Bit 5: persistent memory region unreliable or read-only.
    pub persistent_memory: bool,
    #[bits(2)]
    __: u8,
}
