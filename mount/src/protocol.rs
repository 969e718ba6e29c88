//! The FUSE protocol of `/dev/fuse`, as far as a read-only file system speaks it (version 7.31 and
//! later, in the machine's byte order).

use std::time::Duration;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The most bytes of a read, and of a request without its headers.
pub(crate) const MAX_TRANSFER_BYTES: usize = 1 << 20;
/// Room for any request: the kernel refuses to read into less.
pub(crate) const REQUEST_BYTES: usize = MAX_TRANSFER_BYTES + 4096;
/// The root of every FUSE file system.
pub(crate) const ROOT: u64 = 1;

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FuseOpcode(pub(crate) u32);

impl FuseOpcode {
    pub(crate) const LOOKUP: Self = Self(1);
    pub(crate) const FORGET: Self = Self(2);
    pub(crate) const GETATTR: Self = Self(3);
    pub(crate) const SETATTR: Self = Self(4);
    pub(crate) const SYMLINK: Self = Self(6);
    pub(crate) const MKNOD: Self = Self(8);
    pub(crate) const MKDIR: Self = Self(9);
    pub(crate) const UNLINK: Self = Self(10);
    pub(crate) const RMDIR: Self = Self(11);
    pub(crate) const RENAME: Self = Self(12);
    pub(crate) const LINK: Self = Self(13);
    pub(crate) const READ: Self = Self(15);
    pub(crate) const WRITE: Self = Self(16);
    pub(crate) const STATFS: Self = Self(17);
    pub(crate) const SETXATTR: Self = Self(21);
    pub(crate) const GETXATTR: Self = Self(22);
    pub(crate) const LISTXATTR: Self = Self(23);
    pub(crate) const REMOVEXATTR: Self = Self(24);
    pub(crate) const READDIR: Self = Self(28);
    pub(crate) const CREATE: Self = Self(35);
    pub(crate) const INTERRUPT: Self = Self(36);
    pub(crate) const DESTROY: Self = Self(38);
    pub(crate) const BATCH_FORGET: Self = Self(42);
    pub(crate) const FALLOCATE: Self = Self(43);
    pub(crate) const READDIRPLUS: Self = Self(44);
    pub(crate) const RENAME2: Self = Self(45);
    pub(crate) const COPY_FILE_RANGE: Self = Self(47);
    pub(crate) const TMPFILE: Self = Self(51);

    /// Whether it would change the file system.
    pub(crate) fn changes_something(self) -> bool {
        [
            Self::SETATTR,
            Self::SYMLINK,
            Self::MKNOD,
            Self::MKDIR,
            Self::UNLINK,
            Self::RMDIR,
            Self::RENAME,
            Self::LINK,
            Self::WRITE,
            Self::SETXATTR,
            Self::REMOVEXATTR,
            Self::CREATE,
            Self::FALLOCATE,
            Self::RENAME2,
            Self::COPY_FILE_RANGE,
            Self::TMPFILE,
        ]
        .contains(&self)
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct InHeader {
    pub(crate) length: u32,
    pub(crate) opcode: u32,
    /// Name of the request, until it is answered.
    pub(crate) unique: u64,
    pub(crate) inode: u64,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) pid: u32,
    pub(crate) extension: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct OutHeader {
    pub(crate) length: u32,
    /// Zero, or the negated number of an error.
    pub(crate) error: i32,
    pub(crate) unique: u64,
}

/// Arguments of READ, READDIR and READDIRPLUS.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct ReadIn {
    pub(crate) handle: u64,
    pub(crate) offset: u64,
    pub(crate) size: u32,
    pub(crate) read_flags: u32,
    pub(crate) lock_owner: u64,
    pub(crate) flags: u32,
    pub(crate) padding: u32,
}

/// Arguments of INTERRUPT: the request that nobody waits for any longer.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct InterruptIn {
    pub(crate) unique: u64,
}

/// Arguments of GETXATTR and LISTXATTR; GETXATTR has the name behind them.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct XattrIn {
    /// Room of the caller; 0 for one that asks for the length.
    pub(crate) size: u32,
    pub(crate) padding: u32,
}

/// Answer to GETXATTR and LISTXATTR of a caller that asks for the length.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct XattrOut {
    pub(crate) size: u32,
    pub(crate) padding: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct InodeAttributes {
    pub(crate) inode: u64,
    pub(crate) size: u64,
    /// Blocks of 512 bytes.
    pub(crate) blocks: u64,
    pub(crate) atime: u64,
    pub(crate) mtime: u64,
    pub(crate) ctime: u64,
    pub(crate) atime_nanos: u32,
    pub(crate) mtime_nanos: u32,
    pub(crate) ctime_nanos: u32,
    pub(crate) mode: u32,
    pub(crate) links: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) device: u32,
    pub(crate) block_bytes: u32,
    pub(crate) flags: u32,
}

/// Answer to GETATTR: attributes, and how long they may be kept.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct AttributesOut {
    valid_secs: u64,
    valid_nanos: u32,
    padding: u32,
    attributes: InodeAttributes,
}

impl AttributesOut {
    pub(crate) fn new(attributes: InodeAttributes, valid: Duration) -> Self {
        let (valid_secs, valid_nanos) = (valid.as_secs(), valid.subsec_nanos());
        Self { valid_secs, valid_nanos, padding: 0, attributes }
    }
}

/// Answer to LOOKUP, and the front of an entry of READDIRPLUS.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct EntryOut {
    inode: u64,
    generation: u64,
    entry_valid_secs: u64,
    attributes_valid_secs: u64,
    entry_valid_nanos: u32,
    attributes_valid_nanos: u32,
    attributes: InodeAttributes,
}

