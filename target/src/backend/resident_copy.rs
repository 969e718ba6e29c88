//! Copies out of a mapped file. Truncating a file removes its pages from all mappings, and reading
//! them raises SIGBUS: the copy then ends early.
#![expect(unsafe_code, reason = "copies by address, and handles a signal")]

use std::io;
use std::sync::OnceLock;

use libc::{c_int, c_void, siginfo_t};

/// Installs the SIGBUS handler of [`copy`] for the process.
///
/// # Errors
/// The error of `sigaction`.
pub(super) fn prepare() -> io::Result<()> {
    static PREPARED: OnceLock<Result<(), i32>> = OnceLock::new();
    let result = PREPARED
        .get_or_init(|| install().map_err(|error| error.raw_os_error().unwrap_or(libc::EINVAL)));
    result.map_err(io::Error::from_raw_os_error)
}

/// Copies bytes and returns their number: fewer than `length` if a page of the source is missing.
///
/// # Safety
/// [`prepare`] was successful. `length` bytes at `from` are mapped, though their pages may be
/// missing; `length` bytes at `to` may be written, and nothing else reads or writes them during the
/// call.
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, length: usize) -> usize {
    // SAFETY: the caller's promise; what the source holds while it changes is of no concern.
    length - unsafe { machine::copy(to, from, length) }
}

/// Action for SIGBUS before [`prepare`], for signals that no copy raised.
static EARLIER: OnceLock<libc::sigaction> = OnceLock::new();

fn install() -> io::Result<()> {
    if !machine::IS_KNOWN {
        return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
    }
    // SAFETY: a plain structure, for which zeros are valid.
    let mut earlier: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: only queries the action.
    if unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut earlier) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // Set before the handler is installed, which reads it.
    EARLIER.get_or_init(|| earlier);
    // SAFETY: as above.
    let mut ours: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = on_bus_error;
    ours.sa_sigaction = handler as *const () as usize;
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: the handler is async-signal-safe.
    match unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Ends the copy if the signal was raised in it; otherwise calls the earlier handler.
extern "C" fn on_bus_error(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes the state of the interrupted thread, which is ours to change.
    if unsafe { machine::end_copy(&mut *context.cast()) } {
        return;
    }
    let Some(earlier) = EARLIER.get() else { return };
    // SAFETY: the action was valid when the system returned it. An access that raised the signal
    // raises it again when this returns; a signal that was sent is sent again.
    unsafe {
        libc::sigaction(signal, earlier, std::ptr::null_mut());
        if (*info).si_code <= 0 {
            libc::raise(signal);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod machine {
    use libc::ucontext_t;

    /// Whether this architecture has an implementation.
    pub(super) const IS_KNOWN: bool = true;

    // `rep movsb` leaves the number of bytes still to copy in rcx. After a signal, the handler
    // continues at the instruction behind it.
    core::arch::global_asm!(
        ".pushsection .text.feedrail_copy_resident,\"ax\",@progbits",
        ".globl feedrail_copy_resident, feedrail_copy_resident_load, feedrail_copy_resident_end",
        ".hidden feedrail_copy_resident, feedrail_copy_resident_load, feedrail_copy_resident_end",
        ".type feedrail_copy_resident, @function",
        ".p2align 4",
        "feedrail_copy_resident:",
        "mov rcx, rdx",
        "feedrail_copy_resident_load:",
        "rep movsb",
        "feedrail_copy_resident_end:",
        "mov rax, rcx",
        "ret",
        ".size feedrail_copy_resident, . - feedrail_copy_resident",
        ".popsection",
    );

    unsafe extern "C" {
        fn feedrail_copy_resident(to: *mut u8, from: *const u8, length: usize) -> usize;
        static feedrail_copy_resident_load: u8;
        static feedrail_copy_resident_end: u8;
    }

    /// Copies, and returns the number of bytes not copied.
    ///
    /// # Safety
    /// The conditions of [`super::copy`] hold.
    pub(super) unsafe fn copy(to: *mut u8, from: *const u8, length: usize) -> usize {
        // SAFETY: the caller's promise.
        unsafe { feedrail_copy_resident(to, from, length) }
    }

    /// Makes the thread continue behind the copy, if the signal interrupted it there; returns
    /// whether it did.
    pub(super) fn end_copy(context: &mut ucontext_t) -> bool {
        let place = &mut context.uc_mcontext.gregs[libc::REG_RIP as usize];
        let is_copy = *place == (&raw const feedrail_copy_resident_load).addr() as i64;
        if is_copy {
            *place = (&raw const feedrail_copy_resident_end).addr() as i64;
        }
        is_copy
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod machine {
    use libc::ucontext_t;

    pub(super) const IS_KNOWN: bool = false;

    /// # Safety
    /// None: it does nothing.
    pub(super) unsafe fn copy(_to: *mut u8, _from: *const u8, length: usize) -> usize {
        length
    }

    pub(super) fn end_copy(_context: &mut ucontext_t) -> bool {
        false
    }
}
