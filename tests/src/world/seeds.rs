//! Running a test for many seeds, and for one of them again.

use std::ops::Range;
use std::thread;

/// The variable that names the one seed to run.
const VARIABLE: &str = "FEEDRAIL_SEED";

/// The seed that was asked for, if one was.
///
/// # Panics
/// If `FEEDRAIL_SEED` is not a number.
pub fn only_seed() -> Option<u64> {
    let text = std::env::var(VARIABLE).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{VARIABLE}={text} is not a number")))
}

/// Whether tests try every world, as `cargo xtask ci --full` does, or a part of them.
pub fn all_worlds() -> bool {
    std::env::var_os("FEEDRAIL_ALL_WORLDS").is_some()
}

/// Runs `test` for each seed, or for the one that `FEEDRAIL_SEED` names if it is among them. A
/// failure prints how to repeat it.
pub fn with_seeds(seeds: Range<u64>, mut test: impl FnMut(u64)) {
    for seed in seeds {
        if only_seed().is_none_or(|only| only == seed) {
            let _on_failure = SayHow { seed };
            test(seed);
        }
    }
}

struct SayHow {
    seed: u64,
}

impl Drop for SayHow {
    fn drop(&mut self) {
        if thread::panicking() {
            // The harness names the thread of a test after the test.
            let (seed, thread) = (self.seed, thread::current());
            let test = thread.name().unwrap_or_default();
            eprintln!(
                "seed {seed} failed; to see it again: \
                 {VARIABLE}={seed} cargo test -p feedrail-tests --test worlds {test}"
            );
        }
    }
}
