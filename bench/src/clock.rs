//! Clock of the machine. Libraries receive the time as an argument; a bench may read it.

use std::time::Instant;

#[expect(clippy::disallowed_methods, reason = "measuring elapsed time is what a bench does")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
