//! Keyed permutation of a range of numbers.

use std::num::NonZeroU64;

use splitmix64::{SplitMix64, mix};

/// Permutation of the numbers below `length`, computed without a table. The documentation of
/// [`order`](super) describes it.
#[derive(Clone, Debug)]
pub(super) struct Permutation {
    length: u64,
    rows: u64,
    columns: u64,
    /// Number of rounds, and keys for the maximum number of rounds.
    rounds: usize,
    keys: [u64; ROUNDS_SHORT],
}

/// Rounds of permutations shorter than [`LONG`], and of others.
const ROUNDS_SHORT: usize = 24;
const ROUNDS_LONG: usize = 8;

/// Length from which [`ROUNDS_LONG`] suffice: rows and columns are then so many that a hash has
/// enough values.
const LONG: u64 = 1 << 16;

impl Permutation {
    /// Creates the permutation of the numbers below `length` for a key.
    pub(super) fn new(length: NonZeroU64, key: OrderKey) -> Self {
        let length = length.get();
        let root = length.isqrt();
        let rows = if root * root == length { root } else { root + 1 }.next_multiple_of(2);
        let mut random = SplitMix64::new(key.0);
        let keys = std::array::from_fn(|_| random.next_u64());
        let rounds = if length < LONG { ROUNDS_SHORT } else { ROUNDS_LONG };
        Self { length, rows, columns: length.div_ceil(rows), rounds, keys }
    }

    /// Returns the number at a position, which must be below the length.
    pub(super) fn get(&self, position: u64) -> u64 {
        debug_assert!(position < self.length);
        let mut number = self.encrypt(position);
        // Cycle walking ends: the cycle contains the position it began with, which is below the
        // length.
        while number >= self.length {
            number = self.encrypt(number);
        }
        number
    }

    /// Returns the position of a number below the length: the inverse of [`get`](Self::get).
    pub(super) fn position(&self, number: u64) -> u64 {
        debug_assert!(number < self.length);
        let mut position = self.decrypt(number);
        while position >= self.length {
            position = self.decrypt(position);
        }
        position
    }

    fn encrypt(&self, number: u64) -> u64 {
        let (mut row, mut column) = self.pair(number);
        for keys in self.keys[..self.rounds].chunks_exact(2) {
            row = add(row, hash(column, keys[0], self.rows), self.rows);
            column = add(column, hash(row, keys[1], self.columns), self.columns);
        }
        row * self.columns + column
    }

    fn decrypt(&self, number: u64) -> u64 {
        let (mut row, mut column) = self.pair(number);
        for keys in self.keys[..self.rounds].chunks_exact(2).rev() {
            column = subtract(column, hash(row, keys[1], self.columns), self.columns);
            row = subtract(row, hash(column, keys[0], self.rows), self.rows);
        }
        row * self.columns + column
    }

    fn pair(&self, number: u64) -> (u64, u64) {
        (number / self.columns, number % self.columns)
    }
}

/// Returns a pseudo-random number below `bound`.
fn hash(number: u64, key: u64, bound: u64) -> u64 {
    ((u128::from(mix(number ^ key)) * u128::from(bound)) >> 64) as u64
}

/// Adds two numbers modulo `modulus`, which is at most 2^32. Both must be below it.
fn add(a: u64, b: u64, modulus: u64) -> u64 {
    let sum = a + b;
    if sum < modulus { sum } else { sum - modulus }
}

/// Subtracts two numbers modulo `modulus`, which is at most 2^32. Both must be below it.
fn subtract(a: u64, b: u64, modulus: u64) -> u64 {
    if a < b { a + modulus - b } else { a - b }
}

/// Key that determines a permutation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OrderKey(u64);

impl OrderKey {
    /// Key of an epoch. Similar seeds and epochs have unrelated keys.
    pub(super) const fn new(seed: u64, epoch: u64) -> Self {
        Self(mix(mix(seed).wrapping_add(epoch)))
    }

    /// Derives the key of one of several permutations by its number.
    pub(super) const fn within(self, number: u64) -> Self {
        Self(mix(self.0 ^ mix(number.wrapping_add(1))))
    }
}
