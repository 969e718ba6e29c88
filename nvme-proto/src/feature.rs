//! Features (Base, 5.1.11 and 5.1.25).

use bitfield_struct::bitfield;
use zerocopy::little_endian::U32;

use crate::{AdminOpcode, DataTransfer, HostId, Nsid, Sqe, Status};

open_enum! {
    /// Feature identifier, FID: bits 7:0 of command dword 10.
    pub struct FeatureId(u8) {
        ARBITRATION = 0x01, "Arbitration";
        POWER_MANAGEMENT = 0x02, "Power Management";
        TEMPERATURE_THRESHOLD = 0x04, "Temperature Threshold";
        ERROR_RECOVERY = 0x05, "Error Recovery";
        VOLATILE_WRITE_CACHE = 0x06, "Volatile Write Cache";
        NUMBER_OF_QUEUES = 0x07, "Number of Queues";
        INTERRUPT_COALESCING = 0x08, "Interrupt Coalescing";
        INTERRUPT_VECTOR_CONFIG = 0x09, "Interrupt Vector Configuration";
        WRITE_ATOMICITY = 0x0A, "Write Atomicity Normal";
        ASYNC_EVENT_CONFIG = 0x0B, "Asynchronous Event Configuration";
        APST = 0x0C, "Autonomous Power State Transition";
        HOST_MEMORY_BUFFER = 0x0D, "Host Memory Buffer";
        TIMESTAMP = 0x0E, "Timestamp";
        KEEP_ALIVE_TIMER = 0x0F, "Keep Alive Timer";
        HOST_BEHAVIOR_SUPPORT = 0x16, "Host Behavior Support";
        IO_COMMAND_SET_PROFILE = 0x19, "I/O Command Set Profile";
        HOST_IDENTIFIER = 0x81, "Host Identifier";
        RESERVATION_NOTIFICATION_MASK = 0x82, "Reservation Notification Mask";
        RESERVATION_PERSISTENCE = 0x83, "Reservation Persistence";
        NAMESPACE_WRITE_PROTECTION = 0x84, "Namespace Write Protection Config";
    }
}

/// Feature and its value: command dword 11 of Set Features, and dword 0 of the completion of Set
/// Features and Get Features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// Arbitration burst, and weights of the priority classes.
    Arbitration(Arbitration),
    /// Time limit of retries, and whether reading a deallocated block is an error; of a namespace.
    ErrorRecovery(ErrorRecovery),
    /// Whether Write commands may complete before their data is non-volatile.
    VolatileWriteCache {
        /// Cache enabled, WCE: bit 0 of the value.
        enabled: bool,
    },
    /// Number of I/O queues requested by the host, or allocated by the controller.
    NumberOfQueues(QueueCounts),
    /// Asynchronous events that the host requests the controller to report.
    AsyncEventConfig(AsyncEventConfig),
    /// Time after which the controller ends an association that the host does not keep alive.
    KeepAliveTimer {
        /// The timeout in milliseconds, KATO; 0 for none.
        timeout_ms: u32,
    },
    /// The host identifier, which is in the data: see [`crate::HostId`].
    HostIdentifier {
        /// EXHID: the identifier has 128 bits, as fabrics require, not 64.
        extended: bool,
    },
    /// The write protection of a namespace.
    NamespaceWriteProtection(WriteProtection),
    /// Feature whose value this crate does not decode.
    Other {
        /// Identifier of the feature, FID.
        fid: FeatureId,
        /// Value as on the wire.
        value: u32,
    },
}

impl Feature {
    /// Decodes the value of feature `fid`.
    ///
    /// # Errors
    /// Invalid Field in Command with Do Not Retry, if the value is not allowed for the feature.
    pub fn parse(fid: FeatureId, value: u32) -> Result<Self, Status> {
        Ok(match fid {
            FeatureId::ARBITRATION => Self::Arbitration(Arbitration::from_bits(value)),
            FeatureId::ERROR_RECOVERY => Self::ErrorRecovery(ErrorRecovery::from_bits(value)),
            FeatureId::VOLATILE_WRITE_CACHE => Self::VolatileWriteCache { enabled: value & 1 != 0 },
            FeatureId::NUMBER_OF_QUEUES => Self::NumberOfQueues(QueueCounts::parse(value)?),
            FeatureId::ASYNC_EVENT_CONFIG => {
                Self::AsyncEventConfig(AsyncEventConfig::from_bits(value))
            }
            FeatureId::KEEP_ALIVE_TIMER => Self::KeepAliveTimer { timeout_ms: value },
            FeatureId::HOST_IDENTIFIER => Self::HostIdentifier { extended: value & 1 != 0 },
            FeatureId::NAMESPACE_WRITE_PROTECTION => {
                Self::NamespaceWriteProtection(WriteProtection::parse(value)?)
            }
            _ => Self::Other { fid, value },
        })
    }

