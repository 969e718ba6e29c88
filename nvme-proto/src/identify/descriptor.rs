//! Namespace Identification Descriptor list, CNS 03h.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{Csi, Reserved};

/// Namespace Identification Descriptor: an identifier of a namespace, or its command set (Base,
/// 5.1.13.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdDescriptor {
    /// IEEE extended unique identifier.
    Eui64([u8; 8]),
    /// Namespace globally unique identifier.
    Nguid([u8; 16]),
    /// UUID, in the byte order of its text.
    Uuid([u8; 16]),
    /// I/O command set of the namespace.
    Csi(Csi),
}

/// Header of each descriptor on the wire.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct IdDescriptorHeader {
    /// Type of the descriptor, NIDT.
    pub nidt: DescriptorType,
    /// Length of the identifier after the header in bytes, NIDL; 0 ends the list.
    pub nidl: u8,
    reserved_2: Reserved<2>,
}

const _: () = assert!(size_of::<IdDescriptorHeader>() == 4);

open_enum! {
    /// Type of a descriptor, NIDT.
    #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
    pub struct DescriptorType(u8) {
        EUI64 = 0x01, "EUI64";
        NGUID = 0x02, "NGUID";
        UUID = 0x03, "UUID";
        CSI = 0x04, "CSI";
    }
}

/// Writes a list into `data` and fills the rest with zeros. Descriptors that do not fit are left
/// out.
pub fn write_descriptors(data: &mut [u8], descriptors: &[IdDescriptor]) {
    data.fill(0);
    let mut rest = data;
    for descriptor in descriptors {
        let value = descriptor.value();
        let length = size_of::<IdDescriptorHeader>() + value.len();
        // The length fits one byte: values have at most 16 bytes.
        let header = IdDescriptorHeader {
            nidt: descriptor.descriptor_type(),
            nidl: value.len() as u8,
            reserved_2: Reserved::ZERO,
        };
        let Some((slot, after)) = rest.split_at_mut_checked(length) else { return };
        let (head, tail) = slot.split_at_mut(size_of::<IdDescriptorHeader>());
        head.copy_from_slice(header.as_bytes());
        tail.copy_from_slice(value);
        rest = after;
    }
}

impl IdDescriptor {
    const fn descriptor_type(&self) -> DescriptorType {
        match self {
            Self::Eui64(_) => DescriptorType::EUI64,
            Self::Nguid(_) => DescriptorType::NGUID,
            Self::Uuid(_) => DescriptorType::UUID,
            Self::Csi(_) => DescriptorType::CSI,
        }
    }

    fn value(&self) -> &[u8] {
        match self {
            Self::Eui64(value) => value,
            Self::Nguid(value) | Self::Uuid(value) => value,
            Self::Csi(csi) => csi.as_bytes(),
        }
    }

    fn parse(nidt: DescriptorType, value: &[u8]) -> Option<Self> {
        match nidt {
            DescriptorType::EUI64 => value.try_into().ok().map(Self::Eui64),
            DescriptorType::NGUID => value.try_into().ok().map(Self::Nguid),
            DescriptorType::UUID => value.try_into().ok().map(Self::Uuid),
            DescriptorType::CSI => value.first().map(|&csi| Self::Csi(Csi(csi))),
            _ => None,
        }
    }
}

/// Iterator over the descriptors of a received list. It skips those of unknown type or wrong
/// length, and stops at the end of the list or of the data.
#[derive(Clone, Debug)]
pub struct Descriptors<'a> {
    rest: &'a [u8],
}

impl<'a> Descriptors<'a> {
    /// Creates an iterator over the data that Identify returned.
    pub const fn new(data: &'a [u8]) -> Self {
        Self { rest: data }
    }
}

impl Iterator for Descriptors<'_> {
    type Item = IdDescriptor;

    fn next(&mut self) -> Option<IdDescriptor> {
        loop {
            let (header, after) = IdDescriptorHeader::ref_from_prefix(self.rest).ok()?;
            if header.nidl == 0 {
                return None;
            }
            let (value, rest) = after.split_at_checked(usize::from(header.nidl))?;
            self.rest = rest;
            if let Some(descriptor) = IdDescriptor::parse(header.nidt, value) {
                return Some(descriptor);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;

    const ALL: [IdDescriptor; 4] = [
        IdDescriptor::Eui64([1; 8]),
        IdDescriptor::Nguid([2; 16]),
        IdDescriptor::Uuid([3; 16]),
        IdDescriptor::Csi(Csi::NVM),
    ];

    #[test]
    fn a_list_round_trips() {
        let mut data = [0xEE; 4096];
        write_descriptors(&mut data, &ALL);
        assert_eq!(data[..5], [1, 8, 0, 0, 1]);
        assert_eq!(data[52..58], [4, 1, 0, 0, 0, 0]);
        assert_eq!(Descriptors::new(&data).collect::<Vec<_>>(), ALL);
    }

    #[test]
    fn descriptors_that_do_not_fit_are_left_out() {
        let mut data = [0xEE; 12 + 4];
        write_descriptors(&mut data, &ALL);
        assert_eq!(Descriptors::new(&data).collect::<Vec<_>>(), ALL[..1]);
        assert_eq!(data[12..], [0; 4]);
        write_descriptors(&mut [], &ALL);
    }

    #[test]
    fn strange_descriptors_are_passed_over() {
        // An unknown type, a UUID of the wrong length, a command set, and one that is cut off.
        let data = [9, 2, 0, 0, 7, 7, 3, 1, 0, 0, 7, 4, 1, 0, 0, 2, 2, 16, 0, 0, 7];
        let found: Vec<_> = Descriptors::new(&data).collect();
        assert_eq!(found, [IdDescriptor::Csi(Csi::ZONED)]);
    }
}
