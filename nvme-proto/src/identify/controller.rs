//! Identify Controller, CNS 01h.

use bitfield_struct::bitfield;
use zerocopy::little_endian::{U16, U32, U128};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::range_list_offer::{AREA_BYTES, RangeListOffer};
use crate::registers::Version;
use crate::{AsciiField, Cntlid, NqnField, Reserved};

/// Identify Controller (Base, 5.1.13.2.1). Field names are the specification's abbreviations.
/// Fields that only sanitize, power management, management interfaces or migration use are reserved
/// bytes here.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct IdentifyController {
    /// PCI vendor ID, as the PCI-SIG assigned it.
    pub vid: U16,
    /// PCI subsystem vendor ID.
    pub ssvid: U16,
    /// Serial number, padded with spaces.
    pub sn: AsciiField<20>,
    /// Model number, padded with spaces.
    pub mn: AsciiField<40>,
    /// Revision of the active firmware, padded with spaces.
    pub fr: AsciiField<8>,
    /// Recommended arbitration burst, as log2 of the number of commands.
    pub rab: u8,
    /// IEEE OUI, least significant byte first.
    pub ieee: [u8; 3],
    /// Multi-path and namespace sharing capabilities.
    pub cmic: Cmic,
    /// Maximum data transfer size, a power of two in units of the minimum memory page size; 0 for
    /// no limit.
    pub mdts: u8,
    cntlid: U16,
    /// Version of the Base specification; the same as the property VS.
    pub ver: Version,
    /// RTD3 resume latency in microseconds.
    pub rtd3r: U32,
    /// RTD3 entry latency in microseconds.
    pub rtd3e: U32,
    /// Optional asynchronous events supported.
    pub oaes: Oaes,
    /// Controller attributes; bit 0: 128-bit host identifiers, bit 6: traffic based keep alive.
    pub ctratt: U32,
    /// Read recovery levels supported.
    pub rrls: U16,
    reserved_102: Reserved<9>,
    /// Controller type; 0 if not reported.
    pub cntrltype: ControllerType,
    /// FRU globally unique identifier.
    pub fguid: [u8; 16],
    /// Command retry delay times 1 to 3 in units of 100 ms.
    pub crdt: [U16; 3],
    reserved_134: Reserved<119>,
    /// NVM subsystem report; bit 0: part of an NVMe storage device, bit 1: part of an NVMe
    /// enclosure.
    pub nvmsr: u8,
    /// VPD write cycle information.
    pub vwci: u8,
    /// Management endpoint capabilities; bit 0: on an SMBus or I2C port, bit 1: on a PCIe port.
    pub mec: u8,
    /// Optional admin command support.
    pub oacs: Oacs,
    /// Abort command limit, zero-based.
    pub acl_z: u8,
    /// Asynchronous event request limit, zero-based.
    pub aerl_z: u8,
    /// Firmware updates; bit 0: slot 1 is read-only, bits 3:1: number of slots.
    pub frmw: u8,
    /// Log page attributes: optional log pages and fields.
    pub lpa: Lpa,
    /// Error log page entries, zero-based.
    pub elpe_z: u8,
    /// Number of power states, zero-based, 0 to 31.
    pub npss_z: u8,
    /// Admin vendor specific command configuration.
    pub avscc: u8,
    /// Autonomous power state transition attributes.
    pub apsta: u8,
    /// Warning composite temperature in kelvins.
    pub wctemp: U16,
    /// Critical composite temperature in kelvins.
    pub cctemp: U16,
    /// Maximum time for firmware activation in units of 100 ms.
    pub mtfa: U16,
    /// Host memory buffer preferred size in units of 4 KiB.
    pub hmpre: U32,
    /// Host memory buffer minimum size in units of 4 KiB.
    pub hmmin: U32,
    /// Total NVM capacity in bytes.
    pub tnvmcap: U128,
    /// Unallocated NVM capacity in bytes.
    pub unvmcap: U128,
    /// Replay protected memory block support.
    pub rpmbs: U32,
    /// Extended device self-test time in minutes.
    pub edstt: U16,
    /// Device self-test options; bit 0: one self-test at a time in the whole subsystem.
    pub dsto: u8,
    /// Firmware update granularity in units of 4 KiB.
    pub fwug: u8,
    /// Keep alive granularity in units of 100 ms; 0: keep alive is not supported.
    pub kas: U16,
    /// Host controlled thermal management attributes.
    pub hctma: U16,
    /// Minimum thermal management temperature in kelvins.
    pub mntmt: U16,
    /// Maximum thermal management temperature in kelvins.
    pub mxtmt: U16,
    /// Sanitize capabilities; bit 0: crypto erase, bit 1: block erase, bit 2: overwrite.
    pub sanicap: U32,
    /// Host memory buffer minimum descriptor entry size in units of 4 KiB.
    pub hmminds: U32,
    /// Host memory buffer maximum descriptor entries; 0 for no limit.
    pub hmmaxd: U16,
    /// NVM set identifier maximum.
    pub nsetidmax: U16,
    /// Endurance group identifier maximum.
    pub endgidmax: U16,
    /// ANA transition time: the longest time in the ANA Change state, in seconds.
    pub anatt: u8,
    /// ANA capabilities; bits 4:0: the states that the controller can report.
    pub anacap: u8,
    /// ANA group identifier maximum.
    pub anagrpmax: U32,
    /// Number of ANA group identifiers.
    pub nanagrpid: U32,
    /// Persistent event log size in units of 64 KiB.
    pub pels: U32,
    /// Identifier of the controller's domain; 0 where several domains are not supported.
    pub domainid: U16,
    reserved_358: Reserved<10>,
    /// Maximum endurance group capacity in bytes.
    pub megcap: U128,
    reserved_384: Reserved<2>,
    /// Command quiesce time in milliseconds: how long commands may continue after the controller
    /// has detected the loss of its host; 0: not reported.
    pub cqt: U16,
    reserved_388: Reserved<124>,
    /// Submission queue entry sizes as powers of two: bits 3:0 the required, bits 7:4 the maximum
    /// size.
    pub sqes: u8,
    /// Completion queue entry sizes, in the format of `sqes`.
    pub cqes: u8,
    /// Maximum outstanding commands of a queue.
    pub maxcmd: U16,
    /// Number of namespaces: the highest valid NSID.
    pub nn: U32,
    /// Optional NVM command support.
    pub oncs: Oncs,
    /// Fused operation support; bit 0: Compare and Write.
    pub fuses: U16,
    /// Format NVM attributes; bit 0: a format, bit 1: a secure erase applies to all namespaces.
    pub fna: u8,
    /// Whether there is a volatile write cache, and how Flush treats the broadcast NSID.
    pub vwc: Vwc,
    /// Atomic write unit normal in blocks, zero-based.
    pub awun_z: U16,
    /// Atomic write unit power fail in blocks, zero-based.
    pub awupf_z: U16,
    /// I/O command set vendor specific command configuration.
    pub icsvscc: u8,
    /// Namespace write protection capabilities.
    pub nwpc: Nwpc,
    /// Atomic compare and write unit in blocks, zero-based.
    pub acwu_z: U16,
    /// Optional copy formats supported: one bit for each format.
    pub ocfs: U16,
    /// SGL support: types of descriptors that the controller accepts.
    pub sgls: Sgls,
    /// Maximum number of allowed namespaces.
    pub mnan: U32,
    /// Maximum domain namespace attachments.
    pub maxdna: U128,
    /// Maximum I/O controller namespace attachments.
    pub maxcna: U32,
    reserved_564: Reserved<204>,
    /// NQN of the subsystem.
    pub subnqn: NqnField,
    reserved_1024: Reserved<768>,
    /// I/O queue command capsule supported size in units of 16 bytes.
    pub ioccsz: U32,
    /// I/O queue response capsule supported size in units of 16 bytes.
    pub iorcsz: U32,
    /// In-capsule data offset in units of 16 bytes.
    pub icdoff: U16,
    /// Fabrics controller attributes; bit 0: static controller model.
    pub fcatt: Fcatt,
    /// Maximum SGL data block descriptors; 0 for no limit.
    pub msdbd: u8,
    /// Optional fabrics command support.
    pub ofcs: Ofcs,
    /// Discovery controller type: 0 not reported, 1 direct, 2 central.
    pub dctype: u8,
    reserved_1807: Reserved<241>,
    /// Power state descriptors; the first `npss_z` + 1 are in use.
    pub psd: [PowerState; 32],
    vendor: [u8; AREA_BYTES],
}

