//! Runs this program as a target daemon.

use std::ffi::OsString;
use std::os::unix::process::parent_id;
use std::process::ExitCode;

use rustix::process::Signal;

/// First argument that makes this program a target daemon; hidden from help and completions.
pub(super) const TARGET_PROCESS: &str = "target-process";

/// Command line of a target daemon to run in this process.
#[derive(Debug)]
pub(crate) struct TargetProcess {
    /// Process id of the parent. The daemon ends when the parent does.
    parent: u32,
    /// Arguments that feedrail-target is run with.
    arguments: Vec<OsString>,
}

impl TargetProcess {
    /// Parses a command line of [`TargetChild`](super::TargetChild); `None` for any other command.
    pub(crate) fn of_command_line(mut words: impl Iterator<Item = OsString>) -> Option<Self> {
        words.nth(1).filter(|word| word == TARGET_PROCESS)?;
        let parent = words.next()?.to_str()?.parse().ok()?;
        Some(Self { parent, arguments: words.collect() })
    }

    pub(crate) fn run(self) -> ExitCode {
        // A parent that is killed cannot stop its target, so the kernel sends SIGTERM to it.
        let _ = rustix::process::set_parent_process_death_signal(Some(Signal::TERM));
        // If the parent has exited before the call above, no signal is sent.
        if parent_id() != self.parent {
            return ExitCode::FAILURE;
        }
        run_daemon(self.arguments)
    }
}

/// Runs the target daemon in this process until a signal stops it.
pub(crate) fn run_daemon(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments = [OsString::from("feedrail-target")].into_iter().chain(arguments);
    feedrail_target::daemon::main_with_args(arguments)
}
