//! The block order against its definition, computed with lists.

use std::num::NonZeroU64;

use proptest::prelude::*;

use super::super::permutation::{OrderKey, Permutation};
use super::*;

fn permuted<T: Clone>(items: &[T], key: OrderKey) -> Vec<T> {
    let Some(length) = NonZeroU64::new(items.len() as u64) else { return Vec::new() };
    let permutation = Permutation::new(length, key);
    (0..length.get()).map(|at| items[permutation.get(at) as usize].clone()).collect()
}

/// The definition: permute the blocks, then the samples of each window of blocks.
fn defined(samples: u64, size: u32, window: u32, key: OrderKey) -> Vec<u64> {
    let samples: Vec<u64> = (0..samples).collect();
    let blocks: Vec<&[u64]> = samples.chunks(size as usize).collect();
    let blocks = permuted(&blocks, key.within(0));
    let windows = blocks.chunks(window as usize).zip(1..);
    windows.flat_map(|(window, number)| permuted(&window.concat(), key.within(number))).collect()
}

proptest! {
    #[test]
    fn it_is_as_defined(
        samples in 0..700_u64,
        size in 1..60_u32,
        window in 1..20_u32,
        seed: u64,
    ) {
        let found = all(&order(block(size, window), samples, seed, 2));
        prop_assert_eq!(found, defined(samples, size, window, OrderKey::new(seed, 2)));
    }
}

#[test]
fn a_window_reads_few_blocks() {
    let (size, window) = (1000, 8);
    let order = order(block(size, window), 1_000_000_000_000, 1, 1);
    let mut samples = vec![0; (size * window) as usize];
    assert_eq!(order.fill(8000 * 12_345, &mut samples), 8000);
    let mut blocks: Vec<u64> = samples.iter().map(|sample| sample / 1000).collect();
    assert!(blocks.windows(2).filter(|pair| pair[0] != pair[1]).count() > 6000, "mixed");
    blocks.sort_unstable();
    blocks.dedup();
    assert_eq!(blocks.len(), 8);
    assert!(blocks.windows(2).all(|pair| pair[1] - pair[0] > 1), "from all over the data");
}

#[test]
fn the_short_block_is_anywhere() {
    let mut counts = vec![0; 10];
    for epoch in 0..2000 {
        let samples = all(&order(block(10, 1), 95, 3, epoch));
        let at = samples.iter().position(|&sample| sample == 94).expect("comes once");
        counts[at / 10] += 1;
    }
    assert!(deviations(&counts).abs() < 4.0, "{counts:?}");
}