impl EntryOut {
    pub(crate) fn new(attributes: InodeAttributes, valid: Duration) -> Self {
        Self {
            inode: attributes.inode,
            generation: 0,
            entry_valid_secs: valid.as_secs(),
            attributes_valid_secs: valid.as_secs(),
            entry_valid_nanos: valid.subsec_nanos(),
            attributes_valid_nanos: valid.subsec_nanos(),
            attributes,
        }
    }
}

/// Answer to STATFS, in blocks.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
pub(crate) struct StatfsOut {
    pub(crate) blocks: u64,
    pub(crate) blocks_free: u64,
    pub(crate) blocks_available: u64,
    pub(crate) files: u64,
    pub(crate) files_free: u64,
    pub(crate) block_bytes: u32,
    pub(crate) name_bytes: u32,
    pub(crate) fragment_bytes: u32,
    pub(crate) padding: u32,
    pub(crate) spare: [u32; 6],
}

/// An entry of READDIR before its name.
#[repr(C)]
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
struct DirentHeader {
    inode: u64,
    /// Where the reader continues behind it.
    offset: u64,
    name_bytes: u32,
    kind: u32,
}

/// The entries of a folder, as an answer of bounded length.
pub(crate) struct DirectoryEntries<'a> {
    out: &'a mut Vec<u8>,
    room: usize,
}

impl<'a> DirectoryEntries<'a> {
    /// Entries that are put in `out`, as many as `room` bytes take.
    pub(crate) fn new(out: &'a mut Vec<u8>, room: usize) -> Self {
        out.clear();
        Self { out, room: room.min(MAX_TRANSFER_BYTES) }
    }

    /// Adds an entry, for READDIRPLUS with what LOOKUP would answer; false if there is no room.
    pub(crate) fn push(
        &mut self,
        inode: u64,
        mode: u32,
        offset: u64,
        name: &[u8],
        entry: Option<EntryOut>,
    ) -> bool {
        let front = entry.map_or(0, |_| size_of::<EntryOut>());
        let length = (front + size_of::<DirentHeader>() + name.len()).next_multiple_of(8);
        if self.out.len() + length > self.room {
            return false;
        }
        let end = self.out.len() + length;
        if let Some(entry) = entry {
            self.out.extend(entry.as_bytes());
        }
        // File type bits of the mode are what readdir tells as `d_type`.
        let kind = mode >> 12;
        // Names are components of paths, of at most 255 bytes.
        let record = DirentHeader { inode, offset, name_bytes: name.len() as u32, kind };
        self.out.extend(record.as_bytes());
        self.out.extend(name);
        self.out.resize(end, 0);
        true
    }
}

/// A request, as it was read from the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FuseRequest<'a> {
    pub(crate) header: InHeader,
    arguments: &'a [u8],
}

impl<'a> FuseRequest<'a> {
    /// `None` for bytes that are no request.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (header, arguments) = InHeader::read_from_prefix(bytes).ok()?;
        (header.length as usize == bytes.len()).then_some(Self { header, arguments })
    }

    pub(crate) fn opcode(&self) -> FuseOpcode {
        FuseOpcode(self.header.opcode)
    }

    /// The structure in front of the arguments; `None` if there are too few bytes.
    pub(crate) fn argument<T: FromBytes>(&self) -> Option<T> {
        T::read_from_prefix(self.arguments).ok().map(|(argument, _)| argument)
    }

    /// The name behind so many bytes of arguments, without the zero that ends it.
    pub(crate) fn name(&self, behind: usize) -> Option<&'a [u8]> {
        let rest = self.arguments.get(behind..)?;
        let end = rest.iter().position(|&byte| byte == 0)?;
        Some(&rest[..end])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_sizes_of_the_protocol() {
        assert_eq!((size_of::<InHeader>(), size_of::<OutHeader>()), (40, 16));
        assert_eq!((size_of::<ReadIn>(), size_of::<XattrIn>()), (40, 8));
        assert_eq!((size_of::<InodeAttributes>(), size_of::<AttributesOut>()), (88, 104));
        assert_eq!((size_of::<EntryOut>(), size_of::<StatfsOut>()), (128, 80));
        assert_eq!(size_of::<DirentHeader>(), 24);
    }

    #[test]
    fn a_request_has_the_length_that_it_says() {
        let header = InHeader {
            length: 44,
            opcode: 1,
            unique: 7,
            inode: ROOT,
            uid: 0,
            gid: 0,
            pid: 0,
            extension: 0,
        };
        let bytes = [header.as_bytes(), b"abc\0"].concat();
        let request = FuseRequest::parse(&bytes).unwrap();
        assert_eq!((request.opcode(), request.name(0)), (FuseOpcode::LOOKUP, Some(&b"abc"[..])));
        assert_eq!(request.name(4), None);
        assert!(request.argument::<ReadIn>().is_none());
        assert!(FuseRequest::parse(&bytes[..43]).is_none());
        assert!(FuseRequest::parse(&bytes[..9]).is_none());
    }

    #[test]
    fn entries_are_padded_and_bounded() {
        let mut out = Vec::new();
        let mut entries = DirectoryEntries::new(&mut out, 64);
        assert!(entries.push(5, 0o100_444, 5, b"a", None));
        assert!(entries.push(6, 0o040_555, 6, b"bcdefghi", None));
        assert!(!entries.push(7, 0o040_555, 7, b"", None));
        assert_eq!(out.len(), 64);
        assert_eq!((out[20], out[52], out[24]), (8, 4, b'a'));
    }
}
