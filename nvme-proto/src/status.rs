//! Status of completions: status code types, status codes and flags.

use core::fmt;

/// Status of a completion, 15 bits: status code type and code, command retry delay, More and Do Not
/// Retry (Base, 4.2.3). The phase tag, which fabrics do not use, is not included.
///
/// Values without a name are kept. The constants have no flag set; [`Status::is`] compares status
/// code type and code only.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Status(u16);

impl Status {
    const CODE_MASK: u16 = 0x07FF;
    const CRD_SHIFT: u32 = 11;
    const MORE: u16 = 1 << 13;
    const DNR: u16 = 1 << 14;

    /// Creates a status without flags and retry delay.
    pub const fn new(sct: StatusCodeType, sc: u8) -> Self {
        Self(((sct.0 as u16 & 0b111) << 8) | sc as u16)
    }

    /// Decodes the status field without the phase tag: bit 0 is bit 0 of SC. Bit 15 is ignored.
    pub const fn from_bits(bits: u16) -> Self {
        Self(bits & 0x7FFF)
    }

    /// Returns the status field without the phase tag.
    pub const fn to_bits(self) -> u16 {
        self.0
    }

    /// Decodes the last two bytes of a completion, whose bit 0 is the phase tag.
    pub const fn from_wire(field: u16) -> Self {
        Self(field >> 1)
    }

    /// Encodes the last two bytes of a completion, with phase tag 0.
    pub const fn to_wire(self) -> u16 {
        self.0 << 1
    }

    /// Status code type, SCT.
    pub const fn code_type(self) -> StatusCodeType {
        StatusCodeType(((self.0 >> 8) & 0b111) as u8)
    }

    /// Status code, SC: bits 7:0.
    pub const fn code(self) -> u8 {
        (self.0 & 0xFF) as u8
    }

    /// Command retry delay, CRD: 0 for none, or 1 to 3 for that element of the controller's CRDT.
    pub const fn retry_delay(self) -> u8 {
        ((self.0 >> Self::CRD_SHIFT) & 0b11) as u8
    }

    /// More, M: the Error Information log page has details.
    pub const fn more(self) -> bool {
        self.0 & Self::MORE != 0
    }

    /// Do Not Retry, DNR: the same command would fail again.
    pub const fn do_not_retry(self) -> bool {
        self.0 & Self::DNR != 0
    }

    /// Sets Do Not Retry.
    pub const fn with_dnr(self) -> Self {
        Self(self.0 | Self::DNR)
    }

    /// Sets the More bit: the Error Information log page has details.
    pub const fn with_more(self) -> Self {
        Self(self.0 | Self::MORE)
    }

    /// Sets the command retry delay to the low two bits of `crd`.
    pub const fn with_retry_delay(self, crd: u8) -> Self {
        Self(self.0 & !(0b11 << Self::CRD_SHIFT) | ((crd as u16 & 0b11) << Self::CRD_SHIFT))
    }

    /// Returns status code type and code without flags and retry delay.
    pub const fn without_flags(self) -> Self {
        Self(self.0 & Self::CODE_MASK)
    }

    /// Whether status code type and code are those of `other`, with any flags.
    pub const fn is(self, other: Self) -> bool {
        self.without_flags().0 == other.without_flags().0
    }

    /// Whether the status is Successful Completion, with any flags.
    pub const fn is_success(self) -> bool {
        self.is(Self::SUCCESS)
    }

    /// Whether the path caused the error, so that the command may succeed on another path (Base,
    /// 4.2.3.4).
    pub const fn is_path_related(self) -> bool {
        self.code_type().0 == StatusCodeType::PATH.0
    }

    /// Converts the status to a result.
    ///
    /// # Errors
    /// The status itself, unless it is Successful Completion.
    pub const fn ok(self) -> Result<(), Self> {
        if self.is_success() { Ok(()) } else { Err(self) }
    }
}

open_enum! {
    /// Status code type, SCT (Base, 4.2.3.1).
    pub struct StatusCodeType(u8) {
        GENERIC = 0x0, "Generic Command Status";
        COMMAND_SPECIFIC = 0x1, "Command Specific Status";
        MEDIA = 0x2, "Media and Data Integrity Errors";
        PATH = 0x3, "Path Related Status";
        VENDOR = 0x7, "Vendor Specific";
    }
}

