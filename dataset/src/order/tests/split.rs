//! How ranks and workers share an epoch.

use std::ops::Range;

use proptest::prelude::*;

use super::*;

fn stripe(index: u32, count: u32) -> Stripe {
    Stripe::new(index, count).expect("below the count")
}

fn split(samples: u64, rank: u32, world: u32, leftover: Leftover) -> Split {
    Split { samples, rank: stripe(rank, world), leftover }
}

fn positions(split: Split) -> Vec<u64> {
    (0..).map_while(|i| split.position(i)).collect()
}

#[test]
fn a_stripe_is_one_of_some() {
    assert!(Stripe::new(0, 0).is_err());
    let error = Stripe::new(3, 3).expect_err("counted from 0");
    assert_eq!(error.to_string(), "3 is none of 3, counted from 0");
    assert_eq!((stripe(2, 3).index(), stripe(2, 3).count().get()), (2, 3));
    assert!(Stripe::WHOLE.of(5..8).eq(5..8));
    assert!(stripe(1, 3).of(5..10).eq([6, 9]));
    assert_eq!(stripe(2, 3).of(5..7).count(), 0);
    let last = u64::MAX - 1..u64::MAX;
    assert!(stripe(0, u32::MAX).of(last.clone()).eq([u64::MAX - 1]));
    assert_eq!(stripe(u32::MAX - 1, u32::MAX).len_of(last), 0);
    assert_eq!(stripe(0, 2).len_of(Range { start: 9, end: 3 }), 0);
}

#[test]
fn tails_are_kept_padded_or_dropped() {
    let all = |leftover| [0, 1, 2].map(|rank| positions(split(7, rank, 3, leftover)));
    assert_eq!(all(Leftover::Keep), [vec![0, 3, 6], vec![1, 4], vec![2, 5]]);
    assert_eq!(all(Leftover::Pad), [vec![0, 3, 6], vec![1, 4, 0], vec![2, 5, 1]]);
    assert_eq!(all(Leftover::Drop), [vec![0, 3], vec![1, 4], vec![2, 5]]);
    assert_eq!(positions(split(2, 7, 8, Leftover::Pad)), [1]);
    assert!(split(0, 7, 8, Leftover::Pad).is_empty());
    assert!(split(7, 0, 8, Leftover::Drop).is_empty());
}

proptest! {
    #[test]
    fn ranks_share_a_batch(
        samples in 0..300_u64,
        start in 0..300_u64,
        length in 0..100_u64,
        world in 1..9_u32,
    ) {
        let order = order(Shuffle::Global, samples, 1, 1);
        let end = (start + length).min(samples);
        let mut batch = vec![0; end.saturating_sub(start) as usize];
        order.fill(start, &mut batch);
        let mut places = 0;
        for rank in (0..world).map(|rank| stripe(rank, world)) {
            let mut part = [u64::MAX; 100];
            let count = order.fill_stripe(start..end, rank, &mut part);
            prop_assert_eq!(count as u64, rank.len_of(start..end));
            let own = batch.iter().skip(rank.index() as usize).step_by(world as usize);
            prop_assert!(part[..count].iter().eq(own));
            places += count;
        }
        prop_assert_eq!(places, batch.len());
    }

    #[test]
    fn ranks_share_an_epoch(samples in 0..500_u64, world in 1..20_u32) {
        let together = |leftover| {
            let ranks = (0..world).map(|rank| split(samples, rank, world, leftover));
            let mut all: Vec<u64> = ranks.flat_map(positions).collect();
            all.sort_unstable();
            all
        };
        prop_assert!(together(Leftover::Keep).into_iter().eq(0..samples));
        let whole = samples / u64::from(world) * u64::from(world);
        prop_assert!(together(Leftover::Drop).into_iter().eq(0..whole));
        let mut padded = together(Leftover::Pad);
        prop_assert_eq!(padded.len() as u64, samples.next_multiple_of(world.into()));
        padded.dedup();
        prop_assert!(padded.into_iter().eq(0..samples));
    }
}
