//! `feedrail checkpoint rm`: deletes a checkpoint.

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde_json::json;

use super::volume_args::{LeaseArgs, OpenFor, VolumeArgs};
use crate::interrupt::Interrupt;
use crate::options::{Format, Local, Output};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  feedrail checkpoint rm nvmf://192.0.2.10/nqn.2026-01.org.example:ckpt step-1200
  feedrail checkpoint rm nvmf://192.0.2.10/nqn.2026-01.org.example:ckpt step-1200 --dry-run";

/// Deletes a checkpoint, and deallocates its space
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct RemoveCheckpoint {
    #[command(flatten)]
    volume: VolumeArgs,
    /// Name of the checkpoint
    #[arg(value_name = "NAME")]
    name: String,
    /// Check that the volume has such a checkpoint, and write nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    lease: LeaseArgs,
    #[command(flatten)]
    local: Local,
    #[command(flatten)]
    output: Output,
}

impl RemoveCheckpoint {
    pub(super) fn run(&self) -> Result<()> {
        let name = &self.name;
        let mut store = match self.dry_run {
            true => self.volume.open(&self.local)?,
            false => {
                let interrupt = Interrupt::install()?;
                self.volume.open_writer(OpenFor::Writing, &self.local, self.lease, &interrupt)?
            }
        };
        let about = || self.volume.name();
        let found = store.list()?.into_iter().find(|one| one.name == *name);
        ensure!(found.is_some(), "{}: there is no checkpoint {name:?}", about());
        let bytes = found.map_or(0, |found| found.bytes);
        if !self.dry_run {
            store.delete(name).with_context(about)?;
            self.volume.note_others(&store);
            self.volume.close(store);
        }
        let verb = if self.dry_run { "would be deleted" } else { "is deleted" };
        output::print(&match self.output.output_format {
            Format::Json => output::json(&json!({
                "name": name,
                "bytes": bytes,
                "dry_run": self.dry_run,
            })),
            Format::Normal => format!("{} {verb}\n", output::printable(name)),
        })
    }
}
