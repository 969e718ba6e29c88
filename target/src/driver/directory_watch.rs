//! Thread that exports the files of watched directories as they appear, and removes deleted ones.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam::channel::{self, Receiver, Sender};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

use crate::applied_config::AppliedConfig;
use crate::backend::{FolderEntry, ServedFolder, ServedRoot};
use crate::config::Config;
use crate::controller::Associations;
use crate::inventory::edit::directories::WatchedFiles;
use crate::inventory::error::ReloadError;
use crate::limits::DIRECTORY_DEPTH;

/// Time without inotify events after which a directory is scanned, so that many files that arrive
/// together become one change.
const QUIET: Duration = Duration::from_millis(100);
/// Maximum number of times that further events delay a scan by [`QUIET`], so that a steady stream
/// of files does not postpone it for ever.
const MOST_QUIETS: u32 = 20;
/// Time after which a failed scan is repeated.
const RETRY: Duration = Duration::from_secs(5);
/// Maximum wait for the thread at the end, since a file system may block it for ever.
const JOIN_TIMEOUT: Duration = Duration::from_secs(1);
/// Size in bytes of the buffer for inotify events.
const EVENT_BYTES: usize = 16 << 10;

/// Handle of the thread. Dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct DirectoryWatch {
    applied: Arc<AppliedConfig>,
    stop: Arc<AtomicBool>,
    /// Channel that disconnects when the thread has ended.
    over: Receiver<()>,
}

impl DirectoryWatch {
    /// Starts the thread for the watched directories of the applied configuration.
    ///
    /// # Errors
    /// The inotify descriptor or the thread cannot be created.
    pub(crate) fn start(
        associations: Arc<Associations>,
        applied: Arc<AppliedConfig>,
    ) -> io::Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let stop = Arc::<AtomicBool>::default();
        let (ended, over) = channel::bounded::<()>(0);
        let config = applied.get();
        let files = WatchedFiles::of(associations.inventory(), &config);
        let mut follower = Follower {
            associations,
            applied: Arc::clone(&applied),
            stop: Arc::clone(&stop),
            inotify,
            folders: BTreeMap::new(),
            files,
            last_error: None,
        };
        let run = move || {
            let _ended: Sender<()> = ended;
            follower.run(config);
        };
        std::thread::Builder::new().name("feedrail-dirs".into()).spawn(run)?;
        Ok(Self { applied, stop, over })
    }
}

impl Drop for DirectoryWatch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.applied.wake();
        // The thread has ended, or the wait for it timed out.
        let _ = self.over.recv_timeout(JOIN_TIMEOUT);
    }
}

/// Reason for which the thread continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wake {
    /// Inotify events have arrived.
    Events,
    /// A new configuration was applied, or the thread has to end.
    Applied,
    /// The wait timed out, or a signal arrived.
    Timeout,
}

/// State of the thread.
struct Follower {
    associations: Arc<Associations>,
    applied: Arc<AppliedConfig>,
    stop: Arc<AtomicBool>,
    inotify: OwnedFd,
    /// Watched folders by inotify watch descriptor.
    folders: BTreeMap<i32, PathBuf>,
    files: WatchedFiles,
    /// Error of the last scan, so that a repeated error is logged once.
    last_error: Option<String>,
}

impl Follower {
    fn run(&mut self, mut config: Config) {
        self.watch_folders(&config);
        // The first scan finds changes made before the watches existed.
        let mut failed = !self.refresh(&config);
        loop {
            match self.wait(failed.then_some(RETRY)) {
                _ if self.stop.load(Ordering::Relaxed) => return,
                Wake::Events => self.until_quiet(),
                Wake::Applied => {
                    self.applied.note_seen();
                    config = self.applied.get();
                    self.files.apply(self.associations.inventory(), &config);
                }
                Wake::Timeout => {}
            }
            self.watch_folders(&config);
            failed = !self.refresh(&config);
        }
    }

