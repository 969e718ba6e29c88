//! Parsers of `feedrail-dataset`: what is in files that others wrote, and in texts of users.

pub mod index;
pub mod manifest;
pub mod shard;
pub mod state;
pub mod url;

use crate::allocations::peak_bytes;

/// Memory that a parser may take whatever its input is: windows into a shard, and error messages.
const FIXED_BYTES: usize = 160 << 10;
/// Bytes of memory that a parser may take for each byte of its input. A list of numbers in JSON has
/// two bytes for each, and 16 in memory, twice that where a growing vector is copied.
const BYTES_FOR_EACH: usize = 48;

/// Runs a parser; its memory must be in proportion to its input.
fn bounded<T>(input_bytes: usize, parse: impl FnOnce() -> T) -> T {
    let (result, peak) = peak_bytes(parse);
    let limit = FIXED_BYTES + BYTES_FOR_EACH * input_bytes;
    assert!(peak <= limit, "{peak} bytes of memory for an input of {input_bytes} bytes");
    result
}
