//! Path MTU of a connection, and its code on the wire.

use core::fmt;

/// Payload bytes of a full packet; the same in both directions of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum PathMtu {
    /// 256 bytes, coded as 1.
    Bytes256 = 1,
    /// 512 bytes, coded as 2.
    Bytes512 = 2,
    /// 1,024 bytes, coded as 3.
    Bytes1024 = 3,
    /// 2,048 bytes, coded as 4.
    Bytes2048 = 4,
    /// 4,096 bytes, coded as 5.
    Bytes4096 = 5,
}

impl PathMtu {
    /// All path MTUs, the smallest first.
    pub const ALL: [Self; 5] =
        [Self::Bytes256, Self::Bytes512, Self::Bytes1024, Self::Bytes2048, Self::Bytes4096];

    /// The path MTU with this code on the wire, 1..=5; `None` for other codes.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.code() == code)
    }

    /// The code on the wire, 1..=5.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Payload bytes of a full packet.
    pub const fn bytes(self) -> usize {
        128 << self as u8
    }

    /// The largest path MTU of at most `bytes`; `None` if `bytes` is less than 256.
    pub fn largest_within(bytes: usize) -> Option<Self> {
        Self::ALL.into_iter().rev().find(|mtu| mtu.bytes() <= bytes)
    }
}

impl fmt::Debug for PathMtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.bytes())
    }
}
