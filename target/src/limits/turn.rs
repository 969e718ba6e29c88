//! Bounds of what a core does before it looks at its other work, all in one place.
//!
//! A turn of a poll group handles completions in portions, reads a bounded number of bytes from the
//! page cache, resumes a bounded number of operations that waited for a time, and sends data in
//! portions before responses.

/// Maximum number of completions polled with one call.
pub(crate) const COMPLETIONS_AT_ONCE: usize = 64;
/// If at least this many commands arrived at an idle core, the responses to the first half are sent
/// before the others are parsed. Otherwise host and target would take turns waiting for each other
/// (`docs/decisions/048-halves-of-a-batch.md`).
pub(crate) const HALVING_MIN_COMMANDS: usize = 16;
/// Most operations that timers resume in one turn: each may take long, and the rest of the core
/// waits.
pub(crate) const TIMERS_AT_ONCE: usize = 16;
/// Most commands that resume in one turn after they have waited for their quotas.
pub(crate) const UNTHROTTLED_AT_ONCE: usize = 64;
/// Most bytes of reads from the page cache in one turn. Their copies take about 100 us, during
/// which packets and other hosts wait.
pub(crate) const CACHED_TURN_BYTES: u64 = 1 << 20;
/// Bytes of [`CACHED_TURN_BYTES`] that an attempt uses up in addition to its length.
pub(crate) const CACHED_TRY_BYTES: u64 = 4096;
/// Most bytes of one attempt to read from the page cache, which bounds the time that other work of
/// the core waits for the copy.
pub(crate) const CACHED_READ_BYTES: u32 = 256 << 10;
/// Most ranges of one Read Ranges command, which has at most [`CACHED_READ_BYTES`] in all. Each may
/// take a system call.
pub(crate) const LISTED_RANGES: u32 = 128;
/// Bytes of data that a connection sends to the host before the first of the responses to several
/// commands, while storage is busy.
pub(crate) const DATA_BEFORE_RESPONSES_BYTES: u32 = 128 << 10;
/// Bytes of data sent before the first of the responses while storage is idle and the device sends
/// trains, but at most the data of half of the commands to answer. Chosen with reads of 16 to 128
/// KiB over `soft` (`cargo xtask bench`): at 128 KiB, two packets of each batch ended trains early.
pub(crate) const DATA_BEFORE_RESPONSES_MAX_BYTES: u32 = 512 << 10;
