//! Opens the media of namespaces.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::backend::decorator::{Delay, Fault, FaultPlan, Tear};
use crate::backend::{
    self, Backend, CachePolicy, CacheRoom, FileKey, FilePlace, OpenError, OpenMode, OpenedBackend,
};
use crate::config::{BlockShift, DirectIo, DiskFaults, Medium, NamespaceConfig, Origin};
use crate::inventory::error::ExportError;
use crate::inventory::index::NamespaceIndex;
use crate::inventory::namespace::Namespace;
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

/// Whether the error is a lack of file descriptors or memory, which affects every file.
pub(super) fn is_shortage(error: &OpenError) -> bool {
    let OpenError::Io { error, .. } = error else { return false };
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM))
}

/// Files and devices of the exported namespaces, to find one that is exported twice.
pub(super) struct Files(BTreeMap<FileKey, FileUse>);

/// First namespace that uses a file or device.
struct FileUse {
    name: String,
    origin: Origin,
    writable: bool,
}

impl FileUse {
    fn of(config: &NamespaceConfig) -> Self {
        let (name, origin) = (config.name.to_string(), config.origin.clone());
        Self { name, origin, writable: config.writable }
    }
}

impl Files {
    /// Lists the files and devices of exported namespaces.
    pub(super) fn of<'a>(namespaces: impl Iterator<Item = &'a Arc<Namespace>>) -> Self {
        let file = |namespace: &Arc<Namespace>| {
            Some((namespace.file_key?, FileUse::of(&namespace.config)))
        };
        Self(namespaces.filter_map(file).collect())
    }

    /// Adds the file or device of a namespace. Returns an error if another namespace has the same
    /// (by any path) and one of them is writable.
    pub(super) fn add(
        &mut self,
        key: Option<FileKey>,
        namespace: &NamespaceConfig,
    ) -> Result<(), ExportError> {
        let Some(key) = key else { return Ok(()) };
        match self.0.get(&key) {
            Some(other) if other.writable || namespace.writable => Err(ExportError::SameFile {
                origin: namespace.origin.clone(),
                name: namespace.name.to_string(),
                other: other.name.clone(),
                other_origin: other.origin.clone(),
            }),
            Some(_) => Ok(()),
            None => {
                self.0.insert(key, FileUse::of(namespace));
                Ok(())
            }
        }
    }
}

/// Creates the index of the namespace in `slot`; an error if `slot` is not below `MAX_NAMESPACES`.
pub(super) fn index(slot: usize, serial: u32) -> Result<NamespaceIndex, ExportError> {
    match u32::try_from(slot) {
        Ok(number) if slot < MAX_NAMESPACES => Ok(NamespaceIndex { slot: number, serial }),
        _ => Err(ExportError::TooMany),
    }
}

/// Creates a namespace over its opened medium.
pub(super) fn make(
    index: NamespaceIndex,
    config: NamespaceConfig,
    mut opened: OpenedBackend,
    decorate: Decorate<'_>,
) -> Namespace {
    tracing::debug!(
        nsid = %config.nsid, name = &*config.name, bytes = opened.exact_bytes,
        lba_bytes = 1_u32 << opened.lba_shift, writable = config.writable, access = %opened.access,
        "namespace"
    );
    if config.faults != DiskFaults::NONE {
        tracing::warn!(name = &*config.name, faults = ?config.faults, "this disk misbehaves on purpose");
        opened.backend = with_faults(&config.faults, opened.backend);
    }
    opened.backend = decorate(&config, opened.backend);
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
    let mode = OpenMode {
        writable: config.writable,
        lba_shift: config.block_shift.map(BlockShift::get),
        cache,
    };
    match &config.medium {
        Medium::File { path, root } => {
            backend::open_file(FilePlace { path, root: root.as_deref() }, mode)
        }
        Medium::Block { path } => backend::open_block(path, mode),
        Medium::Null { size_bytes } => backend::open_null(*size_bytes, mode),
        Medium::Memory { size_bytes } => backend::open_memory(*size_bytes, mode),
    }
}
