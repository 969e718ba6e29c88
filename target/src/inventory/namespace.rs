//! A namespace: its identity and format as hosts see them, and the backend that stores its data.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::{fmt, fs};

use nvme_proto::{Nqn, Nsid};
use serde::Serialize;
use uuid::Uuid;

use crate::backend::{
    Backend, FileBackend, FileChange, FileId, FileKey, Health, MappedFile, OpenedBackend,
    OpenedFile,
};
use crate::config::{NamespaceConfig, NamespaceName, QosLimits};
use crate::inventory::ana::AnaGroupId;
use crate::inventory::index::NamespaceIndex;
use crate::inventory::named_host::NamedHost;
use crate::metrics::namespace_io::NamespaceIoList;
use crate::qos::Quota;

/// A namespace. A change of its size, name or visibility creates a new value with the same index.
#[derive(Clone)]
pub(crate) struct Namespace {
    pub index: NamespaceIndex,
    pub nsid: Nsid,
    /// Name of its bdev; `None` if it comes from the configuration file.
    pub bdev: Option<String>,
    /// Configuration, with the changes since it was opened.
    pub(crate) config: NamespaceConfig,
    /// Logical block size as a power of two, 9 for 512 bytes.
    pub lba_shift: u8,
    /// Size in logical blocks (NSZE): the exact size rounded up.
    pub size_blocks: u64,
    /// Size of the medium in bytes. The rest of the last logical block reads as zeros.
    pub exact_bytes: u64,
    pub(crate) ana_group: AnaGroupId,
    /// Whether an earlier namespace had its NSID, whose data hosts may still expect.
    pub(crate) takes_over: bool,
    /// Whether the configuration allows hosts to write.
    pub writable: bool,
    /// Whether every read returns zeros (null medium).
    pub(crate) reads_zeros: bool,
    /// Whether a host has set write protection (Namespace Write Protection Config feature).
    protected: Arc<AtomicBool>,
    generation: Arc<AtomicU64>,
    backend: Arc<dyn Backend>,
    /// Files of its backend, which io_uring instances register.
    pub(crate) files: Vec<FileId>,
    /// Identity of its file or device, equal for all paths to it; `None` for other media.
    pub(crate) file_key: Option<FileKey>,
    health: Arc<Health>,
    /// Mapping of its file, if reads are served from memory.
    mapped: Option<Arc<MappedFile>>,
    /// Opened file, to detect changes by other programs.
    source: Option<Arc<OpenedFile>>,
    /// Backend of its file or device, to measure the length again.
    file: Option<Arc<FileBackend>>,
    pub(crate) storage_errors: Arc<ErrorCounters>,
    pub(crate) io: Arc<NamespaceIoList>,
    quota: Arc<Quota>,
}

/// Reason that a namespace is replaced by a new one with the same NSID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Replacement {
    /// The configuration changes its settings.
    #[serde(rename = "its keys have changed")]
    Keys,
    /// Its path leads to another file or device now.
    #[serde(rename = "another file has its path")]
    File,
    /// The file of a read-only namespace has another size now.
    #[serde(rename = "its file has another size")]
    Size,
}

/// Failed commands of a namespace's medium, counted by all cores.
#[derive(Debug, Default)]
pub(crate) struct ErrorCounters {
    reads: AtomicU64,
    writes: AtomicU64,
}

