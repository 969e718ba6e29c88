//! Helper process that opens files for the confined daemon. It is forked before the daemon has
//! threads, and ends when the daemon does.
#![expect(unsafe_code, reason = "forks a process that has one thread, and sets its signals")]

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::config::ExportRoots;
use crate::confinement::{ANSWER_BYTES, Opener, REFUSED, open_again, path_of, receive, send};
use crate::confinement::{drop_capabilities, restrict_helper};
use crate::reloader::ConfigSource;

/// Flags that the daemon may ask for, besides those of access.
const FLAGS: OFlags = OFlags::ACCMODE
    .union(OFlags::NONBLOCK)
    .union(OFlags::DIRECT)
    .union(OFlags::DIRECTORY)
    .union(OFlags::EXCL)
    .union(OFlags::DSYNC);

/// Forks the helper, and has it open files from now on. The process must have one thread.
///
/// # Errors
/// The process cannot be made, or this one has further threads.
pub(super) fn start(roots: ExportRoots, source: Option<ConfigSource>) -> io::Result<()> {
    let threads = std::fs::read_dir("/proc/self/task")?.count();
    if threads != 1 {
        return Err(io::Error::other(format!("the process has {threads} threads already")));
    }
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    // SAFETY: the process has one thread, so that the copy finds no lock taken.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            drop(ours);
            let helper = Helper { socket: theirs, roots, source };
            helper.run();
            // SAFETY: ends the process without what the daemon has registered for its own end.
            unsafe { libc::_exit(0) }
        }
        id => {
            Opener::install(ours, id.cast_unsigned());
            Ok(())
        }
    }
}

/// The helper's end, in a process of its own.
struct Helper {
    socket: OwnedFd,
    roots: ExportRoots,
    source: Option<ConfigSource>,
}

impl Helper {
    /// Answers until the daemon has ended.
    fn run(mut self) {
        // Nothing is known to go wrong here; what is refused opens fewer files.
        let _ = leave_daemon();
        let _ = drop_capabilities();
        let _ = restrict_helper();
        let mut bytes = [0; 4];
        loop {
            let (flags, found) = match receive(&self.socket, &mut bytes) {
                Ok((4, Some(found))) => {
                    (OFlags::from_bits_retain(u32::from_ne_bytes(bytes)), found)
                }
                Err(Errno::INTR) => continue,
                _ => return,
            };
            let sent = match self.open(found.as_fd(), flags) {
                Ok(opened) => send(&self.socket, &0_i32.to_ne_bytes(), Some(opened.as_fd())),
                Err(Refusal::System(error)) => {
                    send(&self.socket, &error.raw_os_error().to_ne_bytes(), None)
                }
                Err(Refusal::Path(reason)) => {
                    let text = &reason.as_bytes()[..reason.len().min(ANSWER_BYTES - 4)];
                    send(&self.socket, &[&REFUSED.to_ne_bytes(), text].concat(), None)
                }
            };
            if sent.is_err() {
                return;
            }
        }
    }

    fn open(&mut self, found: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, Refusal> {
        let real = rustix::fs::readlink(path_of(found), Vec::new()).map_err(Refusal::System)?;
        let real = PathBuf::from(OsString::from_vec(real.into_bytes()));
        self.check(&real)?;
        let status = rustix::fs::fstat(found).map_err(Refusal::System)?;
        let kind = FileType::from_raw_mode(status.st_mode);
        if !matches!(kind, FileType::RegularFile | FileType::BlockDevice | FileType::Directory) {
            return Err(Refusal::Path(format!("{} is no file or block device", real.display())));
        }
        open_again(found, flags & FLAGS).map_err(Refusal::System)
    }

    /// Checks a path; if it is not allowed, once more by the present configuration.
    fn check(&mut self, real: &Path) -> Result<(), Refusal> {
        let is_of_kernel = ["/proc", "/sys"].iter().any(|folder| real.starts_with(folder));
        if is_of_kernel {
            return Err(Refusal::Path(format!("{} is no file of a disk", real.display())));
        }
        let is_config =
            |source: &ConfigSource| source.path.canonicalize().is_ok_and(|of| of == real);
        if self.roots.check_opened(real).is_ok() || self.source.as_ref().is_some_and(is_config) {
            return Ok(());
        }
        if let Some(config) = self.source.as_ref().and_then(|source| (source.read)().ok()) {
            self.roots.rename(&config);
        }
        self.roots.check_opened(real).map_err(|error| Refusal::Path(error.to_string()))
    }
}

/// Reason that the helper does not open a file.
enum Refusal {
    System(Errno),
    Path(String),
}

/// Closes the daemon's output and ignores its signals: a reader of the output must see its end when
/// the daemon ends, and the helper ends with the daemon's end of the socket.
fn leave_daemon() -> io::Result<()> {
    let null = rustix::fs::openat(CWD, "/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1, libc::SIGPIPE] {
        // SAFETY: ignoring a signal runs no code.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    Ok(rustix::thread::set_name(c"feedrail-opener")?)
}
