//! The only functions that access registered memory by address.
#![expect(unsafe_code, reason = "registered memory is named by address")]

use core::{ptr, slice};

/// Copies `payload` to `addr`.
///
/// # Safety
/// `payload.len()` bytes at `addr` are mapped and writable, nothing of this process reaches them
/// through a reference, and both stay so until this returns.
pub(crate) unsafe fn copy_in(addr: u64, payload: &[u8]) {
    let target = ptr::with_exposed_provenance_mut::<u8>(address(addr));
    // SAFETY: the caller vouches for the target; a received payload lies in a buffer of the
    // provider's own that is never registered, so the two do not overlap.
    unsafe { ptr::copy_nonoverlapping(payload.as_ptr(), target, payload.len()) }
}

/// Copies `length` bytes from `source` to `addr`.
///
/// # Safety
/// As for [`copy_in`]; `source` is readable for as many bytes. Another process may change them
/// during the copy: then what arrives is any mixture.
pub(crate) unsafe fn copy_from(addr: u64, source: *const u8, length: usize) {
    let target = ptr::with_exposed_provenance_mut::<u8>(address(addr));
    // SAFETY: the caller vouches for both; shared memory is never registered, so they do not
    // overlap.
    unsafe { ptr::copy_nonoverlapping(source, target, length) }
}

/// Copies `length` bytes from `addr` to `target`.
///
/// # Safety
/// As many bytes at `addr` are mapped and readable, and `target` is writable for them, until this
/// returns. A peer that is allowed to write at `addr` may change them during the copy.
pub(crate) unsafe fn copy_to(addr: u64, target: *mut u8, length: usize) {
    let source = ptr::with_exposed_provenance::<u8>(address(addr));
    // SAFETY: as in `copy_from`.
    unsafe { ptr::copy_nonoverlapping(source, target, length) }
}

/// Borrows `length` bytes at `addr`.
///
/// # Safety
/// `length` bytes at `addr` are mapped and readable for as long as the slice is used.
pub(crate) unsafe fn bytes<'a>(addr: u64, length: usize) -> &'a [u8] {
    if length == 0 {
        return &[];
    }
    let source = ptr::with_exposed_provenance::<u8>(address(addr));
    // SAFETY: the caller vouches for the memory. A peer that is allowed to write there may change
    // it while it is sent; then what is sent is any mixture, as with a network card.
    unsafe { slice::from_raw_parts(source, length) }
}

fn address(addr: u64) -> usize {
    usize::try_from(addr).expect("an address that was registered fits a pointer")
}
