//! From a configuration to the live set: directories are listed, NSIDs given, media opened.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nvme_proto::Nsid;

use crate::backend::decorator::{Delay, Fault, FaultPlan, Tear};
use crate::backend::{self, Access, Backend, OpenError, OpenMode, OpenedBackend};
use crate::config::{
    Config, DirectoryConfig, DiskFaults, Medium, NamespaceConfig, Origin, SubsystemConfig,
};
use crate::directory::{self, DirectoryError};
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
            let mut buffered = Buffered::default();
            for namespace in &listed {
                let opened = open_medium(namespace).map_err(|error| ExportError::Open {
                    origin: namespace.origin.clone(),
                    error,
                })?;
                buffered.note(&namespace.name, &opened.access);
                namespaces.push(make(namespaces.len(), namespace, opened, decorate)?);
            }
            tracing::info!(nqn = %subsystem.nqn, namespaces = listed.len(), "subsystem");
            buffered.tell();
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
    let medium = Medium::File { path: shard.path };
    NamespaceConfig {
        nsid: Nsid(nsid),
        uuid: subsystem.identity.namespace_uuid(&shard.relative, &medium),
        nguid: [0; 16],
        medium,
        faults: DiskFaults::NONE,
        writable: directory.writable,
        content_id: directory.content_id.as_ref().map(|id| format!("{id}/{}", shard.relative)),
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

fn make(
    index: usize,
    config: &NamespaceConfig,
    mut opened: OpenedBackend,
    decorate: Decorate<'_>,
) -> Result<Arc<Namespace>, ExportError> {
    if index >= MAX_NAMESPACES {
        return Err(ExportError::TooMany);
    }
    let index = NamespaceIndex(u32::try_from(index).map_err(|_| ExportError::TooMany)?);
    tracing::debug!(
        nsid = %config.nsid, name = config.name, bytes = opened.exact_bytes,
        lba_bytes = 1_u32 << opened.lba_shift, writable = config.writable, access = %opened.access,
        "namespace"
    );
    if config.faults != DiskFaults::NONE {
        tracing::warn!(name = config.name, faults = ?config.faults, "this disk misbehaves on purpose");
        opened.backend = with_faults(&config.faults, opened.backend);
    }
    opened.backend = decorate(config, opened.backend);
    Ok(Arc::new(Namespace::new(index, config, opened)))
}

/// A backend with the faults that a configuration asks for.
fn with_faults(faults: &DiskFaults, mut backend: Arc<dyn Backend>) -> Arc<dyn Backend> {
    if let Some(delay) = faults.delay {
        backend = Arc::new(Delay::new(backend, delay));
    }
    if let Some(every) = faults.tear_every {
        backend = Arc::new(Tear::new(backend, every));
    }
    if let Some(every) = faults.fail_every {
        let plan = FaultPlan { every: Some(every), ..FaultPlan::new(faults.fail_with) };
        backend = Arc::new(Fault::new(backend, plan));
    }
    backend
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

/// Namespaces that go through the page cache: why the first one does, and how many more.
#[derive(Default)]
struct Buffered {
    first: Option<(String, String)>,
    count: usize,
}

impl Buffered {
    fn note(&mut self, name: &str, access: &Access) {
        let Access::Buffered(reason) = access else { return };
        self.first.get_or_insert_with(|| (name.to_owned(), reason.to_owned()));
        self.count += 1;
    }

    fn tell(&self) {
        if let Some((name, reason)) = &self.first {
            tracing::warn!(
                name,
                reason,
                more = self.count - 1,
                "I/O goes through the page cache instead of past it"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn subsystem(dir: &Path, rest: &str) -> Result<Arc<Registry>, ExportError> {
        let text = format!(
            "state_dir = \"state\"\n[[port]]\naddress = \"127.0.0.1\"\n[[subsystem]]\n\
             nqn = \"nqn.2026-01.io.feedrail:t\"\nallow_any_host = true\n{rest}\n"
        );
        let config = Config::from_toml(&dir.join("feedrail.toml"), &text).expect("valid");
        Registry::open(&config, Purpose::Serve)
    }

    fn names(registry: &Registry) -> Vec<(u32, &str, u64)> {
        let namespaces = registry.subsystems()[0].namespaces().iter();
        namespaces.map(|n| (n.nsid.0, n.name.as_str(), n.size_blocks)).collect()
    }

    const DIRECTORY: &str = "[[subsystem.directory]]\npath = \"d\"";

    #[test]
    fn a_directory_keeps_its_ids_when_files_come_and_go() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = |name: &str, bytes| {
            std::fs::write(dir.path().join("d").join(name), vec![1; bytes]).expect("written");
        };
        std::fs::create_dir(dir.path().join("d")).expect("made");
        file("b", 1);
        file("c", 513);
        let registry = subsystem(dir.path(), DIRECTORY).expect("exported");
        assert_eq!(names(&registry), [(1, "b", 1), (2, "c", 2)]);
        let uuid = registry.namespaces()[1].uuid;

        std::fs::remove_file(dir.path().join("d/b")).expect("removed");
        file("a", 512);
        let registry = subsystem(dir.path(), DIRECTORY).expect("exported");
        assert_eq!(names(&registry), [(2, "c", 2), (3, "a", 1)]);
        assert_eq!(registry.subsystems()[0].namespace(Nsid(2)).expect("there").uuid, uuid);
        assert!(registry.subsystems()[0].namespace(Nsid(1)).is_none());
    }

    #[test]
    fn listed_namespaces_go_before_and_twins_are_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(dir.path().join("d")).expect("made");
        std::fs::write(dir.path().join("d/a"), "a").expect("written");
        let listed = "[[subsystem.namespace]]\nkind = \"null\"\nsize_bytes = 512\n";
        let registry = subsystem(dir.path(), &format!("{listed}{DIRECTORY}")).expect("exported");
        assert_eq!(names(&registry), [(1, "null-1", 1), (2, "a", 1)]);

        let named = "dataset_id = \"6f1c1b0e-6f7b-4c0f-9a3e-0d6a3d8d3b12\"\n[[subsystem.namespace]]\n\
                     kind = \"null\"\nsize_bytes = 512\nname = \"a\"\n";
        let error = subsystem(dir.path(), &format!("{named}{DIRECTORY}")).expect_err("twins");
        assert!(matches!(error, ExportError::SameIdentity { .. }), "{error}");
    }

    #[test]
    fn two_targets_that_serve_the_same_shards_agree_on_their_identity() {
        let uuids = || {
            let dir = tempfile::tempdir().expect("a folder");
            std::fs::create_dir_all(dir.path().join("d/train")).expect("made");
            std::fs::write(dir.path().join("d/train/0.tar"), "a").expect("written");
            let dataset = "dataset_id = \"6f1c1b0e-6f7b-4c0f-9a3e-0d6a3d8d3b12\"\n";
            let registry =
                subsystem(dir.path(), &format!("{dataset}{DIRECTORY}")).expect("exported");
            registry.namespaces()[0].uuid
        };
        assert_eq!(uuids(), uuids());
    }
}
