//! The limit on locked memory (`RLIMIT_MEMLOCK`), to which all memory that a device accesses
//! counts.

use std::io;

use rustix::process::{Resource, getrlimit};

/// Adds the limit and the fix to an error that it may have caused; other errors are returned as
/// they are.
pub(crate) fn explain(error: io::Error, what: &str) -> io::Error {
    match getrlimit(Resource::Memlock).current {
        Some(limit_bytes) => explain_limit(error, what, limit_bytes),
        None => error,
    }
}

fn explain_limit(error: io::Error, what: &str, limit_bytes: u64) -> io::Error {
    if !matches!(error.raw_os_error(), Some(libc::ENOMEM | libc::EAGAIN | libc::EPERM)) {
        return error;
    }
    let message = format!(
        "{error}: {what} has to be locked, and RLIMIT_MEMLOCK is {} KiB; \
         raise it with `ulimit -l`, LimitMEMLOCK= in the systemd unit, or CAP_IPC_LOCK",
        limit_bytes / 1024
    );
    io::Error::new(error.kind(), message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_for_memory_names_the_limit() {
        let refused = |code| {
            let what = "the memory to register, 65536 KiB,";
            explain_limit(io::Error::from_raw_os_error(code), what, 8 << 20).to_string()
        };
        let text = refused(libc::ENOMEM);
        assert!(
            text.contains("65536 KiB") && text.contains("RLIMIT_MEMLOCK is 8192 KiB"),
            "{text}"
        );
        let text = refused(libc::EINVAL);
        assert!(!text.contains("RLIMIT_MEMLOCK"), "{text}");
    }
}
