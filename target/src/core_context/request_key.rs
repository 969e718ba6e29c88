//! Identity of a request, by which storage and buffers find its connection.

use crate::controller::JobId;

/// Identity of a request, or of a flush that a controller requested, in a poll group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestKey {
    /// Index of the transport in its poll group.
    pub transport: u8,
    /// Index of the connection in its transport.
    pub connection: u32,
    /// Slot or job of the connection.
    pub owner: OperationOwner,
}

/// Owner of a storage operation in its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationOwner {
    /// The request in this slot.
    Slot(SlotId),
    /// A flush that the controller requested.
    Flush(JobId),
}

/// Index of a request slot in its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotId(pub u32);

impl RequestKey {
    /// Whether both requests belong to one connection.
    pub(crate) fn is_of_connection(self, other: Self) -> bool {
        (self.transport, self.connection) == (other.transport, other.connection)
    }
}
