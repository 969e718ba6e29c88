//! Asynchronous events (Base, 5.1.2).

use bitfield_struct::bitfield;

use crate::log::LogId;

/// Dword 0 of the completion of an Asynchronous Event Request.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct AsyncEvent {
    /// Bits 2:0: type of the event.
    #[bits(3)]
    pub event_type: EventType,
    #[bits(5)]
    __: u8,
    /// Bits 15:8: information, whose meaning depends on the type.
    pub information: u8,
    /// Bits 23:16: the log page to read in order to clear the event.
    #[bits(8)]
    pub log_page: LogId,
    __: u8,
}

impl AsyncEvent {
    /// Notice that attributes of namespaces or the list of attached namespaces have changed.
    pub const NAMESPACE_ATTRIBUTE_CHANGED: Self =
        Self::notice(Notice::NAMESPACE_ATTRIBUTE_CHANGED, LogId::CHANGED_NAMESPACES);
    /// SMART event for the critical warning that the reliability of the subsystem is degraded.
    pub const RELIABILITY_DEGRADED: Self = Self::new()
        .with_event_type(EventType::SMART)
        .with_information(0)
        .with_log_page(LogId::SMART);
    /// Notice that the ANA log page has changed.
    pub const ANA_CHANGED: Self = Self::notice(Notice::ANA_CHANGE, LogId::ANA);
    /// Notice that the discovery log page has changed.
    pub const DISCOVERY_LOG_CHANGED: Self =
        Self::notice(Notice::DISCOVERY_LOG_CHANGED, LogId::DISCOVERY);

    /// Creates an event of type Notice, which the host clears by reading `log_page`.
    pub const fn notice(notice: Notice, log_page: LogId) -> Self {
        Self::new()
            .with_event_type(EventType::NOTICE)
            .with_information(notice.0)
            .with_log_page(log_page)
    }

    /// Returns the notice; `None` for an event of another type.
    pub fn as_notice(&self) -> Option<Notice> {
        (self.event_type() == EventType::NOTICE).then(|| Notice(self.information()))
    }
}

open_enum! {
    /// Asynchronous event type, bits 2:0 of dword 0.
    pub struct EventType(u8) {
        ERROR = 0, "Error status";
        SMART = 1, "SMART / Health status";
        NOTICE = 2, "Notice";
        IMMEDIATE = 3, "Immediate";
        IO_COMMAND_SPECIFIC = 6, "I/O Command specific status";
        VENDOR = 7, "Vendor specific";
    }
}

open_enum! {
    /// Asynchronous event information of an event of type Notice, bits 15:8 of dword 0.
    pub struct Notice(u8) {
        NAMESPACE_ATTRIBUTE_CHANGED = 0x00, "Attached Namespace Attribute Changed";
        FIRMWARE_ACTIVATION_STARTING = 0x01, "Firmware Activation Starting";
        TELEMETRY_LOG_CHANGED = 0x02, "Telemetry Log Changed";
        ANA_CHANGE = 0x03, "Asymmetric Namespace Access Change";
        DISCOVERY_LOG_CHANGED = 0xF0, "Discovery Log Page Change";
        HOST_DISCOVERY_LOG_CHANGED = 0xF1, "Host Discovery Log Page Change";
    }
}

open_enum! {
    /// Asynchronous event information of an event of type Error, bits 15:8 of dword 0.
    pub struct ErrorEvent(u8) {
        INVALID_DOORBELL_REGISTER = 0x00, "Write to Invalid Doorbell Register";
        INVALID_DOORBELL_VALUE = 0x01, "Invalid Doorbell Write Value";
        DIAGNOSTIC_FAILURE = 0x02, "Diagnostic Failure";
        PERSISTENT_INTERNAL_ERROR = 0x03, "Persistent Internal Error";
        TRANSIENT_INTERNAL_ERROR = 0x04, "Transient Internal Error";
        FIRMWARE_IMAGE_LOAD_ERROR = 0x05, "Firmware Image Load Error";
    }
}

open_enum! {
    /// Asynchronous event information of an event of type SMART / Health, bits 15:8 of dword 0.
    pub struct SmartEvent(u8) {
        RELIABILITY = 0x00, "NVM Subsystem Reliability";
        TEMPERATURE = 0x01, "Temperature Threshold";
        SPARE = 0x02, "Spare Below Threshold";
    }
}
