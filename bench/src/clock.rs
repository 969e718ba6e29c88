//! The clock of the machine: a bench is a driver, so it may look.

use std::time::Instant;

#[expect(clippy::disallowed_methods, reason = "measuring elapsed time is what a bench does")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