const _: () = assert!(size_of::<IdentifyController>() == 4096);
const _: () = assert!(core::mem::offset_of!(IdentifyController, nvmsr) == 253);
const _: () = assert!(core::mem::offset_of!(IdentifyController, hmminds) == 332);
const _: () = assert!(core::mem::offset_of!(IdentifyController, anagrpmax) == 344);
const _: () = assert!(core::mem::offset_of!(IdentifyController, megcap) == 368);
const _: () = assert!(core::mem::offset_of!(IdentifyController, cqt) == 386);
const _: () = assert!(core::mem::offset_of!(IdentifyController, sqes) == 512);
const _: () = assert!(core::mem::offset_of!(IdentifyController, sgls) == 536);
const _: () = assert!(core::mem::offset_of!(IdentifyController, subnqn) == 768);
const _: () = assert!(core::mem::offset_of!(IdentifyController, ioccsz) == 1792);
const _: () = assert!(core::mem::offset_of!(IdentifyController, psd) == 2048);

impl IdentifyController {
    /// Creates a structure that is all zero, except for the text fields, which are spaces.
    pub fn blank() -> Self {
        let mut controller = Self::new_zeroed();
        controller.sn = AsciiField::BLANK;
        controller.mn = AsciiField::BLANK;
        controller.fr = AsciiField::BLANK;
        controller
    }

