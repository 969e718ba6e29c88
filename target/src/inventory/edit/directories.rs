//! The files of directories that are watched for changes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nvme_proto::{Nqn, Nsid};

use super::Edit;
use crate::config::{Config, NamespaceConfig, SubsystemConfig};
use crate::inventory::Inventory;
use crate::inventory::error::ExportError;
use crate::inventory::left_out::LeftOutFiles;
use crate::inventory::listed::ListedNamespaces;
use crate::inventory::namespace::Namespace;
use crate::inventory::report::UnopenedFile;
use crate::inventory::subsystem::Subsystem;

/// NSIDs of files of watched directories, by subsystem.
pub(crate) type KnownFiles = BTreeMap<Nqn, BTreeSet<Nsid>>;

/// Files of watched directories at the last scan.
#[derive(Debug)]
pub(crate) struct WatchedFiles {
    /// Files that a program still has open for writing; they become namespaces once closed.
    pub(crate) unfinished: BTreeSet<PathBuf>,
    /// Files that the last scan found. A known file that is not exported was removed by an
    /// operator; it is exported again only after the file has been missing.
    known: KnownFiles,
    left_out: LeftOutFiles,
}

impl WatchedFiles {
    /// Creates the list from the exported files, after the configuration was applied.
    pub(crate) fn of(inventory: &Inventory, config: &Config) -> Self {
        let nsids = |(subsystem, of_file): (Arc<Subsystem>, &SubsystemConfig)| {
            (subsystem.nqn, nsids(&shards_of(&subsystem, of_file)))
        };
        let known = watched(inventory, config).into_iter().map(nsids).collect();
        Self { unfinished: BTreeSet::new(), known, left_out: LeftOutFiles::logged() }
    }

    /// Updates the list after another configuration was applied.
    pub(crate) fn apply(&mut self, inventory: &Inventory, config: &Config) {
        let unfinished = std::mem::take(&mut self.unfinished);
        *self = Self { unfinished, ..Self::of(inventory, config) };
    }

    /// Ends a scan that found the files `known`. A file that could not be opened is not known, so
    /// that it is tried again.
    pub(crate) fn end_scan(&mut self, mut known: KnownFiles, unopened: &[UnopenedFile]) {
        for file in unopened {
            self.left_out.note(file.path(), file.error.to_string());
            if let Some(nsids) = known.get_mut(&file.subsystem.nqn) {
                nsids.remove(&file.config.nsid);
            }
        }
        self.left_out.end_look();
        self.known = known;
    }
}

impl Edit<'_> {
    /// Adds namespaces for new files of watched directories, and removes those of missing files. A
    /// namespace that an operator has removed is not exported again. Returns the files that were
    /// found.
    ///
    /// # Errors
    /// A directory or a state file cannot be read, or two files have the same name.
    pub(crate) fn follow_directories(
        &mut self,
        config: &Config,
        files: &mut WatchedFiles,
    ) -> Result<KnownFiles, ExportError> {
        let mut found = KnownFiles::new();
        for (subsystem, of_file) in watched(self.inventory, config) {
            let exported = shards_of(&subsystem, of_file);
            let is_exported = nsids(&exported);
            let all = subsystem.namespaces();
            let others = all.iter().map(|one| one.nsid).filter(|nsid| !is_exported.contains(nsid));
            let others = others.collect();
            let listed = ListedNamespaces::beside(config, of_file, &others, &mut files.left_out)?;
            listed.check_save()?;
            let (roots, known) = (roots(of_file), files.known.get(&subsystem.nqn));
            let mut present = BTreeSet::new();
            let mut wanted: Vec<NamespaceConfig> = Vec::new();
            for shard in listed.configs().iter().filter(|config| is_below(config, &roots)) {
                let is_known = known.is_some_and(|known| known.contains(&shard.nsid));
                let is_unfinished =
                    || shard.medium.path().is_some_and(|path| files.unfinished.contains(path));
                if is_exported.contains(&shard.nsid) || !(is_known || is_unfinished()) {
                    wanted.push(shard.clone());
                } else if !is_known {
                    continue;
                }
                present.insert(shard.nsid);
            }
            self.follow(&subsystem, &exported, wanted);
            found.insert(subsystem.nqn, present);
            self.listed.push((subsystem, listed));
        }
        Ok(found)
    }
}

/// Subsystems with watched directories that exist now.
fn watched<'a>(
    inventory: &Inventory,
    config: &'a Config,
) -> Vec<(Arc<Subsystem>, &'a SubsystemConfig)> {
    let watches = |of_file: &&SubsystemConfig| of_file.directories.iter().any(|one| one.watch);
    let of_file = config.subsystems.iter().filter(watches);
    of_file.filter_map(|one| Some((inventory.subsystem(&one.nqn)?, one))).collect()
}

/// Namespaces of a subsystem that are files of its watched directories.
fn shards_of(subsystem: &Subsystem, of_file: &SubsystemConfig) -> Vec<Arc<Namespace>> {
    let roots = roots(of_file);
    let namespaces = subsystem.namespaces();
    namespaces.iter().filter(|one| is_below(&one.config, &roots)).cloned().collect()
}

/// Real paths of a subsystem's watched directories. A directory that does not exist is skipped: it
/// has no namespaces, and the scan reports the error.
fn roots(of_file: &SubsystemConfig) -> Vec<PathBuf> {
    let directories = of_file.directories.iter().filter(|directory| directory.watch);
    directories.filter_map(|directory| directory.path.canonicalize().ok()).collect()
}

/// Whether a namespace is a file of a directory below one of `roots`.
fn is_below(config: &NamespaceConfig, roots: &[PathBuf]) -> bool {
    let is_below = |directory: &Path| roots.iter().any(|root| directory.starts_with(root));
    config.medium.directory().is_some() && config.medium.path().is_some_and(is_below)
}

fn nsids(namespaces: &[Arc<Namespace>]) -> BTreeSet<Nsid> {
    namespaces.iter().map(|namespace| namespace.nsid).collect()
}
