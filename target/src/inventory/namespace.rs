//! A namespace: the identity and geometry that hosts see, and the backend behind it.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nvme_proto::{Nqn, Nsid};
use uuid::Uuid;

use crate::backend::{
    Backend, FileBackend, FileChange, FileId, FileKey, Health, MappedFile, OpenedBackend,
    OpenedFile,
};
use crate::config::NamespaceConfig;
use crate::inventory::allowed_host::NamedHost;
use crate::inventory::ana::AnaGroupId;
use crate::inventory::index::NamespaceIndex;
use crate::metrics::namespace_io::NamespaceIoList;

/// A namespace: its identity, its format, and the backend behind it.
#[derive(Clone)]
pub(crate) struct Namespace {
    /// Unique index in this process.
    pub index: NamespaceIndex,
    /// NSID in the subsystem.
    pub nsid: Nsid,
    /// Name of its medium (bdev) in the management interface, if it was added there.
    pub bdev: Option<String>,
    /// Configuration that it was opened from.
    pub(crate) config: NamespaceConfig,
    /// Bytes per logical block, as a power of two.
    pub lba_shift: u8,
    /// Size in logical blocks: the exact size rounded up.
    pub size_blocks: u64,
    /// Exact size in bytes; the rest of the last block reads as zeros.
    pub exact_bytes: u64,
    /// ANA group that it belongs to.
    pub(crate) ana_group: AnaGroupId,
    /// NQNs of the hosts that see it; `None` for all hosts.
    pub(crate) hosts: Option<BTreeSet<Nqn>>,
    /// Whether its NSID belonged to another namespace before, which hosts may still expect.
    pub(crate) takes_over: bool,
    /// Whether the configuration allows hosts to write.
    pub writable: bool,
    /// Whether it always reads as zeros.
    pub(crate) reads_zeros: bool,
    /// Whether a host has set write protection (Namespace Write Protection Config).
    protected: Arc<AtomicBool>,
    generation: Arc<AtomicU64>,
    backend: Arc<dyn Backend>,
    /// Files of its backend, which rings register.
    pub(crate) files: Vec<FileId>,
    /// Identity of its file or device, if it has one.
    pub(crate) file_key: Option<FileKey>,
    health: Arc<Health>,
    mapped: Option<Arc<MappedFile>>,
    source: Option<Arc<OpenedFile>>,
    /// File or device whose length may change.
    file: Option<Arc<FileBackend>>,
    pub(crate) storage_errors: Arc<ErrorCounters>,
    pub(crate) io: Arc<NamespaceIoList>,
}

/// Failures of a namespace's medium, counted by all cores.
#[derive(Debug, Default)]
pub(crate) struct ErrorCounters {
    reads: AtomicU64,
    writes: AtomicU64,
}

