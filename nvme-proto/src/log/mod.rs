//! Log pages (Base, 5.1.12).

mod ana;
mod discovery;
mod effects;
mod error;
mod firmware;
mod smart;
mod supported;

use bitfield_struct::bitfield;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub use ana::{AnaGroup, AnaGroupState, AnaGroups, AnaHeader, AnaState};
pub use discovery::{
    AddressFamily, DiscoveryEntry, DiscoveryHeader, EntryFlags, RdmaCms, RdmaPrtype, RdmaQptype,
    RdmaTsas, SecureChannel, SubsystemType, TransportRequirements, TransportType,
};
pub use effects::{CommandEffects, EffectsLog, FeatureEffects, FeatureEffectsLog, Scope};
pub use error::ErrorLogEntry;
pub use firmware::{FirmwareSlotLog, FirmwareSlots};
pub use smart::{CriticalWarning, SmartLog};
pub use supported::{SupportedLogPages, SupportedPage};

/// Changed attached namespace list, log page 04h (Base, 5.1.12.1.5).
pub use crate::identify::NamespaceList as ChangedNamespaces;
use crate::{AdminOpcode, Csi, Nsid, Sqe, Status};

open_enum! {
    /// Log page identifier, LID.
    #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
    pub struct LogId(u8) {
        SUPPORTED_PAGES = 0x00, "Supported Log Pages";
        ERROR = 0x01, "Error Information";
        SMART = 0x02, "SMART / Health Information";
        FIRMWARE_SLOT = 0x03, "Firmware Slot Information";
        CHANGED_NAMESPACES = 0x04, "Changed Attached Namespace List";
        EFFECTS = 0x05, "Commands Supported and Effects";
        DEVICE_SELF_TEST = 0x06, "Device Self-test";
        TELEMETRY_HOST = 0x07, "Telemetry Host-Initiated";
        TELEMETRY_CONTROLLER = 0x08, "Telemetry Controller-Initiated";
        ENDURANCE_GROUP = 0x09, "Endurance Group Information";
        ANA = 0x0C, "Asymmetric Namespace Access";
        PERSISTENT_EVENTS = 0x0D, "Persistent Event Log";
        FEATURE_EFFECTS = 0x12, "Feature Identifiers Supported and Effects";
        NVME_MI_EFFECTS = 0x13, "NVMe-MI Commands Supported and Effects";
        DISCOVERY = 0x70, "Discovery";
        HOST_DISCOVERY = 0x71, "Host Discovery";
        RESERVATION_NOTIFICATION = 0x80, "Reservation Notification";
        SANITIZE_STATUS = 0x81, "Sanitize Status";
    }
}

/// Get Log Page command: reads a part of a log page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetLogPage {
    /// Namespace, for a log page that belongs to one.
    pub nsid: Nsid,
    /// Identifier of the page, LID.
    pub lid: LogId,
    /// Log specific parameter, LSP, of 7 bits.
    pub lsp: u8,
    /// Log specific identifier, LSI.
    pub lsi: u16,
    /// Retain asynchronous event, RAE: the read does not clear the event that announced the page.
    pub retain_event: bool,
    /// Length in bytes, a multiple of 4 from 4 to 2^34; in zero-based dwords on the wire, NUMD.
    pub length_bytes: u64,
    /// Place at which the read begins.
    pub offset: LogOffset,
    /// I/O command set, for those pages that depend on one.
    pub csi: Csi,
}

/// Place at which a read of a log page begins, LPO.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogOffset {
    /// Byte offset, a multiple of 4.
    Bytes(u64),
    /// Index of an entry (OT is set), for pages that support index offsets.
    Index(u64),
}

impl GetLogPage {
    /// Creates a read of the first `length_bytes` of a page that does not belong to a namespace.
    pub const fn new(lid: LogId, length_bytes: u64) -> Self {
        Self {
            nsid: Nsid::NONE,
            lid,
            lsp: 0,
            lsi: 0,
            retain_event: false,
            length_bytes,
            offset: LogOffset::Bytes(0),
            csi: Csi::NVM,
        }
    }

