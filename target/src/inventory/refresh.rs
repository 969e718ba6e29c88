//! Updates the exports to the present files of directories that are watched for changes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nvme_proto::{Nqn, Nsid};

use crate::config::{Config, SubsystemConfig};
use crate::inventory::Registry;
use crate::inventory::error::ExportError;
use crate::inventory::export::{Candidate, ListedNamespaces, OpenPurpose, distinct};
use crate::inventory::exports::OwnedNamespace;
use crate::inventory::left_out::LeftOutFiles;
use crate::inventory::namespace::Namespace;
use crate::inventory::reload::{Difference, ReloadError, Reloaded, namespace_changes};
use crate::inventory::subsystem::Subsystem;

/// Files of watched directories at the last scan.
#[derive(Debug)]
pub(crate) struct WatchedFiles {
    /// Files that a program still has open for writing; they become namespaces once closed.
    pub(crate) unfinished: BTreeSet<PathBuf>,
    /// NSIDs of the files that the last scan found, by subsystem. A known file that is not exported
    /// was removed by an operator; it is exported again only after the file has been missing.
    known: BTreeMap<Nqn, BTreeSet<Nsid>>,
    left_out: LeftOutFiles,
}

impl WatchedFiles {
    /// Creates the list from the exported files, after the configuration was applied.
    pub(crate) fn of(registry: &Registry, config: &Config) -> Self {
        let (unfinished, left_out) = (BTreeSet::new(), LeftOutFiles::logged());
        Self { unfinished, known: exported_shards(registry, config), left_out }
    }

    /// Updates the list after another configuration was applied.
    pub(crate) fn apply(&mut self, registry: &Registry, config: &Config) {
        let unfinished = std::mem::take(&mut self.unfinished);
        *self = Self { unfinished, ..Self::of(registry, config) };
    }
}

/// Scan of a subsystem's watched directories, and the namespaces that they export now.
struct DirectoryLook {
    subsystem: Arc<Subsystem>,
    /// Namespaces that are files of the directories.
    exported: Vec<Arc<Namespace>>,
    /// Files that shall be namespaces.
    wanted: Vec<Candidate>,
    /// NSIDs of present files whose namespaces an operator has removed.
    left_out: BTreeSet<Nsid>,
    listed: ListedNamespaces,
}

impl DirectoryLook {
    fn new(
        subsystem: Arc<Subsystem>,
        config: &Config,
        of_file: &SubsystemConfig,
        files: &mut WatchedFiles,
    ) -> Result<Self, ReloadError> {
        let exported = shards_of(&subsystem, of_file);
        let is_exported = nsids(&exported);
        let all = subsystem.namespaces();
        let others = all.iter().map(|one| one.nsid).filter(|nsid| !is_exported.contains(nsid));
        let mut listed =
            ListedNamespaces::beside(config, of_file, &others.collect(), &mut files.left_out)?;
        listed.keep(OpenPurpose::Check).map_err(ExportError::from)?;
        distinct(&listed.candidates)?;
        let known = files.known.get(&subsystem.nqn);
        let roots = roots(of_file);
        let (mut wanted, mut left_out) = (Vec::new(), BTreeSet::new());
        for candidate in listed.candidates.iter().filter(|candidate| candidate.found) {
            let (nsid, path) = (candidate.namespace.nsid, candidate.namespace.medium.path());
            let Some(path) = path.filter(|path| is_below(path, &roots)) else { continue };
            if is_exported.contains(&nsid) {
                wanted.push(candidate.clone());
            } else if known.is_some_and(|known| known.contains(&nsid)) {
                left_out.insert(nsid);
            } else if !files.unfinished.contains(path) {
                wanted.push(candidate.clone());
            }
        }
        Ok(Self { subsystem, exported, wanted, left_out, listed })
    }
}

