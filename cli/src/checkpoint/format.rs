//! `feedrail checkpoint format`: makes an empty volume of a namespace.

use anyhow::{Context as _, Result};
use clap::Args;
use feedrail_checkpoint_store::{FormatOptions, ReplicatedStore};
use serde_json::json;

use super::volume_args::VolumeArgs;
use crate::options::{Format, Local, Output};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  feedrail checkpoint format nvmf://192.0.2.10/nqn.2026-01.org.example:ckpt
  feedrail checkpoint format nvmf://192.0.2.10/nqn.2026-01.org.example:ckpt/nsid:2 --dry-run
  feedrail checkpoint format nvmf://192.0.2.10/nqn.2026-01.org.example:ckpt --force";

/// Makes an empty checkpoint volume of a namespace
///
/// A namespace that holds a partition table, a file system, an archive, a safetensors file or a
/// checkpoint volume is refused. Replicas are formatted as one volume.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct FormatVolume {
    #[command(flatten)]
    volume: VolumeArgs,
    /// Destroy what the namespace holds
    #[arg(long)]
    force: bool,
    /// Check everything, and write nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    local: Local,
    #[command(flatten)]
    output: Output,
}

impl FormatVolume {
    pub(super) fn run(&self) -> Result<()> {
        let places = self.volume.connect(&self.local)?;
        let options = FormatOptions { is_forced: self.force, ..FormatOptions::default() };
        let formatted = match self.dry_run {
            true => ReplicatedStore::check_format(&places, &options),
            false => ReplicatedStore::format(&places, &options),
        };
        formatted.with_context(|| self.volume.name())?;
        let uuid = (!self.dry_run).then(|| options.uuid.to_string());
        output::print(&match self.output.output_format {
            Format::Json => output::json(&json!({
                "url": self.volume.name(),
                "uuid": uuid,
                "dry_run": self.dry_run,
            })),
            Format::Normal => match uuid {
                Some(uuid) => format!("{} is volume {uuid}\n", self.volume.name()),
                None => format!("{} would be formatted\n", self.volume.name()),
            },
        })
    }
}
