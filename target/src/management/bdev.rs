//! Bdevs: named files, devices and memory that can back namespaces, as in SPDK.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use uuid::Uuid;

use super::rpc::{RpcError, params};
use crate::backend::{self, FilePlace, OpenMode, OpenedBackend};
use crate::config::{
    BlockShift, Medium, NamespaceName, NamespaceSettings, NamespaceSpec, QosOverride,
};
use crate::inventory::namespace::Namespace;

/// Most bdevs that clients may create.
const MAX_BDEVS: usize = 65_536;

/// Bdevs that clients have created, by name.
#[derive(Debug, Default)]
pub(super) struct Bdevs(BTreeMap<String, Bdev>);

/// Bdev. Its file or device is not open before a namespace is made of it.
#[derive(Clone, Debug)]
pub(super) struct Bdev {
    /// Settings of a namespace that is made of it, as far as its client gives none.
    pub(super) spec: NamespaceSpec,
    pub(super) kind: BdevKind,
    /// Memory of a malloc bdev, which keeps its content while no namespace is made of it.
    memory: Option<OpenedBackend>,
}

/// Kind of a bdev, by the SPDK module that it stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BdevKind {
    /// `bdev_aio`: a file or block device.
    Aio,
    /// `bdev_uring`: a file or block device, opened as for `bdev_aio`.
    Uring,
    /// `bdev_null`: reads return zeros.
    Null,
    /// `bdev_malloc`: memory of the target.
    Malloc,
}

impl BdevKind {
    /// Kind of bdev for the medium of a namespace from the configuration file.
    pub(super) fn of(medium: &Medium) -> Self {
        match medium {
            Medium::File { .. } | Medium::Block { .. } => Self::Uring,
            Medium::Null { .. } => Self::Null,
            Medium::Memory { .. } => Self::Malloc,
        }
    }

    /// Value of `product_name` in `bdev_get_bdevs`, as in SPDK.
    pub(super) fn product_name(self) -> &'static str {
        match self {
            Self::Aio => "AIO disk",
            Self::Uring => "URING bdev",
            Self::Null => "Null disk",
            Self::Malloc => "Malloc disk",
        }
    }

    /// Name of the method that creates such a bdev.
    pub(super) fn create_method(self) -> &'static str {
        match self {
            Self::Aio => "bdev_aio_create",
            Self::Uring => "bdev_uring_create",
            Self::Null => "bdev_null_create",
            Self::Malloc => "bdev_malloc_create",
        }
    }
}

params! {
    /// Parameters of `bdev_aio_create` and `bdev_uring_create`.
    FileParams {
        name: String,
        filename: PathBuf,
        /// Logical block size in bytes; if omitted or 0, that of the file or device.
        block_size: Option<u32>,
        #[serde(default)]
        readonly: bool,
        uuid: Option<Uuid>,
    }
}

impl FileParams {
    pub(super) fn filename(&self) -> &Path {
        &self.filename
    }
}

params! {
    /// Parameters of the method `bdev_null_create`.
    NullParams {
        name: String,
        num_blocks: u64,
        block_size: u32,
        uuid: Option<Uuid>,
        /// Extension: SPDK has no such parameter.
        #[serde(default)]
        readonly: bool,
    }

    /// Parameters of the method `bdev_malloc_create`.
    MallocParams {
        /// Name; if omitted, the first free one of `Malloc0`, `Malloc1` and so on.
        name: Option<String>,
        num_blocks: u64,
        block_size: u32,
        uuid: Option<Uuid>,
        /// Extension: SPDK has no such parameter.
        #[serde(default)]
        readonly: bool,
    }
}

impl Bdevs {
    /// Creates a bdev for an existing file or block device. Returns the name.
    pub(super) fn create_file(
        &mut self,
        params: FileParams,
        kind: BdevKind,
    ) -> Result<String, RpcError> {
        let path = params.filename;
        if !path.is_absolute() {
            let message = format!("filename: {} is not an absolute path", path.display());
            return Err(RpcError::invalid_params(message));
        }
        let metadata = std::fs::metadata(&path).map_err(|error| {
            RpcError::invalid_params(format_args!("filename: {}: {error}", path.display()))
        })?;
        let name = NamespaceName::of_file(&path);
        let medium = match std::os::unix::fs::FileTypeExt::is_block_device(&metadata.file_type()) {
            true => Medium::Block { path },
            false => Medium::File { path, root: None },
        };
        let block_size = params.block_size.filter(|bytes| *bytes > 0);
        let block_shift = block_size.map(block_shift_of).transpose()?;
        let settings = NamespaceSettings {
            block_shift,
            ..NamespaceSettings::new(name, medium, !params.readonly)
        };
        self.add(params.name, Bdev::new(settings, params.uuid, kind))
    }

    /// Creates a bdev whose reads return zeros and whose writes are discarded. Returns the name.
    pub(super) fn create_null(&mut self, params: NullParams) -> Result<String, RpcError> {
        let block_shift = block_shift_of(params.block_size)?;
        let medium = Medium::Null { size_bytes: size_bytes(params.num_blocks, block_shift)? };
        let settings = NamespaceSettings {
            block_shift: Some(block_shift),
            ..NamespaceSettings::new(self.check_name(&params.name)?, medium, !params.readonly)
        };
        self.add(params.name, Bdev::new(settings, params.uuid, BdevKind::Null))
    }