impl Registry {
    /// Adds namespaces for new files of watched directories, and removes those of missing files.
    ///
    /// # Errors
    /// The first [`ReloadError`]. Nothing has changed then.
    pub(crate) fn refresh_directories(
        &self,
        config: &Config,
        files: &mut WatchedFiles,
    ) -> Result<Reloaded, ReloadError> {
        let mut serials = self.serials();
        let mut next = *serials;
        let mut looks = Vec::new();
        for (subsystem, of_file) in watched(self, config) {
            looks.push(DirectoryLook::new(subsystem, config, of_file, files)?);
        }
        let mut difference = Difference::default();
        for look in &looks {
            difference.add(&look.subsystem, look.exported.iter(), &look.wanted);
        }
        let (removed, ready) = self.open_difference(difference, &mut next, &mut files.left_out)?;
        for look in &mut looks {
            look.listed.keep(OpenPurpose::Serve).map_err(ExportError::from)?;
            look.subsystem.set_left_out_files(look.listed.left_out.clone());
        }
        *serials = next;
        let changes = namespace_changes(removed.iter(), &ready);
        let added: Vec<OwnedNamespace> = ready.into_iter().map(|one| one.owned).collect();
        for OwnedNamespace { subsystem, namespace } in &removed {
            subsystem.note_removed(namespace.nsid);
        }
        let generation = (!changes.is_empty()).then(|| self.publish_change(&removed, &added));
        files.left_out.end_look();
        // The exported files are known; a file that could not be opened is not, so it is tried
        // again.
        files.known = exported_shards(self, config);
        for look in looks {
            files.known.entry(look.subsystem.nqn).or_default().extend(look.left_out);
        }
        let change = |one: OwnedNamespace| Some(one.changed_in(generation?));
        let removed = removed.into_iter().filter_map(change).collect();
        let added = added.into_iter().filter_map(change).collect();
        Ok(Reloaded { changes, removed, added })
    }
}

/// Subsystems with watched directories that exist now.
fn watched<'a>(
    registry: &Registry,
    config: &'a Config,
) -> Vec<(Arc<Subsystem>, &'a SubsystemConfig)> {
    let watches = |of_file: &&SubsystemConfig| of_file.directories.iter().any(|one| one.watch);
    let of_file = config.subsystems.iter().filter(watches);
    of_file.filter_map(|one| Some((registry.subsystem(&one.nqn)?, one))).collect()
}

/// NSIDs of the namespaces that are files of watched directories, by subsystem.
fn exported_shards(registry: &Registry, config: &Config) -> BTreeMap<Nqn, BTreeSet<Nsid>> {
    let shards = |(subsystem, of_file): (Arc<Subsystem>, &SubsystemConfig)| {
        (subsystem.nqn, nsids(&shards_of(&subsystem, of_file)))
    };
    watched(registry, config).into_iter().map(shards).collect()
}

/// Namespaces of a subsystem that are files of its watched directories, not listed one by one.
fn shards_of(subsystem: &Subsystem, of_file: &SubsystemConfig) -> Vec<Arc<Namespace>> {
    let roots = roots(of_file);
    let listed: BTreeSet<Nsid> = of_file.namespaces.iter().map(|one| one.nsid).collect();
    let is_shard = |one: &&Arc<Namespace>| {
        let path = one.path().filter(|_| one.bdev.is_none() && !listed.contains(&one.nsid));
        path.is_some_and(|path| is_below(path, &roots))
    };
    subsystem.namespaces().iter().filter(is_shard).cloned().collect()
}

/// Real paths of a subsystem's watched directories. A directory that does not exist is skipped: it
/// has no namespaces, and the scan reports the error.
fn roots(of_file: &SubsystemConfig) -> Vec<PathBuf> {
    let directories = of_file.directories.iter().filter(|directory| directory.watch);
    directories.filter_map(|directory| directory.path.canonicalize().ok()).collect()
}

fn is_below(path: &Path, roots: &[PathBuf]) -> bool {
    roots.iter().any(|root| path.starts_with(root))
}

fn nsids(namespaces: &[Arc<Namespace>]) -> BTreeSet<Nsid> {
    namespaces.iter().map(|namespace| namespace.nsid).collect()
}
