//! Open volumes, and the procedures that format, open, change and read volumes.

mod change;
mod edit;
mod format;
mod manifest_check;
mod open;
mod publish;
mod read;
mod repair;
mod rewrite;
mod save;

use crate::allocation::{Extent, FreeSpace};
use crate::deliberate_bugs::{self, Bug};
use crate::error::Error;
use crate::manifest::{CheckpointTable, TableOrigin};
use crate::operation::{Failure, OperationOutcome};
use crate::replicas::Replica;
use crate::superblock::{Lease, Superblock};

pub use change::Change;
pub use edit::Rename;
pub use format::Formatting;
pub use manifest_check::ManifestCheck;
pub use open::Opening;
pub use publish::Publishing;
pub use read::{ReadPiece, ReadPlan, Reading};
pub use repair::{RepairPlan, RepairStep};
pub use rewrite::Rewriting;
pub use save::{Save, UnitWrite, Writing};

/// Attributes of the namespace that a volume lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceAttributes {
    /// Size of the namespace, in bytes.
    pub bytes: u64,
    /// Whether the namespace executes Compare and Write as a fused operation of 4096 bytes.
    pub has_compare: bool,
}

/// Volume that was opened. Each commit fails if the superblocks were changed by another writer.
#[derive(Clone, Debug)]
pub struct Volume {
    device: NamespaceAttributes,
    /// Bytes of superblocks A and B as they were read or written last; empty if the read failed.
    raw: [Vec<u8>; 2],
    /// Index of the present superblock in `raw`.
    current: usize,
    superblock: Superblock,
    /// Highest generation of a valid superblock, even if its manifest is damaged.
    last_generation: u64,
    table: CheckpointTable,
    /// Commit that made the table; of the generation of `superblock` or a lower one.
    origin: TableOrigin,
    /// Units of the copies of the manifests that superblocks A and B name; they are not free.
    manifest_extents: [Option<[Extent; 2]>; 2],
    /// Whether the first and the second copy of the present manifest were found damaged.
    damaged_copies: [bool; 2],
    free: FreeSpace,
    /// Lease of this writer; `None` before it takes one.
    lease: Option<Lease>,
    /// The write of a superblock failed, so that `current` may be wrong.
    is_unknown: bool,
}

impl Volume {
    /// Returns the superblock that the volume was opened with or that was committed last.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Returns the committed checkpoints, from the manifest of the present superblock.
    pub fn manifest(&self) -> &CheckpointTable {
        &self.table
    }

    /// Whether a newer commit may be lost: the other superblock is damaged or unreadable, or it is
    /// newer and its manifest is damaged. Another replica may have that commit.
    pub fn is_fallen_back(&self) -> bool {
        let other = &self.raw[1 - self.current];
        let is_damaged = Superblock::decode(other).is_err() && other.iter().any(|byte| *byte != 0);
        self.last_generation > self.superblock.generation || is_damaged || other.is_empty()
    }

    /// Returns the facts by which [`crate::ReplicaSet`] compares this volume with its replicas.
    /// One that may have lost a commit by damage has none: it could have been the only one that
    /// has that commit among those that answer.
    pub fn replica(&self) -> Option<Replica> {
        if self.is_fallen_back() {
            return None;
        }
        let (uuid, generation) = (self.superblock.uuid, self.last_generation);
        let is_complete = matches!(self.origin, TableOrigin::Committed(_));
        let table_generation = match self.origin.generation() {
            _ if deliberate_bugs::has(Bug::ForgetClaim) && !is_complete => 0,
            generation => generation?,
        };
        Some(Replica { uuid, generation, table_generation, is_complete })
    }

    /// Returns the highest generation of a valid superblock, even if its manifest is damaged.
    pub fn last_generation(&self) -> u64 {
        self.last_generation
    }

    /// Returns whether the first and the second copy of the manifest were found damaged or
    /// unreadable, by [`Opening`] or [`ManifestCheck`]. [`Opening`] reads the second copy only if
    /// the first one is damaged. The next change, a renewal of the lease included, writes both
    /// copies to other units if there is room.
    pub fn damaged_manifest_copies(&self) -> [bool; 2] {
        self.damaged_copies
    }

    /// Returns the bytes of all free units. The next manifest needs some of them.
    pub fn free_bytes(&self) -> u64 {
        self.free.units() * self.superblock.geometry.unit_bytes()
    }

    fn unit_bytes(&self) -> u64 {
        self.superblock.geometry.unit_bytes()
    }

    /// Returns the lease of this writer, an error if it has none or the lease has ended.
    fn live_lease(&self, now_ms: u64) -> Result<Lease, Error> {
        if self.is_unknown {
            return Err(Error::Reopen);
        }
        self.lease.filter(|lease| now_ms < lease.expiry_ms).ok_or(Error::NoLease)
    }
}

/// Returns the bytes that an operation has read, none for other operations.
fn data(outcome: OperationOutcome) -> Result<Vec<u8>, Error> {
    match outcome {
        OperationOutcome::Data(bytes) => Ok(bytes),
        OperationOutcome::Done => Ok(Vec::new()),
        OperationOutcome::Failed(Failure::LeaseEnded) => Err(Error::NoLease),
        OperationOutcome::Failed(failure) => Err(failure.into()),
    }
}

/// Returns the first failure of a round.
fn all_done(outcomes: Vec<OperationOutcome>) -> Result<(), Error> {
    outcomes.into_iter().try_for_each(|outcome| data(outcome).map(drop))
}
