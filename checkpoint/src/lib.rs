//! Checkpoint volumes: checkpoints of training jobs on a writable namespace, whole or not there.
//!
//! The crate performs no I/O. A [`Run`] returns [`VolumeOperation`]s, which the caller executes in
//! any order, and takes their [`OperationOutcome`]s; when it has finished it has a result. The
//! format is described in `docs/checkpoint-format.md`.
#![forbid(unsafe_code)]

mod allocation;
pub mod deliberate_bugs;
mod error;
mod manifest;
mod name;
mod operation;
mod record;
mod replicas;
mod run;
mod selection;
mod signature;
mod superblock;
mod volume;

pub use allocation::Extent;
pub use error::{Error, VolumeFormatError};
pub use manifest::{Checkpoint, CheckpointEntry, CheckpointTable, TableOrigin};
pub use name::{CheckpointName, EntryName};
pub use operation::{
    Failure, OperationId, OperationOutcome, Request, VolumeOperation, WritePayload,
};
pub use replicas::{Replica, ReplicaError, ReplicaSet};
pub use run::{Procedure, ProcedureStep, Run};
pub use selection::EntrySelection;
pub use signature::Signature;
pub use superblock::{
    Geometry, LEASE_GRACE_MS, Lease, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock,
};
pub use volume::{
    Change, Formatting, ManifestCheck, NamespaceAttributes, Opening, Publishing, ReadPiece,
    ReadPlan, Reading, Rename, RepairPlan, RepairStep, Rewriting, Save, UnitWrite, Volume, Writing,
};