    /// Identifier of the feature, FID.
    pub const fn id(&self) -> FeatureId {
        match self {
            Self::Arbitration(_) => FeatureId::ARBITRATION,
            Self::ErrorRecovery(_) => FeatureId::ERROR_RECOVERY,
            Self::VolatileWriteCache { .. } => FeatureId::VOLATILE_WRITE_CACHE,
            Self::NumberOfQueues(_) => FeatureId::NUMBER_OF_QUEUES,
            Self::AsyncEventConfig(_) => FeatureId::ASYNC_EVENT_CONFIG,
            Self::KeepAliveTimer { .. } => FeatureId::KEEP_ALIVE_TIMER,
            Self::HostIdentifier { .. } => FeatureId::HOST_IDENTIFIER,
            Self::NamespaceWriteProtection(_) => FeatureId::NAMESPACE_WRITE_PROTECTION,
            Self::Other { fid, .. } => *fid,
        }
    }

    /// Returns the value as a dword.
    pub const fn value(&self) -> u32 {
        match self {
            Self::Arbitration(arbitration) => arbitration.into_bits(),
            Self::ErrorRecovery(recovery) => recovery.into_bits(),
            Self::VolatileWriteCache { enabled } => *enabled as u32,
            Self::NumberOfQueues(counts) => counts.to_dword(),
            Self::AsyncEventConfig(config) => config.into_bits(),
            Self::KeepAliveTimer { timeout_ms } => *timeout_ms,
            Self::HostIdentifier { extended } => *extended as u32,
            Self::NamespaceWriteProtection(state) => *state as u32,
            Self::Other { value, .. } => *value,
        }
    }
}

/// Set Features command. Command dwords 12 to 15, which no feature here uses, are not decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetFeatures {
    /// Namespace, for a feature that belongs to one.
    pub nsid: Nsid,
    /// SV: the value shall persist across power cycles and resets.
    pub save: bool,
    /// The feature and its new value.
    pub feature: Feature,
}

impl SetFeatures {
    pub(crate) fn parse(sqe: &Sqe) -> Result<Self, Status> {
        let dw10 = SetDw10::from_bits(sqe.cdw10.get());
        let feature = Feature::parse(dw10.fid(), sqe.cdw11.get())?;
        Ok(Self { nsid: sqe.nsid(), save: dw10.save(), feature })
    }

    /// Encodes the command; [`Sqe::with_cid`] and [`Sqe::with_data`] add the identifier and the
    /// data pointer.
    pub fn to_sqe(&self) -> Sqe {
        let mut sqe = Sqe::new(AdminOpcode::SET_FEATURES.0).with_nsid(self.nsid);
        let dw10 = SetDw10::new().with_fid(self.feature.id()).with_save(self.save);
        sqe.cdw10 = U32::new(dw10.into_bits());
        sqe.cdw11 = U32::new(self.feature.value());
        sqe
    }

    /// Returns the data transfer; none for a feature that this crate does not decode.
    pub const fn transfer(&self) -> DataTransfer {
        match self.feature {
            Feature::HostIdentifier { extended: true } => {
                DataTransfer::from_host(size_of::<HostId>() as u64)
            }
            Feature::HostIdentifier { extended: false } => DataTransfer::from_host(8),
            _ => DataTransfer::NONE,
        }
    }
}

#[bitfield(u32)]
#[derive(PartialEq, Eq)]
struct SetDw10 {
    #[bits(8)]
    fid: FeatureId,
    #[bits(23)]
    __: u32,
    save: bool,
}

/// Get Features: reads one value of a feature, or its capabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetFeatures {
    /// Namespace, for a feature that belongs to one.
    pub nsid: Nsid,
    /// Identifier of the feature, FID.
    pub fid: FeatureId,
    /// The value to read: current, default, saved, or the capabilities.
    pub select: Select,
    /// Command dword 11. For the host identifier, bit 0 (EXHID) requests 128 bits.
    pub value: u32,
}

impl GetFeatures {
    /// Creates a command for the current value of a feature that does not belong to a namespace.
    pub const fn current(fid: FeatureId) -> Self {
        let value = if fid.0 == FeatureId::HOST_IDENTIFIER.0 { 1 } else { 0 };
        Self { nsid: Nsid::NONE, fid, select: Select::CURRENT, value }
    }

    pub(crate) fn parse(sqe: &Sqe) -> Self {
        let dw10 = GetDw10::from_bits(sqe.cdw10.get());
        Self { nsid: sqe.nsid(), fid: dw10.fid(), select: dw10.select(), value: sqe.cdw11.get() }
    }

    /// Encodes the command; [`Sqe::with_cid`] and [`Sqe::with_data`] add the identifier and the
    /// data pointer.
    pub fn to_sqe(&self) -> Sqe {
        let mut sqe = Sqe::new(AdminOpcode::GET_FEATURES.0).with_nsid(self.nsid);
        let dw10 = GetDw10::new().with_fid(self.fid).with_select(self.select);
        sqe.cdw10 = U32::new(dw10.into_bits());
        sqe.cdw11 = U32::new(self.value);
        sqe
    }

