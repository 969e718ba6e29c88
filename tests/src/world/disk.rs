//! The exports of a simulated target, and the media that survive it.

use std::cell::RefCell;
use std::fmt;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use feedrail_target::backend::Backend;
use feedrail_target::config::{
    DirectIo, Medium as MediumConfig, NamespaceConfig, NamespaceSettings, Origin,
};
use feedrail_target::testing::Delay;
use feedrail_target::testing::{FileBackend, MemoryBackend};
use nvme_proto::{Nqn, Nsid};
use uuid::Uuid;

use super::engine::{SharedMedium, SimDisks};
use super::medium::{Medium, SECTOR_BYTES};

/// A medium. Clones are the same one, and it keeps its bytes when a target crashes. Its identity
/// follows from its name and from the subsystem.
#[derive(Clone)]
pub struct Disk {
    name: String,
    medium: MediumConfig,
    writable: bool,
    lba_shift: Option<u8>,
    delay: Duration,
    /// Operations lock the pages of their range, as those of files in the page cache do.
    range_locks: bool,
    /// Reads are tried in a page cache first.
    cached_reads: bool,
    contents: Contents,
}

/// Where the bytes are.
#[derive(Clone)]
enum Contents {
    /// Where the target looks for them.
    Own,
    Memory(Arc<MemoryBackend>),
    /// Simulated disk behind the system calls on a file.
    Simulated(SharedMedium),
}

impl Disk {
    /// A writable disk in memory, all zeros; whole blocks of 512 bytes.
    pub fn memory(name: &str, size_bytes: u64) -> Self {
        let memory = MemoryBackend::new(size_bytes).expect("a test's disk is small");
        Self {
            name: name.into(),
            medium: MediumConfig::Memory { size_bytes },
            writable: true,
            lba_shift: None,
            delay: Duration::ZERO,
            range_locks: false,
            cached_reads: false,
            contents: Contents::Memory(Arc::new(memory)),
        }
    }

    /// A writable disk that behaves as its node's [`DiskConfig`](super::DiskConfig) says, with
    /// these bytes on it.
    pub fn simulated(name: &str, bytes: Vec<u8>) -> Self {
        let medium = MediumConfig::Memory { size_bytes: bytes.len() as u64 };
        let contents = Contents::Simulated(Rc::new(RefCell::new(Medium::new(bytes))));
        Self { medium, contents, ..Self::memory(name, 0) }
    }

    /// A read-only namespace of a real file.
    pub fn file(name: &str, path: PathBuf) -> Self {
        let medium = MediumConfig::File { path, root: None };
        Self { medium, writable: false, contents: Contents::Own, ..Self::memory(name, 0) }
    }

    /// Makes the disk read-only to hosts.
    #[must_use]
    pub fn read_only(mut self) -> Self {
        self.writable = false;
        self
    }

    /// Sets a block size of two to the power of `shift` bytes.
    #[must_use]
    pub fn lba_shift(mut self, shift: u8) -> Self {
        self.lba_shift = Some(shift);
        self
    }

    /// Delays the start of every operation by `delay`.
    #[must_use]
    pub fn slow(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Sets whether operations on a simulated disk wait for those that change the same pages, as
    /// they do on files in the page cache.
    #[must_use]
    pub fn range_locks(mut self, range_locks: bool) -> Self {
        self.range_locks = range_locks;
        self
    }

    /// Sets whether reads of a simulated disk are tried in its page cache first.
    #[must_use]
    pub fn cached_reads(mut self, cached_reads: bool) -> Self {
        self.cached_reads = cached_reads;
        self
    }

    pub(super) fn is_simulated(&self) -> bool {
        matches!(self.contents, Contents::Simulated(_))
    }

    pub(super) fn namespace(&self, nqn: &Nqn, nsid: Nsid) -> NamespaceConfig {
        let uuid = Uuid::new_v5(&Uuid::NAMESPACE_OID, format!("{nqn} {}", self.name).as_bytes());
        let name = self.name.clone().try_into().expect("a short name");
        let block_bytes = self.lba_shift.map(|shift| 1 << shift);
        let settings = NamespaceSettings {
            // Its content outlives its target.
            content_id: Some(self.name.clone().try_into().expect("a name")),
            block_shift: block_bytes.map(|bytes: u32| bytes.try_into().expect("a block size")),
            // What is in the page cache of this machine does not follow from the seed.
            direct_io: DirectIo::Always,
            ..NamespaceSettings::new(name, self.medium.clone(), self.writable)
        };
        settings.with_uuid(uuid, nsid, Origin(format!("disk {}", self.name)))
    }

    /// The backend in place of the target's own.
    pub(super) fn backend(
        &self,
        opened: Arc<dyn Backend>,
        sim_disks: &SimDisks,
    ) -> Arc<dyn Backend> {
        let backend = match &self.contents {
            Contents::Own => opened,
            Contents::Memory(memory) => Arc::clone(memory) as Arc<dyn Backend>,
            Contents::Simulated(medium) => {
                let mut backend = file_backend(medium, sim_disks);
                if self.range_locks {
                    backend = backend.with_range_locks();
                }
                if self.cached_reads {
                    backend = backend.with_cached_reads();
                }
                Arc::new(backend)
            }
        };
        if self.delay.is_zero() { backend } else { Arc::new(Delay::new(backend, self.delay)) }
    }
}

/// The backend of a file whose system calls end up at `medium`: nothing reaches the descriptor.
fn file_backend(medium: &SharedMedium, sim_disks: &SimDisks) -> FileBackend {
    let file = File::open("/dev/null").expect("every machine has it");
    sim_disks.insert(file.as_raw_fd(), Rc::clone(medium));
    let length = medium.borrow().bytes().len() as u64;
    FileBackend::new(file.into(), length, Some(SECTOR_BYTES as u32))
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disk").field("name", &self.name).finish_non_exhaustive()
    }
}
