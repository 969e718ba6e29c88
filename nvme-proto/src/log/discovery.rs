//! Discovery log page, identifier 70h.

use bitfield_struct::bitfield;
use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{AsciiField, Cntlid, NqnField, Reserved};

/// Header of the discovery log page (Base, 5.1.12.3.1); [`DiscoveryEntry`]s follow it.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct DiscoveryHeader {
    /// Generation counter: increases with each change of the page.
    pub genctr: U64,
    /// Number of entries after the header.
    pub numrec: U64,
    /// Record format: 0 for this layout.
    pub recfmt: U16,
    reserved_18: Reserved<1006>,
}

const _: () = assert!(size_of::<DiscoveryHeader>() == 1024);

impl DiscoveryHeader {
    /// Creates the header of a page with `numrec` entries.
    pub const fn new(genctr: u64, numrec: u64) -> Self {
        Self {
            genctr: U64::new(genctr),
            numrec: U64::new(numrec),
            recfmt: U16::ZERO,
            reserved_18: Reserved::ZERO,
        }
    }
}

/// Entry of the discovery log page: an address at which a subsystem can be reached.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct DiscoveryEntry {
    /// Transport type, such as RDMA or TCP.
    pub trtype: TransportType,
    /// Address family, which gives the format of `traddr`.
    pub adrfam: AddressFamily,
    /// Subsystem type: NVM subsystem, or discovery subsystem (this one or a referral).
    pub subtype: SubsystemType,
    /// Transport requirements: secure channel and flow control.
    pub treq: TransportRequirements,
    /// Identifier of the subsystem's port, PORTID.
    pub portid: U16,
    cntlid: U16,
    /// Admin maximum submission queue size, in entries.
    pub asqsz: U16,
    /// Flags of the entry, EFLAGS.
    pub eflags: EntryFlags,
    reserved_12: Reserved<20>,
    /// Transport service identifier; for RDMA over IP, the port number in decimal.
    pub trsvcid: AsciiField<32>,
    reserved_64: Reserved<192>,
    /// NQN of the subsystem.
    pub subnqn: NqnField,
    /// Transport address in ASCII, in the format of `adrfam`.
    pub traddr: AsciiField<256>,
    /// Transport specific address subtype, in the layout of RDMA.
    pub tsas: RdmaTsas,
}

const _: () = assert!(size_of::<DiscoveryEntry>() == 1024);
const _: () = assert!(core::mem::offset_of!(DiscoveryEntry, subnqn) == 256);
const _: () = assert!(core::mem::offset_of!(DiscoveryEntry, traddr) == 512);
const _: () = assert!(core::mem::offset_of!(DiscoveryEntry, tsas) == 768);

impl DiscoveryEntry {
    /// Creates an entry that is all zero, except for text fields (spaces) and CNTLID
    /// ([`Cntlid::DYNAMIC`]).
    pub fn blank() -> Self {
        let mut entry = Self::new_zeroed();
        entry.cntlid = U16::new(Cntlid::DYNAMIC.0);
        entry.trsvcid = AsciiField::BLANK;
        entry.traddr = AsciiField::BLANK;
        entry
    }

    /// Controller identifier for Connect.
    pub const fn cntlid(&self) -> Cntlid {
        Cntlid(self.cntlid.get())
    }

    /// Sets the controller identifier for Connect.
    pub fn set_cntlid(&mut self, cntlid: Cntlid) {
        self.cntlid = U16::new(cntlid.0);
    }
}

open_enum! {
    /// Transport type, TRTYPE: byte 0 of an entry.
    #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
    pub struct TransportType(u8) {
        RDMA = 1, "rdma";
        FC = 2, "fc";
        TCP = 3, "tcp";
        LOOP = 254, "loop";
    }
}

open_enum! {
    /// Address family, ADRFAM: byte 1 of an entry.
    #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
    pub struct AddressFamily(u8) {
        IPV4 = 1, "ipv4";
        IPV6 = 2, "ipv6";
        INFINIBAND = 3, "infiniband";
        FC = 4, "fibre-channel";
        LOOP = 254, "loop";
    }
}

open_enum! {
    /// Subsystem type, SUBTYPE: byte 2 of an entry.
    #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
    pub struct SubsystemType(u8) {
        DISCOVERY = 1, "discovery subsystem referral";
        NVM = 2, "nvme subsystem";
        CURRENT_DISCOVERY = 3, "current discovery subsystem";
    }
}

/// Transport requirements, TREQ: byte 3 of an entry.
#[bitfield(u8)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct TransportRequirements {
    /// Bits 1:0: whether a secure channel is required.
    #[bits(2)]
    pub secure_channel: SecureChannel,
    /// Bit 2: the controller can disable submission queue flow control.
    pub sq_flow_control_disable: bool,
    #[bits(5)]
    __: u8,
}

open_enum! {
    /// Whether a secure channel is required, in TREQ.
    pub struct SecureChannel(u8) {
        NOT_SPECIFIED = 0, "not specified";
        REQUIRED = 1, "required";
        NOT_REQUIRED = 2, "not required";
    }
}

/// Entry flags, EFLAGS: bytes 10 and 11 of an entry.
#[bitfield(u16, repr = U16, from = U16::new, into = U16::get)]
#[derive(PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
pub struct EntryFlags {
    /// DUPRETINFO: the other ports of the discovery subsystem return the same information.
    pub duplicate_information: bool,
    /// EPCSD: explicit persistent connections are supported.
    pub persistent_connection: bool,
    /// NCC: there is no connection to a centralized discovery controller.
    pub no_cdc: bool,
    #[bits(13)]
    __: u16,
}

/// Transport specific address subtype of RDMA (RDMA, on the transport specific address subtype).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct RdmaTsas {
    /// Queue pair service type, RDMA_QPTYPE: byte 0.
    pub qptype: RdmaQptype,
    /// RDMA provider type, RDMA_PRTYPE: byte 1.
    pub prtype: RdmaPrtype,
    /// RDMA connection management service, RDMA_CMS: byte 2.
    pub cms: RdmaCms,
    reserved_3: Reserved<5>,
    /// Partition key (InfiniBand only).
    pub pkey: U16,
    reserved_10: Reserved<246>,
}

const _: () = assert!(size_of::<RdmaTsas>() == 256);

impl RdmaTsas {
    /// Creates a subtype for reliable connections over any RDMA provider, by the RDMA connection
    /// manager.
    pub fn reliable_connected() -> Self {
        let mut tsas = Self::new_zeroed();
        tsas.qptype = RdmaQptype::RC;
        tsas.prtype = RdmaPrtype::NONE;
        tsas.cms = RdmaCms::RDMA_CM;
        tsas
    }
}

open_enum! {
    /// RDMA queue pair service type.
    #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
    pub struct RdmaQptype(u8) {
        RC = 1, "connected";
        RD = 2, "datagram";
    }
}

open_enum! {
    /// RDMA provider type, RDMA_PRTYPE: byte 1 of the subtype.
    #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
    pub struct RdmaPrtype(u8) {
        NONE = 1, "not specified";
        INFINIBAND = 2, "infiniband";
        ROCE = 3, "roce";
        ROCE_V2 = 4, "roce-v2";
        IWARP = 5, "iwarp";
    }
}

open_enum! {
    /// RDMA connection management service.
    #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
    pub struct RdmaCms(u8) {
        RDMA_CM = 1, "rdma-cm";
    }
}
