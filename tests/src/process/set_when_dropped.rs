//! Ends threads however a test ends.

use std::sync::atomic::{AtomicBool, Ordering};

/// Sets the flag that ends the threads of a scope, also where an assertion fails: a scope waits for
/// its threads before it passes a panic on.
pub struct SetWhenDropped<'a>(pub &'a AtomicBool);

impl Drop for SetWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
