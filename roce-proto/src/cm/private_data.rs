//! Private data of a message, by value.

use core::fmt;
use core::ops::Deref;

/// Bytes that the consumers of a connection exchange with a message.
///
/// A message has a field of fixed size for it, and no length: a receiver sees the sent bytes,
/// padded with zeros to the size of the field.
#[derive(Clone, Copy)]
pub struct MadPrivateData {
    length: u8,
    bytes: [u8; Self::MAX],
}

impl MadPrivateData {
    /// The most that any message carries, in bytes.
    pub const MAX: usize = 224;

    /// Private data of length 0.
    pub const EMPTY: Self = Self { length: 0, bytes: [0; Self::MAX] };

    /// A copy of `bytes`, or `None` if there are more than [`MadPrivateData::MAX`].
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut data = Self::EMPTY;
        data.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        data.length = bytes.len() as u8;
        Some(data)
    }

    /// A copy of a field of a message.
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

/// `bytes` at the start of a field of `N` bytes, or `None` when they do not fit.
pub(super) fn padded<const N: usize>(bytes: &[u8]) -> Option<[u8; N]> {
    let mut room = [0; N];
    room.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(room)
}
