//! Copies out of a mapped file. A file that is cut takes its pages out of all mappings, and reading
//! them then raises SIGBUS: the copy ends early instead.
#![expect(unsafe_code, reason = "copies by address, and handles a signal")]

use std::io;
use std::sync::OnceLock;

use libc::{c_int, c_void, siginfo_t};

/// Makes [`copy`] safe for pages that vanish, for all of the process.
///
/// # Errors
/// That of the system call.
pub(super) fn prepare() -> io::Result<()> {
    static PREPARED: OnceLock<Result<(), i32>> = OnceLock::new();
    let result = PREPARED
        .get_or_init(|| install().map_err(|error| error.raw_os_error().unwrap_or(libc::EINVAL)));
    result.map_err(io::Error::from_raw_os_error)
}

/// Copies bytes, and returns how many those are: fewer than `length` where a page of the source is
/// gone.
///
/// # Safety
/// [`prepare`] was successful. `length` bytes from `from` on are mapped, though pages of them may
/// be gone; as many from `to` on may be written, and nothing else reads or writes them meanwhile.
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, length: usize) -> usize {
    // SAFETY: the caller's promise; what the source holds while it changes is of no concern.
    length - unsafe { machine::copy(to, from, length) }
}

/// Who handled the signal before.
static EARLIER: OnceLock<libc::sigaction> = OnceLock::new();

fn install() -> io::Result<()> {
    if !machine::IS_KNOWN {
        return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
    }
    // SAFETY: a plain structure, for which zeros are valid.
    let mut earlier: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: asks only.
    if unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut earlier) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // The handler needs it from its first call on.
    EARLIER.get_or_init(|| earlier);
    // SAFETY: as above.
    let mut ours: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) = on_bus_error;
    ours.sa_sigaction = handler as *const () as usize;
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: the handler does only what a handler may do.
    match unsafe { libc::sigaction(libc::SIGBUS, &raw const ours, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Ends a copy that raised the signal. Whatever else raised it, the earlier handler has it.
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

    /// Whether there is a copy for this processor.
    pub(super) const IS_KNOWN: bool = true;

    // `rep movsb` leaves how much it has not copied in rcx. When it raises a signal, the handler
    // goes on behind it.
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

    /// Returns how many bytes were not copied.
    ///
    /// # Safety
    /// Those of [`super::copy`] hold.
    pub(super) unsafe fn copy(to: *mut u8, from: *const u8, length: usize) -> usize {
        // SAFETY: the caller's promise.
        unsafe { feedrail_copy_resident(to, from, length) }
    }

    /// Has a thread go on behind the copy, if it was interrupted in it.
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
