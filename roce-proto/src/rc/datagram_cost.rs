//! The receive-buffer space that a datagram takes.

use crate::wire::{Bth, Reth};

/// Length of the transport headers and ICRC of a typical packet, in bytes.
pub(super) const HEADERS_BYTES: usize = Bth::BYTES + Reth::BYTES + 4;

/// The bytes that Linux charges to a socket's receive buffer for a datagram: a power of two for
/// packet, network headers and `skb_shared_info`, plus a fixed part. A default buffer of 212,992
/// bytes (which Linux doubles to 425,984) holds 50 datagrams of 4,128 bytes or 184 of 1,044.
pub const fn datagram_cost(udp_payload_bytes: usize) -> u64 {
    (udp_payload_bytes as u64 + 384).next_power_of_two() + 256
}

#[cfg(test)]
mod tests {
    use super::datagram_cost;

    /// A stock receive buffer, as the kernel counts it.
    const STOCK_BUFFER: u64 = 425_984;

    #[test]
    fn costs_are_those_that_were_measured() {
        assert_eq!(STOCK_BUFFER / datagram_cost(4128), 50);
        assert_eq!(STOCK_BUFFER / datagram_cost(1044), 184);
    }
}
