//! From a configuration to the live set: directories are listed, NSIDs given, media opened.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use nvme_proto::Nsid;

use crate::backend::decorator::{Delay, Fault, FaultPlan, Tear};
use crate::backend::{
    self, Backend, CachePolicy, CacheRoom, FileKey, FilePlace, IoMode, OpenError, OpenMode,
    OpenedBackend,
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
use crate::inventory::persist::nsid::{NsidFile, NsidFileError};
use crate::inventory::persist::protection::{Keeper, ProtectionError, ProtectionFile};
use crate::inventory::port::Port;
use crate::inventory::shard_directory::{self, Shard};
use crate::inventory::subsystem::Subsystem;
use crate::inventory::{Registry, RegistryParts};
use crate::limits::MAX_NAMESPACES;

/// Whether opening is for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenPurpose {
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
    pub fn open(config: &Config, purpose: OpenPurpose) -> Result<Arc<Self>, ExportError> {
        Self::open_with(config, purpose, &|_, backend| backend)
    }

    /// As [`Registry::open`], with backends wrapped in decorators.
    ///
    /// # Errors
    /// See [`ExportError`]. Nothing stays open then.
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
        let keeper =
            if keeps { Some(Keeper::start(&config.state_dir, protections)?) } else { None };
        let registry = Self::of(config, lists, files.room, keeper);
        for (subsystem, files) in registry.subsystems().iter().zip(left_out) {
            subsystem.set_left_out_files(files);
        }
        Ok(registry)
    }

    /// As [`Registry::open`] to see whether it works, but returns every error.
    ///
    /// # Errors
    /// All that cannot be exported.
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
        keeper: Option<Keeper>,
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

/// Opens the namespaces of a subsystem. `refuse` gets the errors of those that have to be there.
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
    let mut left_out = LeftOut::default();
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
            Err(error) => refuse(cannot_open(namespace, error))?,
        }
    }
    left_out.log_all(namespaces.len() - first)?;
    buffered.log_all();
    tearable.log_all();
    Ok(())
}

/// A namespace to open.
#[derive(Clone)]
pub(super) struct Candidate {
    pub(super) namespace: NamespaceConfig,
    /// In a directory; else the configuration names it, and it must be there.
    pub(super) found: bool,
}

impl Candidate {
    /// Opens a namespace that is added later. Nothing where it was found in a directory and can not
    /// be opened.
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
            Err(error) => Err(cannot_open(&self.namespace, error)),
        }
    }
}

pub(super) fn cannot_open(namespace: &NamespaceConfig, error: OpenError) -> ExportError {
    ExportError::Open { origin: namespace.origin.clone(), error }
}

/// Whether the process lacks something that any file would need.
fn is_shortage(error: &OpenError) -> bool {
    let OpenError::Io { error, .. } = error else { return false };
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM))
}

/// The files and devices of all namespaces that were opened until now.
pub(super) struct Files {
    opened: BTreeMap<FileKey, FileUse>,
    /// Their room in the page cache.
    room: Arc<CacheRoom>,
}

/// The namespace that has a file.
struct FileUse {
    name: String,
    origin: Origin,
    writable: bool,
}

impl Files {
    /// Those of a target that has not opened any.
    fn new() -> Self {
        Self { opened: BTreeMap::new(), room: Arc::new(CacheRoom::of_this_machine()) }
    }

    /// Those of namespaces that are exported.
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

