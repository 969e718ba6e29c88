//! `feedrail checkpoint`: checkpoints of training jobs on a namespace.

mod entry_paths;
mod format;
mod get;
mod list;
mod metadata;
mod mv;
mod put;
mod repair;
mod rm;
mod show;
mod source_files;
mod utc;
mod verify;
mod volume_args;

use anyhow::Result;
use clap::{Args, Subcommand};

use self::format::FormatVolume;
use self::get::GetCheckpoint;
use self::list::ListCheckpoints;
use self::mv::MoveCheckpoint;
use self::put::PutCheckpoint;
use self::repair::RepairReplicas;
use self::rm::RemoveCheckpoint;
use self::show::ShowCheckpoint;
use self::verify::VerifyCheckpoint;

const EXAMPLES: &str = "\
Examples:
  feedrail checkpoint format nvmf://192.0.2.10/nqn.2026-01.org.example:ckpt
  feedrail checkpoint put nvmf://192.0.2.10/nqn.2026-01.org.example:ckpt step-1200 out/ --step 1200
  feedrail checkpoint list nvmf://192.0.2.10/nqn.2026-01.org.example:ckpt
  feedrail checkpoint get nvmf://192.0.2.10/nqn.2026-01.org.example:ckpt step-1200 restored/";

/// Saves and loads checkpoints, which are on a namespace whole or not at all
///
/// A volume is a writable namespace of any target, with a layout of its own. A checkpoint is on it
/// once `put` has ended without an error, and survives a loss of power; an interrupted `put` leaves
/// the volume as it was. Each MiB has a CRC-32C, which `get` and `verify` compare.
#[derive(Args, Debug)]
#[command(name = "checkpoint", after_help = EXAMPLES)]
pub(crate) struct CheckpointArgs {
    #[command(subcommand)]
    command: CheckpointCommand,
}

#[derive(Debug, Subcommand)]
enum CheckpointCommand {
    // Help texts are those of the subcommands' own types.
    Format(FormatVolume),
    List(ListCheckpoints),
    Show(ShowCheckpoint),
    Verify(VerifyCheckpoint),
    Put(PutCheckpoint),
    Get(GetCheckpoint),
    Mv(MoveCheckpoint),
    Rm(RemoveCheckpoint),
    Repair(RepairReplicas),
}

impl CheckpointArgs {
    pub(crate) fn run(&self) -> Result<()> {
        match &self.command {
            CheckpointCommand::Format(format) => format.run(),
            CheckpointCommand::List(list) => list.run(),
            CheckpointCommand::Show(show) => show.run(),
            CheckpointCommand::Verify(verify) => verify.run(),
            CheckpointCommand::Put(put) => put.run(),
            CheckpointCommand::Get(get) => get.run(),
            CheckpointCommand::Mv(rename) => rename.run(),
            CheckpointCommand::Rm(rm) => rm.run(),
            CheckpointCommand::Repair(repair) => repair.run(),
        }
    }
}

/// Name of a checkpoint or of entries in it, for messages.
fn place(checkpoint: &str, entry: Option<&str>) -> String {
    entry.map_or_else(|| checkpoint.to_owned(), |entry| format!("{checkpoint}/{entry}"))
}
