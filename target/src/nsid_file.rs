//! Which NSID each file of a subsystem's directories has, kept across restarts.
//!
//! A name keeps its NSID for ever, also while the file is away, so a host never finds other data under an
//! id that it knows. One small JSON file per subsystem, replaced atomically.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use nvme_proto::Nqn;
use serde::{Deserialize, Serialize};

use crate::identity;
use crate::limits::NSID_LAST;

/// The NSIDs of one subsystem's directory files.
#[derive(Debug)]
pub struct NsidFile {
    path: PathBuf,
    content: Content,
    changed: bool,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    version: u32,
    nqn: String,
    nsids: BTreeMap<String, u32>,
}

const VERSION: u32 = 1;

/// Why NSIDs can not be looked up or kept.
#[derive(Debug, thiserror::Error)]
pub enum NsidFileError {
    /// The file can not be read.
    #[error("{}: cannot read the NSIDs of earlier runs: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// The file is damaged or of another version.
    #[error(
        "{}: cannot understand the NSIDs of earlier runs ({reason}); restore the file, or delete it if no \
         host remembers them",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The file can not be written.
    #[error(
        "{}: cannot keep NSIDs for later runs: {error}; set state_dir to a folder that can be written",
        path.display()
    )]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// Every NSID is taken.
    #[error("{}: all {NSID_LAST} NSIDs are taken", path.display())]
    Full {
        /// The file.
        path: PathBuf,
    },
}

impl NsidFile {
    /// Reads what is known of a subsystem; nothing is, if there is no file yet.
    ///
    /// # Errors
    /// The file exists and can not be read or understood.
    pub fn open(state_dir: &Path, nqn: &Nqn) -> Result<Self, NsidFileError> {
        let name = format!("nsids-{}.json", identity::state_key(nqn));
        let path = state_dir.join(name);
        let content = match std::fs::read(&path) {
            Ok(bytes) => parse(&path, nqn, &bytes)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Content { version: VERSION, nqn: nqn.to_string(), nsids: BTreeMap::new() }
            }
            Err(error) => return Err(NsidFileError::Read { path, error }),
        };
        Ok(Self { path, content, changed: false })
    }

    /// The NSID of each name, in order; new names get the lowest ids that nobody has or had.
    /// `reserved` are ids that the configuration gives to other namespaces.
    ///
    /// # Errors
    /// No id is left.
    pub fn assign<'a>(
        &mut self,
        names: impl IntoIterator<Item = &'a str>,
        reserved: &BTreeSet<u32>,
    ) -> Result<Vec<u32>, NsidFileError> {
        let mut taken: BTreeSet<u32> = self.content.nsids.values().copied().collect();
        taken.extend(reserved);
        let mut next = 1;
        let mut nsids = Vec::new();
        for name in names {
            let known = self.content.nsids.get(name).filter(|nsid| !reserved.contains(nsid));
            nsids.push(match known {
                Some(nsid) => *nsid,
                None => self.add(name, &mut next, &mut taken)?,
            });
        }
        Ok(nsids)
    }

    fn add(
        &mut self,
        name: &str,
        next: &mut u32,
        taken: &mut BTreeSet<u32>,
    ) -> Result<u32, NsidFileError> {
        while taken.contains(next) {
            *next += 1;
        }
        if *next > NSID_LAST {
            return Err(NsidFileError::Full { path: self.path.clone() });
        }
        taken.insert(*next);
        self.content.nsids.insert(name.to_owned(), *next);
        self.changed = true;
        Ok(*next)
    }

    /// Writes the file if anything is new: a temporary file beside it, synced, then renamed over it.
    ///
    /// # Errors
    /// The file can not be written.
    pub fn save(&mut self) -> Result<(), NsidFileError> {
        if !self.changed {
            return Ok(());
        }
        let write = |error| NsidFileError::Write { path: self.path.clone(), error };
        replace(&self.path, &self.content).map_err(write)?;
        self.changed = false;
        Ok(())
    }
}

fn parse(path: &Path, nqn: &Nqn, bytes: &[u8]) -> Result<Content, NsidFileError> {
    let damaged = |reason: String| NsidFileError::Damaged { path: path.to_owned(), reason };
    let content: Content =
        serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
    if content.version != VERSION {
        return Err(damaged(format!("version {}, not {VERSION}", content.version)));
    }
    if content.nqn != nqn.as_str() {
        return Err(damaged(format!("it is of the subsystem {}", content.nqn)));
    }
    let ids: BTreeSet<_> =
        content.nsids.values().filter(|id| (1..=NSID_LAST).contains(*id)).collect();
    if ids.len() != content.nsids.len() {
        return Err(damaged("an NSID is there twice or out of range".into()));
    }
    Ok(content)
}

fn replace(path: &Path, content: &Content) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
    let mut file = File::create(&temporary)?;
    serde_json::to_writer_pretty(&mut file, content)?;
    file.write_all(b"\n")?;
    file.sync_all()?;
    std::fs::rename(&temporary, path)?;
    File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nqn() -> Nqn {
        Nqn::new("nqn.2026-01.io.feedrail:t").expect("valid")
    }

    #[test]
    fn ids_survive_restarts_added_and_removed_files() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut file = NsidFile::open(dir.path(), &nqn()).expect("new");
        assert_eq!(file.assign(["b", "c"], &BTreeSet::new()).expect("room"), [1, 2]);
        file.save().expect("saved");

        let mut file = NsidFile::open(dir.path(), &nqn()).expect("again");
        // "b" is away, "a" is new and sorts first: it must get neither id.
        assert_eq!(file.assign(["a", "c"], &BTreeSet::new()).expect("room"), [3, 2]);
        file.save().expect("saved");

        let mut file = NsidFile::open(dir.path(), &nqn()).expect("again");
        assert_eq!(file.assign(["a", "b", "c"], &BTreeSet::new()).expect("room"), [3, 1, 2]);
    }

    #[test]
    fn ids_of_listed_namespaces_are_left_alone() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut file = NsidFile::open(dir.path(), &nqn()).expect("new");
        assert_eq!(file.assign(["a", "b"], &BTreeSet::from([1, 3])).expect("room"), [2, 4]);
    }

    #[test]
    fn damage_is_told_and_never_overwritten() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut file = NsidFile::open(dir.path(), &nqn()).expect("new");
        file.assign(["a"], &BTreeSet::new()).expect("room");
        file.save().expect("saved");
        let path = file.path.clone();
        for damage in
            ["", "{}", r#"{"version":1,"nqn":"nqn.2026-01.io.feedrail:t","nsids":{"a":1,"b":1}}"#]
        {
            std::fs::write(&path, damage).expect("written");
            let error = NsidFile::open(dir.path(), &nqn()).expect_err("damaged");
            assert!(matches!(error, NsidFileError::Damaged { .. }), "{error}");
        }
    }
}
