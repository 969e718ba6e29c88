//! `feedrail checkpoint rm`: deletes a checkpoint or entries of one.

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use feedrail_checkpoint_store::ReplicatedStore;
use serde_json::json;

use super::volume_args::{LeaseArgs, OpenFor, VolumeArgs};
use crate::interrupt::Interrupt;
use crate::options::{Format, Local, Output};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  feedrail checkpoint rm nvmf://192.0.2.10/nqn.2026-01.org.example:ckpt step-1200
  feedrail checkpoint rm nvmf://192.0.2.10/nqn.2026-01.org.example:ckpt step-1200 --dry-run
  feedrail checkpoint rm nvmf://192.0.2.10/nqn.2026-01.org.example:ckpt step-1200 rank0/";

/// Deletes a checkpoint, an entry, or all entries of a folder, and deallocates their space
///
/// The deletion is one commit. A checkpoint that has lost its last entry is deleted.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct RemoveCheckpoint {
    #[command(flatten)]
    volume: VolumeArgs,
    /// Name of the checkpoint
    #[arg(value_name = "CHECKPOINT")]
    name: String,
    /// Entry to delete instead of the checkpoint; a folder ends with `/`
    #[arg(value_name = "ENTRY")]
    entry: Option<String>,
    /// Check that the volume has such a checkpoint or entry, and write nothing
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
        let bytes = match &self.entry {
            None => found.map_or(0, |found| found.bytes),
            Some(entry) => self.bytes_of(&store, entry)?,
        };
        if !self.dry_run {
            store.remove(name, self.entry.as_deref()).with_context(about)?;
            self.volume.note_others(&store);
            self.volume.close(store);
        }
        let verb = if self.dry_run { "would be deleted" } else { "is deleted" };
        output::print(&match self.output.output_format {
            Format::Json => output::json(&json!({
                "name": name,
                "entry": self.entry,
                "bytes": bytes,
                "dry_run": self.dry_run,
            })),
            Format::Normal => {
                let place = super::place(name, self.entry.as_deref());
                format!("{} {verb}\n", output::printable(&place))
            }
        })
    }

    fn bytes_of(&self, store: &ReplicatedStore, entry: &str) -> Result<u64> {
        let is_folder = entry.ends_with('/');
        let has = |name: &str| name == entry || is_folder && name.starts_with(entry);
        let entries = store.entries(&self.name).with_context(|| self.volume.name())?;
        let found: Vec<_> = entries.iter().filter(|one| has(&one.name)).collect();
        let volume = self.volume.name();
        ensure!(!found.is_empty(), "{volume}: there is no entry {entry:?} in {:?}", self.name);
        Ok(found.iter().map(|one| one.length).sum())
    }
}
