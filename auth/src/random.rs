//! Random numbers, which the caller brings.

/// Source of random bytes, which fills the slice. It must be cryptographically secure.
pub type RandomBytes<'a> = dyn FnMut(&mut [u8]) + 'a;
