//! A thread that checks the files that are served, since the system sends no event when others
//! change them.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crossbeam::channel::{self, Receiver, RecvTimeoutError, Sender};

use crate::controller::Associations;
use crate::driver::clock::Clock;
use crate::limits::log_rate::LogRateLimit;

/// Time between two checks. Doubled, a changed file is found up to 1 s later; not measured.
const PERIOD: Duration = Duration::from_secs(1);
/// Files that it checks each time, in turn, so that the cost is bounded. Doubled, a check takes
/// twice as long, and a change is found in half the time; not measured.
const FILES_AT_ONCE: usize = 1000;
/// The most that the end of the thread is waited for: a file system may keep it for ever. Doubled,
/// a stop beside such a file system takes 1 s longer; not measured.
const JOIN_TIMEOUT: Duration = Duration::from_secs(1);

/// The thread. Dropping this ends it.
#[derive(Debug)]
pub(crate) struct FileWatch {
    /// Dropped to end it.
    stop: Option<Sender<()>>,
    /// Closed when it has ended.
    over: Receiver<()>,
}

impl FileWatch {
    /// Begins to look at the files that are exported.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub(crate) fn start(associations: Arc<Associations>) -> io::Result<Self> {
        let (stop, stopped) = channel::bounded::<()>(0);
        let (ended, over) = channel::bounded::<()>(0);
        let run = move || {
            let _ended = ended;
            let (mut round, clock) = (Round::new(associations), Clock::new());
            while stopped.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                round.look(clock.now());
            }
        };
        std::thread::Builder::new().name("feedrail-watch".into()).spawn(run)?;
        Ok(Self { stop: Some(stop), over })
    }
}

impl Drop for FileWatch {
    fn drop(&mut self) {
        drop(self.stop.take());
        // Whatever the reason: it has ended, or is not waited for.
        let _ = self.over.recv_timeout(JOIN_TIMEOUT);
    }
}

/// Where it is in the list of namespaces.
struct Round {
    associations: Arc<Associations>,
    next: usize,
    log_rate: LogRateLimit,
}

impl Round {
    fn new(associations: Arc<Associations>) -> Self {
        Self { associations, next: 0, log_rate: LogRateLimit::about("files that changed") }
    }

    /// Looks at the next files, and at the memory that they may be kept in.
    fn look(&mut self, now: rdma::Time) {
        self.associations.registry().cache_room().look();
        let namespaces = self.associations.registry().namespaces();
        // All of them: who wants to change a file waits for this.
        namespaces.iter().for_each(|namespace| namespace.keep_in_memory());
        for _ in 0..FILES_AT_ONCE.min(namespaces.len()) {
            let namespace = &namespaces[self.next % namespaces.len()];
            self.associations.look_at_file(namespace, &mut || self.log_rate.admit(now));
            self.next = (self.next + 1) % namespaces.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File, Permissions};
    use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
    use std::path::Path;

    use rdma::Time;

    use super::*;
    use crate::config::Config;
    use crate::inventory::Registry;
    use crate::inventory::export::OpenPurpose;

    fn round(dir: &Path, keys: &str) -> Round {
        let text = format!(
            "[[port]]\naddress = \"127.0.0.1\"\n[[subsystem]]\nnqn = \"nqn.2026-01.io.feedrail:t\"\n\
             allow_any_host = true\n[[subsystem.namespace]]\npath = \"shard\"\n{keys}\n"
        );
        let config = Config::from_toml(&dir.join("feedrail.toml"), &text).expect("valid");
        let registry = Registry::open(&config, OpenPurpose::Check).expect("opened");
        Round::new(Associations::new(registry))
    }

    impl Round {
        fn generation(&mut self) -> u64 {
            self.look(Time::ZERO);
            self.associations.registry().namespaces()[0].generation()
        }
    }

    /// Writes until the clock of inodes has moved.
    fn change(round: &mut Round, path: &Path, before: u64) -> u64 {
        let file = File::options().write(true).open(path).expect("opened");
        loop {
            file.write_all_at(b"other", 0).expect("written");
            let generation = round.generation();
            if generation != before {
                return generation;
            }
        }
    }

    #[test]
    fn a_changed_file_has_a_new_generation() {
        for keys in ["", "content_id = \"v1\""] {
            let folder = tempfile::tempdir().expect("a folder");
            let path = folder.path().join("shard");
            fs::write(&path, [1; 4096]).expect("written");
            let mut round = round(folder.path(), keys);
            let first = round.generation();
            fs::set_permissions(&path, Permissions::from_mode(0o640)).expect("set");
            assert_eq!(round.generation(), first, "rights are no bytes");
            let second = change(&mut round, &path, first);
            assert_eq!(round.generation(), second);
            change(&mut round, &path, second);
        }
    }

    #[test]
    fn a_file_that_is_replaced_is_served_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("shard");
        fs::write(&path, [1; 4096]).expect("written");
        let mut round = round(folder.path(), "");
        let first = round.generation();
        fs::write(folder.path().join("new"), [2; 4096]).expect("written");
        fs::rename(folder.path().join("new"), &path).expect("renamed");
        assert_eq!(round.generation(), first);
        drop(round);
        assert_ne!(self::round(folder.path(), "").generation(), first);
    }

    #[test]
    fn a_writable_file_that_is_cut_is_degraded() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("shard");
        fs::write(&path, [1; 8192]).expect("written");
        let mut round = round(folder.path(), "read_only = false");
        let first = round.generation();
        fs::write(&path, [1; 4096]).expect("written");
        assert_eq!(round.generation(), first);
        assert!(round.associations.registry().namespaces()[0].health().shrank());
    }
}
