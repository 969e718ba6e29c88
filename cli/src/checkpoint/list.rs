//! `feedrail checkpoint list`: the checkpoints of a volume.

use anyhow::Result;
use clap::Args;
use feedrail_checkpoint_store::{StoredCheckpoint, VolumeSummary};
use serde_json::{Value, json};

use super::metadata;
use super::utc::utc;
use super::volume_args::VolumeArgs;
use crate::options::{Format, Local, Output};
use crate::output;
use crate::size::human;

const EXAMPLES: &str = "\
Examples:
  feedrail checkpoint list nvmf://192.0.2.10/nqn.2026-01.org.example:ckpt
  feedrail checkpoint list nvmf://192.0.2.10/nqn.2026-01.org.example:ckpt -o json";

/// Lists the checkpoints of a volume, in the order of their commits
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct ListCheckpoints {
    #[command(flatten)]
    volume: VolumeArgs,
    #[command(flatten)]
    local: Local,
    #[command(flatten)]
    output: Output,
}

impl ListCheckpoints {
    pub(super) fn run(&self) -> Result<()> {
        let store = self.volume.open(&self.local)?;
        let store = store.newest()?;
        let checkpoints = store.list();
        output::print(&match self.output.output_format {
            Format::Json => output::json(&json!({
                "volume": volume_json(&store.summary()),
                "checkpoints": checkpoints.iter().map(checkpoint_json).collect::<Value>(),
            })),
            Format::Normal => {
                let heading = ["Name", "Step", "Created", "Entries", "Size", "Bytes"];
                output::table(&heading, &checkpoints.iter().map(row).collect::<Vec<_>>())
            }
        })
    }
}

fn row(checkpoint: &StoredCheckpoint) -> Vec<String> {
    vec![
        output::printable(&checkpoint.name),
        checkpoint.step.to_string(),
        utc(checkpoint.created_ms),
        checkpoint.entries.to_string(),
        human(checkpoint.bytes),
        checkpoint.bytes.to_string(),
    ]
}

/// A checkpoint without its entries.
pub(super) fn checkpoint_json(checkpoint: &StoredCheckpoint) -> Value {
    json!({
        "name": checkpoint.name,
        "step": checkpoint.step,
        "created_ms": checkpoint.created_ms,
        "created": utc(checkpoint.created_ms),
        "entries": checkpoint.entries,
        "bytes": checkpoint.bytes,
        "metadata": metadata::to_json(&checkpoint.metadata),
    })
}

/// Facts about a volume.
pub(super) fn volume_json(volume: &VolumeSummary) -> Value {
    json!({
        "uuid": volume.uuid.to_string(),
        "generation": volume.generation,
        "unit_bytes": volume.unit_bytes,
        "capacity_bytes": volume.capacity_bytes,
        "free_bytes": volume.free_bytes,
        "is_fallen_back": volume.is_fallen_back,
        "lease": volume.lease.map(|lease| json!({
            "host": lease.host.to_string(),
            "expiry_ms": lease.expiry_ms,
            "expiry": utc(lease.expiry_ms),
        })),
    })
}
