//! Selective acknowledgements: bitmaps of the packets received after a missing one.

use crate::Psn;
use crate::rc::psn_set::PsnSet;

/// Maximum length of the bitmap in bytes: one bit for each packet in a [`PsnSet`].
const BITS_MAX_BYTES: usize = PsnSet::REACH as usize / 8;
const WORD_BYTES: usize = size_of::<u64>();

/// The payload of a selective acknowledgement to send: see `docs/soft-wire.md`.
pub(super) struct SelectiveAckBits {
    bytes: [u8; BITS_MAX_BYTES],
    length: usize,
}

/// A received selective acknowledgement that is well-formed.
#[derive(Clone, Copy, Debug)]
pub(super) struct SelectiveAck<'a> {
    /// The missing packet; everything before it was executed.
    pub(super) expected: Psn,
    /// The latest packet that was received.
    pub(super) latest: Psn,
    /// Bitmap of the packets after the missing one, the lowest bit of each word first.
    words: &'a [[u8; WORD_BYTES]],
}

impl SelectiveAckBits {
    /// The bitmap of the packets after `expected` that are in `placed`.
    pub(super) fn of(placed: &PsnSet, expected: Psn) -> Self {
        let mut bits = Self { bytes: [0; BITS_MAX_BYTES], length: 0 };
        let first = expected.next();
        let (words, _) = bits.bytes.as_chunks_mut::<WORD_BYTES>();
        for (index, word) in words.iter_mut().enumerate() {
            let at = index as u32 * u64::BITS;
            let within = if at + u64::BITS < PsnSet::REACH { u64::MAX } else { u64::MAX >> 1 };
            let value = placed.word_from(first.plus(at)) & within;
            *word = value.to_be_bytes();
            if value != 0 {
                bits.length = (index + 1) * WORD_BYTES;
            }
        }
        bits
    }

    /// The bitmap up to the last word that is not zero.
    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl<'a> SelectiveAck<'a> {
    /// Parses an acknowledgement in the form of [`SelectiveAckBits`]; `None` if it reports packets
    /// after `latest`, ends with a zero word, or `latest` is not within [`PsnSet::REACH`] after
    /// `expected`.
    pub(super) fn parse(expected: Psn, latest: Psn, payload: &'a [u8]) -> Option<Self> {
        let ahead = latest.since(expected);
        let (words, rest) = payload.as_chunks::<WORD_BYTES>();
        let ack = Self { expected, latest, words };
        let last = words.last().map(|word| u64::from_be_bytes(*word));
        let end = match last {
            Some(word) => words.len() as u32 * u64::BITS - word.leading_zeros(),
            None => 0,
        };
        let proper = (1..PsnSet::REACH).contains(&ahead)
            && rest.is_empty()
            && last != Some(0)
            && end <= ahead;
        proper.then_some(ack)
    }

    /// The words of the bitmap, each with the packet of its lowest bit.
    pub(super) fn words(&self) -> impl Iterator<Item = (Psn, u64)> + use<'a> {
        let first = self.expected.next();
        self.words.iter().enumerate().map(move |(index, word)| {
            (first.plus(index as u32 * u64::BITS), u64::from_be_bytes(*word))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    fn told(ack: &SelectiveAck<'_>) -> Vec<u32> {
        let bits = ack.words().flat_map(|(psn, word)| {
            let set = (0..u64::BITS).filter(move |bit| word >> bit & 1 != 0);
            set.map(move |bit| psn.plus(bit))
        });
        bits.map(|psn| psn.since(ack.expected)).collect()
    }

    proptest! {
        #[test]
        fn what_is_told_is_what_was_placed(
            start in 0u32..1 << 24,
            ahead in prop::collection::btree_set(1..PsnSet::REACH, 1..60)
        ) {
            let expected = Psn::new(start);
            let mut placed = PsnSet::new();
            for psn in &ahead {
                placed.insert(expected.plus(*psn));
            }
            let bits = SelectiveAckBits::of(&placed, expected);
            let latest = expected.plus(*ahead.last().unwrap());
            let ack = SelectiveAck::parse(expected, latest, bits.as_slice()).unwrap();
            prop_assert_eq!(told(&ack), ahead.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn other_forms_are_refused() {
        let (expected, latest) = (Psn::new(0xFF_FFFE), Psn::new(8));
        let parse = |latest, bytes: &[u8]| SelectiveAck::parse(expected, latest, bytes).is_some();
        let word = |bits: u64| bits.to_be_bytes();
        assert!(parse(latest, &[]) && parse(latest, &word(1 << 9)));
        assert!(!parse(latest, &word(1 << 10)), "it is after the latest");
        assert!(!parse(latest, &word(0)), "a word of zeros ends it");
        assert!(!parse(latest, &word(1)[1..]), "half a word");
        assert!(!parse(expected, &[]), "nothing came");
        assert!(!parse(expected.minus(1), &[]), "the latest is before");
        assert!(!parse(expected.plus(2048), &[]), "out of reach");
        let mut long = [0; 264];
        long[263] = 1;
        assert!(!parse(expected.plus(2047), &long), "out of reach");
        long[263] = 0;
        long[255] = 1;
        assert!(parse(expected.plus(2047), &long[..256]));
    }
}
