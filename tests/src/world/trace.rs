//! A hash of the events of a run: equal runs have equal hashes.

/// A checksum over events in their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trace(u64);

impl Trace {
    /// Mixes a number into the hash.
    pub fn note(&mut self, what: u64) {
        self.0 = (self.0.rotate_left(23) ^ what).wrapping_mul(0x2127_599B_F432_5C37);
    }

    /// Mixes a length and its bytes into the hash.
    pub fn note_bytes(&mut self, bytes: &[u8]) {
        self.note(bytes.len() as u64);
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.note(u64::from_le_bytes(word));
        }
    }
}