    /// Controller identifier, unique within the subsystem.
    pub const fn cntlid(&self) -> Cntlid {
        Cntlid(self.cntlid.get())
    }

    /// Sets the controller identifier.
    pub fn set_cntlid(&mut self, cntlid: Cntlid) {
        self.cntlid = U16::new(cntlid.0);
    }

    /// Maximum data transfer size in bytes, for a minimum memory page of 2^(12 + `mpsmin`) bytes;
    /// `None` for no limit, or one that does not fit 64 bits.
    pub fn max_transfer_bytes(&self, mpsmin: u8) -> Option<u64> {
        if self.mdts == 0 {
            return None;
        }
        let shift = 12u32 + u32::from(mpsmin) + u32::from(self.mdts);
        1u64.checked_shl(shift)
    }

    /// Returns the descriptors of the power states that the controller has.
    pub fn power_states(&self) -> &[PowerState] {
        let count = usize::from(self.npss_z) + 1;
        &self.psd[..count.min(self.psd.len())]
    }

    /// Returns the offer of Read Ranges in the vendor-specific bytes, if there is one.
    pub fn range_list_offer(&self) -> Option<RangeListOffer> {
        RangeListOffer::parse(&self.vendor)
    }

    /// Sets the vendor-specific bytes.
    pub fn set_range_list_offer(&mut self, offer: &RangeListOffer) {
        self.vendor = offer.to_bytes();
    }

    /// Most bytes of in-capsule data in a command on an I/O queue, from IOCCSZ; 0 if IOCCSZ allows
    /// no data.
    pub fn in_capsule_bytes(&self) -> u64 {
        (u64::from(self.ioccsz.get()) * 16).saturating_sub(64)
    }
}

