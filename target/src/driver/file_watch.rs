//! Periodic check of exported files, since the system sends no event when others change them.

use std::io;
use std::sync::Arc;

use crate::backend::MemoryRoom;
use crate::controller::Associations;
use crate::driver::clock::Clock;
use crate::driver::periodic::Periodic;
use crate::limits::log_rate::LogRateLimit;

/// Maximum number of files per check, which takes the files in turn, to bound its cost.
const FILES_AT_ONCE: usize = 1000;

/// Starts a thread that checks exported files once a second.
///
/// # Errors
/// The thread cannot be created.
pub(crate) fn watch_files(associations: Arc<Associations>) -> io::Result<Periodic> {
    let (mut round, clock) = (Round::new(associations), Clock::new());
    Periodic::start("feedrail-watch", move || round.look(clock.now()))
}

/// Starts a thread that, once a second, closes removed namespaces whose last command has ended. It
/// is a separate thread, since a slow flush would delay the checks of files.
///
/// # Errors
/// The thread cannot be created.
pub(crate) fn close_removed(associations: Arc<Associations>) -> io::Result<Periodic> {
    Periodic::start("feedrail-close", move || associations.inventory().close_idle())
}

/// Check of all files, and its position in the list of namespaces.
struct Round {
    associations: Arc<Associations>,
    next: usize,
    log_rate: LogRateLimit,
}

impl Round {
    fn new(associations: Arc<Associations>) -> Self {
        Self { associations, next: 0, log_rate: LogRateLimit::about("files that changed") }
    }

    /// Checks the next files, the available memory, and how much of it the target may lock.
    fn look(&mut self, now: rdma::Time) {
        self.associations.inventory().cache_room().look();
        MemoryRoom::of_process().look_again();
        let namespaces = self.associations.inventory().namespaces();
        // All namespaces, since a process that wants to change a file may wait for this.
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
    use std::time::Duration;

    use crossbeam::channel;
    use nvme_proto::{Nqn, Nsid};
    use rdma::Time;

    use super::*;
    use crate::config::Config;
    use crate::doorbell::Doorbell;
    use crate::inventory::Inventory;
    use crate::inventory::close::Closed;
    use crate::inventory::open::OpenPurpose;

    const NQN: &str = "nqn.2026-01.io.feedrail:t";

    fn round(dir: &Path, keys: &str) -> Round {
        let text = format!(
            "[[port]]\naddress = \"127.0.0.1\"\n[[subsystem]]\nnqn = \"nqn.2026-01.io.feedrail:t\"\n\
             allow_any_host = true\n[[subsystem.namespace]]\npath = \"shard\"\n{keys}\n"
        );
        let config = Config::from_toml(&dir.join("feedrail.toml"), &text).expect("valid");
        let inventory = Inventory::open(&config, OpenPurpose::Check).expect("opened");
        Round::new(Associations::new(inventory))
    }

    impl Round {
        fn generation(&mut self) -> u64 {
            self.look(Time::ZERO);
            self.associations.inventory().namespaces()[0].generation()
        }
    }

    /// Removed namespaces are closed without a further change of the exports.
    #[test]
    fn removed_namespaces_are_closed_when_their_last_command_has_ended() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("shard"), [1; 4096]).expect("written");
        let round = round(folder.path(), "");
        let inventory = round.associations.inventory();
        let mut core = inventory.publication().join(Doorbell::new().expect("a descriptor"));
        let nqn = Nqn::new(NQN).expect("valid");
        let removed = inventory.edit(|edit| edit.remove_namespace(&nqn, Nsid(1)));
        let removed = removed.expect("it is there").1.closing().remove(0);
        assert!(core.follow());
        assert_eq!(inventory.close(removed, Duration::ZERO), Closed::Busy);
        let _closes = close_removed(Arc::clone(&round.associations)).expect("a thread");
        core.report_idle();
        assert!(!core.follow());
        while inventory.closing() > 0 {
            let _ = channel::never::<()>().recv_timeout(Duration::from_millis(10));
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
        assert!(round.associations.inventory().namespaces()[0].health().shrank());
    }
}
