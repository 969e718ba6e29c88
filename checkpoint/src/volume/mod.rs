//! A volume that is open, and the procedures that change and read it.

mod format;
mod open;
mod publish;
mod read;
mod save;

use crate::allocation::{Extent, FreeSpace};
use crate::error::Error;
use crate::manifest::CheckpointTable;
use crate::operation::OperationOutcome;
use crate::superblock::{Lease, Superblock};

pub use format::Formatting;
pub use open::Opening;
pub use publish::{Change, Publishing};
pub use read::{ReadPiece, ReadPlan, Reading};
pub use save::{Save, Writing};

/// Facts about the namespace that a volume lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceAttributes {
    /// Its size.
    pub bytes: u64,
    /// It executes the fused commands Compare and Write.
    pub has_compare: bool,
}

/// A volume that is open. What it knows is checked again at each commit.
#[derive(Clone, Debug)]
pub struct Volume {
    device: NamespaceAttributes,
    /// Superblocks A and B as they were read or written.
    raw: [Vec<u8>; 2],
    /// Which of them is the present one.
    current: usize,
    superblock: Superblock,
    /// The highest generation of any superblock, whose manifest may be damaged.
    last_generation: u64,
    manifest: CheckpointTable,
    /// The units of the manifests of both superblocks.
    manifest_extents: [Option<Extent>; 2],
    free: FreeSpace,
    /// The lease that this writer has.
    lease: Option<Lease>,
    is_unknown: bool,
}

impl Volume {
    /// The present superblock.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// The checkpoints.
    pub fn manifest(&self) -> &CheckpointTable {
        &self.manifest
    }

    /// True if a newer checkpoint may have been lost: the other superblock is damaged, or newer
    /// with a damaged manifest. Other replicas should be asked.
    pub fn is_fallen_back(&self) -> bool {
        let other = &self.raw[1 - self.current];
        let is_damaged = Superblock::decode(other).is_err() && other.iter().any(|byte| *byte != 0);
        self.last_generation > self.superblock.generation || is_damaged || other.is_empty()
    }

    /// Bytes that a save may have. The next manifest needs a part of them.
    pub fn free_bytes(&self) -> u64 {
        self.free.units() * self.superblock.geometry.unit_bytes()
    }

    fn unit_bytes(&self) -> u64 {
        self.superblock.geometry.unit_bytes()
    }

    /// The lease, if it has not ended.
    fn live_lease(&self, now_ms: u64) -> Result<Lease, Error> {
        if self.is_unknown {
            return Err(Error::Reopen);
        }
        self.lease.filter(|lease| now_ms < lease.expiry_ms).ok_or(Error::NoLease)
    }
}

/// The bytes of an outcome.
fn data(outcome: OperationOutcome) -> Result<Vec<u8>, Error> {
    match outcome {
        OperationOutcome::Data(bytes) => Ok(bytes),
        OperationOutcome::Done => Ok(Vec::new()),
        OperationOutcome::Failed(failure) => Err(failure.into()),
    }
}

/// Fails if an operation did.
fn all_done(outcomes: Vec<OperationOutcome>) -> Result<(), Error> {
    outcomes.into_iter().try_for_each(|outcome| data(outcome).map(drop))
}
