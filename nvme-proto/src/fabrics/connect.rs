//! The Connect command, its data and its response.

use bitfield_struct::bitfield;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::RecordFormat;
use crate::{
    Cid, Cntlid, Cqe, FabricsType, HostId, HostNqn, Nqn, NqnField, Qid, Reserved, Sqe, Status,
    Truncated,
};

/// Connect (Base, 6.3): assigns the connection that it is received on to a queue of a controller.
/// [`ConnectData`] is its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect {
    /// Identifier of the queue: 0, the admin queue, creates an association; other queues join one.
    pub qid: Qid,
    /// Number of entries of the submission queue, 2 to 65,536 (zero-based on the wire, SQSIZE); the
    /// completion queue has as many.
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
    /// All with Do Not Retry: Connect Incompatible Format for a record format other than 0; Connect
    /// Invalid Parameters for a queue of one entry, to whose completion the caller adds
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
    /// If `queue_entries` is not in 2 to 65,536.
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
    /// Whether the host requests that submission queue flow control is disabled.
    pub disable_sq_flow_control: bool,
    /// Whether the host supports deletion of single I/O queues by Disconnect.
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
    /// Host identifier, HOSTID, at byte 0; always 128 bits over fabrics.
    pub hostid: HostId,
    cntlid: U16,
    reserved_18: Reserved<238>,
    /// NQN of the subsystem, SUBNQN, at byte 256.
    pub subnqn: NqnField,
    /// NQN of the host, HOSTNQN, at byte 512.
    pub hostnqn: NqnField,
    reserved_768: Reserved<256>,
}

const _: () = assert!(size_of::<ConnectData>() == ConnectData::BYTES);

impl ConnectData {
    /// Size of the structure in bytes.
    pub const BYTES: usize = 1024;

    /// Creates the data. `cntlid` is [`Cntlid::DYNAMIC`] (or a static controller) for the admin
    /// queue, and the controller of the admin queue for an I/O queue.
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

    /// Views received bytes as Connect data.
    ///
    /// # Errors
    /// [`Truncated`] if there are fewer than 1,024 bytes.
    pub fn parse(bytes: &[u8]) -> Result<&Self, Truncated> {
        crate::view(bytes)
    }

    /// Returns the requested controller, or [`Cntlid::DYNAMIC`] or [`Cntlid::STATIC`].
    pub const fn cntlid(&self) -> Cntlid {
        Cntlid(self.cntlid.get())
    }

    /// Returns the NQN of the requested subsystem.
    ///
    /// # Errors
    /// [`ConnectParameter::SUBNQN`] if the field has no valid NQN.
    pub fn subsystem(&self) -> Result<Nqn, ConnectParameter> {
        self.subnqn.parse().map_err(|_| ConnectParameter::SUBNQN)
    }

    /// Returns the NQN of the host.
    ///
    /// # Errors
    /// [`ConnectParameter::HOSTNQN`] if the field has no valid NQN.
    pub fn host(&self) -> Result<HostNqn, ConnectParameter> {
        self.hostnqn.parse().map(HostNqn).map_err(|_| ConnectParameter::HOSTNQN)
    }
}

/// Field for which a controller refuses a Connect command: dword 0 of a completion with Connect
/// Invalid Parameters (Base, 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectParameter {
    /// Structure that the field belongs to, IATTR: bit 16 of dword 0.
    pub layer: ConnectLayer,
    /// Offset of the field in bytes, IPO: bits 15:0 of dword 0.
    pub offset: u16,
}

/// Structure that an invalid field of Connect belongs to, IATTR.
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

    /// Decodes dword 0 of the completion.
    pub const fn from_dw0(dw0: u32) -> Self {
        let layer = if dw0 & 1 << 16 == 0 { ConnectLayer::Sqe } else { ConnectLayer::Data };
        Self { layer, offset: dw0 as u16 }
    }

    /// Encodes the field as dword 0 of the completion.
    pub const fn to_dw0(self) -> u32 {
        match self.layer {
            ConnectLayer::Sqe => self.offset as u32,
            ConnectLayer::Data => 1 << 16 | self.offset as u32,
        }
    }

    /// Creates the completion that refuses a Connect for this field: Connect Invalid Parameters
    /// with Do Not Retry.
    pub const fn refuse(self, cid: Cid) -> Cqe {
        Cqe::new(cid, Status::CONNECT_INVALID_PARAMETERS.with_dnr()).with_dw0(self.to_dw0())
    }

    /// Returns the specification's name of the field; `None` if no field starts at the offset.
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

/// Dword 0 of the completion of a successful Connect.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct ConnectResponse {
    cntlid_bits: u16,
    __: bool,
    /// ATR: the host has to authenticate.
    pub authentication_required: bool,
    /// ASCR: the host has to authenticate over a secure channel.
    pub secure_channel_required: bool,
    #[bits(13)]
    __: u16,
}

impl ConnectResponse {
    /// Creates the response with this controller identifier, without demand for authentication.
    pub const fn controller(cntlid: Cntlid) -> Self {
        Self::new().with_cntlid_bits(cntlid.0)
    }

    /// Returns the controller that the queue belongs to.
    pub const fn cntlid(&self) -> Cntlid {
        Cntlid(self.cntlid_bits())
    }
}
