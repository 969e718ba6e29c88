//! Laws of orders, their statistics, and torch's own orders.

mod block;
mod golden;
mod permutation;
mod split;
mod torch;

use std::num::{NonZeroU32, NonZeroU64};

use proptest::prelude::*;

use super::*;

fn block(block: u32, window: u32) -> Shuffle {
    let size = |size| NonZeroU32::new(size).expect("not zero");
    Shuffle::Block { block: size(block), window: size(window) }
}

fn order(shuffle: Shuffle, samples: u64, seed: u64, epoch: u64) -> Order {
    Order::new(shuffle, samples, seed, epoch).expect("small")
}

/// All samples of an epoch, one after the other.
fn all(order: &Order) -> Vec<u64> {
    let mut samples = vec![u64::MAX; order.len() as usize];
    assert_eq!(order.fill(0, &mut samples) as u64, order.len());
    samples
}

/// How far counts are from equal ones, in standard deviations of the chi-square distribution.
fn deviations(counts: &[u64]) -> f64 {
    let freedom = (counts.len() - 1) as f64;
    let expected = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
    let square = |&count: &u64| (count as f64 - expected).powi(2) / expected;
    (counts.iter().map(square).sum::<f64>() - freedom) / (2.0 * freedom).sqrt()
}

#[test]
fn the_measure_of_deviations_tells_unequal_counts() {
    assert!(deviations(&[100; 50]) < -4.0, "more equal than chance");
    assert!(deviations(&[110, 90].repeat(25)).abs() < 0.2, "as unequal as chance");
    assert!(deviations(&[130, 70].repeat(25)) > 30.0, "more unequal than chance");
}

#[test]
fn too_many_samples_are_refused() {
    let error = |shuffle, samples| Order::new(shuffle, samples, 0, 0).expect_err("too many");
    let (samples, max) = (SAMPLES_MAX + 1, SAMPLES_MAX);
    assert_eq!(error(Shuffle::Sequential, samples), Error::TooMany { samples, max });
    let (samples, max) = (1 << 32, u32::MAX.into());
    assert_eq!(error(Shuffle::Torch, samples), Error::TooMany { samples, max });
    for shuffle in [Shuffle::Global, block(u32::MAX, u32::MAX), block(1, 1)] {
        let order = order(shuffle, SAMPLES_MAX, 1, 1);
        assert!(order.sample(SAMPLES_MAX - 1).is_some_and(|sample| sample < SAMPLES_MAX));
        assert_eq!(order.sample(SAMPLES_MAX), None);
    }
}

#[test]
fn orders_have_names() {
    for (name, shuffle) in [
        ("sequential", Shuffle::Sequential),
        ("global", Shuffle::Global),
        ("torch", Shuffle::Torch),
        ("block:1024:64", block(1024, 64)),
    ] {
        assert_eq!((name.parse(), shuffle.to_string()), (Ok(shuffle), name.to_owned()));
    }
    for name in ["", "Global", "block", "block:1", "block:0:1", "block:+1:1", "block:1:2:3"] {
        assert_eq!(name.parse::<Shuffle>(), Err(InvalidShuffle), "{name}");
    }
}

fn shuffles() -> impl Strategy<Value = Shuffle> {
    prop_oneof![
        Just(Shuffle::Sequential),
        Just(Shuffle::Global),
        Just(Shuffle::Torch),
        (1..50_u32, 1..20_u32).prop_map(|(size, window)| block(size, window)),
    ]
}

proptest! {
    #[test]
    fn every_sample_comes_once(shuffle in shuffles(), samples in 0..2000_u64, seed: u64, epoch: u64) {
        let mut all = all(&order(shuffle, samples, seed, epoch));
        all.sort_unstable();
        prop_assert!(all.into_iter().eq(0..samples));
    }

    #[test]
    fn any_part_is_that_of_the_whole(
        shuffle in shuffles(),
        samples in 0..500_u64,
        start in 0..600_u64,
        step in 1..40_u64,
        count in 0..300_usize,
    ) {
        let order = order(shuffle, samples, 7, 1);
        let expected: Vec<u64> =
            all(&order).into_iter().skip(start as usize).step_by(step as usize).take(count).collect();
        let mut part = vec![0; count];
        let step = NonZeroU64::new(step).expect("not zero");
        let filled = order.fill_every(start, step, &mut part);
        prop_assert_eq!(&part[..filled], &expected);
        prop_assert_eq!(order.sample(start), all(&order).get(start as usize).copied());
    }

    #[test]
    fn no_position_causes_a_panic(
        shuffle in shuffles(),
        samples in 0..100_u64,
        start: u64,
        step in 1..=u64::MAX,
    ) {
        let step = NonZeroU64::new(step).expect("not zero");
        let mut part = [0; 3];
        prop_assert!(order(shuffle, samples, 7, 1).fill_every(start, step, &mut part) <= 3);
    }
}
