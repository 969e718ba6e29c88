//! The datagram extended transport header (DETH).

use crate::Qpn;

/// The queue key and the source queue pair of a UD packet (IBTA volume 1, 9.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// Queue key, which must equal that of the receiving queue pair.
    pub qkey: u32,
    /// Queue pair that sent the datagram.
    pub source_qpn: Qpn,
}

impl Deth {
    /// Size of the header on the wire.
    pub const BYTES: usize = 8;

    /// The well-known queue key of the general services interface (GSI).
    pub const GSI_QKEY: u32 = 0x8001_0000;

    pub(super) fn parse(bytes: &[u8; Self::BYTES]) -> Self {
        let [k3, k2, k1, k0, _, q2, q1, q0] = *bytes;
        Self {
            qkey: u32::from_be_bytes([k3, k2, k1, k0]),
            source_qpn: Qpn::new(u32::from_be_bytes([0, q2, q1, q0])),
        }
    }

    pub(super) fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.qkey.to_be_bytes());
        bytes[4..].copy_from_slice(&self.source_qpn.value().to_be_bytes());
        bytes
    }
}
