//! Sizes of block devices.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};

/// Size of a block device in bytes.
///
/// # Errors
/// The error of `lseek`.
pub(super) fn size_bytes(mut device: &File) -> io::Result<u64> {
    device.seek(SeekFrom::End(0))
}
