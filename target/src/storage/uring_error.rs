//! Reasons that io_uring or the registration of memory is refused, with the remedies.

use std::io;

/// Reason that io_uring is not available. The message is one line with the remedy.
#[derive(Debug, thiserror::Error)]
pub enum UringError {
    /// The kernel was built without it, or is too old to have it.
    #[error("this kernel has no io_uring: Linux 5.11 or later with CONFIG_IO_URING is needed")]
    Missing,
    /// The kernel's io_uring lacks an operation or flag that is needed.
    #[error("this kernel's io_uring is too old: Linux 5.11 or later is needed")]
    TooOld,
    /// The administrator disabled io_uring for all processes.
    #[error(
        "io_uring is disabled on this machine: allow it with `sysctl kernel.io_uring_disabled=0`"
    )]
    Disabled,
    /// An administrator reserved it for privileged processes.
    #[error(
        "io_uring is reserved for privileged processes on this machine: allow it with `sysctl \
         kernel.io_uring_disabled=0`, or put this user's group into `sysctl kernel.io_uring_group`"
    )]
    Reserved,
    /// A seccomp filter or another sandbox refuses it.
    #[error(
        "io_uring is refused, probably by a seccomp filter: let the container's profile allow \
         io_uring_setup, io_uring_enter and io_uring_register (--security-opt seccomp=FILE of docker \
         and podman)"
    )]
    Filtered,
    /// Not even a small ring fits the limit of locked memory.
    #[error(
        "cannot set up io_uring: RLIMIT_MEMLOCK leaves no room for it: raise it with `ulimit -l` or \
         LimitMEMLOCK= of the service"
    )]
    Memlock,
    /// `io_uring_setup` or a registration failed for another reason.
    #[error("cannot set up io_uring: {0}")]
    Io(io::Error),
}

impl UringError {
    /// Explains why a ring cannot be set up.
    pub(super) fn of_setup(error: io::Error) -> Self {
        explain(error, &io_uring_disabled(), is_filtered())
    }
}

fn io_uring_disabled() -> String {
    std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default()
}

/// Whether a seccomp filter restricts this process's system calls.
fn is_filtered() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().any(|line| line.split_whitespace().eq(["Seccomp:", "2"]))
}

fn explain(error: io::Error, disabled: &str, is_filtered: bool) -> UringError {
    match (error.raw_os_error(), disabled.trim()) {
        // Podman's profile hides system calls like this.
        (Some(libc::ENOSYS), _) if is_filtered => UringError::Filtered,
        (Some(libc::ENOSYS), _) => UringError::Missing,
        (Some(libc::EPERM), "2") => UringError::Disabled,
        (Some(libc::EPERM), "1") => UringError::Reserved,
        (Some(libc::EPERM | libc::EACCES), _) => UringError::Filtered,
        (Some(libc::ENOMEM), _) => UringError::Memlock,
        _ => UringError::Io(error),
    }
}

/// Text for a refused registration of `length` bytes of memory.
pub(super) fn refusal(error: &io::Error, length: usize) -> String {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
    match (error.raw_os_error(), limit) {
        (Some(libc::ENOMEM | libc::EPERM), Some(limit)) => format!(
            "its {} KiB have to be locked, and RLIMIT_MEMLOCK allows {} KiB for all that this user locks, io_uring's \
             queues included: raise it with `ulimit -l` or LimitMEMLOCK= of the service",
            length.div_ceil(1024),
            limit / 1024
        ),
        _ => format!("the kernel refused: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn os(code: i32) -> io::Error {
        io::Error::from_raw_os_error(code)
    }

    #[test]
    fn refusals_name_the_remedy() {
        let text = |code, sysctl| explain(os(code), sysctl, false).to_string();
        assert!(text(libc::EPERM, "2\n").contains("kernel.io_uring_disabled=0"));
        assert!(text(libc::EPERM, "1\n").contains("kernel.io_uring_group"));
        assert!(text(libc::EPERM, "0\n").contains("seccomp"));
        assert!(text(libc::EPERM, "").contains("seccomp"));
        assert!(text(libc::ENOSYS, "").contains("5.11"));
        assert!(explain(os(libc::ENOSYS), "", true).to_string().contains("seccomp"));
        assert!(text(libc::EMFILE, "").contains("Too many open files"));
    }

    #[test]
    fn a_refused_registration_names_the_limit() {
        let text = refusal(&os(libc::ENOMEM), 64 << 20);
        // As root the limit may be infinite, and then something else refused.
        assert!(text.contains("RLIMIT_MEMLOCK") || text.contains("refused"), "{text}");
    }
}
