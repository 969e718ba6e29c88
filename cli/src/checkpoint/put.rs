//! `feedrail checkpoint put`: saves files as a checkpoint.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use feedrail_checkpoint_store::{CheckpointStore, ReplicatedSave, ReplicatedStore, SaveEntry};
use serde_json::json;

use super::metadata::{self, MetadataPair};
use super::source_files::{self, SourceFile};
use super::volume_args::{LeaseArgs, OpenFor, VolumeArgs};
use crate::interrupt::{Interrupt, Interrupted};
use crate::options::{Format, Local, Output};
use crate::output;
use crate::transfer::TransferArgs;

const EXAMPLES: &str = "\
Examples:
  feedrail checkpoint put nvmf://192.0.2.10/nqn.2026-01.org.example:ckpt step-1200 out/ --step 1200
  feedrail checkpoint put nvmf://192.0.2.10/nqn.2026-01.org.example:ckpt step-1300 out/ --keep 3 \\
      --metadata loss=0.31 --metadata run=7
  feedrail checkpoint put nvmf://192.0.2.10/nqn.2026-01.org.example:ckpt best a.pt b.pt --dry-run";

/// Bytes of one read from a file; at least one unit.
const READ_BYTES: u64 = 4 << 20;

/// Saves files and folders as a checkpoint
///
/// The entries are named as the files, those of a folder by their paths in it. When the command
/// ends without an error, all of it is durable; otherwise nothing of it is there, and the other
/// checkpoints are as they were.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct PutCheckpoint {
    #[command(flatten)]
    volume: VolumeArgs,
    /// Name of the checkpoint
    #[arg(value_name = "NAME")]
    name: String,
    /// A file, or a folder of files
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Training step to store with the checkpoint
    #[arg(long, value_name = "N", default_value_t = 0)]
    step: u64,
    /// Text to store with the checkpoint, in a JSON object
    #[arg(long = "metadata", value_name = "KEY=VALUE", value_parser = metadata::pair)]
    pairs: Vec<MetadataPair>,
    /// Store the bytes of this file with the checkpoint, at most 1 MiB
    #[arg(long, value_name = "FILE", conflicts_with = "pairs")]
    metadata_file: Option<PathBuf>,
    /// Delete all checkpoints but the last N with the same commit; this one counts. Their space is
    /// free after it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    keep: Option<u32>,
    /// Check names and space, and write nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    lease: LeaseArgs,
    #[command(flatten)]
    local: Local,
    #[command(flatten)]
    output: Output,
}

impl PutCheckpoint {
    pub(super) fn run(&self) -> Result<()> {
        let files = source_files::find(&self.paths)?;
        let metadata = metadata::bytes(&self.pairs, self.metadata_file.as_deref())?;
        let bytes = files.values().map(|file| file.bytes).sum();
        CheckpointStore::check_names(&self.name, files.keys().map(String::as_str))?;
        let mut seconds = None;
        if self.dry_run {
            let store = self.volume.open(&self.local)?;
            let lengths = files.values().map(|file| file.bytes);
            store.newest()?.check_space(&self.name, lengths).with_context(|| self.volume.name())?;
        } else {
            // From here on Ctrl-C gives the lease back.
            let interrupt = Interrupt::install()?;
            let (volume, local) = (&self.volume, &self.local);
            let mut store = volume.open_writer(OpenFor::Writing, local, self.lease, &interrupt)?;
            let mut transfer = TransferArgs::begin("wrote", Some(bytes));
            self.save(&mut store, &files, &metadata, &interrupt, &mut transfer)?;
            seconds = Some(transfer.end());
            volume.note_others(&store);
            volume.close(store);
        }
        self.print(&files, bytes, seconds)
    }

    fn save(
        &self,
        store: &mut ReplicatedStore,
        files: &BTreeMap<String, SourceFile>,
        metadata: &[u8],
        interrupt: &Interrupt,
        transfer: &mut TransferArgs,
    ) -> Result<()> {
        let about = || self.volume.name();
        let mut save = store.begin(&self.name, self.step, metadata).with_context(about)?;
        if let Some(count) = self.keep {
            save.keep(count as usize);
        }
        // All space is reserved before the first byte is written.
        let entries = files.iter().map(|(name, file)| Ok((save.add(name, file.bytes)?, file)));
        let entries = entries.collect::<Result<Vec<_>>>().with_context(about)?;
        for (entry, file) in entries {
            let written = copy(&mut save, entry, file, interrupt, transfer);
            written.map_err(|error| match error.is::<Interrupted>() {
                true => error.context(format!("{:?} was not saved", self.name)),
                false => error,
            })?;
        }
        save.commit().with_context(about)
    }

    fn print(
        &self,
        files: &BTreeMap<String, SourceFile>,
        bytes: u64,
        seconds: Option<f64>,
    ) -> Result<()> {
        let verb = if self.dry_run { "would be saved" } else { "is saved" };
        output::print(&match self.output.output_format {
            Format::Json => output::json(&json!({
                "name": self.name,
                "step": self.step,
                "entries": files.len(),
                "bytes": bytes,
                "seconds": seconds,
                "dry_run": self.dry_run,
            })),
            Format::Normal => {
                let name = output::printable(&self.name);
                format!("{name} {verb}: {bytes} bytes in {} entries\n", files.len())
            }
        })
    }
}

/// Writes a file as an entry.
fn copy(
    save: &mut ReplicatedSave<'_>,
    entry: SaveEntry,
    source: &SourceFile,
    interrupt: &Interrupt,
    transfer: &mut TransferArgs,
) -> Result<()> {
    let path = source.path.display();
    let cannot = || format!("cannot read {path}");
    let mut file = File::open(&source.path).with_context(cannot)?;
    let piece_bytes = READ_BYTES.max(save.unit_bytes());
    let mut buffer = vec![0; piece_bytes.min(source.bytes) as usize];
    let mut offset = 0;
    while offset < source.bytes {
        interrupt.check()?;
        let length = (source.bytes - offset).min(piece_bytes) as usize;
        let piece = &mut buffer[..length];
        file.read_exact(piece).with_context(cannot)?;
        save.write_at(entry, offset, piece)?;
        offset += length as u64;
        transfer.add(length as u64);
    }
    let now = file.metadata().with_context(cannot)?.len();
    let before = source.bytes;
    ensure!(
        now == before,
        "{path} had {before} bytes and has {now} now; save it when it is complete"
    );
    Ok(())
}