    /// Sets the byte offset at which the read begins.
    pub const fn at(mut self, offset_bytes: u64) -> Self {
        self.offset = LogOffset::Bytes(offset_bytes);
        self
    }

    pub(crate) fn parse(sqe: &Sqe) -> Result<Self, Status> {
        let dw10 = Dw10::from_bits(sqe.cdw10.get());
        let dw11 = Dw11::from_bits(sqe.cdw11.get());
        let dw14 = Dw14::from_bits(sqe.cdw14.get());
        let numd_z = u32::from(dw10.numdl()) | u32::from(dw11.numdu()) << 16;
        let lpo = u64::from(sqe.cdw12.get()) | u64::from(sqe.cdw13.get()) << 32;
        Ok(Self {
            nsid: sqe.nsid(),
            lid: dw10.lid(),
            lsp: dw10.lsp(),
            lsi: dw11.lsi(),
            retain_event: dw10.rae(),
            length_bytes: (u64::from(numd_z) + 1) * 4,
            offset: LogOffset::parse(dw14.index_offset(), lpo)?,
            csi: dw14.csi(),
        })
    }

    /// Encodes the command; [`Sqe::with_cid`] and [`Sqe::with_data`] add the identifier and the
    /// data pointer.
    ///
    /// # Panics
    /// If the length is not a multiple of 4 from 4 to 2^34, or a byte offset is not a multiple of
    /// 4.
    pub fn to_sqe(&self) -> Sqe {
        assert!(self.length_bytes.is_multiple_of(4), "a log page is read in dwords");
        let numd_z = (self.length_bytes / 4).checked_sub(1).and_then(|z| u32::try_from(z).ok());
        let numd_z = numd_z.expect("from 4 to 2^34 bytes of a log page are read by a command");
        let (index_offset, lpo) = self.offset.fields();
        let dw10 = Dw10::new()
            .with_lid(self.lid)
            .with_lsp(self.lsp & 0x7F)
            .with_rae(self.retain_event)
            .with_numdl(numd_z as u16);
        let dw11 = Dw11::new().with_numdu((numd_z >> 16) as u16).with_lsi(self.lsi);
        let dw14 = Dw14::new().with_index_offset(index_offset).with_csi(self.csi);
        let mut sqe = Sqe::new(AdminOpcode::GET_LOG_PAGE.0).with_nsid(self.nsid);
        sqe.cdw10 = U32::new(dw10.into_bits());
        sqe.cdw11 = U32::new(dw11.into_bits());
        sqe.cdw12 = U32::new(lpo as u32);
        sqe.cdw13 = U32::new((lpo >> 32) as u32);
        sqe.cdw14 = U32::new(dw14.into_bits());
        sqe
    }
}

impl LogOffset {
    fn parse(index: bool, lpo: u64) -> Result<Self, Status> {
        match index {
            true => Ok(Self::Index(lpo)),
            false if lpo.is_multiple_of(4) => Ok(Self::Bytes(lpo)),
            false => Err(Status::INVALID_FIELD.with_dnr()),
        }
    }

    fn fields(self) -> (bool, u64) {
        match self {
            Self::Index(lpo) => (true, lpo),
            Self::Bytes(lpo) => {
                assert!(lpo.is_multiple_of(4), "a log page is read from a dword on");
                (false, lpo)
            }
        }
    }
}

#[bitfield(u32)]
#[derive(PartialEq, Eq)]
struct Dw10 {
    #[bits(8)]
    lid: LogId,
    #[bits(7)]
    lsp: u8,
    rae: bool,
    numdl: u16,
}

#[bitfield(u32)]
#[derive(PartialEq, Eq)]
struct Dw11 {
    numdu: u16,
    lsi: u16,
}

#[bitfield(u32)]
#[derive(PartialEq, Eq)]
struct Dw14 {
    #[bits(7)]
    uuid_index: u8,
    #[bits(16)]
    __: u16,
    index_offset: bool,
    #[bits(8)]
    csi: Csi,
}
