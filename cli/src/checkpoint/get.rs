//! `feedrail checkpoint get`: writes the entries of a checkpoint to files.

use std::fs;
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use feedrail_checkpoint_store::{ReplicatedStore, StoreError, StoredEntry};
use serde_json::json;

use super::entry_paths;
use super::volume_args::VolumeArgs;
use crate::interrupt::{Interrupt, Interrupted};
use crate::options::{Format, Local, Output};
use crate::output;
use crate::partial_file::PartialFile;
use crate::transfer::TransferArgs;

const EXAMPLES: &str = "\
Examples:
  feedrail checkpoint get nvmf://192.0.2.10/nqn.2026-01.org.example:ckpt step-1200 restored/
  feedrail checkpoint get nvmf://192.0.2.10/nqn.2026-01.org.example:ckpt step-1200 restored/ \\
      --entry rank0/model.0";

/// Writes the entries of a checkpoint to files
///
/// Each file gets its name when all its bytes were read and their checksums match. Files that are
/// there already are an error, unless --force replaces them. Symbolic links in the folder are not
/// followed.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(super) struct GetCheckpoint {
    #[command(flatten)]
    volume: VolumeArgs,
    /// Name of the checkpoint
    #[arg(value_name = "NAME")]
    name: String,
    /// Folder that the files go to; it is made if it is not there
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
    /// Only this entry; can be repeated [default: all entries]
    #[arg(long = "entry", value_name = "ENTRY")]
    entries: Vec<String>,
    /// Replace files that are there
    #[arg(long)]
    force: bool,
    /// Print what would be written, and write nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    local: Local,
    #[command(flatten)]
    output: Output,
}

impl GetCheckpoint {
    pub(super) fn run(&self) -> Result<()> {
        let store = self.volume.open(&self.local)?;
        let entries = self.chosen(&store)?;
        for entry in &entries {
            let path = entry_paths::below(&self.folder, &entry.name)?;
            let is_there = fs::symlink_metadata(&path).is_ok();
            ensure!(
                self.force || !is_there,
                "{} is there already; --force replaces it",
                path.display()
            );
        }
        let bytes = entries.iter().map(|entry| entry.length).sum();
        let mut seconds = None;
        if !self.dry_run {
            // From here on Ctrl-C sets a flag, so that temporary files are deleted.
            let interrupt = Interrupt::install()?;
            let mut transfer = TransferArgs::begin("read", Some(bytes));
            for entry in &entries {
                self.write(&store, entry, &interrupt, &mut transfer)?;
            }
            seconds = Some(transfer.end());
        }
        self.print(&store, &entries, bytes, seconds)
    }

    fn chosen(&self, store: &ReplicatedStore) -> Result<Vec<StoredEntry>> {
        let mut entries = store.entries(&self.name).with_context(|| self.volume.name())?;
        for wanted in &self.entries {
            let is_there = entries.iter().any(|entry| entry.name == *wanted);
            ensure!(is_there, "{:?} has no entry {wanted:?}", self.name);
        }
        entries.retain(|entry| self.entries.is_empty() || self.entries.contains(&entry.name));
        let names = entries.iter().map(|entry| entry.name.as_str());
        entry_paths::check(names).context("choose one with --entry")?;
        Ok(entries)
    }

    fn write(
        &self,
        store: &ReplicatedStore,
        entry: &StoredEntry,
        interrupt: &Interrupt,
        transfer: &mut TransferArgs,
    ) -> Result<()> {
        let path = entry_paths::below(&self.folder, &entry.name)?;
        let cannot = || format!("cannot write {}", path.display());
        fs::create_dir_all(path.parent().unwrap_or(Path::new("."))).with_context(cannot)?;
        let mut file = PartialFile::create(&path)?;
        let mut stopped = None;
        let read = store.read_with(&self.name, &entry.name, 0..entry.length, &mut |at, bytes| {
            let written = interrupt.check().map_err(anyhow::Error::from).and_then(|()| {
                write_at(&mut file, at, bytes).with_context(cannot)?;
                transfer.add(bytes.len() as u64);
                Ok(())
            });
            match written {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    stopped = Some(error);
                    ControlFlow::Break(())
                }
            }
        });
        match (read, stopped) {
            (Err(StoreError::Stopped), Some(error)) if error.is::<Interrupted>() => {
                Err(error.context(format!("{} was not written", path.display())))
            }
            (Err(StoreError::Stopped), Some(error)) => Err(error),
            (read, _) => {
                read.with_context(|| self.volume.name())?;
                file.finish().with_context(cannot)
            }
        }
    }

    fn print(
        &self,
        store: &ReplicatedStore,
        entries: &[StoredEntry],
        bytes: u64,
        seconds: Option<f64>,
    ) -> Result<()> {
        // Each was followed by a read from another replica.
        let failed_reads: u64 = store.stats().iter().map(|one| one.failed_reads).sum();
        let verb = if self.dry_run { "would be written" } else { "is written" };
        output::print(&match self.output.output_format {
            Format::Json => output::json(&json!({
                "name": self.name,
                "folder": self.folder.display().to_string(),
                "files": entries.iter().map(|entry| &entry.name).collect::<Vec<_>>(),
                "bytes": bytes,
                "seconds": seconds,
                "failed_reads": failed_reads,
                "dry_run": self.dry_run,
            })),
            Format::Normal => format!(
                "{} {verb} to {}: {bytes} bytes in {} files\n",
                output::printable(&self.name),
                self.folder.display(),
                entries.len()
            ),
        })
    }
}

fn write_at(file: &mut PartialFile, at: u64, bytes: &[u8]) -> io::Result<()> {
    file.seek(SeekFrom::Start(at))?;
    file.write_all(bytes)
}
