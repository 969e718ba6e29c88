//! Measures the rate of memory copies.

use std::hint::black_box;
use std::time::Duration;

use crate::clock::now;

/// Larger than the caches, as for data that is read once.
const ARENA_BYTES: usize = 256 << 20;

/// Returns bytes per second of copies of blocks of this length, most of them not in a cache.
pub(crate) fn copy_rate(block_bytes: usize, time: Duration) -> f64 {
    let source = vec![1_u8; ARENA_BYTES];
    let mut sink = vec![2_u8; ARENA_BYTES];
    let (mut copied, mut at) = (0, 0);
    let start = now();
    while start.elapsed() < time {
        sink[at..at + block_bytes].copy_from_slice(black_box(&source[at..at + block_bytes]));
        black_box(&mut sink);
        copied += block_bytes;
        at = (at + block_bytes) % (ARENA_BYTES - block_bytes + 1);
    }
    copied as f64 / start.elapsed().as_secs_f64()
}
