//! Memory that a provider sends from, in which its user places the payload of an RDMA WRITE.

use core::ptr::NonNull;

/// Room for the payload of an RDMA WRITE: [`crate::Group::write_room`]. Dropping it gives it up.
#[derive(Debug)]
#[must_use = "nothing is sent until the room is passed to `send_room`"]
pub struct WriteRoom {
    pub(crate) address: NonNull<u8>,
    pub(crate) length: u32,
    /// Position of the room in the provider's memory, by which it recognises an outdated one.
    pub(crate) position: u64,
}

impl WriteRoom {
    /// Address of the first byte. It may be written until the next call of a method of the group;
    /// the peer may read and write the bytes at any time, so nobody reads them.
    pub fn address(&self) -> NonNull<u8> {
        self.address
    }

    /// Length in bytes, at most that of one message record of the provider.
    pub fn length(&self) -> u32 {
        self.length
    }
}