impl ErrorCounters {
    /// Counts a failed command of a kind that does not modify the medium.
    pub(crate) fn count_read(&self) {
        self.reads.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a failed command of a kind that modifies the medium or flushes it.
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
    /// Creates a namespace over an opened medium.
    pub(crate) fn new(
        index: NamespaceIndex,
        config: NamespaceConfig,
        opened: OpenedBackend,
    ) -> Self {
        Self {
            index,
            nsid: config.nsid,
            bdev: None,
            lba_shift: opened.lba_shift,
            size_blocks: opened.exact_bytes.div_ceil(1 << opened.lba_shift),
            exact_bytes: opened.exact_bytes,
            ana_group: config.ana_group,
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
            quota: Arc::new(Quota::new(&config.qos)),
            config,
        }
    }

    /// Sets whether an earlier namespace had its NSID.
    pub(crate) fn taking_over(mut self, takes_over: bool) -> Self {
        self.takes_over = takes_over;
        self
    }

    /// Creates the namespace with the size of `opened`. Index, write protection and counters stay.
    pub(crate) fn resized(&self, config: NamespaceConfig, opened: OpenedBackend) -> Self {
        Self {
            bdev: self.bdev.clone(),
            takes_over: self.takes_over,
            protected: Arc::clone(&self.protected),
            storage_errors: Arc::clone(&self.storage_errors),
            io: Arc::clone(&self.io),
            quota: Arc::clone(&self.quota),
            ..Self::new(self.index, config, opened)
        }
    }

    /// Creates the namespace with other hosts that see it; `None` for all hosts.
    pub(crate) fn visible_to(&self, hosts: Option<BTreeSet<Nqn>>) -> Self {
        let mut namespace = self.clone();
        namespace.config.settings.visible_to = hosts;
        namespace
    }

    /// Creates the namespace with other limits, which take effect with [`Namespace::apply_limits`].
    pub(crate) fn limited_to(&self, limits: QosLimits) -> Self {
        let mut namespace = self.clone();
        namespace.config.settings.qos = limits;
        namespace
    }

    /// Limits the commands of all hosts as the configuration says.
    pub(crate) fn apply_limits(&self) {
        if self.quota.is_limited() || !self.config.qos.is_none() {
            self.quota.set(&self.config.qos);
        }
    }

    /// Quota of all hosts together.
    pub(crate) fn quota(&self) -> &Arc<Quota> {
        &self.quota
    }

    /// Whether a host that is connected to the subsystem sees the namespace.
    pub(crate) fn is_visible_to(&self, host: &NamedHost) -> bool {
        host.is_among(self.config.visible_to.as_ref())
    }

    /// Backend of its file or device, to measure the length again.
    pub(crate) fn file(&self) -> Option<&Arc<FileBackend>> {
        self.file.as_ref()
    }

    /// Sets the name of its bdev in the management interface.
    pub(crate) fn of_bdev(mut self, name: Option<String>) -> Self {
        self.bdev = name;
        self
    }

    /// Creates the namespace with another name in log messages and reports.
    pub(crate) fn named(&self, name: NamespaceName) -> Self {
        let mut namespace = self.clone();
        namespace.config.settings.name = name;
        namespace
    }

    /// Name in log messages and reports.
    pub(crate) fn name(&self) -> &str {
        &self.config.name
    }

    /// Path of its file or device; `None` for other media.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.config.medium.path()
    }

    /// UUID in the Namespace Identification Descriptor list.
    pub(crate) fn uuid(&self) -> Uuid {
        self.config.uuid
    }

    /// Whether writes are refused: the namespace is read-only, or a host has write protected it.
    pub(crate) fn write_protected(&self) -> bool {
        !self.writable || self.protected.load(Ordering::Acquire)
    }

    /// Whether a host has write protected it, until a host clears that.
    pub(crate) fn is_protected(&self) -> bool {
        self.protected.load(Ordering::Acquire)
    }

    /// Sets or clears write protection. Returns whether that changed anything.
    pub(crate) fn protect(&self, protected: bool) -> bool {
        self.protected.swap(protected, Ordering::AcqRel) != protected
    }

    /// Number that changes when the content may have changed other than by commands of hosts.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Checks whether another program has changed the file; changed content starts a new
    /// generation. May block in the file system.
    pub(crate) fn look_at_file(&self) -> Option<FileChange> {
        let change = self.source.as_ref()?.look()?;
        if let FileChange::Content(content) = &change {
            let generation = content.generation_after_change(self.config.content_id.as_deref());
            self.generation.store(generation, Ordering::Release);
        }
        Some(change)
    }

    /// Locks in memory the pages that hosts read, see [`MappedFile::tend`]. May block on the
    /// medium.
    pub(crate) fn keep_in_memory(&self) {
        if let Some(mapped) = &self.mapped {
            mapped.tend();
        }
    }

    pub(crate) fn lba_bytes(&self) -> u32 {
        1 << self.lba_shift
    }

    /// Lasting faults of its medium: a failed write-back, or a file that has shrunk.
    pub(crate) fn health(&self) -> &Health {
        &self.health
    }

    /// Whether a host that sees both cannot tell them apart.
    pub(crate) fn looks_like(&self, other: &Self) -> bool {
        self.name() == other.name() && self.exact_bytes == other.exact_bytes
    }

    /// Whether the same backend executes the I/O operations of both.
    pub(crate) fn shares_backend(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.backend, &other.backend)
    }

    /// Backend that executes its I/O operations.
    pub(crate) fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }
}

impl Namespace {
    /// Returns why the namespace has to be replaced to match a configuration; `None` if it can
    /// stay. A changed size counts only for read-only files, since writes may change the size of
    /// others.
    pub(super) fn replacement(&self, config: &NamespaceConfig) -> Option<Replacement> {
        if !self.config.describes_same_but_limits(config) {
            return Some(Replacement::Keys);
        }
        let place = self.config.medium.place()?;
        if FileKey::of_place(place) != self.file_key {
            return Some(Replacement::File);
        }
        let file = place.find().ok()?.metadata().ok().filter(fs::Metadata::is_file)?;
        (!self.writable && file.len() != self.exact_bytes).then_some(Replacement::Size)
    }
}

impl fmt::Debug for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Namespace({} \"{}\", {} bytes)", self.nsid, self.name(), self.exact_bytes)
    }
}
