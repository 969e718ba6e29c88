//! What is special about block devices.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};

/// The size of a block device, in bytes.
///
/// # Errors
/// What the system says.
pub(super) fn size_bytes(mut device: &File) -> io::Result<u64> {
    device.seek(SeekFrom::End(0))
}
