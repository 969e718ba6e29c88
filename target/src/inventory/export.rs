//! Opens the exports of a configuration: lists directories, assigns NSIDs, opens media.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use nvme_proto::Nsid;

use crate::backend::decorator::{Delay, Fault, FaultPlan, Tear};
use crate::backend::{
    self, Backend, CachePolicy, CacheRoom, FileKey, FilePlace, OpenError, OpenMode, OpenedBackend,
};
use crate::config::identifiers::derived_nguid;
use crate::config::{
    AnaGroupId, Config, DirectIo, DirectoryConfig, DiskFaults, Medium, NamespaceConfig, Origin,
    SubsystemConfig,
};
use crate::inventory::error::ExportError;
use crate::inventory::exports::{ExportedList, Publication};
use crate::inventory::index::{NamespaceIndex, SubsystemIndex};
use crate::inventory::left_out::{LeftOutFiles, LeftOutSummary};
use crate::inventory::namespace::Namespace;
use crate::inventory::open_warnings::{Buffered, Tearable, UnopenedFiles};
use crate::inventory::persist::nsid::{NsidFile, NsidFileError};
use crate::inventory::persist::protection::{ProtectionError, ProtectionFile, ProtectionWriter};
use crate::inventory::port::Port;
use crate::inventory::shard_directory::{self, Shard};
use crate::inventory::subsystem::Subsystem;
use crate::inventory::{Registry, RegistryParts};
use crate::limits::MAX_NAMESPACES;

/// Whether a configuration is opened to serve it or only to check it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenPurpose {
    /// The target will serve it: NSIDs assigned to new files are written to the state folder.
    Serve,
    /// The configuration is only checked: nothing is written.
    Check,
}

/// Function that wraps the backend of each namespace, for tests and experiments.
pub type Decorate<'a> = &'a dyn Fn(&NamespaceConfig, Arc<dyn Backend>) -> Arc<dyn Backend>;

impl Registry {
    /// Opens all namespaces of a configuration and creates the registry that exports them.
    ///
    /// # Errors
    /// The first [`ExportError`]. The files and devices opened before it are closed.
    pub fn open(config: &Config, purpose: OpenPurpose) -> Result<Arc<Self>, ExportError> {
        Self::open_with(config, purpose, &|_, backend| backend)
    }

    /// Opens a configuration as [`Registry::open`] does, with backends wrapped by `decorate`.
    ///
    /// # Errors
    /// The first [`ExportError`]. The files and devices opened before it are closed.
    pub fn open_with(
        config: &Config,
        purpose: OpenPurpose,
        decorate: Decorate<'_>,
    ) -> Result<Arc<Self>, ExportError> {
        let mut namespaces = Vec::new();
        let mut files = Files::new();
        let mut lists = Vec::with_capacity(config.subsystems.len());
        let mut protections = Vec::with_capacity(config.subsystems.len());
        let mut left_out = Vec::with_capacity(config.subsystems.len());
        for subsystem in &config.subsystems {
            let first = namespaces.len();
            let mut listed = ListedNamespaces::of(config, subsystem)?;
            listed.keep(purpose)?;
            open_all(&listed.candidates, decorate, &mut files, &mut namespaces, Err)?;
            protections.push(protect(config, subsystem, &namespaces[first..])?);
            lists.push(ExportedList::new(namespaces[first..].to_vec()));
            left_out.push(listed.left_out);
            let namespaces = namespaces.len() - first;
            tracing::info!(nqn = %subsystem.nqn, namespaces, "subsystem");
        }
        let writable = config.is_managed() || namespaces.iter().any(|one| one.writable);
        let keeps = purpose == OpenPurpose::Serve && writable;
        let keeper = if keeps {
            Some(ProtectionWriter::start(&config.state_dir, protections)?)
        } else {
            None
        };
        let registry = Self::of(config, lists, files.room, keeper);
        for (subsystem, files) in registry.subsystems().iter().zip(left_out) {
            subsystem.set_left_out_files(files);
        }
        Ok(registry)
    }

