//! Running processes of `feedrail mount`.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::{Daemon, Outcome, Running, binary, eventually, feedrail};

/// `f_type` of a FUSE file system.
const FUSE_MAGIC: i64 = 0x6573_5546;

/// Whether this machine lets tests mount; if not, that is printed.
pub fn fuse_is_missing() -> bool {
    let missing = File::options().read(true).write(true).open("/dev/fuse").is_err();
    if missing {
        eprintln!("left out: /dev/fuse cannot be opened here");
    }
    missing
}

/// A file system of `feedrail mount --foreground`. It is unmounted when this is dropped, in any
/// case.
#[derive(Debug)]
pub struct MountedFiles {
    /// `None` once it was waited for.
    process: Option<Running>,
    folder: TempDir,
}

impl MountedFiles {
    /// Mounts what a daemon serves, with further arguments.
    ///
    /// # Panics
    /// If it is not mounted.
    #[track_caller]
    pub fn of(daemon: &Daemon, arguments: &[&str]) -> Self {
        Self::from(&url(daemon), arguments)
    }

    /// Mounts a source, with further arguments.
    ///
    /// # Panics
    /// If it is not mounted.
    #[track_caller]
    pub fn from(source: &str, arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let place = folder.path().display().to_string();
        let words = ["mount", "--foreground", source, &place];
        let mut process = feedrail(words).args(arguments).start();
        eventually("it is mounted", || is_fuse(folder.path()) || process.has_ended());
        assert!(is_fuse(folder.path()), "{}", process.wait());
        Self { process: Some(process), folder }
    }

    /// A file below it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Sends its process a signal.
    ///
    /// # Panics
    /// If it was waited for.
    pub fn signal(&self, signal: Signal) {
        let id = self.process.as_ref().expect("it runs").id();
        let pid = Pid::from_raw(id.cast_signed()).expect("a process id is not 0");
        kill_process(pid, signal).expect("our own child can be signalled");
    }

    /// Unmounts it with further arguments of `feedrail unmount`.
    pub fn unmount(&self, arguments: &[&str]) -> Outcome {
        let place = self.folder.path().display().to_string();
        feedrail(["unmount", &place]).args(arguments).run()
    }

    /// Whether it is mounted.
    pub fn is_mounted(&self) -> bool {
        is_fuse(self.folder.path())
    }

    /// Waits for the end of its process.
    ///
    /// # Panics
    /// If it was waited for before.
    pub fn wait(&mut self) -> Outcome {
        self.process.take().expect("it was not waited for").wait()
    }
}

impl Drop for MountedFiles {
    fn drop(&mut self) {
        // Its process may hang, which must not leave a file system behind.
        let mut unmount = Command::new(binary("feedrail"));
        let _ = unmount.args(["unmount", "--force"]).arg(self.folder.path()).output();
        if let Some(mut process) = self.process.take()
            && !process.has_ended()
        {
            process.kill();
        }
    }
}

/// The URL of a daemon's (first) subsystem.
fn url(daemon: &Daemon) -> String {
    format!("nvmf://{}/{}", daemon.address(), daemon.nqn())
}

fn is_fuse(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|found| found.f_type == FUSE_MAGIC)
}
