//! Opcodes in the base transport header.

use core::fmt;

/// An opcode: the upper three bits are the transport service, the lower five the operation (IBTA
/// volume 1, 9.2.1). Unknown values are kept.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Opcode(pub u8);

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal;)*) => {
        impl Opcode {
            $($(#[$doc])* pub const $name: Self = Self($value);)*
        }

        impl fmt::Display for Opcode {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match *self {
                    $(Self::$name => f.write_str($text),)*
                    Self(other) => write!(f, "opcode {other:#04x}"),
                }
            }
        }
    };
}

opcodes! {
    /// First packet of a SEND.
    SEND_FIRST = 0x00, "RC SEND First";
    /// Middle packet of a SEND.
    SEND_MIDDLE = 0x01, "RC SEND Middle";
    /// Last packet of a SEND.
    SEND_LAST = 0x02, "RC SEND Last";
    /// Last packet of a SEND with immediate data.
    SEND_LAST_IMMEDIATE = 0x03, "RC SEND Last with Immediate";
    /// A SEND of one packet.
    SEND_ONLY = 0x04, "RC SEND Only";
    /// A SEND of one packet with immediate data.
    SEND_ONLY_IMMEDIATE = 0x05, "RC SEND Only with Immediate";
    /// First packet of an RDMA WRITE.
    WRITE_FIRST = 0x06, "RC RDMA WRITE First";
    /// Middle packet of an RDMA WRITE.
    WRITE_MIDDLE = 0x07, "RC RDMA WRITE Middle";
    /// Last packet of an RDMA WRITE.
    WRITE_LAST = 0x08, "RC RDMA WRITE Last";
    /// Last packet of an RDMA WRITE with immediate data.
    WRITE_LAST_IMMEDIATE = 0x09, "RC RDMA WRITE Last with Immediate";
    /// An RDMA WRITE of one packet.
    WRITE_ONLY = 0x0A, "RC RDMA WRITE Only";
    /// An RDMA WRITE of one packet with immediate data.
    WRITE_ONLY_IMMEDIATE = 0x0B, "RC RDMA WRITE Only with Immediate";
    /// An RDMA READ request.
    READ_REQUEST = 0x0C, "RC RDMA READ Request";
    /// First packet of an RDMA READ response.
    READ_RESPONSE_FIRST = 0x0D, "RC RDMA READ Response First";
    /// Middle packet of an RDMA READ response.
    READ_RESPONSE_MIDDLE = 0x0E, "RC RDMA READ Response Middle";
    /// Last packet of an RDMA READ response.
    READ_RESPONSE_LAST = 0x0F, "RC RDMA READ Response Last";
    /// An RDMA READ response of one packet.
    READ_RESPONSE_ONLY = 0x10, "RC RDMA READ Response Only";
    /// An acknowledgement, positive or negative.
    ACKNOWLEDGE = 0x11, "RC Acknowledge";
    /// Last packet of a SEND that invalidates a key.
    SEND_LAST_INVALIDATE = 0x16, "RC SEND Last with Invalidate";
    /// A SEND of one packet that invalidates a key.
    SEND_ONLY_INVALIDATE = 0x17, "RC SEND Only with Invalidate";
    /// A Feedrail selective acknowledgement, in the manufacturer-defined opcode range; sent only to
    /// peers that agreed to it in the CM exchange.
    SELECTIVE_ACKNOWLEDGE = 0xD1, "Feedrail Selective Acknowledge";
    /// A UD SEND of one packet; it carries connection management.
    UD_SEND_ONLY = 0x64, "UD SEND Only";
    /// A congestion notification packet (annex A17).
    CONGESTION_NOTIFICATION = 0x81, "CNP";
}

impl Opcode {
    /// Whether it is an opcode of the reliable-connection service.
    pub const fn is_reliable_connection(self) -> bool {
        self.0 >> 5 == 0
    }
}

impl fmt::Debug for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
