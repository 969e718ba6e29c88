//! The Connect command, its data and its response.

use bitfield_struct::bitfield;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::RecordFormat;
use crate::{
    Cid, Cntlid, Cqe, FabricsType, HostId, HostNqn, Nqn, NqnField, Qid, Reserved, Sqe, Status,
    Truncated,
};

/// Connect (Base, 6.3): makes a connection a queue of a controller. [`ConnectData`] comes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect {
    /// The queue that the connection becomes: 0 makes an association, any other joins one.
    pub qid: Qid,
    /// Entries of the submission queue, 2 to 65,536 (zero-based on the wire); the completion queue
    /// has as many.
    pub queue_entries: u32,
    /// Attributes of the queue.
    pub attributes: ConnectAttributes,
    /// Keep alive timeout in milliseconds, 0 for none; for the admin queue only.
    pub keep_alive_timeout_ms: u32,
}

impl Connect {
    /// Decodes command dwords 10 to 12; the opcode is not checked.
    ///
    /// # Errors
    /// With Do Not Retry: Connect Incompatible Format for a record format other than 0, Connect
    /// Invalid Parameters for a queue of one entry. The response to the latter names
    /// [`ConnectParameter::SQSIZE`].
    pub fn parse(sqe: &Sqe) -> Result<Self, Status> {
        let format = RecordFormat::of(sqe);
        if format.recfmt() != 0 {
            return Err(Status::CONNECT_INCOMPATIBLE_FORMAT.with_dnr());
        }
        let dw11 = Dw11::from_bits(sqe.cdw11.get());
        if dw11.sqsize_z() == 0 {
            return Err(Status::CONNECT_INVALID_PARAMETERS.with_dnr());
        }
        Ok(Self {
            qid: Qid(format.qid()),
            queue_entries: u32::from(dw11.sqsize_z()) + 1,
            attributes: dw11.cattr(),
            keep_alive_timeout_ms: sqe.cdw12.get(),
        })
    }

    /// Encodes the command; [`Sqe::with_cid`] and [`Sqe::with_data`] add the identifier and the
    /// data pointer.
    ///
    /// # Panics
    /// When `queue_entries` is not in 2 to 65,536.
    pub fn to_sqe(&self) -> Sqe {
        assert!((2..=65_536).contains(&self.queue_entries), "a queue has 2 to 65,536 entries");
        let sqsize_z = (self.queue_entries - 1) as u16;
        let mut sqe = Sqe::fabrics(FabricsType::CONNECT);
        sqe.cdw10 = RecordFormat::new().with_qid(self.qid.0).to_dword();
        let dw11 = Dw11::new().with_sqsize_z(sqsize_z).with_cattr(self.attributes);
        sqe.cdw11 = U32::new(dw11.into_bits());
        sqe.cdw12 = U32::new(self.keep_alive_timeout_ms);
        sqe
    }
}

#[bitfield(u32)]
#[derive(PartialEq, Eq)]
struct Dw11 {
    sqsize_z: u16,
    #[bits(8)]
    cattr: ConnectAttributes,
    __: u8,
}

/// Connect attributes, CATTR: byte 46 of the entry.
#[bitfield(u8)]
#[derive(PartialEq, Eq)]
pub struct ConnectAttributes {
    /// Priority class of the queue; 0 is urgent, 3 is low.
    #[bits(2)]
    pub priority_class: u8,
    /// The host asks not to use submission queue flow control.
    pub disable_sq_flow_control: bool,
    /// The host can delete single I/O queues by Disconnect.
    pub individual_queue_deletion: bool,
    #[bits(4)]
    __: u8,
}

/// The data of Connect (Base, 6.3).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct ConnectData {
    /// Host identifier, HOSTID, at byte 0: always the 128-bit form.
    pub hostid: HostId,
    cntlid: U16,
    reserved_18: Reserved<238>,
    /// Name of the subsystem, SUBNQN, at byte 256.
    pub subnqn: NqnField,
    /// Name of the host, HOSTNQN, at byte 512.
    pub hostnqn: NqnField,
    reserved_768: Reserved<256>,
}

const _: () = assert!(size_of::<ConnectData>() == ConnectData::BYTES);

impl ConnectData {
    /// Size of the structure in bytes.
    pub const BYTES: usize = 1024;

    /// The data to send. The admin queue asks for [`Cntlid::DYNAMIC`] (or a static controller's),
    /// an I/O queue for the controller that its admin queue got.
    pub fn new(hostid: HostId, cntlid: Cntlid, subnqn: Nqn, hostnqn: HostNqn) -> Self {
        Self {
            hostid,
            cntlid: U16::new(cntlid.0),
            reserved_18: Reserved::ZERO,
            subnqn: subnqn.into(),
            hostnqn: hostnqn.0.into(),
            reserved_768: Reserved::ZERO,
        }
    }

    /// The data as received.
    ///
    /// # Errors
    /// [`Truncated`] when there are fewer than 1,024 bytes.
    pub fn parse(bytes: &[u8]) -> Result<&Self, Truncated> {
        crate::view(bytes)
    }