/// Declares the named statuses: constants, and names for `Display`. A code with different meanings
/// for Connect and for I/O commands has one line in `names` with both, and further constants in
/// `aliases`.
macro_rules! statuses {
    (
        names { $($constant:ident = $sct:ident $sc:literal, $text:literal;)* }
        aliases { $($alias:ident = $same:ident, $alias_text:literal;)* }
    ) => {
        impl Status {
            $(
                #[doc = concat!($text, ".")]
                pub const $constant: Self = Self::new(StatusCodeType::$sct, $sc);
            )*
            $(
                #[doc = concat!($alias_text, ".")]
                pub const $alias: Self = Self::$same;
            )*

            /// Returns the specification's name of status code type and code; `None` if they have
            /// none.
            pub const fn name(self) -> Option<&'static str> {
                match self.without_flags() {
                    $(Self::$constant => Some($text),)*
                    _ => None,
                }
            }

            #[cfg(test)]
            pub(crate) const NAMED: &'static [Self] = &[$(Self::$constant),*];
        }
    };
}

statuses! {
    names {
        SUCCESS = GENERIC 0x00, "Successful Completion";
        INVALID_OPCODE = GENERIC 0x01, "Invalid Command Opcode";
        INVALID_FIELD = GENERIC 0x02, "Invalid Field in Command";
        COMMAND_ID_CONFLICT = GENERIC 0x03, "Command ID Conflict";
        DATA_TRANSFER_ERROR = GENERIC 0x04, "Data Transfer Error";
        ABORTED_POWER_LOSS = GENERIC 0x05, "Commands Aborted due to Power Loss Notification";
        INTERNAL_ERROR = GENERIC 0x06, "Internal Error";
        ABORT_REQUESTED = GENERIC 0x07, "Command Abort Requested";
        ABORTED_SQ_DELETION = GENERIC 0x08, "Command Aborted due to SQ Deletion";
        ABORTED_FAILED_FUSED = GENERIC 0x09, "Command Aborted due to Failed Fused Command";
        ABORTED_MISSING_FUSED = GENERIC 0x0A, "Command Aborted due to Missing Fused Command";
        INVALID_NAMESPACE_OR_FORMAT = GENERIC 0x0B, "Invalid Namespace or Format";
        COMMAND_SEQUENCE_ERROR = GENERIC 0x0C, "Command Sequence Error";
        INVALID_SGL_SEGMENT_DESCRIPTOR = GENERIC 0x0D, "Invalid SGL Segment Descriptor";
        INVALID_NUMBER_OF_SGL_DESCRIPTORS = GENERIC 0x0E, "Invalid Number of SGL Descriptors";
        DATA_SGL_LENGTH_INVALID = GENERIC 0x0F, "Data SGL Length Invalid";
        METADATA_SGL_LENGTH_INVALID = GENERIC 0x10, "Metadata SGL Length Invalid";
        SGL_DESCRIPTOR_TYPE_INVALID = GENERIC 0x11, "SGL Descriptor Type Invalid";
        INVALID_USE_OF_CMB = GENERIC 0x12, "Invalid Use of Controller Memory Buffer";
        PRP_OFFSET_INVALID = GENERIC 0x13, "PRP Offset Invalid";
        ATOMIC_WRITE_UNIT_EXCEEDED = GENERIC 0x14, "Atomic Write Unit Exceeded";
        OPERATION_DENIED = GENERIC 0x15, "Operation Denied";
        SGL_OFFSET_INVALID = GENERIC 0x16, "SGL Offset Invalid";
        HOST_IDENTIFIER_INCONSISTENT_FORMAT = GENERIC 0x18, "Host Identifier Inconsistent Format";
        KEEP_ALIVE_TIMER_EXPIRED = GENERIC 0x19, "Keep Alive Timer Expired";
        KEEP_ALIVE_TIMEOUT_INVALID = GENERIC 0x1A, "Keep Alive Timeout Invalid";
        ABORTED_PREEMPT_AND_ABORT = GENERIC 0x1B, "Command Aborted due to Preempt and Abort";
        SANITIZE_FAILED = GENERIC 0x1C, "Sanitize Failed";
        SANITIZE_IN_PROGRESS = GENERIC 0x1D, "Sanitize In Progress";
        SGL_DATA_BLOCK_GRANULARITY_INVALID = GENERIC 0x1E, "SGL Data Block Granularity Invalid";
        COMMAND_NOT_SUPPORTED_FOR_QUEUE_IN_CMB = GENERIC 0x1F, "Command Not Supported for Queue in CMB";
        NAMESPACE_IS_WRITE_PROTECTED = GENERIC 0x20, "Namespace Is Write Protected";
        COMMAND_INTERRUPTED = GENERIC 0x21, "Command Interrupted";
        TRANSIENT_TRANSPORT_ERROR = GENERIC 0x22, "Transient Transport Error";
        COMMAND_PROHIBITED_BY_LOCKDOWN = GENERIC 0x23, "Command Prohibited by Command and Feature Lockdown";
        ADMIN_COMMAND_MEDIA_NOT_READY = GENERIC 0x24, "Admin Command Media Not Ready";
        LBA_OUT_OF_RANGE = GENERIC 0x80, "LBA Out of Range";
        CAPACITY_EXCEEDED = GENERIC 0x81, "Capacity Exceeded";
        NAMESPACE_NOT_READY = GENERIC 0x82, "Namespace Not Ready";
        RESERVATION_CONFLICT = GENERIC 0x83, "Reservation Conflict";
        FORMAT_IN_PROGRESS = GENERIC 0x84, "Format In Progress";

        COMPLETION_QUEUE_INVALID = COMMAND_SPECIFIC 0x00, "Completion Queue Invalid";
        INVALID_QUEUE_IDENTIFIER = COMMAND_SPECIFIC 0x01, "Invalid Queue Identifier";
        INVALID_QUEUE_SIZE = COMMAND_SPECIFIC 0x02, "Invalid Queue Size";
        ABORT_COMMAND_LIMIT_EXCEEDED = COMMAND_SPECIFIC 0x03, "Abort Command Limit Exceeded";
        ASYNC_EVENT_REQUEST_LIMIT_EXCEEDED = COMMAND_SPECIFIC 0x05, "Asynchronous Event Request Limit Exceeded";
        INVALID_FIRMWARE_SLOT = COMMAND_SPECIFIC 0x06, "Invalid Firmware Slot";
        INVALID_FIRMWARE_IMAGE = COMMAND_SPECIFIC 0x07, "Invalid Firmware Image";
        INVALID_INTERRUPT_VECTOR = COMMAND_SPECIFIC 0x08, "Invalid Interrupt Vector";
        INVALID_LOG_PAGE = COMMAND_SPECIFIC 0x09, "Invalid Log Page";
        INVALID_FORMAT = COMMAND_SPECIFIC 0x0A, "Invalid Format";
        FEATURE_IDENTIFIER_NOT_SAVEABLE = COMMAND_SPECIFIC 0x0D, "Feature Identifier Not Saveable";
        FEATURE_NOT_CHANGEABLE = COMMAND_SPECIFIC 0x0E, "Feature Not Changeable";
        FEATURE_NOT_NAMESPACE_SPECIFIC = COMMAND_SPECIFIC 0x0F, "Feature Not Namespace Specific";
        NAMESPACE_IDENTIFIER_UNAVAILABLE = COMMAND_SPECIFIC 0x16, "Namespace Identifier Unavailable";
        NAMESPACE_ALREADY_ATTACHED = COMMAND_SPECIFIC 0x18, "Namespace Already Attached";
        NAMESPACE_IS_PRIVATE = COMMAND_SPECIFIC 0x19, "Namespace Is Private";
        NAMESPACE_NOT_ATTACHED = COMMAND_SPECIFIC 0x1A, "Namespace Not Attached";
        INVALID_CONTROLLER_IDENTIFIER = COMMAND_SPECIFIC 0x1F, "Invalid Controller Identifier";
        IO_COMMAND_SET_NOT_SUPPORTED = COMMAND_SPECIFIC 0x29, "I/O Command Set Not Supported";
        IO_COMMAND_SET_NOT_ENABLED = COMMAND_SPECIFIC 0x2A, "I/O Command Set Not Enabled";
        IO_COMMAND_SET_COMBINATION_REJECTED = COMMAND_SPECIFIC 0x2B, "I/O Command Set Combination Rejected";
        INVALID_IO_COMMAND_SET = COMMAND_SPECIFIC 0x2C, "Invalid I/O Command Set";
        CONNECT_INCOMPATIBLE_FORMAT = COMMAND_SPECIFIC 0x80, "Connect Incompatible Format (Conflicting Attributes for an I/O command)";
        CONNECT_CONTROLLER_BUSY = COMMAND_SPECIFIC 0x81, "Connect Controller Busy (Invalid Protection Information for an I/O command)";
        CONNECT_INVALID_PARAMETERS = COMMAND_SPECIFIC 0x82, "Connect Invalid Parameters (Attempted Write to Read Only Range for an I/O command)";
        CONNECT_RESTART_DISCOVERY = COMMAND_SPECIFIC 0x83, "Connect Restart Discovery (Command Size Limit Exceeded for an I/O command)";
        CONNECT_INVALID_HOST = COMMAND_SPECIFIC 0x84, "Connect Invalid Host";
        INVALID_QUEUE_TYPE = COMMAND_SPECIFIC 0x85, "Invalid Queue Type";
        DISCOVER_RESTART = COMMAND_SPECIFIC 0x90, "Discover Restart";
        AUTHENTICATION_REQUIRED = COMMAND_SPECIFIC 0x91, "Authentication Required";

        WRITE_FAULT = MEDIA 0x80, "Write Fault";
        UNRECOVERED_READ_ERROR = MEDIA 0x81, "Unrecovered Read Error";
        GUARD_CHECK_ERROR = MEDIA 0x82, "End-to-end Guard Check Error";
        APPLICATION_TAG_CHECK_ERROR = MEDIA 0x83, "End-to-end Application Tag Check Error";
        REFERENCE_TAG_CHECK_ERROR = MEDIA 0x84, "End-to-end Reference Tag Check Error";
        COMPARE_FAILURE = MEDIA 0x85, "Compare Failure";
        ACCESS_DENIED = MEDIA 0x86, "Access Denied";
        DEALLOCATED_OR_UNWRITTEN_BLOCK = MEDIA 0x87, "Deallocated or Unwritten Logical Block";

        INTERNAL_PATH_ERROR = PATH 0x00, "Internal Path Error";
        ANA_PERSISTENT_LOSS = PATH 0x01, "Asymmetric Access Persistent Loss";
        ANA_INACCESSIBLE = PATH 0x02, "Asymmetric Access Inaccessible";
        ANA_TRANSITION = PATH 0x03, "Asymmetric Access Transition";
        CONTROLLER_PATHING_ERROR = PATH 0x60, "Controller Pathing Error";
        HOST_PATHING_ERROR = PATH 0x70, "Host Pathing Error";
        ABORTED_BY_HOST = PATH 0x71, "Command Aborted By Host";
    }
    aliases {
        CONFLICTING_ATTRIBUTES = CONNECT_INCOMPATIBLE_FORMAT, "Conflicting Attributes, of an I/O command";
        INVALID_PROTECTION_INFORMATION = CONNECT_CONTROLLER_BUSY, "Invalid Protection Information, of an I/O command";
        ATTEMPTED_WRITE_TO_READ_ONLY_RANGE = CONNECT_INVALID_PARAMETERS, "Attempted Write to Read Only Range, of an I/O command";
        COMMAND_SIZE_LIMIT_EXCEEDED = CONNECT_RESTART_DISCOVERY, "Command Size Limit Exceeded, of an I/O command";
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, self.name())
    }
}