    /// Creates a bdev in memory, filled with zeros. Returns the name.
    pub(super) fn create_malloc(&mut self, params: MallocParams) -> Result<String, RpcError> {
        let block_shift = block_shift_of(params.block_size)?;
        let size_bytes = size_bytes(params.num_blocks, block_shift)?;
        let name = params.name.unwrap_or_else(|| self.free_name("Malloc"));
        let settings_name = self.check_name(&name)?;
        let lba_shift = Some(block_shift.get());
        let mode = OpenMode { writable: true, lba_shift, ..OpenMode::default() };
        let memory = Some(backend::open_memory(size_bytes, mode).map_err(RpcError::internal)?);
        let medium = Medium::Memory { size_bytes };
        let settings = NamespaceSettings {
            block_shift: Some(block_shift),
            ..NamespaceSettings::new(settings_name, medium, !params.readonly)
        };
        self.add(name, Bdev { memory, ..Bdev::new(settings, params.uuid, BdevKind::Malloc) })
    }

    fn free_name(&self, prefix: &str) -> String {
        // One more candidate than there are bdevs, so at least one is free.
        let mut names = (0..=self.0.len()).map(|number| format!("{prefix}{number}"));
        names.find(|name| !self.0.contains_key(name)).unwrap_or_default()
    }

    fn check_name(&self, name: &str) -> Result<NamespaceName, RpcError> {
        let checked = NamespaceName::try_from(name.to_owned())
            .map_err(|error| RpcError::invalid_params(format_args!("name: {error}")))?;
        if self.0.contains_key(name) {
            let message = format!("name: there is a bdev {name} already");
            return Err(RpcError::invalid_params(message));
        }
        match self.0.len() < MAX_BDEVS {
            true => Ok(checked),
            false => Err(RpcError::internal(format_args!("more than {MAX_BDEVS} bdevs"))),
        }
    }

    fn add(&mut self, name: String, bdev: Bdev) -> Result<String, RpcError> {
        self.check_name(&name)?;
        self.0.insert(name.clone(), bdev);
        Ok(name)
    }

    /// Returns the bdev with this name, or else an error for the client.
    pub(super) fn get(&self, name: &str) -> Result<&Bdev, RpcError> {
        let missing = || RpcError::invalid_params(format_args!("there is no bdev {name}"));
        self.0.get(name).ok_or_else(missing)
    }

    /// Returns the bdev with this name, or an error for the client if it is missing or of another
    /// kind.
    pub(super) fn get_of(&self, name: &str, kind: BdevKind) -> Result<&Bdev, RpcError> {
        let bdev = self.get(name)?;
        if bdev.kind != kind {
            let product = kind.product_name();
            return Err(RpcError::invalid_params(format_args!("{name} is not a {product}")));
        }
        Ok(bdev)
    }

    /// Sets the size of a null bdev; does nothing for others.
    pub(super) fn set_null_size(&mut self, name: &str, bytes: u64) {
        let medium = self.0.get_mut(name).map(|bdev| &mut bdev.spec.settings.medium);
        if let Some(Medium::Null { size_bytes }) = medium {
            *size_bytes = bytes;
        }
    }

    /// Limits namespaces that are made of a bdev; does nothing if there is no such bdev.
    pub(super) fn limit(&mut self, name: &str, limits: QosOverride) {
        if let Some(bdev) = self.0.get_mut(name) {
            bdev.spec.settings.qos = limits.over(bdev.spec.settings.qos);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&String, &Bdev)> {
        self.0.iter()
    }

    /// Deletes a bdev. Returns an error if it is missing or of another kind.
    pub(super) fn delete(&mut self, name: &str, kind: BdevKind) -> Result<(), RpcError> {
        self.get_of(name, kind)?;
        self.0.remove(name);
        Ok(())
    }
}

impl Bdev {
    fn new(settings: NamespaceSettings, uuid: Option<Uuid>, kind: BdevKind) -> Self {
        let spec = NamespaceSpec { uuid, ..settings.into() };
        Self { spec, kind, memory: None }
    }

    pub(super) fn medium(&self) -> &Medium {
        &self.spec.settings.medium
    }

    pub(super) fn writable(&self) -> bool {
        self.spec.settings.writable
    }

    /// Logical block size in bytes; `None` chooses that of the file or device.
    pub(super) fn block_bytes(&self) -> Option<u32> {
        self.spec.settings.block_shift.map(BlockShift::bytes)
    }

    /// Present size in bytes, for a bdev without a namespace.
    ///
    /// # Errors
    /// A file or device cannot be opened or measured.
    pub(super) fn size_bytes(&self) -> io::Result<u64> {
        match self.medium() {
            Medium::Null { size_bytes } | Medium::Memory { size_bytes } => Ok(*size_bytes),
            Medium::File { path, .. } | Medium::Block { path } => {
                FilePlace::named(path).find()?.size_bytes()
            }
        }
    }

    /// Memory of a malloc bdev; `None` for others, which are opened with their namespace.
    pub(super) fn memory(&self) -> Option<OpenedBackend> {
        self.memory.clone()
    }
}

/// Name of a namespace's bdev; for one from the configuration file, the namespace's own name.
pub(super) fn bdev_name(namespace: &Namespace) -> &str {
    namespace.bdev.as_deref().unwrap_or(namespace.name())
}

fn block_shift_of(block_size: u32) -> Result<BlockShift, RpcError> {
    BlockShift::try_from(block_size).map_err(|_| {
        let message = format!("block_size: {block_size} is not 512, 1024, 2048 or 4096");
        RpcError::invalid_params(message)
    })
}

fn size_bytes(num_blocks: u64, block_shift: BlockShift) -> Result<u64, RpcError> {
    let bytes = num_blocks.checked_mul(block_shift.bytes().into()).filter(|bytes| *bytes > 0);
    // `off_t`, the offset in a file, is a signed 64-bit number.
    let bytes = bytes.filter(|bytes| i64::try_from(*bytes).is_ok());
    bytes.ok_or_else(|| {
        RpcError::invalid_params(format_args!("num_blocks: {num_blocks} is zero or too large"))
    })
}
