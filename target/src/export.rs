//! From a configuration to the live set: directories are listed, NSIDs given, media opened.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nvme_proto::Nsid;

use crate::backend::{self, Backend, OpenError, OpenMode, OpenedBackend};
use crate::config::{Config, DirectoryConfig, Medium, NamespaceConfig, Origin, SubsystemConfig};
use crate::directory::{self, DirectoryError};
use crate::identity;
use crate::limits::MAX_NAMESPACES;
use crate::namespace::{Namespace, NamespaceIndex};
use crate::nsid_file::{NsidFile, NsidFileError};
use crate::port::Port;
use crate::registry::Registry;
use crate::subsystem::Subsystem;

/// Why something can not be exported: one line that says what and what would be right.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// A file, device or size.
    #[error("{origin}: {error}")]
    Open {
        /// Where the configuration names it.
        origin: Origin,
        /// Why not.
        error: OpenError,
    },
    /// A directory of shards.
    #[error("{origin}: {error}")]
    Directory {
        /// Where the configuration names it.
        origin: Origin,
        /// Why not.
        error: DirectoryError,
    },
    /// NSIDs of earlier runs.
    #[error(transparent)]
    NsidFile(#[from] NsidFileError),
    /// Two namespaces with one identity.
    #[error(
        "{origin}: \"{name}\" has the same UUID as \"{other}\"; hosts would take them for one disk"
    )]
    SameIdentity {
        /// Where the configuration names it.
        origin: Origin,
        /// The one.
        name: String,
        /// The other.
        other: String,
    },
    /// Too many.
    #[error("more than {MAX_NAMESPACES} namespaces")]
    TooMany,
}

/// Whether opening is for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To serve: new NSIDs are kept.
    Serve,
    /// To see whether it would work: nothing is written.
    Check,
}

/// Wraps the backend of a namespace, for tests and experiments.
pub type Decorate<'a> = &'a dyn Fn(&NamespaceConfig, Arc<dyn Backend>) -> Arc<dyn Backend>;

impl Registry {
    /// Opens all that a configuration exports.
    ///
    /// # Errors
    /// See [`ExportError`]. Nothing stays open then.
    pub fn open(config: &Config, purpose: Purpose) -> Result<Arc<Self>, ExportError> {
        Self::open_with(config, purpose, &|_, backend| backend)
    }

    /// As [`Registry::open`], with backends wrapped in decorators.
    ///
    /// # Errors
    /// See [`ExportError`]. Nothing stays open then.
    pub fn open_with(
        config: &Config,
        purpose: Purpose,
        decorate: Decorate<'_>,
    ) -> Result<Arc<Self>, ExportError> {
        let mut namespaces = Vec::new();
        let mut subsystems = Vec::with_capacity(config.subsystems.len());
        for subsystem in &config.subsystems {
            let listed = all_namespaces(config, subsystem, purpose)?;
            distinct(&listed)?;
            let first = namespaces.len();
            for namespace in &listed {
                namespaces.push(open(namespaces.len(), namespace, decorate)?);
            }
            subsystems.push(Arc::new(Subsystem::new(subsystem, namespaces[first..].to_vec())));
        }
        let port = |port| Arc::new(Port::new(port, &subsystems));
        let ports = config.ports.iter().map(port).collect();
        Ok(Self::new(config.limits.clone(), ports, subsystems, namespaces))
    }
}

/// Listed namespaces and those of directories.
fn all_namespaces(
    config: &Config,
    subsystem: &SubsystemConfig,
    purpose: Purpose,
) -> Result<Vec<NamespaceConfig>, ExportError> {
    let mut namespaces = subsystem.namespaces.clone();
    if subsystem.directories.is_empty() {
        return Ok(namespaces);
    }
    let reserved: BTreeSet<u32> = namespaces.iter().map(|namespace| namespace.nsid.0).collect();
    let mut nsids = NsidFile::open(&config.state_dir, &subsystem.nqn)?;
    for directory in &subsystem.directories {
        let shards = directory::scan(directory)
            .map_err(|error| ExportError::Directory { origin: directory.origin.clone(), error })?;
        let names = shards.iter().map(|shard| shard.relative.as_str());
        let ids = nsids.assign(names, &reserved)?;
        let shards = shards.into_iter().zip(ids);
        namespaces.extend(shards.map(|(shard, nsid)| of_shard(subsystem, directory, shard, nsid)));
    }
    if purpose == Purpose::Serve {
        nsids.save()?;
    }
    Ok(namespaces)
}

fn of_shard(
    subsystem: &SubsystemConfig,
    directory: &DirectoryConfig,
    shard: directory::Shard,
    nsid: u32,
) -> NamespaceConfig {
    NamespaceConfig {
        nsid: Nsid(nsid),
        uuid: identity::namespace_uuid(subsystem.dataset_id, &shard.relative),
        nguid: [0; 16],
        medium: Medium::File { path: shard.path },
        writable: directory.writable,
        lba_shift: directory.lba_shift,
        origin: directory.origin.clone(),
        name: shard.relative,
    }
}

fn distinct(namespaces: &[NamespaceConfig]) -> Result<(), ExportError> {
    let mut seen = BTreeMap::new();
    for namespace in namespaces {
        if let Some(other) = seen.insert(namespace.uuid, namespace) {
            return Err(ExportError::SameIdentity {
                origin: namespace.origin.clone(),
                name: namespace.name.clone(),
                other: other.name.clone(),
            });
        }
    }
    Ok(())
}

fn open(
    index: usize,
    config: &NamespaceConfig,
    decorate: Decorate<'_>,
) -> Result<Arc<Namespace>, ExportError> {
    if index >= MAX_NAMESPACES {
        return Err(ExportError::TooMany);
    }
    let mut opened = open_medium(config)
        .map_err(|error| ExportError::Open { origin: config.origin.clone(), error })?;
    let index = NamespaceIndex(u32::try_from(index).map_err(|_| ExportError::TooMany)?);
    tracing::info!(
        nsid = %config.nsid, name = config.name, bytes = opened.exact_bytes,
        lba_bytes = 1_u32 << opened.lba_shift, writable = config.writable, access = %opened.access,
        "namespace"
    );
    opened.backend = decorate(config, opened.backend);
    Ok(Arc::new(Namespace::new(index, config, opened)))
}

fn open_medium(config: &NamespaceConfig) -> Result<OpenedBackend, OpenError> {
    let mode = OpenMode { writable: config.writable, lba_shift: config.lba_shift };
    match &config.medium {
        Medium::File { path } => backend::open_file(path, mode),
        Medium::Block { path } => backend::open_block(path, mode),
        Medium::Null { size_bytes } => backend::open_null(*size_bytes, mode),
        Medium::Memory { size_bytes } => backend::open_memory(*size_bytes, mode),
    }
}
