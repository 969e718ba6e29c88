//! Processes to which the kernel refuses io_uring, as in many containers.
#![expect(unsafe_code, reason = "a filter must be installed between fork and exec")]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Loads the number of the system call; if it is that of io_uring_setup answers EPERM, else allows it.
const FILTER: [libc::sock_filter; 4] = [
    statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
    libc::sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt: 0,
        jf: 1,
        k: libc::SYS_io_uring_setup as u32,
    },
    statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
    statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
];

const fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

/// Has the program, and all that it starts, refused io_uring with EPERM.
pub(super) fn refuse_io_uring(command: &mut Command) {
    // SAFETY: the closure makes two system calls and allocates nothing, so it may run after a fork of a process with
    // several threads.
    unsafe { command.pre_exec(install) };
}

fn install() -> io::Result<()> {
    let mut filter = FILTER;
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the first call takes no pointer; the second only reads `program` and `filter`, which live until it returns.
    let refused = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) != 0
    };
    if refused { Err(io::Error::last_os_error()) } else { Ok(()) }
}