/// Status of a Connect command, for `Display`: some codes mean something else for I/O commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectStatus(pub Status);

impl fmt::Display for ConnectStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.write(f, self.0.readings().map(|(name, _)| name))
    }
}

/// Status of a command other than Connect, for `Display`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandStatus(pub Status);

impl fmt::Display for CommandStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.write(f, self.0.readings().map(|(name, other)| other.unwrap_or(name)))
    }
}

impl Status {
    /// Returns the name, and the different name that the code has for an I/O command.
    fn readings(self) -> Option<(&'static str, Option<&'static str>)> {
        let both = self.name()?;
        let of_io = |rest: &'static str| rest.strip_suffix(" for an I/O command)");
        let two = both.split_once(" (").and_then(|(name, rest)| Some((name, Some(of_io(rest)?))));
        Some(two.unwrap_or((both, None)))
    }

    fn write(self, f: &mut fmt::Formatter<'_>, name: Option<&str>) -> fmt::Result {
        match name {
            Some(name) => f.write_str(name)?,
            None => write!(f, "{}, code {:#04x}", self.code_type(), self.code())?,
        }
        write!(f, " (SCT {:#x} SC {:#04x}", self.code_type().0, self.code())?;
        if self.retry_delay() != 0 {
            write!(f, " CRD {}", self.retry_delay())?;
        }
        if self.more() {
            f.write_str(" M")?;
        }
        if self.do_not_retry() {
            f.write_str(" DNR")?;
        }
        f.write_str(")")
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl core::error::Error for Status {}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::format;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn connect_and_io_statuses_print_their_own_names() {
        let status = Status::CONNECT_INVALID_PARAMETERS.with_dnr();
        let text = format!("{}", ConnectStatus(status));
        assert_eq!(text, "Connect Invalid Parameters (SCT 0x1 SC 0x82 DNR)");
        let text = format!("{}", CommandStatus(status));
        assert_eq!(text, "Attempted Write to Read Only Range (SCT 0x1 SC 0x82 DNR)");
        let text = format!("{}", CommandStatus(Status::INVALID_FIELD));
        assert_eq!(text, "Invalid Field in Command (SCT 0x0 SC 0x02)");
        assert!(format!("{}", Status::CONNECT_INVALID_PARAMETERS).contains("Read Only Range"));
    }

    #[test]
    fn numbers_and_names_are_distinct() {
        let numbers: BTreeSet<_> = Status::NAMED.iter().map(|status| status.to_bits()).collect();
        let names: BTreeSet<_> = Status::NAMED.iter().map(|status| status.name()).collect();
        assert_eq!(numbers.len(), Status::NAMED.len());
        assert_eq!(names.len(), Status::NAMED.len());
    }

    #[test]
    fn numbers_are_those_that_linux_prints() {
        assert_eq!(Status::INVALID_FIELD.with_dnr().to_bits(), 0x4002);
        assert_eq!(Status::CONNECT_INVALID_PARAMETERS.to_bits(), 0x182);
        assert_eq!(Status::NAMESPACE_IS_WRITE_PROTECTED.to_bits(), 0x20);
        assert_eq!(Status::UNRECOVERED_READ_ERROR.to_bits(), 0x281);
        assert_eq!(Status::ANA_INACCESSIBLE.to_bits(), 0x302);
        assert_eq!(Status::LBA_OUT_OF_RANGE.to_wire(), 0x100);
    }

    #[test]
    fn prints_words_numbers_and_flags() {
        let status = Status::NAMESPACE_IS_WRITE_PROTECTED.with_dnr();
        assert_eq!(format!("{status}"), "Namespace Is Write Protected (SCT 0x0 SC 0x20 DNR)");
        let vendor = Status::new(StatusCodeType::VENDOR, 0xC1).with_more().with_retry_delay(2);
        assert_eq!(format!("{vendor}"), "Vendor Specific, code 0xc1 (SCT 0x7 SC 0xc1 CRD 2 M)");
        let unknown = Status::new(StatusCodeType(5), 3);
        assert_eq!(format!("{unknown:?}"), "0x05, code 0x03 (SCT 0x5 SC 0x03)");
    }

    proptest! {
        #[test]
        fn parts_make_the_whole(field: u16) {
            let status = Status::from_wire(field);
            prop_assert_eq!(status.to_wire(), field & !1);
            let mut again = Status::new(status.code_type(), status.code())
                .with_retry_delay(status.retry_delay());
            prop_assert!(again.is(status));
            if status.more() {
                again = again.with_more();
            }
            if status.do_not_retry() {
                again = again.with_dnr();
            }
            prop_assert_eq!(again, status);
            prop_assert_eq!(status.ok().is_ok(), status.code_type().0 == 0 && status.code() == 0);
        }
    }
}
