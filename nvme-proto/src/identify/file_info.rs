//! File behind a namespace, in Feedrail's vendor-specific bytes of Identify Namespace.

use core::fmt;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Exact length, name, generation and description of the file that a namespace exports. A
/// Feedrail target reports them in the vendor-specific bytes of Identify Namespace, 384 to 4095
/// (NVM, 4.1.5.1), since NSZE can only express whole blocks. All numbers are little-endian:
///
/// | byte | content |
/// |---|---|
/// | 384..392 | magic, `FEEDRAIL` in ASCII |
/// | 392..394 | version: 2, or 3 with a description |
/// | 394..396 | length of the name in bytes, 0 to [`MAX_NAME_BYTES`] |
/// | 396..400 | CRC-32 (the one of zlib) of bytes 384..4096 with these four taken as zero |
/// | 400..408 | length of the file in bytes |
/// | 408..416 | generation |
/// | 416.. | name, UTF-8; in version 3 the description, UTF-8; after them zeros |
///
/// Version 1 has no generation, and its name begins at byte 408. In version 3 the name begins at
/// byte 418, after the length of the description in bytes, which is not 0.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FileInfo<'a> {
    length_bytes: u64,
    name: &'a str,
    generation: Option<u64>,
    /// Empty without a description, and in a record without a generation.
    description: &'a str,
}

/// Longest name in bytes.
pub const MAX_NAME_BYTES: usize = AREA_BYTES - size_of::<Header>() - size_of::<U64>();

/// Size of the vendor-specific bytes of Identify Namespace.
pub(super) const AREA_BYTES: usize = 4096 - 384;

const MAGIC: [u8; 8] = *b"FEEDRAIL";
const WITHOUT_GENERATION: u16 = 1;
const WITH_GENERATION: u16 = 2;
const WITH_DESCRIPTION: u16 = 3;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    version: U16,
    name_bytes: U16,
    crc: U32,
    length_bytes: U64,
}

const _: () = assert!(size_of::<Header>() == 24);

impl<'a> FileInfo<'a> {
    /// Creates a record without a generation. A name that is too long is cut at a character
    /// boundary.
    pub fn new(length_bytes: u64, name: &'a str) -> Self {
        let name = &name[..name.floor_char_boundary(MAX_NAME_BYTES)];
        Self { length_bytes, name, generation: None, description: "" }
    }

    /// Adds a generation; the record is then encoded in version 2 of the layout.
    #[must_use]
    pub const fn with_generation(self, generation: u64) -> Self {
        Self { generation: Some(generation), ..self }
    }

    /// Adds a description to a record with a generation; the record is then encoded in version 3 of
    /// the layout. A description that leaves too little room for the name is cut at a character
    /// boundary.
    #[must_use]
    pub fn with_description(self, description: &'a str) -> Self {
        if self.generation.is_none() {
            return self;
        }
        let room = (MAX_NAME_BYTES - size_of::<U16>()).saturating_sub(self.name.len());
        let description = &description[..description.floor_char_boundary(room)];
        Self { description, ..self }
    }

    /// Decodes the vendor-specific bytes; `None` unless they are an undamaged record of a known
    /// version.
    pub fn parse(area: &'a [u8]) -> Option<Self> {
        let area = area.get(..AREA_BYTES)?;
        let (header, rest) = Header::ref_from_prefix(area).ok()?;
        let name_bytes = usize::from(header.name_bytes.get());
        if header.magic != MAGIC || name_bytes > MAX_NAME_BYTES || header.crc.get() != crc(area) {
            return None;
        }
        let version = header.version.get();
        let (generation, rest) = match version {
            WITHOUT_GENERATION => (None, rest),
            WITH_GENERATION | WITH_DESCRIPTION => {
                let (generation, rest) = U64::ref_from_prefix(rest).ok()?;
                (Some(generation.get()), rest)
            }
            _ => return None,
        };
        let (description_bytes, rest) = match version {
            WITH_DESCRIPTION => {
                let (bytes, rest) = U16::ref_from_prefix(rest).ok()?;
                (usize::from(Some(bytes.get()).filter(|bytes| *bytes > 0)?), rest)
            }
            _ => (0, rest),
        };
        let (name, rest) = rest.split_at_checked(name_bytes)?;
        let (description, padding) = rest.split_at_checked(description_bytes)?;
        if padding.iter().any(|&byte| byte != 0) {
            return None;
        }
        let name = core::str::from_utf8(name).ok()?;
        let description = core::str::from_utf8(description).ok()?;
        Some(Self { length_bytes: header.length_bytes.get(), name, generation, description })
    }

