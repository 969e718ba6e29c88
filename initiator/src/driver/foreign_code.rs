//! Code of the crate's users that its own threads call: wakers, and what frees memory.

use std::mem;
use std::panic::{self, AssertUnwindSafe};

/// Calls code of others, and returns whether it came to its end. A panic goes no further: the
/// thread serves others as well, and may be unwinding already, when a second panic would end the
/// process.
pub(crate) fn call(what: &'static str, code: impl FnOnce()) -> bool {
    let called = panic::catch_unwind(AssertUnwindSafe(code));
    called.map_err(|panic| outlive(what, panic)).is_ok()
}

/// Logs a panic that was caught.
pub(crate) fn outlive(what: &'static str, panic: Box<dyn std::any::Any + Send>) {
    // Its drop may panic as well.
    mem::forget(panic);
    tracing::error!("{what} panicked; the host continues");
}
