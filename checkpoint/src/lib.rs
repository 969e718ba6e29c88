//! Checkpoint volumes: checkpoints of training jobs on a writable namespace, whole or not there.
//!
//! The crate performs no I/O. A [`Run`] gives [`Operation`]s, which the caller executes in any
//! order, and takes their [`Outcome`]s; at its end it has a result. The format is described in
//! `docs/checkpoint-format.md`.
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
mod signature;
mod superblock;
mod volume;

pub use allocation::Extent;
pub use error::{Error, FormatError};
pub use manifest::{Checkpoint, Entry, Manifest};
pub use name::{CheckpointName, EntryName};
pub use operation::{Failure, Operation, OperationId, Outcome, Payload, Request};
pub use replicas::{Replica, ReplicaError, ReplicaSet};
pub use run::{Procedure, Run, Step};
pub use signature::Signature;
pub use superblock::{
    Geometry, LEASE_GRACE_MS, Lease, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock,
};
pub use volume::{
    Change, Device, Formatting, Opening, Publishing, ReadPiece, ReadPlan, Reading, Save, Volume,
    Writing,
};
