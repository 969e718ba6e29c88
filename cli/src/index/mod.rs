//! `feedrail index`: writes the positions of the samples of shards to `index.npy`.

mod files;
mod format;
mod report;

use std::num::{NonZeroU32, NonZeroU64};
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;
use feedrail_dataset::formats::{
    Dtype, ReadAt, SampleOptions, ShardBytes, ShardFormat, ShardSource, TokenBlocks, detect,
};
use feedrail_dataset::index::{IndexShard, ShardTable};

use self::files::IndexFiles;
use self::format::FormatArg;
use self::report::{IndexReport, ShardReport};
use crate::interrupt::{Interrupt, Interrupted};
use crate::options::{Local, Output};
use crate::progress::Progress;
use crate::shards::{self, ListedShard, ReadPattern, ShardArg, Subsystems};

const EXAMPLES: &str = "\
Examples:
  feedrail index shards/ --output index.npy
  feedrail index shards/ --keys keys.npz --output index.npy
  feedrail index train.bin --block-size 1024 --output index.npy
  feedrail index nvmf://192.0.2.10/nqn.2026-01.org.example:shards --crc --output index.npy
  feedrail index nvmf://192.0.2.10/nqn.2026-01.org.example:shards/000.tar --output index.npy";

/// Samples between two checks for Ctrl-C.
const BATCH: u64 = 4096;

/// Writes an index: shard, offset and length of each sample
///
/// The index is an array of numpy with a record for each sample: shard, length, offset and crc32c,
/// and behind them the names of the shards, by which they are found where it is used. Shards are
/// numbered in the order of the arguments. The files of a folder, and the namespaces of
/// a subsystem, are in the order of their names, or of the index.json of MDS; manifest.json,
/// index.npy, keys.npz, hidden files and the .idx beside a .bin are no shards. The files get their
/// names when they are complete: after an error or Ctrl-C older ones are still there as they were.
#[derive(Args, Debug)]
#[command(name = "index", after_help = EXAMPLES)]
pub(crate) struct IndexArgs {
    /// A file, a folder, or `nvmf://host[:port]/<nqn>[/<name or nsid:N>]`
    #[arg(required = true, value_name = "SHARD")]
    shards: Vec<ShardArg>,
    /// Write the index to this file
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
    /// Write the keys and members of the samples to this file, an .npz
    #[arg(long, value_name = "FILE")]
    keys: Option<PathBuf>,
    #[command(flatten)]
    samples: SampleArgs,
    #[command(flatten)]
    local: Local,
    #[command(flatten)]
    format: Output,
}

/// Options for finding the samples in a shard.
#[derive(Args, Debug)]
struct SampleArgs {
    /// Format of all shards [default: found by first bytes and name]
    #[arg(long, value_enum, value_name = "FORMAT")]
    format: Option<FormatArg>,
    /// Type of tokens without a header: uint8, uint16, uint32, ... [default: uint16]
    #[arg(long, value_name = "DTYPE")]
    dtype: Option<Dtype>,
    /// Number of tokens that a sample predicts; a sample has one token more
    #[arg(long, value_name = "N", default_value = "1024")]
    block_size: NonZeroU32,
    /// Distance in tokens between the starts of two samples [default: the block size]
    #[arg(long, value_name = "N")]
    stride: Option<NonZeroU64>,
    /// Array of an npz whose rows are samples [default: each array is one]
    #[arg(long, value_name = "NAME")]
    array: Option<String>,
    /// Continue after the end-of-archive marker of a tar file, for archives joined by cat
    #[arg(long)]
    ignore_zeros: bool,
    /// Read all samples and compute their CRC-32C; verify that of TFRecord
    #[arg(long)]
    crc: bool,
}

impl IndexArgs {
    pub(crate) fn run(&self) -> Result<()> {
        let mut subsystems = Subsystems::default();
        let shards = shards::list(&self.shards, &mut subsystems, &self.local)?;
        // From here on Ctrl-C sets a flag, so that temporary files are deleted.
        let interrupt = Interrupt::install()?;
        let written = self.write(&shards, &interrupt);
        let report = written.map_err(|error| match interrupt.check() {
            // After a signal, the error is that of the read that the signal ended.
            Err(Interrupted) => anyhow::Error::new(Interrupted)
                .context(format!("{} was not written", self.output.display())),
            Ok(()) => error,
        })?;
        report.print(self.format.output_format)
    }

    fn write(&self, shards: &[ListedShard], interrupt: &Interrupt) -> Result<IndexReport> {
        let mut files = IndexFiles::create(&self.output, self.keys.as_deref())?;
        let mut progress = Progress::transfer(Some(shards.iter().map(|shard| shard.bytes).sum()));
        let mut reports = Vec::new();
        for (number, shard) in (0..).zip(shards) {
            let indexed = self.samples.index(number, shard, interrupt, &mut progress, &mut files);
            reports.push(indexed.with_context(|| shard.name.to_string())?);
        }
        let described = shards
            .iter()
            .zip(&reports)
            .map(|(shard, report)| IndexShard { samples: report.samples, ..shard.described() });
        files.finish(&ShardTable::new(described.collect()))?;
        Ok(IndexReport { index: self.output.clone(), shards: reports })
    }
}

impl SampleArgs {
    fn options(&self) -> SampleOptions {
        let adjacent = TokenBlocks::adjacent(self.block_size);
        let blocks = TokenBlocks { stride: self.stride.unwrap_or(adjacent.stride), ..adjacent };
        SampleOptions {
            blocks,
            dtype: self.dtype,
            array: self.array.clone(),
            ignore_zeros: self.ignore_zeros,
            checksum: self.crc,
        }
    }

    /// Adds the samples of a shard to the index.
    fn index(
        &self,
        number: u32,
        shard: &ListedShard,
        interrupt: &Interrupt,
        progress: &mut Progress,
        files: &mut IndexFiles,
    ) -> Result<ShardReport> {
        let pattern = if self.crc { ReadPattern::Whole } else { ReadPattern::Parts };
        let data = shard.place.watch(pattern, interrupt)?;
        let idx = shard.idx.as_ref().map(|idx| idx.watch(ReadPattern::Parts, interrupt));
        let idx = idx.transpose()?;
        let data = ShardBytes::new(number, &*data);
        let idx = idx.as_deref().map(|idx: &dyn ReadAt| ShardBytes::new(number, idx));
        let format = self.format(shard, data)?;
        let found = format.samples(ShardSource { data, idx }, &self.options())?;
        let (mut samples, mut done_bytes) = (0, 0);
        for found in found {
            let found = found?;
            files.append(&found)?;
            samples += 1;
            if samples % BATCH == 0 {
                interrupt.check()?;
            }
            let sample = found.sample;
            let end = sample.offset.get() + u64::from(sample.length.get());
            progress.add(end.saturating_sub(done_bytes));
            done_bytes = end.max(done_bytes);
        }
        progress.add(shard.bytes.saturating_sub(done_bytes));
        Ok(ShardReport { name: shard.name.clone(), bytes: shard.bytes, format, samples })
    }

    /// Returns the format of a shard. A `.bin` with an `.idx` is Megatron's, since its first bytes
    /// do not show the format.
    fn format(&self, shard: &ListedShard, data: ShardBytes<'_>) -> Result<ShardFormat> {
        Ok(match (self.format, &shard.idx) {
            (Some(format), _) => format.into(),
            (None, Some(_)) => ShardFormat::Megatron,
            (None, None) => detect(shard.name.as_str(), data)?,
        })
    }
}
