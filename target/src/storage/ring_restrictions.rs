//! Operations and registrations to which the kernel restricts a ring of the storage engine.

use std::io;

use io_uring::register::Restriction;
use io_uring::{IoUring, opcode};

/// Operations of storage, and of waiting for descriptors.
const OPERATIONS: [u8; 8] = [
    opcode::Read::CODE,
    opcode::ReadFixed::CODE,
    opcode::Write::CODE,
    opcode::WriteFixed::CODE,
    opcode::Fsync::CODE,
    opcode::Fallocate::CODE,
    opcode::PollAdd::CODE,
    opcode::AsyncCancel::CODE,
];
/// `IOSQE_FIXED_FILE`: the only flag that entries have.
const FIXED_FILE: u8 = 1;
/// Registrations: `IORING_REGISTER_BUFFERS`, `IORING_REGISTER_FILES_UPDATE` and
/// `IORING_REGISTER_FILES2`.
const REGISTRATIONS: [u8; 3] = [0, 6, 13];

/// Restricts a ring that was set up disabled, and enables it.
///
/// # Errors
/// The error of `io_uring_register`, which refuses both for a ring that is enabled.
pub(super) fn restrict(ring: &IoUring) -> io::Result<()> {
    let mut restrictions: Vec<_> = OPERATIONS.map(Restriction::sqe_op).into();
    restrictions.extend(REGISTRATIONS.map(Restriction::register_op));
    restrictions.push(Restriction::sqe_flags_allowed(FIXED_FILE));
    ring.submitter().register_restrictions(&mut restrictions)?;
    ring.submitter().register_enable_rings()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(unsafe_code, reason = "fills entries of a ring")]
    fn other_operations_are_refused() {
        let mut ring = IoUring::builder().setup_r_disabled().build(4).expect("a ring");
        restrict(&ring).expect("restricted");
        let mut result_of = |entry| {
            // SAFETY: neither entry has memory.
            unsafe { ring.submission().push(&entry) }.expect("room");
            ring.submit_and_wait(1).expect("entered");
            ring.completion().next().expect("a completion").result()
        };
        assert_eq!(result_of(opcode::Nop::new().build()), -libc::EACCES);
        let socket = opcode::Socket::new(libc::AF_INET, libc::SOCK_DGRAM, 0).build();
        assert_eq!(result_of(socket), -libc::EACCES);
        let sync = opcode::Fsync::new(io_uring::types::Fd(-1)).build();
        assert_eq!(result_of(sync), -libc::EBADF);
        assert!(ring.submitter().register_probe(&mut io_uring::Probe::new()).is_err());
    }
}