    /// Adds that of a namespace, unless another has it and one of them can be written: whatever
    /// their paths are.
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

/// Applies the write protections of earlier runs.
fn protect(
    config: &Config,
    subsystem: &SubsystemConfig,
    namespaces: &[Arc<Namespace>],
) -> Result<ProtectionFile, ProtectionError> {
    // Only writable namespaces can be protected by hosts: other targets need no state.
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

/// The namespaces that a configuration lists for a subsystem, and those of its directories.
pub(crate) struct ListedNamespaces {
    pub(super) candidates: Vec<Candidate>,
    /// The NSIDs of the files of its directories.
    nsids: Option<NsidFile>,
    /// Files of its directories that are left out.
    pub(super) left_out: LeftOutSummary,
}

impl ListedNamespaces {
    /// Those of a subsystem that exports nothing else.
    pub(crate) fn of(config: &Config, subsystem: &SubsystemConfig) -> Result<Self, ExportError> {
        Self::beside(config, subsystem, &BTreeSet::new(), &mut LeftOutFiles::default())
    }

    /// The same, without a line of the log for what is left out.
    pub(crate) fn again(config: &Config, subsystem: &SubsystemConfig) -> Result<Self, ExportError> {
        Self::beside(config, subsystem, &BTreeSet::new(), &mut LeftOutFiles::logged())
    }

    /// Those of a subsystem that has other namespaces with these NSIDs, which were added at run
    /// time.
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

    /// Those that the configuration lists, and then the files of its directories.
    pub(crate) fn configs(&self) -> impl Iterator<Item = &NamespaceConfig> {
        self.candidates.iter().map(|candidate| &candidate.namespace)
    }

    /// Keeps the NSIDs of its directories' files for later runs, or says whether that would work.
    pub(super) fn keep(&mut self, purpose: OpenPurpose) -> Result<(), NsidFileError> {
        let Some(nsids) = &mut self.nsids else { return Ok(()) };
        match purpose {
            OpenPurpose::Serve => nsids.save(),
            OpenPurpose::Check => nsids.check_save(),
        }
    }
}

/// A shard, and the directory that it is in.
type ShardOf<'a> = (&'a DirectoryConfig, Shard);

/// The files of all directories of a subsystem, which differ in their relative paths, and those
/// that are left out.
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

/// The index of a namespace in a slot.
pub(super) fn index(slot: usize, serial: u32) -> Result<NamespaceIndex, ExportError> {
    match u32::try_from(slot) {
        Ok(number) if slot < MAX_NAMESPACES => Ok(NamespaceIndex { slot: number, serial }),
        _ => Err(ExportError::TooMany),
    }
}

/// Opens a namespace that is added later.
pub(super) fn open_one(
    index: NamespaceIndex,
    config: &NamespaceConfig,
    bdev: String,
    opened: Option<OpenedBackend>,
    files: &Files,
) -> Result<Namespace, ExportError> {
    let opened = match opened {
        Some(opened) => opened,
        None => open_medium(config, &files.room).map_err(|error| cannot_open(config, error))?,
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

/// Files of directories that can not be exported.
#[derive(Default)]
struct LeftOut {
    first: Option<ExportError>,
    count: usize,
}

impl LeftOut {
    /// The most names in one line of the log; the rest are counted. Not measured.
    const NAMED: usize = 16;

    fn note(&mut self, namespace: &NamespaceConfig, error: OpenError) {
        if self.count < Self::NAMED {
            tracing::warn!(nsid = %namespace.nsid, "left out: {error}");
        }
        self.count += 1;
        self.first.get_or_insert_with(|| cannot_open(namespace, error));
    }

    /// An error if nothing is left.
    fn log_all(self, left: usize) -> Result<(), ExportError> {
        let Some(error) = self.first else { return Ok(()) };
        if left == 0 {
            return Err(error);
        }
        if self.count > Self::NAMED {
            tracing::warn!(
                files = self.count,
                "left out in all, of which the first are named above"
            );
        }
        Ok(())
    }
}

/// Namespaces that go through the page cache: why the first one does, and how many more.
#[derive(Default)]
struct Buffered {
    first: Option<(String, String)>,
    count: usize,
}

impl Buffered {
    fn note(&mut self, name: &str, access: &IoMode) {
        let IoMode::Buffered(reason) = access else { return };
        self.first.get_or_insert_with(|| (name.to_owned(), reason.to_owned()));
        self.count += 1;
    }

    fn log_all(&self) {
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

/// Writable namespaces with logical blocks that their device does not write as one, though NVMe
/// promises that a power failure leaves a block as it was or as it was to be (AWUPF): the first
/// one, and how many there are.
#[derive(Default)]
struct Tearable {
    first: Option<(String, String)>,
    count: usize,
}

impl Tearable {
    fn note(&mut self, namespace: &NamespaceConfig, opened: &OpenedBackend) {
        let (lba_bytes, unit_bytes) = (1 << opened.lba_shift, opened.write_unit_bytes);
        let Some(unit_bytes) = unit_bytes.filter(|unit| *unit < lba_bytes) else { return };
        if !namespace.writable {
            return;
        }
        self.count += 1;
        self.first.get_or_insert_with(|| {
            let text = format!(
                "power failure may tear a {lba_bytes}-byte logical block: the device writes {unit_bytes} bytes as \
                 one; set lba_bytes = {unit_bytes}"
            );
            (namespace.name.clone(), text)
        });
    }

    fn log_all(&self) {
        if let Some((name, text)) = &self.first {
            tracing::warn!(name, more = self.count - 1, "{text}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use uuid::Uuid;

    use super::*;

    fn subsystem(dir: &Path, rest: &str) -> Result<Arc<Registry>, ExportError> {
        let text = format!(
            "state_dir = \"state\"\n[[port]]\naddress = \"127.0.0.1\"\n[[subsystem]]\n\
             nqn = \"nqn.2026-01.io.feedrail:t\"\nallow_any_host = true\n{rest}\n"
        );
        let config = Config::from_toml(&dir.join("feedrail.toml"), &text).expect("valid");
        Registry::open(&config, OpenPurpose::Serve)
    }

    fn names(registry: &Registry) -> Vec<(u32, String, u64)> {
        let namespaces = registry.subsystems()[0].namespaces();
        namespaces.iter().map(|n| (n.nsid.0, n.name().to_owned(), n.size_blocks)).collect()
    }

    const DIRECTORY: &str = "[[subsystem.directory]]\npath = \"d\"";

    #[test]
    fn directory_nsids_survive_added_and_removed_files() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = |name: &str, bytes| {
            std::fs::write(dir.path().join("d").join(name), vec![1; bytes]).expect("written");
        };
        std::fs::create_dir(dir.path().join("d")).expect("made");
        file("b", 1);
        file("c", 513);
        let registry = subsystem(dir.path(), DIRECTORY).expect("exported");
        assert_eq!(names(&registry), [(1, "b".into(), 1), (2, "c".into(), 2)]);
        let uuid = registry.namespaces()[1].uuid();

        std::fs::remove_file(dir.path().join("d/b")).expect("removed");
        file("a", 512);
        let registry = subsystem(dir.path(), DIRECTORY).expect("exported");
        assert_eq!(names(&registry), [(2, "c".into(), 2), (3, "a".into(), 1)]);
        assert_eq!(registry.subsystems()[0].namespace(Nsid(2)).expect("there").uuid(), uuid);
        assert!(registry.subsystems()[0].namespace(Nsid(1)).is_none());
    }

    #[test]
    fn tearable_blocks_are_warned_of_once() {
        let mut tearable = Tearable::default();
        let mut note = |name: &str, lba_bytes: u32, unit, writable| {
            let lba_shift = Some(lba_bytes.trailing_zeros() as u8);
            let mode = OpenMode { writable, lba_shift, ..OpenMode::default() };
            let mut opened = backend::open_memory(8192, mode).expect("there is memory");
            opened.write_unit_bytes = unit;
            let namespace = NamespaceConfig {
                nsid: Nsid(1),
                name: name.into(),
                uuid: Uuid::nil(),
                nguid: [0; 16],
                eui64: None,
                medium: Medium::Memory { size_bytes: 8192 },
                faults: DiskFaults::NONE,
                writable,
                content_id: None,
                lba_shift,
                direct_io: DirectIo::default(),
                ana_group: AnaGroupId::DEFAULT,
                visible_to: None,
                origin: Origin("a test".into()),
            };
            tearable.note(&namespace, &opened);
        };
        note("whole", 4096, Some(4096), true);
        note("small", 512, Some(4096), true);
        note("unknown", 4096, None, true);
        note("read-only", 4096, Some(512), false);
        note("torn", 4096, Some(512), true);
        note("torn too", 1024, Some(512), true);
        let (name, text) = tearable.first.expect("some are torn");
        assert_eq!((&*name, tearable.count), ("torn", 2));
        assert_eq!(
            text,
            "power failure may tear a 4096-byte logical block: the device writes 512 bytes as one; set lba_bytes = 512"
        );
    }

    #[test]
    fn unfit_files_of_a_directory_are_skipped() {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(dir.path().join("d")).expect("made");
        let writable = format!("{DIRECTORY}\nread_only = false\nlba_bytes = 512");
        std::fs::write(dir.path().join("d/ragged"), vec![1; 100]).expect("written");
        let error = subsystem(dir.path(), &writable).expect_err("nothing fits");
        assert!(matches!(error, ExportError::Open { .. }), "{error}");

        std::fs::write(dir.path().join("d/whole"), vec![1; 512]).expect("written");
        let registry = subsystem(dir.path(), &writable).expect("exported");
        assert_eq!(names(&registry), [(2, "whole".into(), 1)], "ragged keeps its NSID");
    }

    #[test]
    fn two_directories_do_not_share_a_name() {
        let dir = tempfile::tempdir().expect("a folder");
        for path in ["d", "e"] {
            std::fs::create_dir(dir.path().join(path)).expect("made");
            std::fs::write(dir.path().join(path).join("a"), "a").expect("written");
        }
        let both = format!("{DIRECTORY}\n[[subsystem.directory]]\npath = \"e\"");
        let error = subsystem(dir.path(), &both).expect_err("one NSID for two files");
        assert!(matches!(error, ExportError::SameName { .. }), "{error}");
    }

    #[test]
    fn listed_namespaces_go_before_and_twins_are_refused() {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(dir.path().join("d")).expect("made");
        std::fs::write(dir.path().join("d/a"), "a").expect("written");
        let listed = "[[subsystem.namespace]]\nkind = \"null\"\nsize_bytes = 512\n";
        let registry = subsystem(dir.path(), &format!("{listed}{DIRECTORY}")).expect("exported");
        assert_eq!(names(&registry), [(1, "null-1".into(), 1), (2, "a".into(), 1)]);

        let named = "dataset_id = \"6f1c1b0e-6f7b-4c0f-9a3e-0d6a3d8d3b12\"\n[[subsystem.namespace]]\n\
                     kind = \"null\"\nsize_bytes = 512\nname = \"a\"\n";
        let error = subsystem(dir.path(), &format!("{named}{DIRECTORY}")).expect_err("twins");
        assert!(matches!(error, ExportError::SameIdentity { .. }), "{error}");
    }

    #[test]
    fn a_file_that_is_written_is_exported_once() {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::write(dir.path().join("disk"), [1; 4096]).expect("written");
        std::fs::hard_link(dir.path().join("disk"), dir.path().join("hard")).expect("linked");
        std::os::unix::fs::symlink("disk", dir.path().join("soft")).expect("linked");
        let one = |path: &str, read_only: bool| {
            format!("[[subsystem.namespace]]\npath = \"{path}\"\nread_only = {read_only}\n")
        };
        for path in ["hard", "soft"] {
            for (first, second) in [(false, true), (true, false), (false, false)] {
                let both = one("disk", first) + &one(path, second);
                let error = subsystem(dir.path(), &both).expect_err("one file").to_string();
                assert!(error.contains("\"disk\"") && error.contains(path), "{error}");
            }
            subsystem(dir.path(), &(one("disk", true) + &one(path, true))).expect("only read");
        }
    }

    #[test]
    fn two_targets_do_not_share_a_writable_file() {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::write(dir.path().join("disk"), [1; 4096]).expect("written");
        let table = |read_only: bool| {
            format!("[[subsystem.namespace]]\npath = \"disk\"\nread_only = {read_only}\n")
        };
        for (first, second) in [(false, false), (false, true), (true, false)] {
            let held = subsystem(dir.path(), &table(first)).expect("the lock is free");
            let error = subsystem(dir.path(), &table(second)).expect_err("in use").to_string();
            let pid = format!("process {} (", std::process::id());
            assert!(error.contains("disk: is in use by") && error.contains(&pid), "{error}");
            drop(held);
        }
        let held = subsystem(dir.path(), &table(true)).expect("the lock is free");
        let other = subsystem(dir.path(), &table(true)).expect("it is only read");
        drop((held, other));
        subsystem(dir.path(), &table(false)).expect("it was given up");
    }

    #[test]
    fn targets_of_the_same_shards_agree_on_identity() {
        let uuids = || {
            let dir = tempfile::tempdir().expect("a folder");
            std::fs::create_dir_all(dir.path().join("d/train")).expect("made");
            std::fs::write(dir.path().join("d/train/0.tar"), "a").expect("written");
            let dataset = "dataset_id = \"6f1c1b0e-6f7b-4c0f-9a3e-0d6a3d8d3b12\"\n";
            let registry =
                subsystem(dir.path(), &format!("{dataset}{DIRECTORY}")).expect("exported");
            registry.namespaces()[0].uuid()
        };
        assert_eq!(uuids(), uuids());
    }
}
