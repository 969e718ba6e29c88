//! This program as a target daemon.

use std::ffi::OsString;
use std::os::unix::process::parent_id;
use std::process::ExitCode;

use rustix::process::Signal;

/// First argument that makes this program a target daemon. Help and completions do not show it.
pub(super) const TARGET_PROCESS: &str = "target-process";

/// A target daemon to be run in this process.
#[derive(Debug)]
pub(crate) struct TargetProcess {
    /// The process to end with.
    parent: u32,
    /// Arguments that feedrail-target is run with.
    arguments: Vec<OsString>,
}

impl TargetProcess {
    /// The daemon that [`TargetChild`](super::TargetChild) runs this program for; `None` for a
    /// command of a user.
    pub(crate) fn of_command_line(mut words: impl Iterator<Item = OsString>) -> Option<Self> {
        words.nth(1).filter(|word| word == TARGET_PROCESS)?;
        let parent = words.next()?.to_str()?.parse().ok()?;
        Some(Self { parent, arguments: words.collect() })
    }

    pub(crate) fn run(self) -> ExitCode {
        // A parent that is killed cannot clean up, so its target must notice by itself.
        let _ = rustix::process::set_parent_process_death_signal(Some(Signal::TERM));
        // It may be gone already, and then no signal comes.
        if parent_id() != self.parent {
            return ExitCode::FAILURE;
        }
        run_daemon(self.arguments)
    }
}

/// Runs the target daemon in this process until a signal ends it.
pub(crate) fn run_daemon(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments = [OsString::from("feedrail-target")].into_iter().chain(arguments);
    feedrail_target::daemon::main_with_args(arguments)
}
