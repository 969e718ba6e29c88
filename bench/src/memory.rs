//! How fast memory is copied.

use std::hint::black_box;
use std::time::Duration;

use crate::clock::now;

/// Larger than the caches, as data that is read once is.
const ARENA_BYTES: usize = 256 << 20;

/// Bytes per second, in blocks of this length that are seldom in a cache.
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
