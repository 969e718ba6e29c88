//! Order in which samples are read.

use anyhow::Result;
use feedrail_dataset::order::{Order, Shuffle};
use splitmix64::SplitMix64;

/// Endless sequence of the sample numbers below a bound, made from a seed.
#[derive(Debug)]
pub(super) enum LoaderOrder {
    /// Epochs that contain each sample number once.
    Epochs(Box<EpochOrder>),
    /// Random numbers that may repeat, as nanoGPT draws its windows.
    Anywhere { numbers: u64, random: SplitMix64 },
}

impl Iterator for LoaderOrder {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        match self {
            Self::Epochs(epochs) => epochs.next(),
            Self::Anywhere { numbers, random } => (*numbers > 0).then(|| random.below(*numbers)),
        }
    }
}

/// Epochs in succession, each in a permutation of its own (`Shuffle::Global`).
#[derive(Debug)]
pub(super) struct EpochOrder {
    order: Order,
    seed: u64,
    epoch: u64,
    position: u64,
}

impl EpochOrder {
    /// # Errors
    /// The number of samples exceeds what [`Order`] supports.
    pub(super) fn new(numbers: u64, seed: u64) -> Result<Self> {
        let order = Order::new(Shuffle::Global, numbers, seed, 0)?;
        Ok(Self { order, seed, epoch: 0, position: 0 })
    }
}

impl Iterator for EpochOrder {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        if self.position == self.order.len() {
            self.epoch += 1;
            self.position = 0;
            self.order =
                Order::new(Shuffle::Global, self.order.len(), self.seed, self.epoch).ok()?;
        }
        let sample = self.order.sample(self.position)?;
        self.position += 1;
        Some(sample)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_has_each_number_once_and_the_next_another_order() {
        let mut order = EpochOrder::new(300, 7).unwrap();
        let mut epoch = || order.by_ref().take(300).collect::<Vec<_>>();
        let (first, second) = (epoch(), epoch());
        assert_ne!(first, second);
        for mut taken in [first, second] {
            taken.sort_unstable();
            assert!(taken.into_iter().eq(0..300));
        }
        assert_eq!(EpochOrder::new(0, 1).unwrap().next(), None);
    }
}
