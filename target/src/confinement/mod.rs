//! Limits of a process that serves hosts, chosen by `daemon/confine`.
//!
//! [`enter_thread`] drops capabilities and applies a list of paths to one thread, which threads
//! that it starts inherit. [`restrict_process`] applies the list of system calls to all threads.
//! Files that are named later are opened by a helper ([`reopen`]). What serves hosts in-process, as
//! a library, is not confined.

mod capabilities;
mod opener;
mod system_calls;
mod thread;

use std::fmt;

pub(crate) use self::capabilities::drop_unneeded as drop_capabilities;
pub(crate) use self::opener::{
    ANSWER_BYTES, Opener, REFUSED, open, open_again, path_of, read_to_string, receive, reopen, send,
};
pub(crate) use self::system_calls::{Answer, restrict_helper, restrict_process};
pub(crate) use self::thread::{
    EarlyThread, enter_thread, has_failed, prepare_threads, wait_for_early_threads,
};

/// Whether the daemon confines itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum ConfinementMode {
    /// All rights of its user stay.
    Off,
    /// The kernel logs system calls outside the list, and executes them; nothing else is refused.
    Warn,
    /// A system call outside the list ends the process. The start fails where the kernel cannot.
    On,
}

impl ConfinementMode {
    /// Value of the key `confinement` in a configuration file.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Warn => "warn",
            Self::On => "on",
        }
    }
}

impl fmt::Display for ConfinementMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}
