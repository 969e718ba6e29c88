//! Sequence numbers of challenges.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::random::RandomBytes;

/// Sequence numbers S1 or S2 (Base, 8.3.4.5.4): they begin at a random number, and skip 0. Queues
/// on several cores may share them.
#[derive(Debug)]
pub struct SequenceNumbers(AtomicU32);

impl SequenceNumbers {
    /// Draws the first number.
    pub fn new(random: &mut RandomBytes<'_>) -> Self {
        let mut bytes = [0; 4];
        random(&mut bytes);
        Self(AtomicU32::new(u32::from_ne_bytes(bytes)))
    }

    /// Returns the next number.
    pub fn next(&self) -> u32 {
        match self.0.fetch_add(1, Ordering::Relaxed) {
            0 => self.0.fetch_add(1, Ordering::Relaxed),
            number => number,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_is_skipped() {
        let numbers = SequenceNumbers::new(&mut |bytes| bytes.fill(0xFF));
        assert_eq!([numbers.next(), numbers.next(), numbers.next()], [u32::MAX, 1, 2]);
        assert_eq!(SequenceNumbers::new(&mut |bytes| bytes.fill(0)).next(), 1);
    }
}