    /// Opens a configuration to check it, and collects all errors.
    ///
    /// # Errors
    /// One error for each namespace, directory and state file that is unusable.
    pub fn check(config: &Config) -> Result<Arc<Self>, Vec<ExportError>> {
        let mut errors = Vec::new();
        let mut files = Files::new();
        let mut namespaces = Vec::new();
        let mut lists = Vec::with_capacity(config.subsystems.len());
        for subsystem in &config.subsystems {
            let first = namespaces.len();
            let opened = ListedNamespaces::of(config, subsystem).and_then(|mut listed| {
                listed.keep(OpenPurpose::Check)?;
                let refuse = |error| {
                    errors.push(error);
                    Ok(())
                };
                let candidates = &listed.candidates;
                open_all(candidates, &|_, backend| backend, &mut files, &mut namespaces, refuse)
            });
            errors.extend(opened.err());
            let protected = protect(config, subsystem, &namespaces[first..]);
            errors.extend(protected.err().map(ExportError::from));
            lists.push(ExportedList::new(namespaces[first..].to_vec()));
        }
        match errors.is_empty() {
            true => Ok(Self::of(config, lists, files.room, None)),
            false => Err(errors),
        }
    }

    fn of(
        config: &Config,
        lists: Vec<ExportedList>,
        cache_room: Arc<CacheRoom>,
        keeper: Option<ProtectionWriter>,
    ) -> Arc<Self> {
        let publication = Publication::new();
        let subsystem = |(serial, subsystem): (u32, &SubsystemConfig)| {
            let index = SubsystemIndex { slot: serial, serial };
            Arc::new(Subsystem::new(subsystem, index, config.is_managed(), &publication))
        };
        let subsystems: Vec<_> = (0..).zip(&config.subsystems).map(subsystem).collect();
        let port = |port| Arc::new(Port::new(port, &subsystems));
        let ports = config.ports.iter().filter(|port| !port.is_wildcard()).map(port).collect();
        let parts = RegistryParts {
            limits: config.limits.clone(),
            machine: config.machine,
            discovery_nqn: config.discovery_nqn,
            ports,
            subsystems,
            publication,
            state_dir: config.state_dir.clone(),
            cache_room,
            keeper,
        };
        Self::new(parts, lists)
    }
}

/// Opens the namespaces of a subsystem. A file found in a directory is left out with a warning if
/// it cannot be opened; the errors of other namespaces go to `refuse`, which may end the loop.
fn open_all(
    listed: &[Candidate],
    decorate: Decorate<'_>,
    files: &mut Files,
    namespaces: &mut Vec<Arc<Namespace>>,
    mut refuse: impl FnMut(ExportError) -> Result<(), ExportError>,
) -> Result<(), ExportError> {
    distinct(listed)?;
    let first = namespaces.len();
    let mut buffered = Buffered::default();
    let mut tearable = Tearable::default();
    let mut left_out = UnopenedFiles::default();
    for Candidate { namespace, found } in listed {
        if let Err(error) = files.add(namespace) {
            refuse(error)?;
            continue;
        }
        match open_medium(namespace, &files.room) {
            Ok(opened) => {
                buffered.note(&namespace.name, &opened.access);
                tearable.note(namespace, &opened);
                let slot = namespaces.len();
                let index = index(slot, u32::try_from(slot).unwrap_or(u32::MAX))?;
                namespaces.push(Arc::new(make(index, namespace, opened, decorate)));
            }
            Err(error) if *found && !is_shortage(&error) => left_out.note(namespace, error),
            Err(error) => refuse(ExportError::cannot_open(namespace, error))?,
        }
    }
    left_out.log_all(namespaces.len() - first)?;
    buffered.log_all();
    tearable.log_all();
    Ok(())
}

/// Namespace that a configuration lists, or a file that was found in one of its directories.
#[derive(Clone)]
pub(super) struct Candidate {
    pub(super) namespace: NamespaceConfig,
    /// Whether it was found in a directory. If false, the configuration names it and it must exist.
    pub(super) found: bool,
}

impl Candidate {
    /// Opens the namespace at run time. Returns `None` if it was found in a directory and cannot be
    /// opened.
    pub(super) fn open(
        &self,
        index: NamespaceIndex,
        takes_over: bool,
        room: &Arc<CacheRoom>,
        left_out: &mut LeftOutFiles,
    ) -> Result<Option<Arc<Namespace>>, ExportError> {
        match open_medium(&self.namespace, room) {
            Ok(opened) => {
                let namespace = make(index, &self.namespace, opened, &|_, backend| backend);
                Ok(Some(Arc::new(namespace.taking_over(takes_over))))
            }
            Err(error) if self.found && !is_shortage(&error) => {
                let path = self.namespace.medium.path().unwrap_or(Path::new(""));
                left_out.note(path, error.to_string());
                Ok(None)
            }
            Err(error) => Err(ExportError::cannot_open(&self.namespace, error)),
        }
    }
}

/// Whether the error is a lack of file descriptors or memory, which affects every file.
fn is_shortage(error: &OpenError) -> bool {
    let OpenError::Io { error, .. } = error else { return false };
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM))
}

