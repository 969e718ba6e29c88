//! Scatter-gather list descriptors, 16 bytes each.

use core::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Status;

/// SGL descriptor as on the wire (Base, 4.3.2); [`SglDescriptor::parse`] decodes it.
#[derive(
    Clone, Copy, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct SglDescriptor {
    specific: [u8; 15],
    sgl_type: SglType,
}

const _: () = assert!(size_of::<SglDescriptor>() == 16);

impl SglDescriptor {
    /// Data pointer of a command without data: a keyed data block of length 0.
    pub const NO_DATA: Self = Self { specific: [0; 15], sgl_type: SglType::KEYED };

    /// Byte 15: type and subtype.
    pub const fn sgl_type(&self) -> SglType {
        self.sgl_type
    }

    /// Decodes the descriptor, if it is of a type that NVMe over RDMA uses.
    ///
    /// # Errors
    /// SGL Descriptor Type Invalid with Do Not Retry, for other types.
    #[inline]
    pub fn parse(&self) -> Result<Sgl, Status> {
        match self.sgl_type {
            SglType::KEYED => Ok(self.keyed(false)),
            SglType::KEYED_INVALIDATE => Ok(self.keyed(true)),
            SglType::OFFSET => {
                Ok(Sgl::InCapsule { offset: self.address(), length: self.length32() })
            }
            SglType::LAST_SEGMENT_OFFSET => {
                Ok(Sgl::LastSegment { offset: self.address(), length: self.length32() })
            }
            _ => Err(Status::SGL_DESCRIPTOR_TYPE_INVALID.with_dnr()),
        }
    }

    fn keyed(&self, invalidate: bool) -> Sgl {
        let [_, _, _, _, _, _, _, _, l0, l1, l2, k0, k1, k2, k3] = self.specific;
        Sgl::Keyed {
            address: self.address(),
            length: u32::from_le_bytes([l0, l1, l2, 0]),
            key: u32::from_le_bytes([k0, k1, k2, k3]),
            invalidate,
        }
    }

    fn address(&self) -> u64 {
        let [a0, a1, a2, a3, a4, a5, a6, a7, ..] = self.specific;
        u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7])
    }

    fn length32(&self) -> u32 {
        let [_, _, _, _, _, _, _, _, l0, l1, l2, l3, ..] = self.specific;
        u32::from_le_bytes([l0, l1, l2, l3])
    }
}

impl Default for SglDescriptor {
    fn default() -> Self {
        Self::NO_DATA
    }
}

impl fmt::Debug for SglDescriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parse() {
            Ok(sgl) => fmt::Debug::fmt(&sgl, f),
            Err(_) => write!(f, "SGL type {:?} {:02x?}", self.sgl_type, self.specific),
        }
    }
}

open_enum! {
    /// SGL identifier, byte 15 of a descriptor: type in bits 7:4, subtype in bits 3:0 (Base,
    /// 4.3.2).
    #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
    pub struct SglType(u8) {
        ADDRESS = 0x00, "Data Block, address";
        OFFSET = 0x01, "Data Block, offset";
        BIT_BUCKET = 0x10, "Bit Bucket";
        SEGMENT = 0x20, "Segment, address";
        SEGMENT_OFFSET = 0x21, "Segment, offset";
        LAST_SEGMENT = 0x30, "Last Segment, address";
        LAST_SEGMENT_OFFSET = 0x31, "Last Segment, offset";
        KEYED = 0x40, "Keyed Data Block, address";
        KEYED_INVALIDATE = 0x4F, "Keyed Data Block, address, invalidate key";
        TRANSPORT = 0x5A, "Transport Data Block";
    }
}

/// Decoded descriptor of a type that NVMe over RDMA uses (RDMA, on capsules and SGLs; Base, 4.3.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sgl {
    /// Keyed data block: host memory for RDMA READ or RDMA WRITE. Type 40h, or 4Fh with
    /// `invalidate`.
    Keyed {
        /// Remote address of the first byte, as the host registered it.
        address: u64,
        /// Length in bytes, below 2^24.
        length: u32,
        /// Remote key (rkey) of the host's memory registration.
        key: u32,
        /// Whether the controller may invalidate the key by sending its response with Send with
        /// Invalidate.
        invalidate: bool,
    },
    /// Data block in the command capsule. Type 01h.
    InCapsule {
        /// Offset in bytes from the start of the in-capsule data.
        offset: u64,
        /// Length of the data in bytes.
        length: u32,
    },
    /// Last segment: a list of descriptors in the command capsule. Type 31h.
    LastSegment {
        /// Offset in bytes from the start of the in-capsule data.
        offset: u64,
        /// Length of the list in bytes: 16 per descriptor.
        length: u32,
    },
}

impl Sgl {
    /// Most bytes that one keyed descriptor can describe.
    pub const KEYED_MAX_BYTES: u32 = (1 << 24) - 1;

    /// Length in bytes: of the data, or of the list of descriptors.
    pub const fn length(&self) -> u32 {
        match *self {
            Self::Keyed { length, .. }
            | Self::InCapsule { length, .. }
            | Self::LastSegment { length, .. } => length,
        }
    }
}

impl From<Sgl> for SglDescriptor {
    /// # Panics
    /// If a keyed length exceeds [`Sgl::KEYED_MAX_BYTES`], since the field has 24 bits.
    fn from(sgl: Sgl) -> Self {
        match sgl {
            Sgl::Keyed { address, length, key, invalidate } => {
                assert!(
                    length <= Sgl::KEYED_MAX_BYTES,
                    "keyed SGL length {length} exceeds 24 bits"
                );
                let sgl_type = if invalidate { SglType::KEYED_INVALIDATE } else { SglType::KEYED };
                let [l0, l1, l2, _] = length.to_le_bytes();
                let [k0, k1, k2, k3] = key.to_le_bytes();
                Self::with(address, [l0, l1, l2, k0, k1, k2, k3], sgl_type)
            }
            Sgl::InCapsule { offset, length } => {
                Self::with_length32(offset, length, SglType::OFFSET)
            }
            Sgl::LastSegment { offset, length } => {
                Self::with_length32(offset, length, SglType::LAST_SEGMENT_OFFSET)
            }
        }
    }
}

impl SglDescriptor {
    fn with_length32(address: u64, length: u32, sgl_type: SglType) -> Self {
        let [l0, l1, l2, l3] = length.to_le_bytes();
        Self::with(address, [l0, l1, l2, l3, 0, 0, 0], sgl_type)
    }

    fn with(address: u64, rest: [u8; 7], sgl_type: SglType) -> Self {
        let mut specific = [0; 15];
        let (first, second) = specific.split_at_mut(8);
        first.copy_from_slice(&address.to_le_bytes());
        second.copy_from_slice(&rest);
        Self { specific, sgl_type }
    }
}

impl fmt::Debug for Sgl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Keyed { address, length, key, invalidate } => {
                let invalidate = if invalidate { ", invalidate" } else { "" };
                write!(f, "keyed {length} bytes at {address:#x}, key {key:#010x}{invalidate}")
            }
            Self::InCapsule { offset, length } => {
                write!(f, "in capsule {length} bytes at {offset}")
            }
            Self::LastSegment { offset, length } => {
                write!(f, "last segment {length} bytes at {offset}")
            }
        }
    }
}
