//! Bytes of a fuzzer as a source of decisions.

/// Reads an input from front to end. Bytes beyond its end are zero, so that every input means
/// something.
#[derive(Clone, Debug)]
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// A reader of all of `data`.
    pub fn new(data: &'a [u8]) -> Self {
        Self(data)
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        let taken = self.slice(N);
        bytes[..taken.len()].copy_from_slice(taken);
        bytes
    }

    /// Takes up to `length` bytes: fewer when the input ends before.
    pub fn slice(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(length.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// All that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        self.slice(usize::MAX)
    }

    /// The next byte, zero behind the end.
    pub fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.array())
    }

    /// The next two bytes.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// The next four bytes.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    /// The next eight bytes.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// One byte's choice out of `count`, which is not zero.
    pub fn choice(&mut self, count: usize) -> usize {
        usize::from(self.u8()) % count
    }
}