/// Files and devices of the exported namespaces, to find one that is exported twice.
pub(super) struct Files {
    opened: BTreeMap<FileKey, FileUse>,
    /// Limit on the page cache that the files may use.
    room: Arc<CacheRoom>,
}

/// First namespace that uses a file or device.
struct FileUse {
    name: String,
    origin: Origin,
    writable: bool,
}

impl Files {
    /// Creates an empty list.
    fn new() -> Self {
        Self { opened: BTreeMap::new(), room: Arc::new(CacheRoom::of_this_machine()) }
    }

    /// Lists the files and devices of exported namespaces.
    pub(super) fn of<'a>(
        namespaces: impl Iterator<Item = &'a Arc<Namespace>>,
        room: &Arc<CacheRoom>,
    ) -> Self {
        let file = |namespace: &Arc<Namespace>| {
            let NamespaceConfig { name, origin, writable, .. } = &namespace.config;
            let (name, origin) = (name.clone(), origin.clone());
            Some((namespace.file_key?, FileUse { name, origin, writable: *writable }))
        };
        let opened = namespaces.filter_map(file).collect();
        Self { opened, room: Arc::clone(room) }
    }

    /// Adds the file or device of a namespace. Returns an error if another namespace has the same
    /// (by any path) and one of them is writable.
    pub(super) fn add(&mut self, namespace: &NamespaceConfig) -> Result<(), ExportError> {
        let Some(key) = namespace.medium.place().and_then(FileKey::of_place) else { return Ok(()) };
        match self.opened.get(&key) {
            Some(other) if other.writable || namespace.writable => Err(ExportError::SameFile {
                origin: namespace.origin.clone(),
                name: namespace.name.clone(),
                other: other.name.clone(),
                other_origin: other.origin.clone(),
            }),
            Some(_) => Ok(()),
            None => {
                let (name, origin) = (namespace.name.clone(), namespace.origin.clone());
                self.opened.insert(key, FileUse { name, origin, writable: namespace.writable });
                Ok(())
            }
        }
    }
}

/// Restores the write protection that hosts set in earlier runs, and returns the state file.
fn protect(
    config: &Config,
    subsystem: &SubsystemConfig,
    namespaces: &[Arc<Namespace>],
) -> Result<ProtectionFile, ProtectionError> {
    // Hosts can protect only writable namespaces; a read-only target needs no state file.
    if !config.is_managed() && !namespaces.iter().any(|namespace| namespace.writable) {
        return Ok(ProtectionFile::nothing(&config.state_dir, &subsystem.nqn));
    }
    let file = ProtectionFile::open(&config.state_dir, &subsystem.nqn)?;
    let protected = |namespace: &&Arc<Namespace>| file.contains(namespace.uuid());
    for namespace in namespaces.iter().filter(protected) {
        namespace.protect(true);
    }
    Ok(file)
}

/// Namespaces of one subsystem: those that its configuration names, and the files of its
/// directories.
pub(crate) struct ListedNamespaces {
    pub(super) candidates: Vec<Candidate>,
    /// State file with the NSIDs of the files; `None` if the subsystem has no directory.
    nsids: Option<NsidFile>,
    /// Files of its directories that are not exported.
    pub(super) left_out: LeftOutSummary,
}

impl ListedNamespaces {
    /// Lists the namespaces of a subsystem and logs each file that is left out.
    pub(crate) fn of(config: &Config, subsystem: &SubsystemConfig) -> Result<Self, ExportError> {
        Self::beside(config, subsystem, &BTreeSet::new(), &mut LeftOutFiles::default())
    }

    /// Lists the namespaces of a subsystem without log lines for files that are left out.
    pub(crate) fn again(config: &Config, subsystem: &SubsystemConfig) -> Result<Self, ExportError> {
        Self::beside(config, subsystem, &BTreeSet::new(), &mut LeftOutFiles::logged())
    }

    /// Lists the namespaces of a subsystem that also has the NSIDs `others`, which were added at
    /// run time and are not assigned to files.
    pub(super) fn beside(
        config: &Config,
        subsystem: &SubsystemConfig,
        others: &BTreeSet<Nsid>,
        left_out: &mut LeftOutFiles,
    ) -> Result<Self, ExportError> {
        let listed = subsystem.namespaces.iter();
        let mut candidates: Vec<_> =
            listed.map(|n| Candidate { namespace: n.clone(), found: false }).collect();
        if subsystem.directories.is_empty() {
            let left_out = LeftOutSummary::default();
            return Ok(Self { candidates, nsids: None, left_out });
        }
        let (shards, left_out) = all_shards(&subsystem.directories, left_out)?;
        let names: Vec<&str> = shards.iter().map(|(_, shard)| shard.relative.as_str()).collect();
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
        candidates.extend(shards.into_iter().zip(ids).map(|((directory, shard), nsid)| {
            Candidate { namespace: of_shard(subsystem, directory, shard, nsid), found: true }
        }));
        Ok(Self { candidates, nsids: Some(nsids), left_out })
    }

