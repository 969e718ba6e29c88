//! NSIDs assigned to the files of a subsystem's directories, kept across restarts.
//!
//! A file name keeps its NSID even while the file is missing, so that a host never finds other data
//! under an NSID that it knows. Once every NSID has been used, new files get those of the files
//! that have been missing for longest. There is one JSON file per subsystem, replaced atomically.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use nvme_proto::Nqn;
use serde::{Deserialize, Serialize};

use crate::derived_ids;
use crate::inventory::persist::state_file::{self, KeptState, StateError};
use crate::limits::NSID_LAST;

/// State file with the NSIDs of one subsystem's files.
#[derive(Debug)]
pub(crate) struct NsidFile {
    path: PathBuf,
    content: KeptNsids,
    /// Whether `content` differs from the file on disk.
    changed: bool,
    may_be_lost: bool,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeptNsids {
    version: u32,
    nqn: String,
    /// NSID by the path of the file, relative to its directory.
    nsids: BTreeMap<String, u32>,
    /// Missing files, numbered in the order in which they went missing. Since version 2 of the
    /// format.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    gone: BTreeMap<String, u64>,
}

/// Reason that NSIDs cannot be assigned, read or written.
#[derive(Debug, thiserror::Error)]
pub enum NsidFileError {
    /// The state file cannot be read or written.
    #[error(transparent)]
    State(#[from] StateError),
    /// The directories of a subsystem have more files than there are NSIDs.
    #[error("{}: there are more files than the {NSID_LAST} NSIDs; split the directory", path.display())]
    Full {
        /// Path of the subsystem's state file.
        path: PathBuf,
    },
}

impl NsidFile {
    /// Reads the NSIDs of a subsystem; none if it has no state file yet.
    ///
    /// # Errors
    /// The file exists, but cannot be read, is damaged, or has an unknown version.
    pub(crate) fn open(state_dir: &Path, nqn: &Nqn) -> Result<Self, NsidFileError> {
        let name = format!("nsids-{}.json", derived_ids::state_key(nqn));
        let path = state_dir.join(name);
        let kept = state_file::read::<KeptNsids>(&path, nqn)?;
        let may_be_lost = kept.is_none() && state_file::has_any(state_dir);
        let (nsids, gone) = kept.map(|kept| (kept.nsids, kept.gone)).unwrap_or_default();
        let content = KeptNsids { version: KeptNsids::VERSION, nqn: nqn.to_string(), nsids, gone };
        Ok(Self { path, content, changed: false, may_be_lost })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the state file was missing although the folder has other state files: the subsystem
    /// is new, or the NSIDs that hosts know were lost.
    pub(crate) fn may_be_lost(&self) -> bool {
        self.may_be_lost
    }

    /// Returns the NSID of each name in `names`, the relative paths of all existing files, without
    /// duplicates. New names get the lowest NSIDs never used, then those of the names that have
    /// been missing for longest. `reserved` are the NSIDs of namespaces that are not files of
    /// directories.
    ///
    /// # Errors
    /// There are more names than NSIDs.
    pub(crate) fn assign(
        &mut self,
        names: &[&str],
        reserved: &BTreeSet<u32>,
    ) -> Result<Vec<u32>, NsidFileError> {
        self.note_gone(&names.iter().copied().collect());
        let mut free = FreeNsids::new(&self.content, reserved);
        let mut reused = Reused::default();
        let mut nsids = Vec::with_capacity(names.len());
        for name in names {
            let known = self.content.nsids.get(*name).filter(|nsid| !reserved.contains(nsid));
            if let Some(nsid) = known {
                nsids.push(*nsid);
                continue;
            }
            let full = || NsidFileError::Full { path: self.path.clone() };
            let NsidSlot { nsid, of } = free.take().ok_or_else(full)?;
            if let Some(old) = of {
                self.content.nsids.remove(&old);
                self.content.gone.remove(&old);
                reused.note(nsid, old, name);
            }
            self.content.nsids.insert((*name).to_owned(), nsid);
            self.changed = true;
            nsids.push(nsid);
        }
        reused.log_changes();
        Ok(nsids)
    }

    /// Updates the list of missing names: adds those that are not in `names`, drops those that are.
    fn note_gone(&mut self, names: &BTreeSet<&str>) {
        let KeptNsids { nsids, gone, .. } = &mut self.content;
        let before = gone.len();
        gone.retain(|name, _| !names.contains(name.as_str()));
        self.changed |= gone.len() != before;
        let next = gone.values().max().map_or(0, |last| last.saturating_add(1));
        for name in nsids.keys().filter(|name| !names.contains(name.as_str())) {
            if !gone.contains_key(name) {
                gone.insert(name.clone(), next);
                self.changed = true;
            }
        }
    }

    /// Writes the file if anything has changed: a temporary file beside it, synced, then renamed
    /// over it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn save(&mut self) -> Result<(), NsidFileError> {
        if !self.changed {
            return Ok(());
        }
        state_file::replace(&self.path, &self.content)?;
        self.changed = false;
        Ok(())
    }

