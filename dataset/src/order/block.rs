//! Order whose samples within a window of positions come from few blocks.

use std::num::{NonZeroU32, NonZeroU64};

use super::permutation::{OrderKey, Permutation};

/// Samples are numbered in blocks: block `b` has the samples from `b * block` on, and the last may
/// be shorter. The blocks are permuted, and `window` successive blocks of the permuted ones are a
/// window; the last may have fewer. The samples of each window are permuted by a permutation of its
/// own. So the samples between two positions of one window come from at most `window` blocks.
#[derive(Clone, Debug)]
pub(super) struct BlockOrder {
    block: u64,
    /// Number of blocks in a window, and number of samples in a window of full blocks.
    window: u64,
    window_samples: u64,
    /// Permutation of the blocks: from their positions to their numbers.
    blocks: Permutation,
    last_block: u64,
    /// Number of samples that the last block lacks, the position of that block, the number of its
    /// window, and the position of the end of that window.
    missing: u64,
    short_place: u64,
    short_window: u64,
    short_window_end: u64,
    key: OrderKey,
}

/// Window, with the permutation of its samples.
struct BlockWindow {
    number: u64,
    /// Positions of its samples: from `begin` to before `end`.
    begin: u64,
    end: u64,
    samples: Permutation,
}

impl BlockOrder {
    pub(super) fn new(
        length: NonZeroU64,
        block: NonZeroU32,
        window: NonZeroU32,
        key: OrderKey,
    ) -> Self {
        let (samples, last) = (length.get(), length.get() - 1);
        let (block, window) = (u64::from(block.get()), u64::from(window.get()));
        let last_block = last / block;
        let blocks = Permutation::new(one_more(last_block), key.within(0));
        let short_place = blocks.position(last_block);
        let short_window = short_place / window;
        // The product of two numbers of 32 bits does not overflow.
        let window_samples = block * window;
        let missing = block - 1 - last % block;
        let whole_end = (u128::from(short_window) + 1) * u128::from(window_samples);
        let short_window_end = (whole_end - u128::from(missing)).min(samples.into()) as u64;
        Self {
            block,
            window,
            window_samples,
            blocks,
            last_block,
            missing,
            short_place,
            short_window,
            short_window_end,
            key,
        }
    }

    /// Writes the samples at these positions. Successive positions in one window share its
    /// permutation, which is expensive to compute.
    pub(super) fn fill(&self, positions: impl Iterator<Item = u64>, samples: &mut [u64]) {
        let mut window: Option<BlockWindow> = None;
        for (sample, position) in samples.iter_mut().zip(positions) {
            let current = match window.take() {
                Some(window) if (window.begin..window.end).contains(&position) => window,
                _ => self.window_at(position),
            };
            *sample = self.sample(window.insert(current), position);
        }
    }

    fn window_at(&self, position: u64) -> BlockWindow {
        let is_after_short = position >= self.short_window_end;
        let before = if is_after_short { self.missing } else { 0 };
        let number = (position + before) / self.window_samples;
        let begin = number * self.window_samples - before;
        let blocks = self.window.min(self.last_block + 1 - number * self.window);
        let missing = if number == self.short_window { self.missing } else { 0 };
        let last = blocks * self.block - missing - 1;
        // Key 0 is that of the permutation of blocks.
        let samples = Permutation::new(one_more(last), self.key.within(number + 1));
        BlockWindow { number, begin, end: begin + last + 1, samples }
    }

    fn sample(&self, window: &BlockWindow, position: u64) -> u64 {
        let mut at = window.samples.get(position - window.begin);
        let first_place = window.number * self.window;
        if window.number == self.short_window {
            let short_end = (self.short_place - first_place + 1) * self.block - self.missing;
            at += if at < short_end { 0 } else { self.missing };
        }
        let block = self.blocks.get(first_place + at / self.block);
        block * self.block + at % self.block
    }
}

fn one_more(last: u64) -> NonZeroU64 {
    NonZeroU64::MIN.saturating_add(last)
}
