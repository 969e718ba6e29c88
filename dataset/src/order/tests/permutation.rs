//! The keyed permutation: a bijection, and statistically like a random one.

use std::num::NonZeroU64;

use proptest::prelude::*;

use super::super::permutation::{OrderKey, Permutation};
use super::*;

fn permutation(length: u64, seed: u64, epoch: u64) -> Permutation {
    Permutation::new(NonZeroU64::new(length).expect("not zero"), OrderKey::new(seed, epoch))
}

#[test]
fn it_is_a_bijection_of_every_short_length() {
    for length in 1..3000 {
        let permutation = permutation(length, length, 0);
        let mut is_seen = vec![false; length as usize];
        for position in 0..length {
            let number = permutation.get(position);
            assert!(!std::mem::replace(&mut is_seen[number as usize], true), "{length}");
            assert_eq!(permutation.position(number), position);
        }
    }
}

proptest! {
    #[test]
    fn it_can_be_inverted(
        length in prop_oneof![1..=u64::MAX, 1..1_u64 << 40, Just(u64::MAX), Just(1_u64 << 62)],
        at: u64,
        seed: u64,
        epoch: u64,
    ) {
        let permutation = permutation(length, seed, epoch);
        let at = at % length;
        prop_assert!(permutation.get(at) < length);
        prop_assert_eq!(permutation.position(permutation.get(at)), at);
        prop_assert_eq!(permutation.get(permutation.position(at)), at);
    }
}

/// The number of a permutation of few numbers in a list of all.
fn rank(numbers: &[u64]) -> usize {
    let smaller = |i: usize| numbers[i + 1..].iter().filter(|&&number| number < numbers[i]).count();
    (0..numbers.len()).fold(0, |rank, i| rank * (numbers.len() - i) + smaller(i))
}

#[test]
fn all_permutations_of_few_numbers_are_as_likely() {
    for (length, permutations) in [(2, 2), (3, 6), (4, 24), (5, 120), (6, 720), (7, 5040)] {
        let mut counts = vec![0; permutations];
        for seed in 0..permutations as u64 * 40 {
            let permutation = permutation(length, seed, 3);
            let numbers: Vec<u64> = (0..length).map(|at| permutation.get(at)).collect();
            counts[rank(&numbers)] += 1;
        }
        assert!(deviations(&counts).abs() < 4.0, "{length}: {}", deviations(&counts));
    }
}

#[test]
fn each_number_is_as_likely_at_each_position() {
    for length in [9, 10, 16, 17, 31] {
        let mut counts = vec![0; (length * length) as usize];
        for epoch in 0..20_000 {
            let permutation = permutation(length, 5, epoch);
            (0..length).for_each(|at| counts[(at * length + permutation.get(at)) as usize] += 1);
        }
        // Rows and columns of the table have equal sums, so it varies less than chance.
        assert!(deviations(&counts) < 4.0, "{length}: {}", deviations(&counts));
    }
}

/// Index of the part that a number is in, with 64 parts of the length.
fn part(number: u64, length: u64) -> usize {
    (u128::from(number) * 64 / u128::from(length)) as usize
}

/// Lengths that fill their matrix, that leave most of a row empty, and long ones.
const LENGTHS: [u64; 5] = [1 << 20, 1_000_001, 999_999, 1_000_000_000_000, u64::MAX];

#[test]
fn parts_of_the_epoch_read_all_parts_of_the_data() {
    for length in LENGTHS {
        let permutation = permutation(length, 11, 0);
        let mut counts = vec![0; 64 * 64];
        let step = length / 262_144 + 1;
        for at in (0..length).step_by(step as usize) {
            counts[part(at, length) * 64 + part(permutation.get(at), length)] += 1;
        }
        assert!(deviations(&counts).abs() < 4.0, "{length}: {}", deviations(&counts));
    }
}

#[test]
fn neighbours_are_not_related() {
    for length in LENGTHS {
        let permutation = permutation(length, 12, 0);
        let numbers: Vec<u64> = (0..262_144).map(|at| permutation.get(at)).collect();
        let (mut pairs, mut distances) = (vec![0; 64 * 64], vec![0; 64]);
        for pair in numbers.windows(2) {
            pairs[part(pair[0], length) * 64 + part(pair[1], length)] += 1;
            let distance = (u128::from(pair[1]) + u128::from(length) - u128::from(pair[0]))
                % u128::from(length);
            distances[part(distance as u64, length)] += 1;
        }
        assert!(deviations(&pairs).abs() < 4.0, "{length}: {}", deviations(&pairs));
        assert!(deviations(&distances).abs() < 4.0, "{length}: {}", deviations(&distances));
    }
}

#[test]
fn low_bits_are_as_random_as_high_ones() {
    for length in LENGTHS {
        let permutation = permutation(length, 13, 0);
        let mut counts = vec![0; 64 * 64];
        (0..262_144).for_each(|at| {
            counts[(at % 64 * 64 + permutation.get(at) % 64) as usize] += 1;
        });
        assert!(deviations(&counts).abs() < 4.0, "{length}: {}", deviations(&counts));
    }
}

#[test]
fn near_seeds_and_epochs_have_other_orders() {
    let length = 100_000;
    let first = permutation(length, 0, 0);
    for (seed, epoch) in [(0, 1), (1, 0), (0, 2), (1 << 63, 0), (0, 1 << 63), (u64::MAX, 0)] {
        let other = permutation(length, seed, epoch);
        // A random permutation has one number at the place of the first on the average.
        let same = (0..length).filter(|&at| first.get(at) == other.get(at)).count();
        assert!(same < 8, "{seed} {epoch}: {same}");
    }
}