    /// Checks whether [`NsidFile::save`] would succeed, without writing.
    ///
    /// # Errors
    /// There is something to write, and the folder is not writable.
    pub(crate) fn check_save(&self) -> Result<(), NsidFileError> {
        if !self.changed {
            return Ok(());
        }
        Ok(state_file::check_replace::<KeptNsids>(&self.path)?)
    }
}

/// NSID for a new name.
struct NsidSlot {
    nsid: u32,
    /// Missing name that had it before; `None` if it was never used.
    of: Option<String>,
}

/// NSIDs for new names, in the order in which they are assigned.
struct FreeNsids {
    /// NSIDs that were never used, ascending.
    unused: std::vec::IntoIter<u32>,
    /// Order, name and NSID of missing names, the longest missing first.
    gone: std::vec::IntoIter<(u64, String, u32)>,
}

impl FreeNsids {
    fn new(content: &KeptNsids, reserved: &BTreeSet<u32>) -> Self {
        let mut taken: BTreeSet<u32> = content.nsids.values().copied().collect();
        taken.extend(reserved);
        let unused: Vec<u32> = (1..=NSID_LAST).filter(|nsid| !taken.contains(nsid)).collect();
        let nsid = |name: &String| content.nsids.get(name).filter(|nsid| !reserved.contains(nsid));
        let gone = content.gone.iter();
        let mut gone: Vec<_> =
            gone.filter_map(|(name, order)| Some((*order, name.clone(), *nsid(name)?))).collect();
        gone.sort();
        Self { unused: unused.into_iter(), gone: gone.into_iter() }
    }

    fn take(&mut self) -> Option<NsidSlot> {
        match self.unused.next() {
            Some(nsid) => Some(NsidSlot { nsid, of: None }),
            None => self.gone.next().map(|(_, name, nsid)| NsidSlot { nsid, of: Some(name) }),
        }
    }
}

/// NSIDs of missing names that new names got: number, old name and new name of the first, and the
/// number of all.
#[derive(Default)]
struct Reused {
    first: Option<(u32, String, String)>,
    count: u32,
}

impl Reused {
    fn note(&mut self, nsid: u32, old: String, new: &str) {
        self.first.get_or_insert_with(|| (nsid, old, new.to_owned()));
        self.count += 1;
    }

    fn log_changes(&self) {
        if let Some((nsid, old, new)) = &self.first {
            tracing::warn!(
                count = self.count,
                nsid,
                old,
                new,
                "every NSID was used once: new files get those of the files that have been away for longest; hosts \
                 that were connected then should reconnect"
            );
        }
    }
}

impl KeptState for KeptNsids {
    const WHAT: &'static str = "the NSIDs of earlier runs";
    const IF_DAMAGED: &'static str =
        "restore the file, or delete it if no host remembers the NSIDs";
    const VERSION: u32 = 2;

    fn header(&self) -> (u32, &str) {
        (self.version, &self.nqn)
    }

    fn check(&self) -> Result<(), String> {
        let ids: BTreeSet<_> =
            self.nsids.values().filter(|id| (1..=NSID_LAST).contains(*id)).collect();
        if ids.len() != self.nsids.len() {
            return Err("an NSID is there twice or out of range".into());
        }
        match self.gone.keys().find(|name| !self.nsids.contains_key(*name)) {
            Some(name) => Err(format!("{name:?} is missing and has no NSID")),
            None => Ok(()),
        }
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
    fn ids_survive_restarts_added_and_removed_files() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut file = NsidFile::open(dir.path(), &nqn()).expect("new");
        assert_eq!(file.assign(&["b", "c"], &BTreeSet::new()).expect("room"), [1, 2]);
        file.save().expect("saved");

        let mut file = NsidFile::open(dir.path(), &nqn()).expect("again");
        // "b" is missing, "a" is new and sorts first: it must get neither id.
        assert_eq!(file.assign(&["a", "c"], &BTreeSet::new()).expect("room"), [3, 2]);
        file.save().expect("saved");

        let mut file = NsidFile::open(dir.path(), &nqn()).expect("again");
        assert_eq!(file.assign(&["a", "b", "c"], &BTreeSet::new()).expect("room"), [3, 1, 2]);
    }

