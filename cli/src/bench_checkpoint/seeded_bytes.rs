//! Bytes of a rank, which each process can compute from a seed.

use splitmix64::{SplitMix64, mix};

/// Bytes that depend on the seed of a run and on the rank alone: the numbers of SplitMix64 in
/// little-endian order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SeededBytes(u64);

impl SeededBytes {
    pub(super) fn of_rank(run_seed: u64, rank: u16) -> Self {
        Self(mix(run_seed ^ mix(u64::from(rank) + 1)))
    }

    pub(super) fn of_seed(seed: u64) -> Self {
        Self(seed)
    }

    /// Seed of the generator, for processes that compute the bytes themselves.
    pub(super) fn seed(self) -> u64 {
        self.0
    }

    pub(super) fn fill(self, into: &mut [u8]) {
        let mut random = SplitMix64::new(self.0);
        for word in into.chunks_mut(8) {
            word.copy_from_slice(&random.next_u64().to_le_bytes()[..word.len()]);
        }
    }

    /// Returns the offset of the first byte that differs.
    pub(super) fn first_difference(self, found: &[u8]) -> Option<u64> {
        let mut random = SplitMix64::new(self.0);
        let mut offset = 0;
        for word in found.chunks(8) {
            let expected = random.next_u64().to_le_bytes();
            if let Some(at) = word.iter().zip(expected).position(|(one, other)| *one != other) {
                return Some(offset + at as u64);
            }
            offset += word.len() as u64;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_wrong_byte_is_found() {
        let bytes = SeededBytes::of_rank(7, 3);
        let mut room = [0; 21];
        bytes.fill(&mut room);
        assert_eq!(bytes.first_difference(&room), None);
        assert_eq!(SeededBytes::of_rank(7, 2).first_difference(&room), Some(0));
        for at in 0..room.len() {
            room[at] ^= 0x10;
            assert_eq!(bytes.first_difference(&room), Some(at as u64));
            room[at] ^= 0x10;
        }
    }
}