    /// Encodes the record as vendor-specific bytes, with its CRC.
    pub fn to_bytes(&self) -> [u8; AREA_BYTES] {
        let mut header = Header {
            magic: MAGIC,
            version: U16::new(match self.generation {
                None => WITHOUT_GENERATION,
                Some(_) if self.description.is_empty() => WITH_GENERATION,
                Some(_) => WITH_DESCRIPTION,
            }),
            // `new` and `parse` limit the length.
            name_bytes: U16::new(self.name.len() as u16),
            crc: U32::ZERO,
            length_bytes: U64::new(self.length_bytes),
        };
        let mut area = [0; AREA_BYTES];
        let (head, rest) = area.split_at_mut(size_of::<Header>());
        head.copy_from_slice(header.as_bytes());
        let rest = match self.generation {
            None => rest,
            Some(generation) => {
                let (place, rest) = rest.split_at_mut(size_of::<U64>());
                place.copy_from_slice(U64::new(generation).as_bytes());
                rest
            }
        };
        let rest = match self.description.len() as u16 {
            0 => rest,
            bytes => {
                let (place, rest) = rest.split_at_mut(size_of::<U16>());
                place.copy_from_slice(U16::new(bytes).as_bytes());
                rest
            }
        };
        let (name, rest) = rest.split_at_mut(self.name.len());
        name.copy_from_slice(self.name.as_bytes());
        rest[..self.description.len()].copy_from_slice(self.description.as_bytes());
        header.crc = U32::new(crc(&area));
        area[..size_of::<Header>()].copy_from_slice(header.as_bytes());
        area
    }

    /// Length of the file in bytes.
    pub const fn length_bytes(&self) -> u64 {
        self.length_bytes
    }

    /// Name of the file as reported by the target, which is not trusted: it may have any
    /// characters.
    pub const fn name(&self) -> &'a str {
        self.name
    }

    /// Generation of the file. If it differs from an earlier one of the same namespace, the content
    /// may differ. Targets with the same content may report different generations. `None` if the
    /// target does not report it.
    pub const fn generation(&self) -> Option<u64> {
        self.generation
    }

    /// Operator's description of the namespace, which is not trusted: it may have any characters.
    /// `None` if the target does not report one.
    pub fn description(&self) -> Option<&'a str> {
        Some(self.description).filter(|text| !text.is_empty())
    }
}

/// CRC of the vendor-specific bytes, with the CRC field taken as zero.
fn crc(area: &[u8]) -> u32 {
    let (before, after) = area.split_at(core::mem::offset_of!(Header, crc));
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(before);
    hasher.update(&[0; 4]);
    hasher.update(after.get(4..).unwrap_or_default());
    hasher.finalize()
}