    #[test]
    fn ids_of_listed_namespaces_are_left_alone() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut file = NsidFile::open(dir.path(), &nqn()).expect("new");
        assert_eq!(file.assign(&["a", "b"], &BTreeSet::from([1, 3])).expect("room"), [2, 4]);
    }

    #[test]
    fn ids_are_reused_last_and_longest_gone_first() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut file = NsidFile::open(dir.path(), &nqn()).expect("new");
        assert!(!file.may_be_lost(), "a first start");
        let names: Vec<String> = (1..=NSID_LAST).map(|n| format!("{n:05}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let none = BTreeSet::new();
        assert_eq!(file.assign(&names, &none).expect("room").last(), Some(&NSID_LAST));
        // NSID 9 goes missing first, then 5, then 7, which comes back.
        let without = |gone: &[usize]| -> Vec<&str> {
            let there = names.iter().enumerate().filter(|(at, _)| !gone.contains(&(at + 1)));
            there.map(|(_, name)| *name).collect()
        };
        for gone in [&[9][..], &[5, 9], &[5, 7, 9], &[5, 9]] {
            file.assign(&without(gone), &none).expect("room");
        }
        file.save().expect("saved");
        let mut file = NsidFile::open(dir.path(), &nqn()).expect("again");
        assert!(!file.may_be_lost());
        let other = Nqn::new("nqn.2026-01.io.feedrail:u").expect("valid");
        assert!(NsidFile::open(dir.path(), &other).expect("new").may_be_lost());
        let mut with_new = without(&[5, 9]);
        with_new.push("new");
        assert_eq!(file.assign(&with_new, &none).expect("room").last(), Some(&9));
        with_new.push("newer");
        assert_eq!(file.assign(&with_new, &none).expect("room").last(), Some(&5));
        with_new.push("newest");
        assert!(matches!(file.assign(&with_new, &none), Err(NsidFileError::Full { .. })));
    }

    #[test]
    fn a_failed_save_leaves_nothing_behind() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut file = NsidFile::open(dir.path(), &nqn()).expect("new");
        file.assign(&["a"], &BTreeSet::new()).expect("room");
        std::fs::create_dir(file.path()).expect("made");
        assert!(matches!(
            file.save(),
            Err(NsidFileError::State(StateError { problem: Problem::Unwritable(_), .. }))
        ));
        let left = std::fs::read_dir(dir.path()).expect("read").count();
        assert_eq!(left, 1, "only the folder that is in the way");
    }

    #[test]
    fn files_of_version_1_are_understood() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = NsidFile::open(dir.path(), &nqn()).expect("new").path;
        let old = r#"{"version":1,"nqn":"nqn.2026-01.io.feedrail:t","nsids":{"a":7}}"#;
        std::fs::write(&path, old).expect("written");
        let mut file = NsidFile::open(dir.path(), &nqn()).expect("understood");
        assert_eq!(file.assign(&["a", "b"], &BTreeSet::new()).expect("room"), [7, 1]);
        file.save().expect("saved");
        let kept: KeptNsids = state_file::read(&path, &nqn()).expect("read").expect("there");
        assert_eq!(kept.version, KeptNsids::VERSION);
    }

    #[test]
    fn damage_is_reported_and_never_overwritten() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut file = NsidFile::open(dir.path(), &nqn()).expect("new");
        file.assign(&["a"], &BTreeSet::new()).expect("room");
        file.save().expect("saved");
        let path = file.path.clone();
        for damage in
            ["", "{}", r#"{"version":1,"nqn":"nqn.2026-01.io.feedrail:t","nsids":{"a":1,"b":1}}"#]
        {
            std::fs::write(&path, damage).expect("written");
            let error = NsidFile::open(dir.path(), &nqn()).expect_err("damaged");
            assert!(
                matches!(
                    error,
                    NsidFileError::State(StateError { problem: Problem::Damaged(_), .. })
                ),
                "{error}"
            );
        }
    }
}
