//! `feedrail manifest`: writes which shards a data set has, and which targets serve them.

mod checksum;
mod replicas;
mod targets;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;
use feedrail_dataset::Name;
use feedrail_dataset::index::IndexShard;
use feedrail_dataset::manifest::{IndexEntry, Manifest, ManifestFile, ShardEntry};
use serde_json::json;

use self::checksum::{CheckedIndex, Checksums};
use self::replicas::{ReplicaGroups, ShardReplica};
use self::targets::{NamedTarget, TargetNames};
use crate::interrupt::{Interrupt, Interrupted};
use crate::options::{Format, Local, Output};
use crate::output;
use crate::partial_file::PartialFile;
use crate::shards::{self, ListedShard, ShardArg, ShardLocation, Subsystems};
use crate::size::human;

const EXAMPLES: &str = "\
Examples:
  feedrail manifest --name imagenet --index index.npy --output manifest.json \\
      nvmf://192.0.2.10/nqn.2026-01.org.example:shards nvmf://192.0.2.11/nqn.2026-01.org.example:shards
  feedrail manifest --name imagenet --output manifest.json --crc shards/ \\
      --target a=nvmf://192.0.2.10/nqn.2026-01.org.example:shards";

/// Writes a manifest: the shards of a data set, and the targets that export them
///
/// Arguments are those of `feedrail index`; the index names its shards. Shards of one name are
/// replicas of
/// one shard: they must have one length, and one UUID and generation or, with --crc, one checksum.
/// Shards in files are said to be on each --target, which is not asked. The file gets its name when
/// it is complete.
#[derive(Args, Debug)]
#[command(name = "manifest", after_help = EXAMPLES)]
pub(crate) struct ManifestArgs {
    /// A file, a folder, or `nvmf://host[:port]/<nqn>[/<name or nsid:N>]`
    #[arg(required = true, value_name = "SHARD")]
    shards: Vec<ShardArg>,
    /// Name of the data set
    #[arg(long)]
    name: Name,
    /// Write the manifest to this file
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
    /// Index of the data set, in the folder of the manifest or below
    #[arg(long, value_name = "FILE")]
    index: Option<PathBuf>,
    /// Target that exports the files, or the name that the manifest uses for a target
    #[arg(long = "target", value_name = "[NAME=]URL")]
    targets: Vec<NamedTarget>,
    /// Read all shards, and compute and compare their CRC-32C
    #[arg(long)]
    crc: bool,
    #[command(flatten)]
    local: Local,
    #[command(flatten)]
    format: Output,
}

impl ManifestArgs {
    pub(crate) fn run(&self) -> Result<()> {
        let mut subsystems = Subsystems::default();
        let shards = shards::list(&self.shards, &mut subsystems, &self.local)?;
        // From here on Ctrl-C sets a flag, so that temporary files are deleted.
        let interrupt = Interrupt::install()?;
        let written = self.write(&shards, &subsystems, &interrupt);
        let manifest = written.map_err(|error| match interrupt.check() {
            // After a signal, the error is that of the read that the signal ended.
            Err(Interrupted) => anyhow::Error::new(Interrupted)
                .context(format!("{} was not written", self.output.display())),
            Ok(()) => error,
        })?;
        self.print(&manifest)
    }

    fn write(
        &self,
        shards: &[ListedShard],
        subsystems: &Subsystems,
        interrupt: &Interrupt,
    ) -> Result<Manifest> {
        let cannot = || format!("cannot write {}", self.output.display());
        let mut targets = TargetNames::new(&self.targets)?;
        let mut checksums = Checksums::new(self.bytes_to_read(shards)?, subsystems, interrupt);
        let groups = self.groups(shards, &mut targets, &mut checksums)?;
        let mut file = ManifestFile::new(self.name.clone());
        file.shards = groups.into_shards()?;
        file.targets = targets.into_entries(&file.shards, &self.local.secrets.key_files()?);
        let described: Vec<_> = file.shards.iter().map(ShardEntry::described).collect();
        let entry = |path| self.entry(path, &described, &mut checksums);
        file.index = self.index.as_deref().map(entry).transpose()?;
        drop(checksums);
        let manifest = Manifest::new(file)?;
        let mut output = PartialFile::create(&self.output)?;
        output.write_all(manifest.to_json().as_bytes()).with_context(cannot)?;
        output.finish().with_context(cannot)?;
        Ok(manifest)
    }

    /// Bytes of the files to read whole: the index, and with --crc the shards.
    fn bytes_to_read(&self, shards: &[ListedShard]) -> Result<u64> {
        let shards = shards.iter().filter(|_| self.crc).map(|shard| shard.bytes);
        let index = self.index.as_deref().map(|path| {
            fs::metadata(path).with_context(|| path.display().to_string()).map(|found| found.len())
        });
        Ok(shards.sum::<u64>() + index.transpose()?.unwrap_or(0))
    }

    fn groups(
        &self,
        shards: &[ListedShard],
        targets: &mut TargetNames,
        checksums: &mut Checksums<'_>,
    ) -> Result<ReplicaGroups> {
        let mut groups = ReplicaGroups::default();
        for shard in shards {
            let crc32c = self.crc.then(|| checksums.of(shard)).transpose();
            let crc32c = crc32c.with_context(|| shard.name.to_string())?;
            let on = match &shard.place {
                ShardLocation::File(_) => targets.of_files(),
                ShardLocation::Namespace { subsystem, .. } => vec![targets.of(subsystem)],
            };
            groups.add(&shard.name, ShardReplica::new(shard, crc32c, on))?;
        }
        Ok(groups)
    }

    /// Checks that all samples of the index lie within the shards, and returns its manifest entry.
    fn entry(
        &self,
        path: &Path,
        shards: &[IndexShard],
        checksums: &mut Checksums<'_>,
    ) -> Result<IndexEntry> {
        let about = || path.display().to_string();
        let file = relative(path, &self.output)?.parse().with_context(about)?;
        let index = checksums.of_index(path, shards).with_context(about)?;
        let CheckedIndex { samples, hash } = index;
        Ok(IndexEntry { file, hash, samples })
    }

    fn print(&self, manifest: &Manifest) -> Result<()> {
        let bytes: u64 = manifest.shard_bytes().iter().sum();
        let (shards, hash) = (manifest.shards().len(), manifest.hash());
        let samples = manifest.index().map(|index| index.samples);
        output::print(&match self.format.output_format {
            Format::Json => output::json(&json!({
                "manifest": self.output.display().to_string(),
                "name": manifest.name().as_str(),
                "hash": hash.to_string(),
                "content_hash": manifest.content_hash().to_string(),
                "shards": shards,
                "bytes": bytes,
                "samples": samples,
                "targets": manifest.targets().len(),
            })),
            Format::Normal => {
                let path = self.output.display();
                let targets = manifest.targets().len();
                let bytes = human(bytes);
                format!("{path}: {bytes}; shards: {shards}, targets: {targets}\n{hash}\n")
            }
        })
    }
}

fn relative(index: &Path, manifest: &Path) -> Result<String> {
    let folder = manifest.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = fs::canonicalize(folder.unwrap_or(Path::new(".")))?;
    let below = fs::canonicalize(index)?.strip_prefix(folder).ok().map(Path::to_owned);
    let below = below.and_then(|path| path.to_str().map(str::to_owned));
    below.with_context(|| {
        format!("{} is not in the folder of the manifest, or not in UTF-8", index.display())
    })
}
