//! Namespaces that hosts have write protected, kept across restarts, since the state persists
//! across power cycles (Base, Namespace Write Protection).
//!
//! There is one JSON file per subsystem, replaced atomically. A separate thread writes the files,
//! since a write may block on a slow disk.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc;

use nvme_proto::Nqn;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::derived_ids;
use crate::inventory::persist::state_file::{self, KeptState, StateError};

/// State file with the write protected namespaces of one subsystem.
#[derive(Debug)]
pub(crate) struct ProtectionFile {
    path: PathBuf,
    content: KeptProtection,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeptProtection {
    version: u32,
    nqn: String,
    /// UUIDs of the protected namespaces.
    protected: BTreeSet<Uuid>,
}

/// Reason that write protections cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ProtectionError {
    /// The state file cannot be read or written.
    #[error(transparent)]
    State(#[from] StateError),
    /// The thread that writes the file cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// The thread that writes the file has panicked.
    #[error("the thread that writes the file has ended: restart the target")]
    WriterEnded,
}

impl ProtectionFile {
    /// Reads the protections of a subsystem; none if it has no state file yet.
    ///
    /// # Errors
    /// The file exists, but cannot be read, is damaged, or has an unknown version.
    pub(crate) fn open(state_dir: &Path, nqn: &Nqn) -> Result<Self, ProtectionError> {
        let mut file = Self::nothing(state_dir, nqn);
        if let Some(content) = state_file::read(&file.path, nqn)? {
            file.content = content;
        }
        Ok(file)
    }

    /// Creates an empty list of protections without reading the file.
    pub(crate) fn nothing(state_dir: &Path, nqn: &Nqn) -> Self {
        let path = state_dir.join(format!("protection-{}.json", derived_ids::state_key(nqn)));
        let nqn = nqn.to_string();
        Self {
            path,
            content: KeptProtection {
                version: KeptProtection::VERSION,
                nqn,
                protected: BTreeSet::new(),
            },
        }
    }

    pub(crate) fn contains(&self, namespace: Uuid) -> bool {
        self.content.protected.contains(&namespace)
    }

    /// Sets or clears the protection of a namespace and writes the file.
    ///
    /// # Errors
    /// The file cannot be written; the protection is then unchanged.
    pub(crate) fn set(&mut self, namespace: Uuid, protected: bool) -> Result<(), ProtectionError> {
        let mut content = self.content.clone();
        let changed = match protected {
            true => content.protected.insert(namespace),
            false => content.protected.remove(&namespace),
        };
        if changed {
            state_file::replace(&self.path, &content)?;
            self.content = content;
        }
        Ok(())
    }
}

impl KeptState for KeptProtection {
    const WHAT: &'static str = "what hosts have write protected";
    const IF_DAMAGED: &'static str = "restore the file, or delete it to allow writes to all \
                                      namespaces of its subsystem";
    const VERSION: u32 = 1;

    fn header(&self) -> (u32, &str) {
        (self.version, &self.nqn)
    }
}

/// Handle of the thread that writes the state files. The thread ends when this is dropped.
#[derive(Debug)]
pub(crate) struct ProtectionWriter(mpsc::Sender<ProtectionChange>);

/// Request to the thread; `done` gets the result of the write.
struct ProtectionChange {
    subsystem: Nqn,
    namespace: Uuid,
    protected: bool,
    done: Box<dyn FnOnce(Result<(), ProtectionError>) + Send>,
}

impl ProtectionWriter {
    /// Starts the thread, which opens the file of a subsystem in `state_dir` at its first change.
    pub(crate) fn start(state_dir: &Path) -> Result<Self, ProtectionError> {
        let (sender, changes) = mpsc::channel::<ProtectionChange>();
        let state_dir = state_dir.to_owned();
        let mut known: BTreeMap<Nqn, ProtectionFile> = BTreeMap::new();
        let early = crate::confinement::EarlyThread::announce();
        let run = move || {
            early.enter();
            for ProtectionChange { subsystem, namespace, protected, done } in changes {
                let file = match known.entry(subsystem) {
                    Entry::Occupied(entry) => Ok(entry.into_mut()),
                    Entry::Vacant(entry) => {
                        ProtectionFile::open(&state_dir, &subsystem).map(|file| entry.insert(file))
                    }
                };
                done(file.and_then(|file| file.set(namespace, protected)));
            }
        };
        let builder = std::thread::Builder::new().name("feedrail-state".into());
        builder.spawn(run).map_err(ProtectionError::Thread)?;
        Ok(Self(sender))
    }

    /// Queues a change for the thread, which writes it and calls `done` with the result.
    pub(crate) fn keep(
        &self,
        subsystem: Nqn,
        namespace: Uuid,
        protected: bool,
        done: impl FnOnce(Result<(), ProtectionError>) + Send + 'static,
    ) {
        let change = ProtectionChange { subsystem, namespace, protected, done: Box::new(done) };
        // The thread receives until the sender is dropped, so sending cannot fail.
        let _ = self.0.send(change);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::persist::state_file::Problem;

    fn nqn() -> Nqn {
        Nqn::new("nqn.2026-01.io.feedrail:t").expect("valid")
    }

    #[test]
    fn protections_survive_a_restart() {
        let dir = tempfile::tempdir().expect("a folder");
        let (one, two) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let mut file = ProtectionFile::open(dir.path(), &nqn()).expect("new");
        file.set(one, true).expect("written");
        file.set(two, true).expect("written");
        file.set(two, false).expect("written");
        let file = ProtectionFile::open(dir.path(), &nqn()).expect("again");
        assert!(file.contains(one) && !file.contains(two));
    }

    #[test]
    fn a_failed_save_changes_nothing() {
        let dir = tempfile::tempdir().expect("a folder");
        let no_folder = dir.path().join("file");
        std::fs::write(&no_folder, "").expect("written");
        let state_dir = no_folder.join("state");
        let mut file = ProtectionFile { path: state_dir.join("p.json"), ..open_in(dir.path()) };
        assert!(matches!(
            file.set(Uuid::nil(), true),
            Err(ProtectionError::State(StateError { problem: Problem::Unwritable(_), .. }))
        ));
        assert!(!file.contains(Uuid::nil()));
    }

    fn open_in(dir: &Path) -> ProtectionFile {
        ProtectionFile::open(dir, &nqn()).expect("new")
    }

    #[test]
    fn a_damaged_file_is_reported() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = open_in(dir.path()).path;
        for damage in
            ["", "{}", r#"{"version":2,"nqn":"nqn.2026-01.io.feedrail:t","protected":[]}"#]
        {
            std::fs::write(&path, damage).expect("written");
            let error = ProtectionFile::open(dir.path(), &nqn()).expect_err("damaged");
            assert!(
                matches!(
                    error,
                    ProtectionError::State(StateError { problem: Problem::Damaged(_), .. })
                ),
                "{error}"
            );
        }
    }
}
