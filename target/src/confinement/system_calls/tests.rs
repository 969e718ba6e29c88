#![expect(unsafe_code, reason = "makes system calls by their numbers, in processes of their own")]

use std::collections::BTreeSet;

use super::*;

/// Numbers above those of all calls that the kernel has today.
const NUMBERS: std::ops::Range<c_long> = 0..512;

/// `uretprobe` and `uprobe` of x86-64, which no filter sees: without such a probe they end the
/// process with SIGILL, or fail.
const PROBES: [c_long; 2] = [335, 336];

/// Arguments that no call can use: neither descriptors, sizes nor addresses.
const NONSENSE: [u64; 6] = [u64::MAX; 6];

/// Makes a call in a process that has the daemon's filter. Returns the signal that ended it.
fn signal_of(program: &[BpfProgram], number: c_long, arguments: [u64; 6]) -> Option<i32> {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the child makes system calls and allocates nothing. No pointer among the arguments is
    // valid, so the kernel touches no memory, and what a call changes is the child's.
    let child = unsafe {
        match libc::fork() {
            0 => {
                // Files that other tests of this process have claimed are not to stay claimed.
                libc::close_range(0, libc::c_uint::MAX, 0);
                for one in program {
                    if seccompiler::apply_filter(one).is_err() {
                        libc::_exit(1);
                    }
                }
                libc::syscall(number, a, b, c, d, e, f);
                libc::_exit(0)
            }
            child => child,
        }
    };
    assert!(child > 0, "no process");
    let mut status = 0;
    loop {
        // SAFETY: the place of the status is valid.
        if unsafe { libc::waitpid(child, &raw mut status, 0) } == child {
            return libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status));
        }
    }
}

fn daemons() -> Vec<BpfProgram> {
    let rules = rules().expect("rules");
    vec![program(rules, SeccompAction::KillProcess, SeccompAction::Allow).expect("a program")]
}

#[test]
fn each_call_outside_the_list_ends_the_process() {
    let listed: BTreeSet<i64> = rules().expect("rules").into_keys().collect();
    let program = daemons();
    let is_outside = |number: &c_long| !listed.contains(number) && !PROBES.contains(number);
    let outside: Vec<_> = NUMBERS.filter(is_outside).collect();
    assert!(outside.len() > 300, "{}", outside.len());
    for number in outside {
        assert_eq!(signal_of(&program, number, NONSENSE), Some(libc::SIGSYS), "{number}");
    }
}

#[test]
fn arguments_outside_the_list_end_the_process() {
    let program = daemons();
    let thread = unsigned(libc::CLONE_THREAD);
    let executable = unsigned(libc::PROT_EXEC);
    let both = unsigned(libc::PROT_WRITE | libc::PROT_EXEC);
    let other_process = u64::from(std::process::id()) + 1;
    for (number, argument, value, ends) in [
        (libc::SYS_socket, 0, unsigned(libc::AF_PACKET), true),
        (libc::SYS_socket, 0, unsigned(libc::AF_VSOCK), true),
        (libc::SYS_socket, 0, unsigned(libc::AF_INET6), false),
        (libc::SYS_socketpair, 0, unsigned(libc::AF_INET), true),
        (libc::SYS_clone, 0, unsigned(libc::SIGCHLD), true),
        (libc::SYS_clone, 0, thread, false),
        (libc::SYS_mmap, 2, both, true),
        (libc::SYS_mmap, 2, executable, false),
        (libc::SYS_mprotect, 2, executable, true),
        (libc::SYS_mprotect, 2, 0, false),
        (libc::SYS_prlimit64, 0, 0, true),
        (libc::SYS_tgkill, 0, other_process, true),
        (libc::SYS_prctl, 0, unsigned(libc::PR_SET_DUMPABLE), true),
        (libc::SYS_ioctl, 1, libc::TIOCSTI, true),
        (libc::SYS_ioctl, 1, libc::TCGETS, false),
    ] {
        let mut arguments = NONSENSE;
        arguments[argument] = value;
        let expected = ends.then_some(libc::SIGSYS);
        assert_eq!(signal_of(&program, number, arguments), expected, "{number} with {value:#x}");
    }
}

#[test]
fn no_call_of_the_list_runs_programs_or_gains_rights() {
    let rules = rules().expect("rules");
    for number in [
        libc::SYS_execve,
        libc::SYS_execveat,
        libc::SYS_ptrace,
        libc::SYS_process_vm_writev,
        libc::SYS_io_uring_setup,
        libc::SYS_bpf,
        libc::SYS_mount,
        libc::SYS_unshare,
        libc::SYS_setns,
        libc::SYS_setuid,
        libc::SYS_capset,
        libc::SYS_kill,
        libc::SYS_open_by_handle_at,
        libc::SYS_init_module,
        libc::SYS_perf_event_open,
        libc::SYS_userfaultfd,
        libc::SYS_pidfd_getfd,
    ] {
        assert!(!rules.contains_key(&number), "{number}");
    }
}