/// Multi-path and namespace sharing capabilities, CMIC.
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Cmic {
    /// The subsystem may have several ports.
    pub multiple_ports: bool,
    /// The subsystem may have several controllers.
    pub multiple_controllers: bool,
    /// The controller is that of an SR-IOV virtual function.
    pub sr_iov: bool,
    /// The subsystem reports ANA states.
    pub ana: bool,
    #[bits(4)]
    __: u8,
}

/// Optional asynchronous events, OAES. A set bit means that the controller can send the notices.
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Oaes {
    __: u8,
    /// Bit 8: attached namespace attribute notices.
    pub namespace_attribute: bool,
    /// Bit 9: firmware activation notices.
    pub firmware_activation: bool,
    __: bool,
    /// Bit 11: asymmetric namespace access change notices.
    pub ana_change: bool,
    #[bits(19)]
    __: u32,
    /// Bit 31: discovery log page change notices.
    pub discovery_log: bool,
}

open_enum! {
    /// Controller type, CNTRLTYPE: byte 111 of Identify Controller.
    #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
    pub struct ControllerType(u8) {
        NOT_REPORTED = 0, "not reported";
        IO = 1, "I/O controller";
        DISCOVERY = 2, "Discovery controller";
        ADMINISTRATIVE = 3, "Administrative controller";
    }
}

/// Optional admin command support, OACS. A set bit means that the commands are supported.
#[bitfield(u16, repr = U16, from = U16::new, into = U16::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Oacs {
    /// Bit 0: Security Send and Security Receive.
    pub security: bool,
    /// Bit 1: the Format NVM command.
    pub format_nvm: bool,
    /// Bit 2: Firmware Commit and Firmware Image Download.
    pub firmware: bool,
    /// Bit 3: Namespace Management and Namespace Attachment.
    pub namespace_management: bool,
    /// Bit 4: the Device Self-test command.
    pub self_test: bool,
    /// Bit 5: Directive Send and Directive Receive.
    pub directives: bool,
    /// Bit 6: NVMe-MI Send and NVMe-MI Receive.
    pub nvme_mi: bool,
    /// Bit 7: the Virtualization Management command.
    pub virtualization: bool,
    /// Bit 8: the Doorbell Buffer Config command.
    pub doorbell_buffer: bool,
    /// Bit 9: the Get LBA Status command.
    pub get_lba_status: bool,
    /// Bit 10: command and feature lockdown.
    pub lockdown: bool,
    #[bits(5)]
    __: u8,
}

/// Log page attributes, LPA. A set bit means that the log page or attribute is supported.
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Lpa {
    /// Bit 0: the SMART log page per namespace.
    pub smart_per_namespace: bool,
    /// Bit 1: the commands supported and effects log page.
    pub effects: bool,
    /// Bit 2: extended data, that is, offsets and 32-bit lengths.
    pub extended_data: bool,
    /// Bit 3: the telemetry log pages, host-initiated and controller-initiated.
    pub telemetry: bool,
    /// Bit 4: the persistent event log.
    pub persistent_events: bool,
    /// Bit 5: the Supported Log Pages log page, and those for features and NVMe-MI commands.
    pub supported_pages: bool,
    /// Bit 6: telemetry data area 4.
    pub telemetry_area_4: bool,
    __: bool,
}

/// Optional NVM command support, ONCS. A set bit means that the command or feature is supported.
#[bitfield(u16, repr = U16, from = U16::new, into = U16::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Oncs {
    /// Bit 0: the Compare command.
    pub compare: bool,
    /// Bit 1: the Write Uncorrectable command.
    pub write_uncorrectable: bool,
    /// Bit 2: the Dataset Management command.
    pub dataset_management: bool,
    /// Bit 3: the Write Zeroes command.
    pub write_zeroes: bool,
    /// Bit 4: the Save and Select fields of the feature commands.
    pub save_and_select: bool,
    /// Bit 5: the commands for reservations.
    pub reservations: bool,
    /// Bit 6: the Timestamp feature.
    pub timestamp: bool,
    /// Bit 7: the Verify command.
    pub verify: bool,
    /// Bit 8: the Copy command.
    pub copy: bool,
    #[bits(7)]
    __: u8,
}

