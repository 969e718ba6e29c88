//! The RDMA extended transport header (RETH).

/// The remote memory of an RDMA WRITE or RDMA READ request (IBTA volume 1, 9.3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// Address of the first byte.
    pub addr: u64,
    /// Key of the region or window.
    pub rkey: u32,
    /// Length of the whole message in bytes.
    pub length: u32,
}

impl Reth {
    /// Size of the header on the wire.
    pub const BYTES: usize = 16;

    pub(super) fn parse(bytes: &[u8; Self::BYTES]) -> Self {
        let [a7, a6, a5, a4, a3, a2, a1, a0, k3, k2, k1, k0, l3, l2, l1, l0] = *bytes;
        Self {
            addr: u64::from_be_bytes([a7, a6, a5, a4, a3, a2, a1, a0]),
            rkey: u32::from_be_bytes([k3, k2, k1, k0]),
            length: u32::from_be_bytes([l3, l2, l1, l0]),
        }
    }

    pub(super) fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.rkey.to_be_bytes());
        bytes[12..].copy_from_slice(&self.length.to_be_bytes());
        bytes
    }
}
