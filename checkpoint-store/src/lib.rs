//! Checkpoints of training jobs on NVMe over Fabrics namespaces: blocking calls over
//! [`feedrail_initiator`] that execute the state machines of [`feedrail_checkpoint`].
//!
//! ```no_run
//! use feedrail_checkpoint_store::{
//!     CheckpointStore, FormatOptions, StoreError, StoreOptions, VolumeNamespace,
//! };
//! use feedrail_initiator::Host;
//!
//! # fn save(weights: &[u8]) -> Result<(), Box<dyn std::error::Error>> {
//! let host = Host::new()?;
//! let url = "nvmf://192.0.2.10/nqn.2026-01.org.example:volumes/checkpoints".parse()?;
//! let namespace = VolumeNamespace::connect(&host, &url)?;
//! CheckpointStore::format(&namespace, &FormatOptions::default())?;
//!
//! let store = CheckpointStore::open_writer(&namespace, StoreOptions::default())?;
//! let mut save = store.begin("step-1200", 1200, Vec::new())?;
//! save.write("rank0/model.0", weights)?;
//! save.commit()?;
//!
//! let mut head = [0; 4096];
//! store.read("step-1200", "rank0/model.0", 0..4096, &mut head)?;
//! store.close()?;
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod clock;
mod driver;
mod error;
mod open_volume;
mod options;
mod rank_writer;
mod read;
mod repair;
mod replicated_file;
mod replicated_save;
mod replicated_store;
mod reservation;
mod save;
mod stats;
mod store;
mod unit_buffer;
mod unit_pipe;
mod verify;
mod volume_namespace;
mod write_pipe;

pub use error::StoreError;
pub use feedrail_checkpoint::{Lease, Signature, VolumeFormatError};
pub use options::{FormatOptions, StoreOptions};
pub use rank_writer::{RankWriter, WrittenEntry};
pub use repair::{RepairReport, RepairScope};
pub use replicated_file::ReplicaFile;
pub use replicated_save::{ReplicaSaves, ReplicatedSave};
pub use replicated_store::{ReplicaPlace, ReplicaState, ReplicatedStore};
pub use reservation::EntryReservation;
pub use save::{SaveEntry, StoreSave};
pub use stats::StoreStats;
pub use store::{CheckpointStore, StoredCheckpoint, StoredEntry, VolumeSummary};
pub use verify::{DamagedUnit, VerifyReport};
pub use volume_namespace::VolumeNamespace;