    /// Waits for inotify events or for a new configuration.
    fn wait(&self, timeout: Option<Duration>) -> Wake {
        let mut fds = [
            PollFd::from_borrowed_fd(self.applied.changed(), PollFlags::IN),
            PollFd::new(&self.inotify, PollFlags::IN),
        ];
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(0) => Wake::Timeout,
            Ok(_) if !fds[0].revents().is_empty() => Wake::Applied,
            Ok(_) => Wake::Events,
            // A signal arrived; the thread scans once more.
            Err(_) => Wake::Timeout,
        }
    }

    /// Reads events until none arrives for [`QUIET`], at most [`MOST_QUIETS`] times.
    fn until_quiet(&mut self) {
        for _ in 0..MOST_QUIETS {
            self.take_events();
            if self.wait(Some(QUIET)) != Wake::Events {
                return;
            }
        }
    }

    /// Records the files that are still being written. The scan finds all other changes.
    fn take_events(&mut self) {
        let mut buffer = [MaybeUninit::<u8>::uninit(); EVENT_BYTES];
        let mut events = inotify::Reader::new(&self.inotify, &mut buffer);
        loop {
            let event = match events.next() {
                Ok(event) => event,
                Err(Errno::INTR) => continue,
                Err(_) => return,
            };
            let what = event.events();
            if what.contains(ReadFlags::QUEUE_OVERFLOW) {
                // Events that files were closed may have been lost.
                self.files.unfinished.clear();
            }
            if what.contains(ReadFlags::IGNORED) {
                self.folders.remove(&event.wd());
            }
            let Some(folder) = self.folders.get(&event.wd()) else { continue };
            let Some(name) = event.file_name() else { continue };
            let path = folder.join(OsStr::from_bytes(name.to_bytes()));
            if what.contains(ReadFlags::CREATE) && is_new_file(&path) {
                self.files.unfinished.insert(path);
            } else if !what.contains(ReadFlags::CREATE) {
                self.files.unfinished.remove(&path);
            }
        }
    }

    /// Watches all folders of the watched directories, down to `DIRECTORY_DEPTH`.
    fn watch_folders(&mut self, config: &Config) {
        for directory in config.watched() {
            let Ok(root) = ServedRoot::open(&directory.path) else { continue };
            let mut folders = vec![(PathBuf::new(), 0)];
            while let Some((relative, depth)) = folders.pop() {
                let path = root.path().join(&relative);
                let Ok(folder) = root.folder(&relative).inspect_err(|error| warn(&path, error))
                else {
                    continue;
                };
                // Watched before it is listed, to find a folder that is created in between.
                self.watch_folder(&folder, path);
                if depth < DIRECTORY_DEPTH {
                    let below = folder.entries().unwrap_or_default().into_iter();
                    let below = below.filter(FolderEntry::is_visible_folder);
                    folders.extend(below.map(|entry| (entry.relative, depth + 1)));
                }
            }
        }
    }

    fn watch_folder(&mut self, folder: &ServedFolder, path: PathBuf) {
        let flags = WatchFlags::CLOSE_WRITE
            | WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR;
        match inotify::add_watch(&self.inotify, folder.pinned_path(), flags) {
            Ok(number) => _ = self.folders.insert(number, path),
            Err(Errno::NOSPC) => tracing::warn!(
                folder = %path.display(),
                "cannot watch a folder: too many are watched; raise fs.inotify.max_user_watches"
            ),
            Err(error) => warn(&path, &error.into()),
        }
    }

    /// Exports the files in the directories; false if that failed and nothing has changed.
    fn refresh(&mut self, config: &Config) -> bool {
        if config.watched().next().is_none() {
            return true;
        }
        self.files.unfinished.retain(|path| path.symlink_metadata().is_ok());
        let files = &mut self.files;
        let followed = self
            .associations
            .edit(|edit| edit.follow_directories(config, files).map_err(ReloadError::from));
        match followed {
            Ok((known, report)) => {
                self.files.end_scan(known, &report.unopened);
                self.last_error = None;
                for warning in report.warnings {
                    tracing::warn!("{warning}");
                }
                if !report.changes.is_empty() {
                    tracing::info!(changes = report.changes.len(), "directories changed");
                }
                true
            }
            Err(error) => {
                let error = error.to_string();
                if self.last_error.as_ref() != Some(&error) {
                    tracing::warn!("cannot follow the watched directories: {error}");
                    self.last_error = Some(error);
                }
                false
            }
        }
    }
}

fn warn(folder: &Path, error: &io::Error) {
    tracing::warn!(folder = %folder.display(), "cannot watch a folder: {error}");
}

/// Whether a path that has appeared is a file that its creator may still write, rather than a hard
/// link to an existing file.
fn is_new_file(path: &Path) -> bool {
    let found = path.symlink_metadata();
    found.is_ok_and(|file| file.is_file() && std::os::unix::fs::MetadataExt::nlink(&file) == 1)
}
