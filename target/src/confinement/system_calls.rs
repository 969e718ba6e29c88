//! System calls that the daemon and its helper may make, as seccomp filters.
//!
//! The list was made of what the tests of the daemon call, of what libibverbs and librdmacm call
//! for devices that appear later, and of calls that the C library may choose in place of others. It
//! has none that executes a program, makes a process, changes users, mounts, traces, loads code
//! into the kernel or makes a further io_uring.

use std::collections::BTreeMap;

use libc::c_long;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

/// Answer of the kernel to a call outside the list.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Answer {
    /// SIGSYS ends the process.
    Kill,
    /// The kernel logs the call and executes it.
    Log,
}

/// Calls with any arguments.
const ANY: &[c_long] = &[
    // Descriptors and files.
    libc::SYS_close,
    libc::SYS_copy_file_range,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fadvise64,
    libc::SYS_fallocate,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fcntl,
    libc::SYS_fdatasync,
    libc::SYS_flock,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_inotify_add_watch,
    libc::SYS_inotify_init1,
    libc::SYS_inotify_rm_watch,
    libc::SYS_linkat,
    libc::SYS_lseek,
    libc::SYS_mkdirat,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_pipe2,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_read,
    libc::SYS_readlinkat,
    libc::SYS_readv,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_statfs,
    libc::SYS_statx,
    libc::SYS_sync_file_range,
    libc::SYS_unlinkat,
    libc::SYS_utimensat,
    libc::SYS_write,
    libc::SYS_writev,
    // Waiting.
    libc::SYS_clock_nanosleep,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_futex,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_nanosleep,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_restart_syscall,
    libc::SYS_sched_yield,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_gettime,
    libc::SYS_timerfd_settime,
    // Memory.
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_memfd_create,
    libc::SYS_mincore,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_mremap,
    libc::SYS_msync,
    libc::SYS_munlock,
    libc::SYS_munmap,
    // Threads, and what a process asks of itself.
    libc::SYS_capget,
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clone3,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_getcpu,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getgroups,
    libc::SYS_getpid,
    libc::SYS_getppid,
    libc::SYS_getrandom,
    libc::SYS_getresgid,
    libc::SYS_getresuid,
    libc::SYS_getrusage,
    libc::SYS_gettid,
    libc::SYS_gettimeofday,
    libc::SYS_getuid,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_set_robust_list,
    libc::SYS_sigaltstack,
    libc::SYS_sysinfo,
    libc::SYS_times,
    libc::SYS_uname,
    libc::SYS_wait4,
    // Sockets.
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_bind,
    libc::SYS_connect,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_listen,
    libc::SYS_recvfrom,
    libc::SYS_recvmmsg,
    libc::SYS_recvmsg,
    libc::SYS_sendmmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
];

/// Calls that newer architectures do not have.
#[cfg(target_arch = "x86_64")]
const OLD: &[c_long] = &[
    libc::SYS_access,
    libc::SYS_chmod,
    libc::SYS_dup2,
    libc::SYS_epoll_create,
    libc::SYS_epoll_wait,
    libc::SYS_getdents,
    libc::SYS_link,
    libc::SYS_lstat,
    libc::SYS_mkdir,
    libc::SYS_open,
    libc::SYS_pipe,
    libc::SYS_poll,
    libc::SYS_readlink,
    libc::SYS_rename,
    libc::SYS_select,
    libc::SYS_stat,
    libc::SYS_time,
    libc::SYS_unlink,
];
#[cfg(not(target_arch = "x86_64"))]
const OLD: &[c_long] = &[];

/// Calls of the helper that opens files, and reads the configuration.
const OF_HELPER: &[c_long] = &[
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_close,
    libc::SYS_connect,
    libc::SYS_exit_group,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_futex,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_getuid,
    libc::SYS_lseek,
    libc::SYS_madvise,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_ppoll,
    libc::SYS_pread64,
    libc::SYS_read,
    libc::SYS_readlinkat,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_yield,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_sigaltstack,
    libc::SYS_statx,
];

/// Families of sockets: for RoCE over UDP, for management, and for routes and devices.
const FAMILIES: [libc::c_int; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];
/// Requests of `ioctl` on terminals, descriptors and block devices.
const REQUESTS: [libc::Ioctl; 6] = [
    libc::TCGETS,
    libc::FIONBIO,
    libc::FIONREAD,
    libc::FIOCLEX,
    // BLKGETSIZE64 and BLKSSZGET.
    0x8008_1272,
    0x1268,
];
/// Kind of request, in bits 8 to 15: RDMA devices, and network interfaces.
const REQUEST_KINDS: [u64; 2] = [0x1b00, 0x8900];
/// `PR_GET_AUXV`, by which libraries learn what the kernel told the process.
const GET_AUXV: u64 = 0x4155_5856;
/// `PR_SET_VMA`, by which the C library names memory.
const NAME_MEMORY: u64 = 0x5356_4d41;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// Applies the filter to all threads of this process.
///
/// # Errors
/// The kernel has no seccomp filters, or refuses them.
pub(crate) fn restrict_process(answer: Answer) -> Result<(), seccompiler::Error> {
    let otherwise = match answer {
        Answer::Log => SeccompAction::Log,
        Answer::Kill => SeccompAction::KillProcess,
    };
    // The C library falls back to `clone`, whose flags a filter can see.
    let hidden = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let hide = SeccompAction::Errno(libc::ENOSYS.cast_unsigned());
    seccompiler::apply_filter_all_threads(&program(hidden, SeccompAction::Allow, hide)?)?;
    seccompiler::apply_filter_all_threads(&program(rules()?, otherwise, SeccompAction::Allow)?)
}

