//! Lines of JSON between the command and its ranks: jobs on their stdin, answers on their stdout.

use std::path::PathBuf;

use feedrail_checkpoint_store::{EntryReservation, WrittenEntry};
use serde::{Deserialize, Serialize};

/// First line that a rank receives.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct RankSetup {
    pub(super) rank: u16,
    pub(super) ranks: u16,
    pub(super) bytes: u64,
    /// Seed of the bytes of the rank, from which both sides make them.
    pub(super) seed: u64,
    pub(super) direction: RankDirection,
    /// Namespaces of the volume; none where the rank only writes and reads files.
    pub(super) urls: Vec<String>,
    /// Replicas that must have a commit.
    pub(super) quorum: usize,
    /// Registered memory of the rank for bytes on their way.
    pub(super) staging_bytes: usize,
}

/// Whether the memory of a rank holds its bytes, or receives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RankDirection {
    Save,
    Load,
}

/// Job of a rank; it begins to measure when it has the line.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "job", rename_all = "snake_case")]
pub(super) enum RankJob {
    /// Write the reserved entry, and flush it.
    SaveEntry { reservations: Vec<Option<EntryReservation>> },
    /// Read an entry of a checkpoint.
    LoadEntry { checkpoint: String, entry: String },
    /// Write a file in this folder, or all ranks one checkpoint of torch.
    SaveFile { folder: PathBuf },
    /// Read what `SaveFile` wrote.
    LoadFile { folder: PathBuf },
    /// Compare what was loaded last, and overwrite it.
    Compare,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub(super) enum RankAnswer {
    /// The rank is connected, and its memory is filled.
    Ready {
        connect_seconds: f64,
    },
    /// All bytes are durable, or were read.
    Done {
        seconds: f64,
        /// Checksums of a saved entry.
        #[serde(default)]
        written: Option<WrittenEntry>,
        /// Bytes that the rank's host received from targets during a load.
        #[serde(default)]
        received_bytes: u64,
    },
    /// The loaded bytes are those that were saved, except from this offset on.
    Compared {
        wrong_byte: Option<u64>,
    },
    Failed {
        error: String,
    },
}

/// Returns the name of a rank's entry, that of `feedrail.torch.CheckpointWriter`.
pub(super) fn entry_name(rank: u16) -> String {
    format!("rank{rank}/tensors")
}
