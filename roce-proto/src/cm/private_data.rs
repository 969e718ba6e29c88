//! Private data of a message, by value.

use core::fmt;
use core::ops::Deref;

/// Private data: bytes that the consumers of a connection exchange in a message.
///
/// A message has a private data field of fixed length, and does not contain the length of the data:
/// a receiver gets the data padded with zeros to the length of the field.
#[derive(Clone, Copy)]
pub struct MadPrivateData {
    length: u8,
    bytes: [u8; Self::MAX],
}

impl MadPrivateData {
    /// Maximum length in any message, in bytes.
    pub const MAX: usize = 224;

    /// No private data: length zero.
    pub const EMPTY: Self = Self { length: 0, bytes: [0; Self::MAX] };

    /// Copies `bytes`; `None` if there are more than [`MadPrivateData::MAX`].
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut data = Self::EMPTY;
        data.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        data.length = bytes.len() as u8;
        Some(data)
    }

    /// Copies the whole private data field of a message.
    pub(super) fn from_room<const N: usize>(room: &[u8; N]) -> Self {
        const { assert!(N <= Self::MAX) }
        let mut data = Self::EMPTY;
        data.bytes[..N].copy_from_slice(room);
        data.length = N as u8;
        data
    }
}

impl Default for MadPrivateData {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl Deref for MadPrivateData {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl PartialEq for MadPrivateData {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for MadPrivateData {}

impl fmt::Debug for MadPrivateData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

/// `bytes` padded with zeros to `N` bytes; `None` if they do not fit.
pub(super) fn padded<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
    let mut room = [0; N];
    room.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(room)
}