    /// The controller that the host asks for.
    pub const fn cntlid(&self) -> Cntlid {
        Cntlid(self.cntlid.get())
    }

    /// The subsystem that the host asks for.
    ///
    /// # Errors
    /// The [`ConnectParameter`] of the field, when it holds no valid name.
    pub fn subsystem(&self) -> Result<Nqn, ConnectParameter> {
        self.subnqn.parse().map_err(|_| ConnectParameter::SUBNQN)
    }

    /// The name of the host that connects.
    ///
    /// # Errors
    /// The [`ConnectParameter`] of the field, when it holds no valid name.
    pub fn host(&self) -> Result<HostNqn, ConnectParameter> {
        self.hostnqn.parse().map(HostNqn).map_err(|_| ConnectParameter::HOSTNQN)
    }
}

/// A field of a Connect command that the controller refuses: the result of Connect Invalid
/// Parameters (Base, 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectParameter {
    /// Structure that `offset` counts in: bit 16 of the result.
    pub layer: ConnectLayer,
    /// Offset of the field in bytes, IPO: bits 15:0 of the result.
    pub offset: u16,
}

/// Structure that holds the refused field of a Connect command, IATTR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectLayer {
    /// The submission queue entry, IATTR 0.
    Sqe,
    /// The Connect data, IATTR 1.
    Data,
}

impl ConnectParameter {
    /// QID, bytes 42 and 43 of the entry.
    pub const QID: Self = Self { layer: ConnectLayer::Sqe, offset: 42 };
    /// SQSIZE, bytes 44 and 45 of the entry.
    pub const SQSIZE: Self = Self { layer: ConnectLayer::Sqe, offset: 44 };
    /// CATTR, byte 46 of the entry.
    pub const CATTR: Self = Self { layer: ConnectLayer::Sqe, offset: 46 };
    /// KATO, bytes 48 to 51 of the entry.
    pub const KATO: Self = Self { layer: ConnectLayer::Sqe, offset: 48 };
    /// HOSTID, bytes 0 to 15 of the data.
    pub const HOSTID: Self = Self { layer: ConnectLayer::Data, offset: 0 };
    /// CNTLID, bytes 16 and 17 of the data.
    pub const CNTLID: Self = Self { layer: ConnectLayer::Data, offset: 16 };
    /// SUBNQN, bytes 256 to 511 of the data.
    pub const SUBNQN: Self = Self { layer: ConnectLayer::Data, offset: 256 };
    /// HOSTNQN, bytes 512 to 767 of the data.
    pub const HOSTNQN: Self = Self { layer: ConnectLayer::Data, offset: 512 };

    /// Decodes dword 0 of the response.
    pub const fn from_dw0(dw0: u32) -> Self {
        let layer = if dw0 & 1 << 16 == 0 { ConnectLayer::Sqe } else { ConnectLayer::Data };
        Self { layer, offset: dw0 as u16 }
    }

    /// Encodes the field as dword 0 of the response.
    pub const fn to_dw0(self) -> u32 {
        match self.layer {
            ConnectLayer::Sqe => self.offset as u32,
            ConnectLayer::Data => 1 << 16 | self.offset as u32,
        }
    }

    /// The completion that refuses a Connect for this field: Connect Invalid Parameters, Do Not
    /// Retry.
    pub const fn refuse(self, cid: Cid) -> Cqe {
        Cqe::new(cid, Status::CONNECT_INVALID_PARAMETERS.with_dnr()).with_dw0(self.to_dw0())
    }

    /// The specification's name of the field, if it begins one.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::QID => Some("QID"),
            Self::SQSIZE => Some("SQSIZE"),
            Self::CATTR => Some("CATTR"),
            Self::KATO => Some("KATO"),
            Self::HOSTID => Some("HOSTID"),
            Self::CNTLID => Some("CNTLID"),
            Self::SUBNQN => Some("SUBNQN"),
            Self::HOSTNQN => Some("HOSTNQN"),
            _ => None,
        }
    }
}

impl core::fmt::Display for ConnectParameter {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let place = match self.layer {
            ConnectLayer::Sqe => "command",
            ConnectLayer::Data => "data",
        };
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "byte {} of the Connect {place}", self.offset),
        }
    }
}

/// Dword 0 of the response to a successful Connect.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct ConnectResponse {
    cntlid_bits: u16,
    __: bool,
    /// Authentication transaction required, ATR.
    pub authentication_required: bool,
    /// Authentication over a secure channel required, ASCR.
    pub secure_channel_required: bool,
    #[bits(13)]
    __: u16,
}

impl ConnectResponse {
    /// The response that names the controller and asks for no authentication.
    pub const fn controller(cntlid: Cntlid) -> Self {
        Self::new().with_cntlid_bits(cntlid.0)
    }

    /// The controller that the queue belongs to.
    pub const fn cntlid(&self) -> Cntlid {
        Cntlid(self.cntlid_bits())
    }
}
