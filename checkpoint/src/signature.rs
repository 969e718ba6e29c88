//! Signatures of data that formatting must not overwrite unless it is forced.

use std::fmt::{self, Display, Formatter};

/// Kind of data that a namespace holds, recognized by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signature {
    /// A GUID partition table.
    Gpt,
    /// A DOS partition table (MBR), or another boot sector.
    Mbr,
    /// A file system ext2, ext3 or ext4.
    Ext4,
    /// A file system XFS.
    Xfs,
    /// A file system Btrfs.
    Btrfs,
    /// An encrypted volume in LUKS format, version 1 or 2.
    Luks,
    /// A physical volume of LVM.
    Lvm,
    /// A ZIP archive, such as a file of `torch.save`.
    Zip,
    /// A tar archive with a ustar or GNU header.
    Tar,
    /// A safetensors file: a length and a JSON header.
    Safetensors,
    /// A checkpoint volume of any version.
    Checkpoint,
}

impl Display for Signature {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gpt => "a GPT partition table",
            Self::Mbr => "an MBR partition table",
            Self::Ext4 => "an ext4 file system",
            Self::Xfs => "an XFS file system",
            Self::Btrfs => "a Btrfs file system",
            Self::Luks => "a LUKS volume",
            Self::Lvm => "an LVM physical volume",
            Self::Zip => "a ZIP archive",
            Self::Tar => "a tar archive",
            Self::Safetensors => "a safetensors file",
            Self::Checkpoint => "a checkpoint volume",
        })
    }
}

/// Signatures, with the offset and the bytes by which each is recognized.
const SIGNATURES: [(Signature, usize, &[u8]); 17] = [
    (Signature::Checkpoint, 0, b"FRCKPTV\0"),
    (Signature::Checkpoint, 65_536, b"FRCKPTV\0"),
    (Signature::Gpt, 512, b"EFI PART"),
    (Signature::Gpt, 4096, b"EFI PART"),
    (Signature::Luks, 0, b"LUKS\xBA\xBE"),
    (Signature::Luks, 0, b"SKUL\xBA\xBE"),
    (Signature::Lvm, 0, b"LABELONE"),
    (Signature::Lvm, 512, b"LABELONE"),
    (Signature::Lvm, 1024, b"LABELONE"),
    (Signature::Lvm, 1536, b"LABELONE"),
    (Signature::Xfs, 0, b"XFSB"),
    (Signature::Ext4, 1080, b"\x53\xEF"),
    (Signature::Btrfs, 65_600, b"_BHRfS_M"),
    (Signature::Zip, 0, b"PK\x03\x04"),
    (Signature::Zip, 0, b"PK\x05\x06"),
    (Signature::Tar, 257, b"ustar"),
    (Signature::Mbr, 510, b"\x55\xAA"),
];

/// Number of bytes at the beginning of a namespace that [`find`] needs.
pub(crate) const LOOK_BYTES: u64 = 131_072;

/// Returns the kind of data that a namespace with these first bytes holds, `None` if unknown.
pub(crate) fn find(bytes: &[u8]) -> Option<Signature> {
    let has = |&&(_, offset, magic): &&(Signature, usize, &[u8])| {
        bytes.get(offset..).is_some_and(|rest| rest.starts_with(magic))
    };
    let known = SIGNATURES.iter().find(has).map(|(signature, ..)| *signature);
    known.or_else(|| is_safetensors(bytes).then_some(Signature::Safetensors))
}

/// Whether the bytes begin with a plausible length of a header and with `{`.
fn is_safetensors(bytes: &[u8]) -> bool {
    let Some((length, rest)) = bytes.split_first_chunk() else { return false };
    (2..=100_000_000).contains(&u64::from_le_bytes(*length)) && rest.starts_with(b"{")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_signature_is_found() {
        assert_eq!(find(&[0; 131_072]), None);
        for (signature, offset, magic) in SIGNATURES {
            let mut bytes = vec![0; 131_072];
            bytes[offset..offset + magic.len()].copy_from_slice(magic);
            assert_eq!(find(&bytes), Some(signature));
        }
        assert_eq!(find(b"\x40\0\0\0\0\0\0\0{\"a\""), Some(Signature::Safetensors));
        assert_eq!(find(b"P"), None);
    }
}
