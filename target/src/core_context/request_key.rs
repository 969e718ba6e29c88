//! Identity of a request, by which storage and buffers find its connection.

/// Identity of a request in a poll group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestKey {
    /// Index of the transport in its poll group.
    pub transport: u8,
    /// Index of the connection in its transport.
    pub connection: u32,
    /// Index of its request slot in the connection.
    pub slot: u32,
}

impl RequestKey {
    const CONNECTION_BITS: u32 = 24;

    /// Whether both requests belong to one connection.
    pub(crate) fn is_of_connection(self, other: Self) -> bool {
        (self.transport, self.connection) == (other.transport, other.connection)
    }

    /// Packs the key into a number, for the `Tag` of an operation.
    pub(crate) fn to_bits(self) -> u64 {
        debug_assert!(self.connection < 1 << Self::CONNECTION_BITS);
        u64::from(self.transport) << 56 | u64::from(self.connection) << 32 | u64::from(self.slot)
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        Self {
            transport: (bits >> 56) as u8,
            connection: (bits >> 32) as u32 & ((1 << Self::CONNECTION_BITS) - 1),
            slot: bits as u32,
        }
    }
}
