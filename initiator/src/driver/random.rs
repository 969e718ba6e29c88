//! Random bytes of the system.

use rustix::io::retry_on_intr;
use rustix::rand::{GetRandomFlags, getrandom};

/// Fills the slice with bytes of the system's random generator.
///
/// # Panics
/// The kernel has no `getrandom`, which is older than all other system calls that a host needs.
pub(crate) fn fill_random(bytes: &mut [u8]) {
    let mut filled = 0;
    while filled < bytes.len() {
        let got = retry_on_intr(|| getrandom(&mut bytes[filled..], GetRandomFlags::empty()));
        filled += got.expect("the kernel has getrandom");
    }
}
