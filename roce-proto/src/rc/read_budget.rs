//! How much may be on its way to a receive socket at our own request.

use crate::rc::window::{HEADERS_BYTES, datagram_cost};

/// Bytes of RDMA READ responses that may be outstanding towards one local receive socket, for all queue pairs
/// that receive through it. Responses are not acknowledged, so the requester alone can keep them from
/// overrunning its own socket.
///
/// Bytes count as the kernel charges them to a socket's receive buffer, see [`datagram_cost`].
#[derive(Clone, Debug)]
pub struct ReadBudget {
    limit: u64,
    used: u64,
}

impl ReadBudget {
    /// A budget for a socket whose receive buffer is `receive_buffer_bytes` as `getsockopt(SO_RCVBUF)` tells it
    /// (Linux: twice what was set). A quarter is left for everything that is not a READ response.
    pub const fn new(receive_buffer_bytes: u64) -> Self {
        Self { limit: receive_buffer_bytes / 4 * 3, used: 0 }
    }

    /// No limit: for a network that drops nothing for lack of room.
    pub const fn unlimited() -> Self {
        Self { limit: u64::MAX, used: 0 }
    }

    /// What is outstanding, as the kernel charges it.
    pub const fn used(&self) -> u64 {
        self.used
    }

    /// How many response packets with `payload_bytes` each may be asked for, at most `wanted`. When nothing is
    /// outstanding it is at least one.
    pub(super) fn admits(&self, wanted: u32, payload_bytes: u32) -> u32 {
        let fitting = self.limit.saturating_sub(self.used) / Self::cost(payload_bytes);
        let fitting = if self.used == 0 { fitting.max(1) } else { fitting };
        u32::try_from(fitting).unwrap_or(u32::MAX).min(wanted)
    }

    pub(super) fn charge(&mut self, packets: u32, payload_bytes: u32) {
        self.used += u64::from(packets) * Self::cost(payload_bytes);
    }

    pub(super) fn release(&mut self, packets: u32, payload_bytes: u32) {
        let released = u64::from(packets) * Self::cost(payload_bytes);
        debug_assert!(released <= self.used, "more READ responses arrived than were asked for");
        self.used = self.used.saturating_sub(released);
    }

    fn cost(payload_bytes: u32) -> u64 {
        datagram_cost(payload_bytes as usize + HEADERS_BYTES)
    }
}
