//! In which order samples are read.

use std::collections::BTreeMap;

use splitmix64::SplitMix64;

/// An endless sequence of the numbers below a bound, from a seed.
#[derive(Debug)]
pub(super) enum LoaderOrder {
    /// Epochs, each of which has each number once.
    Epochs(LazyShuffle),
    /// Each number at any time, as nanoGPT chooses.
    Anywhere { numbers: u64, random: SplitMix64 },
}

impl Iterator for LoaderOrder {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        match self {
            Self::Epochs(shuffle) => shuffle.next(),
            Self::Anywhere { numbers, random } => (*numbers > 0).then(|| random.below(*numbers)),
        }
    }
}

/// Shuffles as Fisher and Yates do, one number at a time: memory grows with the numbers that were
/// taken, whatever the bound is.
#[derive(Debug)]
pub(super) struct LazyShuffle {
    numbers: u64,
    /// Numbers of this epoch that were taken.
    taken: u64,
    /// Numbers that are not at the place of their own.
    moved: BTreeMap<u64, u64>,
    random: SplitMix64,
}

impl LazyShuffle {
    pub(super) fn new(numbers: u64, seed: u64) -> Self {
        Self { numbers, taken: 0, moved: BTreeMap::new(), random: SplitMix64::new(seed) }
    }
}

impl Iterator for LazyShuffle {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        if self.taken == self.numbers {
            self.taken = 0;
            self.moved.clear();
        }
        let place = self.taken;
        let left = self.numbers.checked_sub(place).filter(|left| *left > 0)?;
        let from = place + self.random.below(left);
        let chosen = self.moved.get(&from).copied().unwrap_or(from);
        let displaced = self.moved.remove(&place).unwrap_or(place);
        if from != place {
            self.moved.insert(from, displaced);
        }
        self.taken += 1;
        Some(chosen)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_epoch_has_each_number_once(numbers in 1_u64..300, seed: u64) {
            let mut shuffle = LazyShuffle::new(numbers, seed);
            let mut epoch = || {
                let taken: Vec<u64> = shuffle.by_ref().take(numbers as usize).collect();
                let mut sorted = taken.clone();
                sorted.sort_unstable();
                (taken, sorted)
            };
            let (first, second) = (epoch(), epoch());
            let all: Vec<u64> = (0..numbers).collect();
            prop_assert_eq!(&first.1, &all);
            prop_assert_eq!(&second.1, &all);
            prop_assert!(numbers < 20 || first.0 != second.0, "epochs differ");
        }
    }

    #[test]
    fn a_seed_gives_one_order_and_places_are_even() {
        let take = |seed| LazyShuffle::new(1000, seed).take(1000).collect::<Vec<_>>();
        assert_eq!(take(7), take(7));
        assert_ne!(take(7), take(8));
        // How often each of five numbers is the first of 5,000 shuffles: about 1,000 times.
        let mut first = [0; 5];
        for seed in 0..5000 {
            first[LazyShuffle::new(5, seed).next().unwrap() as usize] += 1;
        }
        assert!(first.iter().all(|count| (850..1150).contains(count)), "{first:?}");
    }

    #[test]
    fn a_few_of_very_many_cost_little() {
        let mut shuffle = LazyShuffle::new(u64::MAX, 1);
        assert_eq!(shuffle.by_ref().take(1000).count(), 1000);
        assert!(shuffle.moved.len() <= 1000);
        assert_eq!(LazyShuffle::new(0, 1).next(), None);
    }
}