impl ErrorCounters {
    /// Counts a failed command that changes nothing.
    pub(crate) fn count_read(&self) {
        self.reads.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a failed command that changes the medium or makes changes durable.
    pub(crate) fn count_write(&self) {
        self.writes.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    pub(crate) fn writes(&self) -> u64 {
        self.writes.load(Ordering::Relaxed)
    }

    pub(crate) fn total(&self) -> u64 {
        self.reads() + self.writes()
    }
}

impl Namespace {
    /// Configuration that describes it, including changes since it was added.
    pub(crate) fn described(&self) -> NamespaceConfig {
        NamespaceConfig { visible_to: self.hosts.clone(), ..self.config.clone() }
    }

    /// Creates a namespace over an opened medium.
    pub(crate) fn new(
        index: NamespaceIndex,
        config: &NamespaceConfig,
        opened: OpenedBackend,
    ) -> Self {
        Self {
            index,
            nsid: config.nsid,
            bdev: None,
            config: config.clone(),
            lba_shift: opened.lba_shift,
            size_blocks: opened.exact_bytes.div_ceil(1 << opened.lba_shift),
            exact_bytes: opened.exact_bytes,
            ana_group: config.ana_group,
            hosts: config.visible_to.clone(),
            takes_over: false,
            writable: config.writable,
            reads_zeros: opened.backend.reads_zeros(),
            protected: Arc::default(),
            generation: Arc::new(AtomicU64::new(
                opened.content.generation(config.content_id.as_deref()),
            )),
            backend: opened.backend,
            files: opened.files,
            file_key: opened.key,
            health: opened.health,
            mapped: opened.mapped,
            source: opened.source,
            file: opened.file,
            storage_errors: Arc::default(),
            io: Arc::default(),
        }
    }

    /// Sets whether its NSID belonged to another namespace before.
    pub(crate) fn taking_over(mut self, takes_over: bool) -> Self {
        self.takes_over = takes_over;
        self
    }

    /// Creates the same namespace with another size and the same index.
    pub(crate) fn resized(&self, config: &NamespaceConfig, opened: OpenedBackend) -> Self {
        Self {
            bdev: self.bdev.clone(),
            hosts: self.hosts.clone(),
            takes_over: self.takes_over,
            protected: Arc::clone(&self.protected),
            storage_errors: Arc::clone(&self.storage_errors),
            io: Arc::clone(&self.io),
            ..Self::new(self.index, config, opened)
        }
    }

    /// Sets the hosts that see it.
    pub(crate) fn visible_to(mut self, hosts: Option<BTreeSet<Nqn>>) -> Self {
        self.hosts = hosts;
        self
    }

    /// Whether a host that may use the subsystem sees it.
    pub(crate) fn is_visible_to(&self, host: &NamedHost) -> bool {
        host.is_among(self.hosts.as_ref())
    }

    /// File or device behind it.
    pub(crate) fn file(&self) -> Option<&Arc<FileBackend>> {
        self.file.as_ref()
    }

    /// Sets the name of its medium in the management interface.
    pub(crate) fn of_bdev(mut self, name: String) -> Self {
        self.bdev = Some(name);
        self
    }

    /// Sets its name in messages.
    pub(crate) fn named(mut self, name: String) -> Self {
        self.config.name = name;
        self
    }

    /// Name of the namespace in messages.
    pub(crate) fn name(&self) -> &str {
        &self.config.name
    }

    /// Path of the file or device behind it, if there is one.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.config.medium.path()
    }

    /// The UUID that Identify reports.
    pub(crate) fn uuid(&self) -> Uuid {
        self.config.uuid
    }

    /// Whether writes are currently refused.
    pub(crate) fn write_protected(&self) -> bool {
        !self.writable || self.protected.load(Ordering::Acquire)
    }

    /// Whether write protection is set, which lasts until a command clears it.
    pub(crate) fn is_protected(&self) -> bool {
        self.protected.load(Ordering::Acquire)
    }

    /// Sets or clears write protection; true if that changed anything.
    pub(crate) fn protect(&self, protected: bool) -> bool {
        self.protected.swap(protected, Ordering::AcqRel) != protected
    }

    /// Number that changes when bytes may have changed other than by a host's write.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Checks whether another program changed the file, which starts a new generation. May wait for
    /// the file system.
    pub(crate) fn look_at_file(&self) -> Option<FileChange> {
        let change = self.source.as_ref()?.look()?;
        if let FileChange::Content(content) = &change {
            let generation = content.generation_after_change(self.config.content_id.as_deref());
            self.generation.store(generation, Ordering::Release);
        }
        Some(change)
    }

    /// Locks in memory what hosts read from it. May wait for the medium.
    pub(crate) fn keep_in_memory(&self) {
        if let Some(mapped) = &self.mapped {
            mapped.tend();
        }
    }

    /// Bytes per logical block.
    pub(crate) fn lba_bytes(&self) -> u32 {
        1 << self.lba_shift
    }

    /// Known errors of its medium.
    pub(crate) fn health(&self) -> &Health {
        &self.health
    }

    /// Backend that executes its operations.
    pub(crate) fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Namespace({} \"{}\", {} bytes)", self.nsid, self.config.name, self.exact_bytes)
    }
}
