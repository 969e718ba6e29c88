//! Random bytes of the system.

/// Fills the slice with bytes of the system's random generator.
///
/// # Panics
/// The kernel has no `getrandom`, which is older than all other system calls that a host needs.
pub(crate) fn fill_random(bytes: &mut [u8]) {
    rdma::fill_random(bytes).expect("the kernel has getrandom");
}
