//! Atomic words in shared memory, which loom tests replace by loom's atomics.

use core::sync::atomic::{AtomicU64, Ordering};

/// A word that either end of a link may read and write at any time.
pub(super) trait SharedWord {
    fn load(&self, order: Ordering) -> u64;
    fn store(&self, value: u64, order: Ordering);
    fn swap(&self, value: u64, order: Ordering) -> u64;
}

macro_rules! shared_word {
    ($word:ty) => {
        impl SharedWord for $word {
            #[inline]
            fn load(&self, order: Ordering) -> u64 {
                <$word>::load(self, order)
            }

            #[inline]
            fn store(&self, value: u64, order: Ordering) {
                <$word>::store(self, value, order);
            }

            #[inline]
            fn swap(&self, value: u64, order: Ordering) -> u64 {
                <$word>::swap(self, value, order)
            }
        }
    };
}

shared_word!(AtomicU64);
#[cfg(all(test, loom))]
shared_word!(loom::sync::atomic::AtomicU64);