impl fmt::Debug for FileInfo<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "file {:?} of {} bytes", self.name, self.length_bytes)?;
        match self.generation {
            Some(generation) => write!(f, ", generation {generation:016x}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::string::String;

    use proptest::prelude::*;
    use zerocopy::FromZeros;

    use super::*;
    use crate::identify::IdentifyNamespace;

    #[test]
    fn the_layout_with_a_generation_is_as_documented() {
        let info = FileInfo::new(18_071, "shard-0").with_generation(0x0102_0304_0506_0708);
        let area = info.to_bytes();
        assert_eq!(area[..12], *b"FEEDRAIL\x02\x00\x07\x00");
        assert_eq!(area[16..24], 18_071u64.to_le_bytes());
        assert_eq!(area[24..32], [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(area[32..40], *b"shard-0\x00");
        let parsed = FileInfo::parse(&area).expect("a record");
        assert_eq!(parsed.generation(), Some(0x0102_0304_0506_0708));
    }

    #[test]
    fn the_layout_with_a_description_is_as_documented() {
        let info = FileInfo::new(1, "a").with_description("lost");
        assert_eq!(info.description(), None);
        let info = info.with_generation(7).with_description("tokens");
        let area = info.to_bytes();
        assert_eq!(
            (&area[8..12], &area[32..42]),
            (&b"\x03\x00\x01\x00"[..], &b"\x06\x00atokens\x00"[..])
        );
        assert_eq!(FileInfo::parse(&area).expect("a record").description(), Some("tokens"));
        let name = "n".repeat(MAX_NAME_BYTES);
        let full = FileInfo::new(1, &name).with_generation(7).with_description("tokens");
        assert_eq!(FileInfo::parse(&full.to_bytes()), Some(full));
        let long = "d".repeat(2 * MAX_NAME_BYTES);
        let cut = FileInfo::new(1, "a").with_generation(7).with_description(&long);
        assert_eq!(FileInfo::parse(&cut.to_bytes()), Some(cut));
    }

    #[test]
    fn the_layout_is_as_documented() {
        let mut namespace = IdentifyNamespace::new_zeroed();
        assert_eq!(namespace.file_info(), None);
        namespace.set_file_info(&FileInfo::new(18_071, "shard-0"));
        let bytes = namespace.as_bytes();
        assert_eq!(bytes[384..396], *b"FEEDRAIL\x01\x00\x07\x00");
        assert_eq!(bytes[400..408], 18_071u64.to_le_bytes());
        assert_eq!(bytes[408..416], *b"shard-0\x00");
        let mut zeroed = [0; AREA_BYTES];
        zeroed.copy_from_slice(&bytes[384..]);
        zeroed[12..16].fill(0);
        assert_eq!(bytes[396..400], crc32fast::hash(&zeroed).to_le_bytes());
        assert_eq!(namespace.file_info(), Some(FileInfo::new(18_071, "shard-0")));
    }

    #[test]
    fn long_names_are_cut_between_characters() {
        let name = "é".repeat(MAX_NAME_BYTES);
        let info = FileInfo::new(1, &name);
        assert_eq!(info.name().len(), MAX_NAME_BYTES - MAX_NAME_BYTES % 2);
        assert_eq!(FileInfo::parse(&info.to_bytes()), Some(info));
    }

    #[test]
    fn invalid_records_with_a_valid_crc_are_refused() {
        let seal = |mut area: [u8; AREA_BYTES]| {
            area[12..16].fill(0);
            let crc = crc32fast::hash(&area);
            area[12..16].copy_from_slice(&crc.to_le_bytes());
            area
        };
        let good = FileInfo::new(5, "name").to_bytes();
        assert!(FileInfo::parse(&seal(good)).is_some());
        // Version, length of the name, text of the name, padding.
        for (at, value) in [(8, 4), (11, 0xFF), (10, 3), (24, 0xFF), (AREA_BYTES - 1, 1)] {
            let mut area = good;
            area[at] = value;
            assert_eq!(FileInfo::parse(&seal(area)), None, "byte {at}");
        }
        assert_eq!(FileInfo::parse(&good[..AREA_BYTES - 1]), None);
    }

    proptest! {
        #[test]
        fn round_trips_and_any_flipped_bit_is_noticed(
            length: u64, name: String, generation: Option<u64>, description: String,
            at in 0..AREA_BYTES, bit in 0..8,
        ) {
            let info = FileInfo { generation, ..FileInfo::new(length, &name) };
            let info = info.with_description(&description);
            let mut area = info.to_bytes();
            prop_assert_eq!(FileInfo::parse(&area), Some(info));
            area[at] ^= 1u8 << bit;
            prop_assert_eq!(FileInfo::parse(&area), None);
        }

        #[test]
        fn foreign_bytes_are_no_record(bytes in prop::collection::vec(any::<u8>(), 0..AREA_BYTES + 8)) {
            prop_assert_eq!(FileInfo::parse(&bytes), None);
        }
    }
}
