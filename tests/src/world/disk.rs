//! What a simulated target exports, and what survives the target.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use feedrail_target::backend::decorator::Delay;
use feedrail_target::backend::{Backend, MemoryBackend};
use feedrail_target::config::{Medium, NamespaceConfig, Origin};
use feedrail_target::identity;
use nvme_proto::{Nqn, Nsid};

/// A medium. Clones are the same one, and it keeps its bytes when a target crashes. Its identity follows from
/// its name and from the subsystem.
#[derive(Clone)]
pub struct Disk {
    name: String,
    medium: Medium,
    writable: bool,
    delay: Duration,
    /// The memory of a [`Medium::Memory`].
    memory: Option<Arc<MemoryBackend>>,
}

impl Disk {
    /// A writable disk in memory, all zeros; whole blocks of 512 bytes.
    pub fn memory(name: &str, size_bytes: u64) -> Self {
        Self {
            name: name.into(),
            medium: Medium::Memory { size_bytes },
            writable: true,
            delay: Duration::ZERO,
            memory: Some(Arc::new(MemoryBackend::new(size_bytes))),
        }
    }

    /// A read-only file.
    pub fn file(name: &str, path: PathBuf) -> Self {
        let medium = Medium::File { path };
        Self { name: name.into(), medium, writable: false, delay: Duration::ZERO, memory: None }
    }

    /// The same, but every operation waits so long before it starts.
    #[must_use]
    pub fn slow(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    pub(super) fn namespace(&self, nqn: &Nqn, nsid: Nsid) -> NamespaceConfig {
        NamespaceConfig {
            nsid,
            name: self.name.clone(),
            uuid: identity::namespace_uuid(identity::dataset_id(nqn), &self.name),
            nguid: [0; 16],
            medium: self.medium.clone(),
            writable: self.writable,
            lba_shift: None,
            origin: Origin(format!("disk {}", self.name)),
        }
    }

    /// What stands in for the backend that the target opened.
    pub(super) fn backend(&self, opened: Arc<dyn Backend>) -> Arc<dyn Backend> {
        let backend = match &self.memory {
            Some(memory) => Arc::clone(memory) as Arc<dyn Backend>,
            None => opened,
        };
        if self.delay.is_zero() { backend } else { Arc::new(Delay::new(backend, self.delay)) }
    }
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disk").field("name", &self.name).finish_non_exhaustive()
    }
}
