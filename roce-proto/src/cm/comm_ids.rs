//! Local communication ids, which identify connections on the wire.

use core::fmt;
use core::hash::Hasher;

use siphasher::sip::SipHasher24;

/// Number of Feistel rounds: with 16-bit halves, the usual four would be distinguishable from a
/// random permutation.
const ROUNDS: u8 = 10;
/// A value outside the round numbers.
const PROCESS_TAG: u8 = 0xFF;

/// A communication id, by which one side identifies a connection. Each side chooses its own.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommId(pub u32);

impl CommId {
    /// No id: in a REJ of a sender without a communication id for the connection.
    pub const NONE: Self = Self(0);
}

impl fmt::Debug for CommId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

/// The secret key that determines the order of communication ids. Whoever knows it can compute the
/// ids of all connections.
#[derive(Clone, Copy)]
pub struct CommIdKey(pub u128);

impl fmt::Debug for CommIdKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CommIdKey(..)")
    }
}

/// Generates communication ids: all 2^32 in an order determined by the key, without repetition. A
/// peer that knows some of them cannot compute others.
#[derive(Debug)]
pub(super) struct CommIds {
    key: CommIdKey,
    next: u32,
}

impl CommIds {
    pub(super) const fn new(key: CommIdKey) -> Self {
        Self { key, next: 0 }
    }

    /// Upper half of our transaction ids, which distinguishes them from those of an earlier
    /// process.
    pub(super) fn process_tag(&self) -> u32 {
        self.hash(PROCESS_TAG, 0) as u32
    }

    /// Returns the next id; never [`CommId::NONE`].
    pub(super) fn draw(&mut self) -> CommId {
        loop {
            let id = self.permute(self.next);
            self.next = self.next.wrapping_add(1);
            if id != CommId::NONE.0 {
                return CommId(id);
            }
        }
    }

    /// A Feistel network over two halves of 16 bits, which is a permutation of all 32-bit values.
    fn permute(&self, index: u32) -> u32 {
        let halves = ((index >> 16) as u16, index as u16);
        let (left, right) = (0..ROUNDS)
            .fold(halves, |(left, right), round| (right, left ^ self.hash(round, right) as u16));
        u32::from(left) << 16 | u32::from(right)
    }

    /// SipHash-2-4: an output reveals neither other outputs nor the key.
    fn hash(&self, round: u8, half: u16) -> u64 {
        let CommIdKey(key) = self.key;
        let mut hasher = SipHasher24::new_with_keys((key >> 64) as u64, key as u64);
        hasher.write(&[round, (half >> 8) as u8, half as u8]);
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn first(key: u128, count: usize) -> std::vec::Vec<CommId> {
        let mut ids = CommIds::new(CommIdKey(key));
        (0..count).map(|_| ids.draw()).collect()
    }

    #[test]
    fn names_do_not_repeat() {
        let ids: BTreeSet<_> = first(7, 100_000).into_iter().collect();
        assert_eq!(ids.len(), 100_000);
    }

    #[test]
    fn every_bit_of_the_key_counts() {
        let mut seen: BTreeSet<_> = (0..128).map(|bit| first(1 << bit, 4)).collect();
        assert!(seen.insert(first(0, 4)) && seen.len() == 129);
    }

    #[test]
    fn the_key_is_not_printed() {
        let text = std::format!("{:?}", CommIds::new(CommIdKey(0xDEAD_BEEF)));
        assert!(!text.contains("3735928559") && !text.to_lowercase().contains("dead"), "{text}");
    }
}
