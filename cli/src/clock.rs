//! The clock of the machine: this binary is a driver, so it may look.

use std::time::Instant;

#[expect(clippy::disallowed_methods, reason = "measuring elapsed time is what perf and demo do")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
