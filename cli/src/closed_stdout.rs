//! Detects that this process was started with its stdout closed.
//!
//! Rust's runtime opens /dev/null in place of a closed standard descriptor before `main`, so that
//! writes to it succeed and are lost. Therefore the check runs before the runtime starts.
#![expect(unsafe_code, reason = "an entry of .init_array runs before the runtime does")]

use std::sync::atomic::{AtomicBool, Ordering};

static CLOSED: AtomicBool = AtomicBool::new(false);

/// Whether descriptor 1 was closed when the process started.
pub(crate) fn stdout_was_closed() -> bool {
    CLOSED.load(Ordering::Relaxed)
}

extern "C" fn look() {
    let closed = rustix::io::fcntl_getfd(rustix::stdio::stdout()).is_err();
    CLOSED.store(closed, Ordering::Relaxed);
}

// SAFETY: the C library calls each entry of this section once, as a C function, before `main`.
// `look` makes one system call and stores to an atomic: it uses nothing of Rust's runtime, does not
// allocate and cannot panic.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;
