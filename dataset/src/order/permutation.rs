//! A permutation of numbers that follows from a key.

use std::num::NonZeroU64;

use splitmix64::{SplitMix64, mix};

/// A permutation of the numbers below a length, without a table. The documentation of
/// [`order`](super) says how it works.
#[derive(Clone, Debug)]
pub(super) struct Permutation {
    length: u64,
    rows: u64,
    columns: u64,
    /// How many rounds there are, and the keys of as many as there may be.
    rounds: usize,
    keys: [u64; ROUNDS_SHORT],
}

/// Rounds of permutations that are shorter than [`LONG`], and of the others.
const ROUNDS_SHORT: usize = 24;
const ROUNDS_LONG: usize = 8;

/// Least length with so many rows and columns that a hash tells them apart in few rounds.
const LONG: u64 = 1 << 16;

impl Permutation {
    /// The permutation of the numbers below a length that follows from a key.
    pub(super) fn new(length: NonZeroU64, key: OrderKey) -> Self {
        let length = length.get();
        let root = length.isqrt();
        let rows = if root * root == length { root } else { root + 1 }.next_multiple_of(2);
        let mut random = SplitMix64::new(key.0);
        let keys = std::array::from_fn(|_| random.next_u64());
        let rounds = if length < LONG { ROUNDS_SHORT } else { ROUNDS_LONG };
        Self { length, rows, columns: length.div_ceil(rows), rounds, keys }
    }

    /// The number that is put at a position below the length.
    pub(super) fn get(&self, position: u64) -> u64 {
        debug_assert!(position < self.length);
        let mut number = self.encrypt(position);
        // The walk comes back to where it began, which is below the length.
        while number >= self.length {
            number = self.encrypt(number);
        }
        number
    }

    /// The position at which a number below the length is put: the inverse of [`get`](Self::get).
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

/// A number below a bound that looks random.
fn hash(number: u64, key: u64, bound: u64) -> u64 {
    ((u128::from(mix(number ^ key)) * u128::from(bound)) >> 64) as u64
}

/// The sum of two numbers below a modulus, which is at most 2^32.
fn add(a: u64, b: u64, modulus: u64) -> u64 {
    let sum = a + b;
    if sum < modulus { sum } else { sum - modulus }
}

/// The difference of two numbers below a modulus, which is at most 2^32.
fn subtract(a: u64, b: u64, modulus: u64) -> u64 {
    if a < b { a + modulus - b } else { a - b }
}

/// Key that a permutation is derived from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OrderKey(u64);

impl OrderKey {
    /// The key of an epoch. Near seeds and epochs have keys that are not alike.
    pub(super) const fn new(seed: u64, epoch: u64) -> Self {
        Self(mix(mix(seed).wrapping_add(epoch)))
    }

    /// A key for the permutation of that number within this one.
    pub(super) const fn within(self, number: u64) -> Self {
        Self(mix(self.0 ^ mix(number.wrapping_add(1))))
    }
}