    /// Configured namespaces, followed by the files of directories.
    pub(crate) fn configs(&self) -> impl Iterator<Item = &NamespaceConfig> {
        self.candidates.iter().map(|candidate| &candidate.namespace)
    }

    /// Writes the NSIDs of the directories' files to the state folder, or checks that it can be
    /// written.
    pub(super) fn keep(&mut self, purpose: OpenPurpose) -> Result<(), NsidFileError> {
        let Some(nsids) = &mut self.nsids else { return Ok(()) };
        match purpose {
            OpenPurpose::Serve => nsids.save(),
            OpenPurpose::Check => nsids.check_save(),
        }
    }
}

/// File of a directory, and the configuration of that directory.
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
                return Err(ExportError::SameName { origin: origin(), name: shard.relative });
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
    nsid: u32,
) -> NamespaceConfig {
    let medium = Medium::File { path: shard.path, root: Some(shard.root) };
    let uuid = medium.namespace_uuid(&subsystem.identity, &shard.relative);
    NamespaceConfig {
        nsid: Nsid(nsid),
        uuid,
        nguid: derived_nguid(uuid),
        eui64: None,
        medium,
        faults: DiskFaults::NONE,
        writable: directory.writable,
        content_id: directory.content_id.as_ref().map(|id| format!("{id}/{}", shard.relative)),
        lba_shift: directory.lba_shift,
        direct_io: directory.direct_io,
        ana_group: AnaGroupId::DEFAULT,
        visible_to: None,
        origin: directory.origin.clone(),
        name: shard.relative,
    }
}

pub(super) fn distinct(candidates: &[Candidate]) -> Result<(), ExportError> {
    let mut seen = BTreeMap::new();
    for Candidate { namespace, .. } in candidates {
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

/// Creates the index of the namespace in `slot`; an error if `slot` is not below `MAX_NAMESPACES`.
pub(super) fn index(slot: usize, serial: u32) -> Result<NamespaceIndex, ExportError> {
    match u32::try_from(slot) {
        Ok(number) if slot < MAX_NAMESPACES => Ok(NamespaceIndex { slot: number, serial }),
        _ => Err(ExportError::TooMany),
    }
}

/// Opens a namespace of the management interface, unless its medium is `opened` already.
pub(super) fn open_one(
    index: NamespaceIndex,
    config: &NamespaceConfig,
    bdev: String,
    opened: Option<OpenedBackend>,
    files: &Files,
) -> Result<Namespace, ExportError> {
    let opened = match opened {
        Some(opened) => opened,
        None => open_medium(config, &files.room)
            .map_err(|error| ExportError::cannot_open(config, error))?,
    };
    let mut buffered = Buffered::default();
    let mut tearable = Tearable::default();
    buffered.note(&config.name, &opened.access);
    tearable.note(config, &opened);
    buffered.log_all();
    tearable.log_all();
    Ok(Namespace::new(index, config, opened).of_bdev(bdev))
}

fn make(
    index: NamespaceIndex,
    config: &NamespaceConfig,
    mut opened: OpenedBackend,
    decorate: Decorate<'_>,
) -> Namespace {
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
    Namespace::new(index, config, opened)
}

/// Wraps a backend with the delay, torn writes and failures that a configuration demands for tests.
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

pub(super) fn open_medium(
    config: &NamespaceConfig,
    room: &Arc<CacheRoom>,
) -> Result<OpenedBackend, OpenError> {
    let cache = match config.direct_io {
        DirectIo::Auto => CachePolicy::WhileRoom(room),
        DirectIo::Always => CachePolicy::Bypass,
        DirectIo::Never => CachePolicy::Use,
    };
    let mode = OpenMode { writable: config.writable, lba_shift: config.lba_shift, cache };
    match &config.medium {
        Medium::File { path, root } => {
            backend::open_file(FilePlace { path, root: root.as_deref() }, mode)
        }
        Medium::Block { path } => backend::open_block(path, mode),
        Medium::Null { size_bytes } => backend::open_null(*size_bytes, mode),
        Medium::Memory { size_bytes } => backend::open_memory(*size_bytes, mode),
    }
}

#[cfg(test)]
mod tests;
