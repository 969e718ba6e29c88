//! Opcodes, and the direction of data that their low two bits imply.

open_enum! {
    /// Opcodes of the admin command set (Base, 5).
    pub struct AdminOpcode(u8) {
        DELETE_IO_SQ = 0x00, "Delete I/O Submission Queue";
        CREATE_IO_SQ = 0x01, "Create I/O Submission Queue";
        GET_LOG_PAGE = 0x02, "Get Log Page";
        DELETE_IO_CQ = 0x04, "Delete I/O Completion Queue";
        CREATE_IO_CQ = 0x05, "Create I/O Completion Queue";
        IDENTIFY = 0x06, "Identify";
        ABORT = 0x08, "Abort";
        SET_FEATURES = 0x09, "Set Features";
        GET_FEATURES = 0x0A, "Get Features";
        ASYNC_EVENT_REQUEST = 0x0C, "Asynchronous Event Request";
        NAMESPACE_MANAGEMENT = 0x0D, "Namespace Management";
        FIRMWARE_COMMIT = 0x10, "Firmware Commit";
        FIRMWARE_IMAGE_DOWNLOAD = 0x11, "Firmware Image Download";
        DEVICE_SELF_TEST = 0x14, "Device Self-test";
        NAMESPACE_ATTACHMENT = 0x15, "Namespace Attachment";
        KEEP_ALIVE = 0x18, "Keep Alive";
        DIRECTIVE_SEND = 0x19, "Directive Send";
        DIRECTIVE_RECEIVE = 0x1A, "Directive Receive";
        VIRTUALIZATION_MANAGEMENT = 0x1C, "Virtualization Management";
        NVME_MI_SEND = 0x1D, "NVMe-MI Send";
        NVME_MI_RECEIVE = 0x1E, "NVMe-MI Receive";
        CAPACITY_MANAGEMENT = 0x20, "Capacity Management";
        DISCOVERY_INFORMATION_MANAGEMENT = 0x21, "Discovery Information Management";
        LOCKDOWN = 0x24, "Lockdown";
        DOORBELL_BUFFER_CONFIG = 0x7C, "Doorbell Buffer Config";
        FABRICS = 0x7F, "Fabrics Commands";
        FORMAT_NVM = 0x80, "Format NVM";
        SECURITY_SEND = 0x81, "Security Send";
        SECURITY_RECEIVE = 0x82, "Security Receive";
        SANITIZE = 0x84, "Sanitize";
        GET_LBA_STATUS = 0x86, "Get LBA Status";
    }
}

open_enum! {
    /// Opcodes of the NVM command set (NVM, 3).
    pub struct NvmOpcode(u8) {
        FLUSH = 0x00, "Flush";
        WRITE = 0x01, "Write";
        READ = 0x02, "Read";
        WRITE_UNCORRECTABLE = 0x04, "Write Uncorrectable";
        COMPARE = 0x05, "Compare";
        WRITE_ZEROES = 0x08, "Write Zeroes";
        DATASET_MANAGEMENT = 0x09, "Dataset Management";
        VERIFY = 0x0C, "Verify";
        RESERVATION_REGISTER = 0x0D, "Reservation Register";
        RESERVATION_REPORT = 0x0E, "Reservation Report";
        RESERVATION_ACQUIRE = 0x11, "Reservation Acquire";
        IO_MANAGEMENT_RECEIVE = 0x12, "I/O Management Receive";
        RESERVATION_RELEASE = 0x15, "Reservation Release";
        CANCEL = 0x18, "Cancel";
        COPY = 0x19, "Copy";
        IO_MANAGEMENT_SEND = 0x1D, "I/O Management Send";
        FABRICS = 0x7F, "Fabrics Commands";
        READ_RANGES = 0xC2, "Read Ranges of Feedrail";
    }
}

/// Opcode of all fabrics commands, on any queue (Base, 6).
pub const FABRICS_OPCODE: u8 = 0x7F;

open_enum! {
    /// Fabrics command type, FCTYPE (Base, 6).
    pub struct FabricsType(u8) {
        PROPERTY_SET = 0x00, "Property Set";
        CONNECT = 0x01, "Connect";
        PROPERTY_GET = 0x04, "Property Get";
        AUTHENTICATION_SEND = 0x05, "Authentication Send";
        AUTHENTICATION_RECEIVE = 0x06, "Authentication Receive";
        DISCONNECT = 0x08, "Disconnect";
    }
}

/// Direction of data, from the low two bits of an opcode or FCTYPE (Base, 4.1, command dword 0).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataDirection {
    /// No data: the low two bits are 00b.
    None,
    /// Transfer from the host, 01b: on RDMA in the capsule, or by RDMA READ from the host's memory.
    HostToController,
    /// Transfer to the host, 10b: on RDMA by RDMA WRITE into the host's memory.
    ControllerToHost,
    /// Both directions, 11b; no command of this crate has it.
    Bidirectional,
}

impl DataDirection {
    /// Returns the direction that an opcode or FCTYPE implies.
    pub const fn of(code: u8) -> Self {
        match code & 0b11 {
            0b00 => Self::None,
            0b01 => Self::HostToController,
            0b10 => Self::ControllerToHost,
            _ => Self::Bidirectional,
        }
    }
}
