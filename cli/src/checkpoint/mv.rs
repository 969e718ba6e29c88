//! `feedrail checkpoint mv`: renames a checkpoint or entries of one.

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::json;

use super::volume_args::{LeaseArgs, OpenFor, VolumeArgs};
use crate::interrupt::Interrupt;
use crate::options::{Format, Local, Output};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  feedrail checkpoint mv nvmf://192.0.2.10/nqn.2026-01.org.example:ckpt tmp-1200 step-1200
  feedrail checkpoint mv nvmf://192.0.2.10/nqn.2026-01.org.example:ckpt step-1200 step-1300 \\
      --entry config.json --to-entry old/config.json
  feedrail checkpoint mv nvmf://192.0.2.10/nqn.2026-01.org.example:ckpt step-1200 step-1200 \\
      --entry rank0/ --to-entry ranks/0/";

/// Renames a checkpoint, an entry, or all entries of a folder
///
/// The rename is one commit: readers see all of it or nothing. The new place may be in another
/// checkpoint, which is made if the volume does not have it. A checkpoint that has lost its last
/// entry is deleted.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct MoveCheckpoint {
    #[command(flatten)]
    volume: VolumeArgs,
    /// Name of the checkpoint
    #[arg(value_name = "CHECKPOINT")]
    from: String,
    /// New name of the checkpoint, or name of the one that gets the entries
    #[arg(value_name = "TO")]
    to: String,
    /// Entry that is renamed; a folder ends with `/`
    #[arg(long, value_name = "NAME")]
    entry: Option<String>,
    /// New name of the entry or folder [default: that of an entry; of a folder, the checkpoint
    /// itself]
    #[arg(long, value_name = "NAME")]
    to_entry: Option<String>,
    /// Replace entries that have the new names
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    lease: LeaseArgs,
    #[command(flatten)]
    local: Local,
    #[command(flatten)]
    output: Output,
}

impl MoveCheckpoint {
    pub(super) fn run(&self) -> Result<()> {
        let interrupt = Interrupt::install()?;
        let (volume, local) = (&self.volume, &self.local);
        let mut store = volume.open_writer(OpenFor::Writing, local, self.lease, &interrupt)?;
        let entry = self.entry.as_deref();
        let is_same = |name: &&str| self.to_entry.is_none() && !name.ends_with('/');
        let to_entry = entry.filter(is_same).or(self.to_entry.as_deref());
        let renamed = store.rename((&self.from, entry), (&self.to, to_entry), self.force);
        renamed.with_context(|| volume.name())?;
        volume.note_others(&store);
        volume.close(store);
        let from = super::place(&self.from, entry);
        let to = super::place(&self.to, to_entry);
        output::print(&match self.output.output_format {
            Format::Json => output::json(&json!({ "from": from, "to": to })),
            Format::Normal => {
                format!("{} is now {}\n", output::printable(&from), output::printable(&to))
            }
        })
    }
}
