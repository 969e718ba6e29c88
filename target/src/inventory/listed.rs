//! Namespaces that a configuration lists, and the files of its directories with their NSIDs.

use std::collections::{BTreeMap, BTreeSet};

use nvme_proto::Nsid;

use crate::config::{
    Config, DirectoryConfig, Medium, NamespaceConfig, NamespaceSettings, NamespaceSpec,
    SubsystemConfig,
};
use crate::inventory::error::ExportError;
use crate::inventory::left_out::{LeftOutFiles, LeftOutSummary};
use crate::inventory::persist::nsid::{NsidFile, NsidFileError};
use crate::inventory::shard_directory::{self, Shard};

/// Namespaces of one subsystem: those that its configuration names, and the files of its
/// directories.
pub(crate) struct ListedNamespaces {
    pub(super) configs: Vec<NamespaceConfig>,
    /// State file with the NSIDs of the files; `None` if the subsystem has no directory.
    nsids: Option<NsidFile>,
    /// Files of its directories that are not exported.
    pub(super) left_out: LeftOutSummary,
}

impl ListedNamespaces {
    /// Lists the namespaces of a subsystem, and logs each file that is left out.
    ///
    /// # Errors
    /// A directory or the state file cannot be read, or two namespaces have the same name or UUID.
    pub(super) fn of(config: &Config, subsystem: &SubsystemConfig) -> Result<Self, ExportError> {
        Self::beside(config, subsystem, &BTreeSet::new(), &mut LeftOutFiles::default())
    }

    /// Lists the namespaces of a subsystem without log lines for files that are left out.
    ///
    /// # Errors
    /// The same as those of [`ListedNamespaces::of`].
    pub(crate) fn again(config: &Config, subsystem: &SubsystemConfig) -> Result<Self, ExportError> {
        Self::beside(config, subsystem, &BTreeSet::new(), &mut LeftOutFiles::logged())
    }

    /// Lists the namespaces of a subsystem that also has the NSIDs `others`, which were added at
    /// run time and are not assigned to files.
    ///
    /// # Errors
    /// The same as those of [`ListedNamespaces::of`].
    pub(super) fn beside(
        config: &Config,
        subsystem: &SubsystemConfig,
        others: &BTreeSet<Nsid>,
        left_out: &mut LeftOutFiles,
    ) -> Result<Self, ExportError> {
        let mut configs = subsystem.namespaces.clone();
        if subsystem.directories.is_empty() {
            distinct(&configs)?;
            return Ok(Self { configs, nsids: None, left_out: LeftOutSummary::default() });
        }
        let (shards, left_out) = all_shards(&subsystem.directories, left_out)?;
        let names: Vec<&str> = shards.iter().map(|(_, shard)| &*shard.relative).collect();
        let reserved = subsystem.namespaces.iter().map(|n| n.nsid).chain(others.iter().copied());
        let reserved: BTreeSet<u32> = reserved.map(|nsid| nsid.0).collect();
        let mut nsids = NsidFile::open(&config.state_dir, &subsystem.nqn)?;
        if nsids.may_be_lost() {
            tracing::info!(
                nqn = %subsystem.nqn, file = %nsids.path().display(),
                "a new subsystem: its files get NSIDs in the order of their names. If hosts have used it before, \
                 stop the target and restore the file, or let those hosts connect again"
            );
        }
        let ids = nsids.assign(&names, &reserved)?;
        configs.extend(
            shards.into_iter().zip(ids).map(|((directory, shard), nsid)| {
                of_shard(subsystem, directory, shard, Nsid(nsid))
            }),
        );
        distinct(&configs)?;
        Ok(Self { configs, nsids: Some(nsids), left_out })
    }

    /// Configured namespaces, followed by the files of directories.
    pub(crate) fn configs(&self) -> &[NamespaceConfig] {
        &self.configs
    }

    /// Checks that [`ListedNamespaces::save`] would succeed now.
    pub(super) fn check_save(&self) -> Result<(), NsidFileError> {
        self.nsids.as_ref().map_or(Ok(()), NsidFile::check_save)
    }

    /// Writes the NSIDs of the directories' files to the state folder.
    pub(super) fn save(&mut self) -> Result<(), NsidFileError> {
        self.nsids.as_mut().map_or(Ok(()), NsidFile::save)
    }
}

type ShardOf<'a> = (&'a DirectoryConfig, Shard);

/// Returns the files of all directories of a subsystem and a summary of those left out. The
/// relative paths of the files must be unique.
fn all_shards<'a>(
    directories: &'a [DirectoryConfig],
    left_out: &mut LeftOutFiles,
) -> Result<(Vec<ShardOf<'a>>, LeftOutSummary), ExportError> {
    let mut names = BTreeSet::new();
    let (mut shards, mut summary) = (Vec::new(), LeftOutSummary::default());
    for directory in directories {
        let origin = || directory.origin.clone();
        let found = shard_directory::scan(directory, left_out)
            .map_err(|error| ExportError::Directory { origin: origin(), error })?;
        summary.add_all(found.left_out);
        for shard in found.shards {
            if !names.insert(shard.relative.clone()) {
                return Err(ExportError::SameName {
                    origin: origin(),
                    name: shard.relative.to_string(),
                });
            }
            shards.push((directory, shard));
        }
    }
    Ok((shards, summary))
}

fn of_shard(
    subsystem: &SubsystemConfig,
    directory: &DirectoryConfig,
    shard: Shard,
    nsid: Nsid,
) -> NamespaceConfig {
    let content_id = directory.content_id.as_ref().map(|id| id.of_file(&shard.relative));
    let medium = Medium::File { path: shard.path, root: Some(shard.root) };
    let settings = NamespaceSettings {
        content_id,
        block_shift: directory.block_shift,
        direct_io: directory.direct_io,
        ..NamespaceSettings::new(shard.relative, medium, directory.writable)
    };
    let spec = NamespaceSpec::from(settings);
    spec.resolve(nsid, &subsystem.identity, directory.origin.clone())
}

/// Returns an error if two namespaces have the same UUID.
fn distinct(configs: &[NamespaceConfig]) -> Result<(), ExportError> {
    let mut seen = BTreeMap::new();
    for config in configs {
        if let Some(other) = seen.insert(config.uuid, config) {
            return Err(ExportError::SameIdentity {
                origin: config.origin.clone(),
                name: config.name.to_string(),
                other: other.name.to_string(),
            });
        }
    }
    Ok(())
}
