//! Records of a manifest: tag, flags, length and body.

use crate::error::VolumeFormatError;

/// Bit of the flags: a reader that does not know the tag must refuse the manifest.
const REQUIRED: u16 = 1;

/// Record that was parsed; the body is not.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Record<'a> {
    pub(crate) tag: u16,
    /// Body of the record.
    pub(crate) bytes: &'a [u8],
    is_required: bool,
}

impl Record<'_> {
    /// Handles a tag that this version does not know: an error if the record is required.
    pub(crate) fn unknown(&self) -> Result<(), VolumeFormatError> {
        if self.is_required { Err(VolumeFormatError::Newer) } else { Ok(()) }
    }

    /// Parses the body as a number of 8 bytes. `field` is for the error.
    pub(crate) fn u64(&self, field: &'static str) -> Result<u64, VolumeFormatError> {
        let bytes = self.bytes.try_into().map_err(|_| VolumeFormatError::Field(field))?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Parses the body as UTF-8. `field` is for the error.
    pub(crate) fn text(&self, field: &'static str) -> Result<&str, VolumeFormatError> {
        std::str::from_utf8(self.bytes).map_err(|_| VolumeFormatError::Field(field))
    }
}

/// Parses the records in a slice. An error ends the iteration.
pub(crate) fn records(
    mut rest: &[u8],
) -> impl Iterator<Item = Result<Record<'_>, VolumeFormatError>> {
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let record = split(&mut rest);
        if record.is_none() {
            rest = &[];
        }
        Some(record.ok_or(VolumeFormatError::Cut))
    })
}

fn split<'a>(rest: &mut &'a [u8]) -> Option<Record<'a>> {
    let (&tag, bytes) = rest.split_first_chunk()?;
    let (&flags, bytes) = bytes.split_first_chunk()?;
    let (&length, bytes) = bytes.split_first_chunk()?;
    let length = usize::try_from(u32::from_le_bytes(length)).ok()?;
    let (bytes, others) = bytes.split_at_checked(length)?;
    *rest = others;
    let is_required = u16::from_le_bytes(flags) & REQUIRED != 0;
    Some(Record { tag: u16::from_le_bytes(tag), bytes, is_required })
}

/// Appends a record with the required bit set.
pub(crate) fn push(to: &mut Vec<u8>, tag: u16, bytes: &[u8]) -> Result<(), VolumeFormatError> {
    push_with(to, tag, REQUIRED, bytes)
}

/// Appends a record that a reader skips if it does not know the tag.
pub(crate) fn push_optional(
    to: &mut Vec<u8>,
    tag: u16,
    bytes: &[u8],
) -> Result<(), VolumeFormatError> {
    push_with(to, tag, 0, bytes)
}

fn push_with(
    to: &mut Vec<u8>,
    tag: u16,
    flags: u16,
    bytes: &[u8],
) -> Result<(), VolumeFormatError> {
    let length =
        u32::try_from(bytes.len()).map_err(|_| VolumeFormatError::Limit("bytes of a record"))?;
    to.extend(tag.to_le_bytes());
    to.extend(flags.to_le_bytes());
    to.extend(length.to_le_bytes());
    to.extend(bytes);
    Ok(())
}
