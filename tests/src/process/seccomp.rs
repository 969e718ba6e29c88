//! Processes to which the kernel refuses something, as in many containers.
#![expect(unsafe_code, reason = "a filter must be installed between fork and exec")]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

const NO_IO_URING: [libc::sock_filter; 4] = io_uring_is(REFUSE);
const HIDDEN_IO_URING: [libc::sock_filter; 4] = io_uring_is(HIDE);

/// Answers EPERM to setsockopt with a steering program, and allows all else.
const NO_STEERING: [libc::sock_filter; 6] = [
    load(NUMBER),
    skip_unless(libc::SYS_setsockopt as u32, 3),
    load(THIRD_ARGUMENT),
    skip_unless(libc::SO_ATTACH_REUSEPORT_CBPF as u32, 1),
    REFUSE,
    ALLOW,
];

/// Offsets in the data that a filter reads.
const NUMBER: u32 = 0;
const THIRD_ARGUMENT: u32 = 32;

const REFUSE: libc::sock_filter =
    statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32);
const HIDE: libc::sock_filter =
    statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32);
const ALLOW: libc::sock_filter = statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW);

/// Loads the number of the system call; if it is that of io_uring_setup gives the answer, else
/// allows it.
const fn io_uring_is(answer: libc::sock_filter) -> [libc::sock_filter; 4] {
    [load(NUMBER), skip_unless(libc::SYS_io_uring_setup as u32, 1), answer, ALLOW]
}

const fn load(offset: u32) -> libc::sock_filter {
    statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset)
}

/// Skips `statements` statements if the loaded value is not `k`.
const fn skip_unless(k: u32, statements: u8) -> libc::sock_filter {
    let code = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    libc::sock_filter { code, jt: 0, jf: statements, k }
}

const fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

/// Refuses io_uring to the program, and all that it starts, with EPERM.
pub(super) fn refuse_io_uring(command: &mut Command) {
    refuse(command, &NO_IO_URING);
}

/// Hides io_uring from the program, and all that it starts, as a kernel without it does.
pub(super) fn hide_io_uring(command: &mut Command) {
    refuse(command, &HIDDEN_IO_URING);
}

/// Refuses the program, and all that it starts, steering of packets to sockets, with EPERM.
pub(super) fn refuse_steering(command: &mut Command) {
    refuse(command, &NO_STEERING);
}

fn refuse(command: &mut Command, filter: &'static [libc::sock_filter]) {
    // SAFETY: the closure makes two system calls and allocates nothing, so it may run after a fork
    // of a process with several threads.
    unsafe { command.pre_exec(|| install(filter)) };
}

fn install(filter: &[libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
    // SAFETY: the first call takes no pointer; the second only reads `program` and `filter`, which
    // live until it returns.
    let refused = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
            || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) != 0
    };
    if refused { Err(io::Error::last_os_error()) } else { Ok(()) }
}
