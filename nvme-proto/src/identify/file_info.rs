//! The file behind a namespace: our vendor-specific part of Identify Namespace.

use core::fmt;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The exact length and the name of the file that a namespace is made of. A Feedrail target says so in the
/// vendor-specific bytes of Identify Namespace, 384 to 4095 (NVM, 4.1.5.1), since a namespace itself can
/// only be a whole number of blocks long. All numbers are little-endian:
///
/// | byte | what |
/// |---|---|
/// | 384..392 | magic, `FEEDRAIL` in ASCII |
/// | 392..394 | version, 1 |
/// | 394..396 | length of the name in bytes, 0 to [`MAX_NAME_BYTES`] |
/// | 396..400 | CRC-32 (the one of zlib) of bytes 384..4096 with these four taken as zero |
/// | 400..408 | length of the file in bytes |
/// | 408.. | name, UTF-8; after it zeros |
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FileInfo<'a> {
    length_bytes: u64,
    name: &'a str,
}

/// The longest name, in bytes.
pub const MAX_NAME_BYTES: usize = AREA_BYTES - size_of::<Header>();

/// Size of the vendor-specific part of Identify Namespace.
pub(super) const AREA_BYTES: usize = 4096 - 384;

const MAGIC: [u8; 8] = *b"FEEDRAIL";
const VERSION: u16 = 1;

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
    /// The file's length and name. A name that is too long is cut, at a character.
    pub fn new(length_bytes: u64, name: &'a str) -> Self {
        let name = &name[..name.floor_char_boundary(MAX_NAME_BYTES)];
        Self { length_bytes, name }
    }

    /// What the area says; `None` if it is anything but a whole and undamaged record of this version.
    pub fn parse(area: &'a [u8]) -> Option<Self> {
        let area = area.get(..AREA_BYTES)?;
        let (header, rest) = Header::ref_from_prefix(area).ok()?;
        if header.magic != MAGIC || header.version.get() != VERSION || header.crc.get() != crc(area)
        {
            return None;
        }
        let (name, padding) = rest.split_at_checked(usize::from(header.name_bytes.get()))?;
        if padding.iter().any(|&byte| byte != 0) {
            return None;
        }
        let name = core::str::from_utf8(name).ok()?;
        Some(Self { length_bytes: header.length_bytes.get(), name })
    }

    /// The area that says so.
    pub fn to_bytes(&self) -> [u8; AREA_BYTES] {
        let mut header = Header {
            magic: MAGIC,
            version: U16::new(VERSION),
            // `new` and `parse` bound the name.
            name_bytes: U16::new(self.name.len() as u16),
            crc: U32::ZERO,
            length_bytes: U64::new(self.length_bytes),
        };
        let mut area = [0; AREA_BYTES];
        let name_at = size_of::<Header>();
        area[..name_at].copy_from_slice(header.as_bytes());
        area[name_at..name_at + self.name.len()].copy_from_slice(self.name.as_bytes());
        header.crc = U32::new(crc(&area));
        area[..name_at].copy_from_slice(header.as_bytes());
        area
    }

    /// Length of the file in bytes.
    pub const fn length_bytes(&self) -> u64 {
        self.length_bytes
    }

    /// Name of the file, as the target chose to call it. A peer's text: it may contain anything.
    pub const fn name(&self) -> &'a str {
        self.name
    }
}

/// The CRC of the area with its own field taken as zero.
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
        write!(f, "file {:?} of {} bytes", self.name, self.length_bytes)
    }
}
