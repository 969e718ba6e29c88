//! Names for connections.

use super::CommId;

/// Gives out communication ids: all 2^32 of them in an order that only the seed tells, none twice before
/// the others were used. A peer that learns one of its own can not tell those of others.
#[derive(Debug)]
pub(super) struct CommIds {
    round_keys: [u64; 4],
    next: u32,
}

impl CommIds {
    pub(super) fn new(seed: u64) -> Self {
        let round_keys = [1, 2, 3, 4].map(|round| mix(seed ^ round));
        Self { round_keys, next: 0 }
    }

    /// A part of a transaction id that tells our requests from those of an earlier process.
    pub(super) fn process_tag(&self) -> u32 {
        mix(self.round_keys[0] ^ self.round_keys[3]) as u32
    }

    /// The next id; never [`CommId::NONE`].
    pub(super) fn draw(&mut self) -> CommId {
        loop {
            let id = self.permute(self.next);
            self.next = self.next.wrapping_add(1);
            if id != CommId::NONE.0 {
                return CommId(id);
            }
        }
    }

    /// A Feistel network over two halves of 16 bits: a bijection, whatever the round function.
    fn permute(&self, index: u32) -> u32 {
        let (left, right) = self
            .round_keys
            .iter()
            .fold(((index >> 16) as u16, index as u16), |(left, right), key| {
                (right, left ^ mix(key ^ u64::from(right)) as u16)
            });
        u32::from(left) << 16 | u32::from(right)
    }
}

/// Scrambles 64 bits (the finaliser of SplitMix64).
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ value >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ value >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ value >> 31
}