    /// Returns the data transfer; none for a feature that this crate does not decode.
    pub const fn transfer(&self) -> DataTransfer {
        match (self.fid, self.select) {
            (_, Select::CAPABILITIES) => DataTransfer::NONE,
            (FeatureId::HOST_IDENTIFIER, _) if self.value & 1 != 0 => {
                DataTransfer::to_host(size_of::<HostId>() as u64)
            }
            (FeatureId::HOST_IDENTIFIER, _) => DataTransfer::to_host(8),
            _ => DataTransfer::NONE,
        }
    }
}

#[bitfield(u32)]
#[derive(PartialEq, Eq)]
struct GetDw10 {
    #[bits(8)]
    fid: FeatureId,
    #[bits(3)]
    select: Select,
    #[bits(21)]
    __: u32,
}

open_enum! {
    /// Value of a feature that Get Features reads, SEL: bits 10:8 of command dword 10.
    pub struct Select(u8) {
        CURRENT = 0, "Current";
        DEFAULT = 1, "Default";
        SAVED = 2, "Saved";
        CAPABILITIES = 3, "Supported Capabilities";
    }
}

/// Dword 0 of the completion of Get Features for [`Select::CAPABILITIES`].
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct FeatureCapabilities {
    /// Whether a value can be saved (SV in Set Features).
    pub saveable: bool,
    /// Whether each namespace has its own value.
    pub namespace_specific: bool,
    /// Whether Set Features can change the value.
    pub changeable: bool,
    #[bits(29)]
    __: u32,
}

/// Arbitration, 01h (Base, 5.1.25.1).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Arbitration {
    /// Arbitration burst, AB: log2 of the number of commands; 7 for no limit.
    #[bits(3)]
    pub burst: u8,
    #[bits(5)]
    __: u8,
    /// Low priority weight, zero-based.
    pub low_weight_z: u8,
    /// Medium priority weight, zero-based.
    pub medium_weight_z: u8,
    /// High priority weight, zero-based.
    pub high_weight_z: u8,
}

/// Error recovery of a namespace, 05h (NVM, 4.1.3.2).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct ErrorRecovery {
    /// TLER: time for which a failed command is retried, in units of 100 ms; 0 for no limit.
    pub time_limit: u16,
    /// DULBE: reading a deallocated or unwritten block is an error.
    pub deallocated_error: bool,
    #[bits(15)]
    __: u16,
}

/// Number of queues, 07h (Base, 5.1.25.1): 1 to 65,535 I/O queues of each kind; zero-based on the
/// wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueCounts {
    submission_z: u16,
    completion_z: u16,
}

impl QueueCounts {
    /// Creates counts of `count` submission and `count` completion queues; 0 counts as 1.
    pub const fn pairs(count: u16) -> Self {
        let count_z = count.saturating_sub(1);
        Self { submission_z: count_z, completion_z: count_z }
    }

    fn parse(value: u32) -> Result<Self, Status> {
        let (submission_z, completion_z) = (value as u16, (value >> 16) as u16);
        if submission_z == u16::MAX || completion_z == u16::MAX {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        Ok(Self { submission_z, completion_z })
    }

    /// Number of I/O submission queues, 1 to 65,535.
    pub const fn submission(&self) -> u16 {
        self.submission_z + 1
    }

    /// Number of I/O completion queues, 1 to 65,535.
    pub const fn completion(&self) -> u16 {
        self.completion_z + 1
    }

    /// Number of I/O queue pairs that can be used: the smaller of the two counts.
    pub const fn usable(&self) -> u16 {
        if self.submission_z < self.completion_z { self.submission() } else { self.completion() }
    }

    const fn to_dword(self) -> u32 {
        self.submission_z as u32 | (self.completion_z as u32) << 16
    }
}

/// Asynchronous event configuration, 0Bh (Base, 5.1.25.1). A set bit enables the notices.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct AsyncEventConfig {
    /// Bits 7:0: critical warnings of the SMART log page that the controller reports.
    pub smart_critical_warnings: u8,
    /// Bit 8: attached namespace attribute notices.
    pub namespace_attribute: bool,
    /// Bit 9: firmware activation notices.
    pub firmware_activation: bool,
    /// Bit 10: telemetry log notices.
    pub telemetry_log: bool,
    /// Bit 11: asymmetric namespace access change notices.
    pub ana_change: bool,
    /// Bits 30:12: other notices, which Feedrail controllers do not send.
    #[bits(19)]
    pub other: u32,
    /// Bit 31: discovery log page change notices.
    pub discovery_log: bool,
}

/// Namespace write protection, 84h (Base, 5.1.25.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum WriteProtection {
    /// Not protected: the namespace can be written.
    None = 0,
    /// Protected until a host sets another state.
    Protected = 1,
    /// Protected until the next power cycle.
    UntilPowerCycle = 2,
    /// Permanent Write Protect: cannot be undone.
    Permanent = 3,
}

impl WriteProtection {
    fn parse(value: u32) -> Result<Self, Status> {
        match value & 0b111 {
            0 => Ok(Self::None),
            1 => Ok(Self::Protected),
            2 => Ok(Self::UntilPowerCycle),
            3 => Ok(Self::Permanent),
            _ => Err(Status::INVALID_FIELD.with_dnr()),
        }
    }
}