/// Volatile write cache, VWC.
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Vwc {
    /// Bit 0: the controller has a volatile write cache.
    pub present: bool,
    /// Bits 2:1: Flush with the broadcast NSID: 0 not reported, 2 refused, 3 supported.
    #[bits(2)]
    pub flush_all: u8,
    #[bits(5)]
    __: u8,
}

/// Namespace write protection capabilities, NWPC: states that a host can set.
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Nwpc {
    /// Bit 0: write protection can be set and cleared.
    pub supported: bool,
    /// Bit 1: protection until a power cycle.
    pub until_power_cycle: bool,
    /// Bit 2: permanent protection of a namespace.
    pub permanent: bool,
    #[bits(5)]
    __: u8,
}

/// SGL support, SGLS: bytes 536 to 539 of Identify Controller.
#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Sgls {
    /// Bits 1:0: 0 not supported, 1 with any alignment, 2 with dword alignment and granularity.
    #[bits(2)]
    pub supported: u8,
    /// Bit 2: keyed data block descriptors.
    pub keyed: bool,
    #[bits(13)]
    __: u16,
    /// Bit 16: bit bucket descriptors.
    pub bit_bucket: bool,
    /// Bit 17: a byte aligned contiguous metadata buffer.
    pub metadata_byte_aligned: bool,
    /// Bit 18: SGLs longer than the data.
    pub longer_than_data: bool,
    /// Bit 19: metadata pointers that are SGLs.
    pub metadata_sgl: bool,
    /// Bit 20: descriptors whose address is an offset.
    pub offset: bool,
    /// Bit 21: transport data block descriptors.
    pub transport: bool,
    #[bits(10)]
    __: u16,
}

/// Fabrics controller attributes, FCATT.
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Fcatt {
    /// The subsystem has the static controller model; if clear, the dynamic one.
    pub static_model: bool,
    #[bits(7)]
    __: u8,
}

/// Optional fabrics command support, OFCS.
#[bitfield(u16, repr = U16, from = U16::new, into = U16::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct Ofcs {
    /// Bit 0: the Disconnect command.
    pub disconnect: bool,
    #[bits(15)]
    __: u16,
}

/// Power state descriptor of 32 bytes. Identify Controller has 32 of them.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct PowerState {
    /// Maximum power in units of 10 mW, or of 0.1 mW if bit 0 of `flags` is set.
    pub mp: U16,
    reserved_2: u8,
    /// Bit 0: unit of the maximum power; bit 1: non-operational state.
    pub flags: u8,
    /// Entry latency in microseconds.
    pub enlat: U32,
    /// Exit latency in microseconds.
    pub exlat: U32,
    /// Relative performance values: read throughput, read latency, write throughput, write latency.
    pub relative: [u8; 4],
    /// Idle power, in the unit that `ips` gives.
    pub idlp: U16,
    /// Scale of the idle power in bits 7:6: 0 not reported, 1 for 0.1 mW, 2 for 10 mW.
    pub ips: u8,
    reserved_19: u8,
    /// Active power, in the unit that `apws` gives.
    pub actp: U16,
    /// Workload of the active power in bits 2:0; its scale in bits 7:6, with the values of `ips`.
    pub apws: u8,
    reserved_23: Reserved<9>,
}

const _: () = assert!(size_of::<PowerState>() == 32);

impl PowerState {
    /// Whether the unit of the maximum power is 0.1 mW, not 10 mW.
    pub const fn counts_tenths_of_mw(&self) -> bool {
        self.flags & 1 != 0
    }

    /// Whether the controller processes no I/O commands in this state.
    pub const fn is_non_operational(&self) -> bool {
        self.flags & 2 != 0
    }

    /// Maximum power in watts.
    pub fn max_power_watts(&self) -> f64 {
        f64::from(self.mp.get()) * if self.counts_tenths_of_mw() { 0.0001 } else { 0.01 }
    }
}