/// Applies the helper's filter to this process.
///
/// # Errors
/// The kernel has no seccomp filters, or refuses the helper's.
pub(crate) fn restrict_helper() -> Result<(), seccompiler::Error> {
    let mut rules: Rules = OF_HELPER.iter().chain(OLD).map(|call| (*call, Vec::new())).collect();
    rules.insert(libc::SYS_mmap, never_both(2, libc::PROT_WRITE, libc::PROT_EXEC)?);
    rules.insert(libc::SYS_mprotect, vec![without(2, libc::PROT_EXEC)?]);
    // The C library asks for groups by sockets of this machine.
    rules.insert(libc::SYS_socket, one_of(0, [unsigned(libc::AF_UNIX)])?);
    let rules = program(rules, SeccompAction::KillProcess, SeccompAction::Allow)?;
    seccompiler::apply_filter(&rules)
}

fn program(
    rules: Rules,
    otherwise: SeccompAction,
    listed: SeccompAction,
) -> Result<BpfProgram, seccompiler::Error> {
    let arch = std::env::consts::ARCH.try_into()?;
    Ok(SeccompFilter::new(rules, otherwise, listed, arch)?.try_into()?)
}

/// Rules of all calls that are listed.
fn rules() -> Result<Rules, seccompiler::Error> {
    let mut rules: Rules = ANY.iter().chain(OLD).map(|call| (*call, Vec::new())).collect();
    let thread = unsigned(libc::CLONE_THREAD);
    rules.insert(libc::SYS_clone, vec![when(0, SeccompCmpOp::MaskedEq(thread), thread)?]);
    rules.insert(libc::SYS_socket, one_of(0, FAMILIES.map(unsigned))?);
    rules.insert(libc::SYS_socketpair, one_of(0, [unsigned(libc::AF_UNIX)])?);
    rules.insert(libc::SYS_mmap, never_both(2, libc::PROT_WRITE, libc::PROT_EXEC)?);
    rules.insert(libc::SYS_mprotect, vec![without(2, libc::PROT_EXEC)?]);
    // Its limits are asked for, and those of no other process; none is set.
    let asks = vec![is(0, 0)?, is(2, 0)?];
    rules.insert(libc::SYS_prlimit64, vec![SeccompRule::new(asks)?]);
    // For `abort`.
    let own = u64::from(std::process::id());
    rules.insert(libc::SYS_tgkill, vec![when(0, SeccompCmpOp::Eq, own)?]);
    let options = [unsigned(libc::PR_SET_NAME), unsigned(libc::PR_GET_NAME), NAME_MEMORY, GET_AUXV];
    rules.insert(libc::SYS_prctl, one_of(0, options)?);
    let mut requests = one_of(1, REQUESTS.map(u64::from))?;
    for kind in REQUEST_KINDS {
        requests.push(when(1, SeccompCmpOp::MaskedEq(0xff00), kind)?);
    }
    rules.insert(libc::SYS_ioctl, requests);
    Ok(rules)
}

fn unsigned(value: libc::c_int) -> u64 {
    u64::from(value.cast_unsigned())
}

/// Compares the lower half of an argument, which is all that the kernel reads of an `int`.
fn condition(
    argument: u8,
    how: SeccompCmpOp,
    value: u64,
) -> Result<SeccompCondition, seccompiler::Error> {
    Ok(SeccompCondition::new(argument, SeccompCmpArgLen::Dword, how, value)?)
}

/// Compares all of an argument, which may be a pointer.
fn is(argument: u8, value: u64) -> Result<SeccompCondition, seccompiler::Error> {
    let (length, how) = (SeccompCmpArgLen::Qword, SeccompCmpOp::Eq);
    Ok(SeccompCondition::new(argument, length, how, value)?)
}

fn when(argument: u8, how: SeccompCmpOp, value: u64) -> Result<SeccompRule, seccompiler::Error> {
    Ok(SeccompRule::new(vec![condition(argument, how, value)?])?)
}

fn one_of<const N: usize>(
    argument: u8,
    values: [u64; N],
) -> Result<Vec<SeccompRule>, seccompiler::Error> {
    values.into_iter().map(|value| when(argument, SeccompCmpOp::Eq, value)).collect()
}

fn without(argument: u8, bits: libc::c_int) -> Result<SeccompRule, seccompiler::Error> {
    when(argument, SeccompCmpOp::MaskedEq(unsigned(bits)), 0)
}

fn never_both(
    argument: u8,
    one: libc::c_int,
    other: libc::c_int,
) -> Result<Vec<SeccompRule>, seccompiler::Error> {
    Ok(vec![without(argument, one)?, without(argument, other)?])
}

#[cfg(test)]
mod tests;
