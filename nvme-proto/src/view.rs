//! Views of received bytes as structures.

use core::any::type_name;
use core::fmt;

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

/// Returns the structure at the start of `bytes`; bytes after it are ignored.
///
/// # Errors
/// [`Truncated`] if there are too few bytes. Any bytes are a valid structure, so no
/// other error.
pub fn view<T>(bytes: &[u8]) -> Result<&T, Truncated>
where
    T: FromBytes + KnownLayout + Immutable + Unaligned,
{
    match T::ref_from_prefix(bytes) {
        Ok((view, _rest)) => Ok(view),
        Err(_) => Err(Truncated::of::<T>(bytes.len())),
    }
}

/// Error of a view: fewer bytes than the structure has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truncated {
    /// Name of the structure's type, without its path.
    pub structure: &'static str,
    /// Size of the structure in bytes.
    pub needed_bytes: usize,
    /// Number of bytes that were received.
    pub received_bytes: usize,
}

impl Truncated {
    pub(crate) fn of<T>(received_bytes: usize) -> Self {
        let path = type_name::<T>();
        Self {
            structure: path.rsplit("::").next().unwrap_or(path),
            needed_bytes: size_of::<T>(),
            received_bytes,
        }
    }
}

impl fmt::Display for Truncated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { structure, needed_bytes, received_bytes } = self;
        write!(f, "{structure} needs {needed_bytes} bytes, got {received_bytes}")
    }
}

impl core::error::Error for Truncated {}
