//! Controller properties (Base, 3.1.4).

use core::fmt;

use bitfield_struct::bitfield;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::fabrics::PropertySize;

open_enum! {
    /// Controller property, identified by its offset in bytes.
    pub struct Property(u32) {
        CAP = 0x00, "CAP";
        VS = 0x08, "VS";
        CC = 0x14, "CC";
        CSTS = 0x1C, "CSTS";
        NSSR = 0x20, "NSSR";
        CRTO = 0x68, "CRTO";
    }
}

impl Property {
    /// Returns the size of a property that fabrics controllers have; `None` for others.
    pub const fn size(self) -> Option<PropertySize> {
        match self {
            Self::CAP => Some(PropertySize::EightBytes),
            Self::VS | Self::CC | Self::CSTS | Self::NSSR | Self::CRTO => {
                Some(PropertySize::FourBytes)
            }
            _ => None,
        }
    }
}

/// Controller capabilities, CAP: 8 bytes at offset 0.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct Cap {
    /// Maximum queue entries supported, zero-based.
    pub mqes_z: u16,
    /// Contiguous queues required: always set over fabrics.
    pub cqr: bool,
    /// Arbitration mechanisms supported in addition to round robin.
    #[bits(2)]
    pub ams: u8,
    #[bits(5)]
    __: u8,
    /// Timeout: the longest time until RDY follows a change of EN, in units of 500 ms.
    pub to: u8,
    /// Doorbell stride: 0 over fabrics.
    #[bits(4)]
    pub dstrd: u8,
    /// NVM subsystem reset supported.
    pub nssrs: bool,
    /// Bits 44:37: command sets supported.
    #[bits(8)]
    pub css: CapCss,
    /// Bit 45: boot partitions are supported.
    pub bps: bool,
    /// Controller power scope: 0 not reported, 1 controller, 2 domain, 3 NVM subsystem.
    #[bits(2)]
    pub cps: u8,
    /// Minimum memory page size: 2^(12 + n) bytes.
    #[bits(4)]
    pub mpsmin: u8,
    /// Maximum memory page size: 2^(12 + n) bytes.
    #[bits(4)]
    pub mpsmax: u8,
    /// Persistent memory region supported.
    pub pmrs: bool,
    /// Controller memory buffer supported.
    pub cmbs: bool,
    /// NVM subsystem shutdown supported.
    pub nsss: bool,
    /// Controller ready with media supported.
    pub crwms: bool,
    /// Controller ready independent of media supported.
    pub crims: bool,
    /// NVM subsystem shutdown enhancements supported.
    pub nsses: bool,
    #[bits(2)]
    __: u8,
}

/// Command sets supported, CAP.CSS.
#[bitfield(u8)]
#[derive(PartialEq, Eq)]
pub struct CapCss {
    /// The NVM command set.
    pub nvm: bool,
    #[bits(5)]
    __: u8,
    /// I/O command sets that the host selects by CSI.
    pub iocss: bool,
    /// No I/O command set: admin commands only.
    pub noiocss: bool,
}

/// Version, VS; also in Identify Controller (VER).
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Version {
    /// Tertiary version number: bits 7:0.
    pub tertiary: u8,
    /// Minor version number: bits 15:8.
    pub minor: u8,
    /// Major version number: bits 31:16.
    pub major: u16,
}

impl Version {
    /// NVMe 2.1.0, 0002_0100h as a dword.
    pub const V2_1: Self = Self::new().with_major(2).with_minor(1);
    /// NVMe 2.0.0, 0002_0000h as a dword.
    pub const V2_0: Self = Self::new().with_major(2);
    /// NVMe 1.4.0, 0001_0400h as a dword.
    pub const V1_4: Self = Self::new().with_major(1).with_minor(4);
    /// NVMe 1.3.0, 0001_0300h as a dword.
    pub const V1_3: Self = Self::new().with_major(1).with_minor(3);
    /// NVMe 1.2.1, the first version with fabrics, 0001_0201h as a dword.
    pub const V1_2_1: Self = Self::new().with_major(1).with_minor(2).with_tertiary(1);
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        self.into_bits().get().cmp(&other.into_bits().get())
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major(), self.minor(), self.tertiary())
    }
}

/// Controller configuration, CC: 4 bytes at offset 14h.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Cc {
    /// Enable: the host sets it to start the controller, and clears it to reset the controller.
    pub en: bool,
    #[bits(3)]
    __: u8,
    /// Bits 6:4: selected I/O command set.
    #[bits(3)]
    pub css: CcCss,
    /// Memory page size: 2^(12 + n) bytes.
    #[bits(4)]
    pub mps: u8,
    /// Bits 13:11: arbitration mechanism; 0 for round robin.
    #[bits(3)]
    pub ams: u8,
    /// Bits 15:14: shutdown notification from the host.
    #[bits(2)]
    pub shn: ShutdownNotification,
    /// Submission queue entry size as a power of two.
    #[bits(4)]
    pub iosqes: u8,
    /// Completion queue entry size as a power of two.
    #[bits(4)]
    pub iocqes: u8,
    /// Controller ready independent of media enable.
    pub crime: bool,
    #[bits(7)]
    __: u8,
}

impl Cc {
    /// `iosqes` that the NVM command set requires: 64 bytes, as a power of two.
    pub const IOSQES: u8 = 6;
    /// `iocqes` that the NVM command set requires: 16 bytes, as a power of two.
    pub const IOCQES: u8 = 4;
}

open_enum! {
    /// I/O command set selected, CC.CSS.
    pub struct CcCss(u8) {
        NVM = 0b000, "NVM Command Set";
        ALL = 0b110, "All Supported I/O Command Sets";
        ADMIN_ONLY = 0b111, "Admin Command Set only";
    }
}

open_enum! {
    /// Shutdown notification, CC.SHN, which the host writes.
    pub struct ShutdownNotification(u8) {
        NONE = 0b00, "No notification";
        NORMAL = 0b01, "Normal shutdown";
        ABRUPT = 0b10, "Abrupt shutdown";
    }
}

/// Controller status, CSTS: 4 bytes at offset 1Ch.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Csts {
    /// Ready: the controller processes submission queue entries.
    pub rdy: bool,
    /// Controller fatal status: an error that could not be reported by a completion.
    pub cfs: bool,
    /// Bits 3:2: progress of a shutdown.
    #[bits(2)]
    pub shst: ShutdownStatus,
    /// NVM subsystem reset occurred.
    pub nssro: bool,
    /// Bit 5: processing of commands is paused.
    pub pp: bool,
    /// Shutdown type: set if `shst` is about the subsystem, clear if about the controller.
    pub st: bool,
    #[bits(25)]
    __: u32,
}

open_enum! {
    /// Shutdown status, CSTS.SHST, which the controller sets.
    pub struct ShutdownStatus(u8) {
        NORMAL = 0b00, "Normal operation";
        OCCURRING = 0b01, "Shutdown processing occurring";
        COMPLETE = 0b10, "Shutdown processing complete";
    }
}

/// Controller ready timeouts, CRTO, in units of 500 ms.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Crto {
    /// Ready with media timeout.
    pub crwmt: u16,
    /// Ready independent of media timeout.
    pub crimt: u16,
}

/// Value to write to NSSR for a reset of the NVM subsystem: "NVMe" in ASCII.
pub const NSSR_RESET: u32 = 0x4E56_4D65;
