//! Foreign code that threads of this crate call: wakers, and functions that free memory.

use std::mem;
use std::panic::{self, AssertUnwindSafe};

/// Calls foreign code, and returns whether it returned without a panic. A panic is caught: the
/// thread serves other callers as well, and if it is unwinding already, a second panic would abort
/// the process.
pub(crate) fn call(what: &'static str, code: impl FnOnce()) -> bool {
    let called = panic::catch_unwind(AssertUnwindSafe(code));
    called.map_err(|panic| outlive(what, panic)).is_ok()
}

/// Logs a panic that was caught.
pub(crate) fn outlive(what: &'static str, panic: Box<dyn std::any::Any + Send>) {
    // Dropping the payload may panic as well.
    mem::forget(panic);
    tracing::error!("{what} panicked; the host continues");
}
