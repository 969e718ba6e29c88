//! `feedrail index`: where the samples of shards lie, as `index.npy`.

mod format;
mod report;

use std::io::BufWriter;
use std::num::{NonZeroU32, NonZeroU64};
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;
use feedrail_dataset::Sample;
use feedrail_dataset::formats::{
    Dtype, ReadAt, SampleOptions, ShardBytes, ShardFormat, ShardSource, TokenBlocks, detect,
};
use feedrail_dataset::index::IndexWriter;

use self::format::FormatArg;
use self::report::{IndexReport, ShardReport};
use crate::args::{Local, Output};
use crate::interrupt::{Interrupt, Interrupted};
use crate::partial_file::PartialFile;
use crate::progress::Progress;
use crate::shards::{self, ListedShard, ReadPattern, ShardArg, Subsystems};

const EXAMPLES: &str = "\
Examples:
  feedrail index shards/ --output index.npy
  feedrail index train.bin --block-size 1024 --output index.npy
  feedrail index nvmf://192.0.2.10/nqn.2026-01.org.example:shards --crc --output index.npy
  feedrail index nvmf://192.0.2.10/nqn.2026-01.org.example:shards/000.tar --output index.npy";

/// How many samples are written at a time.
const BATCH: usize = 4096;

/// Writes where the samples of shards lie
///
/// The index is an array of numpy with a record for each sample: shard, length, offset and crc32c.
/// Shards are numbered in the order of the arguments. The files of a folder, and the namespaces of
/// a subsystem, are in the order of their names, or of the index.json of MDS; manifest.json,
/// index.npy, hidden files and the .idx beside a .bin are no shards. The file gets its name when it
/// is complete: after an error or Ctrl-C an older one is still there as it was.
#[derive(Args, Debug)]
#[command(name = "index", after_help = EXAMPLES)]
pub(crate) struct IndexArgs {
    /// A file, a folder, or `nvmf://host[:port]/<nqn>[/<name or nsid>]`
    #[arg(required = true, value_name = "SHARD")]
    shards: Vec<ShardArg>,
    /// Write the index to this file
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
    #[command(flatten)]
    samples: SampleArgs,
    #[command(flatten)]
    local: Local,
    #[command(flatten)]
    format: Output,
}

/// How samples are found.
#[derive(Args, Debug)]
struct SampleArgs {
    /// Format of all shards [default: found by first bytes and name]
    #[arg(long, value_enum, value_name = "FORMAT")]
    format: Option<FormatArg>,
    /// Type of tokens without a header: uint8, uint16, uint32, ... [default: uint16]
    #[arg(long, value_name = "DTYPE")]
    dtype: Option<Dtype>,
    /// Tokens that a sample predicts; it has one more
    #[arg(long, value_name = "N", default_value = "1024")]
    block_size: NonZeroU32,
    /// Tokens between the beginnings of two samples [default: the block size]
    #[arg(long, value_name = "N")]
    stride: Option<NonZeroU64>,
    /// Array of an npz whose rows are samples [default: each array is one]
    #[arg(long, value_name = "NAME")]
    array: Option<String>,
    /// Read all samples and compute their CRC-32C; verify TFRecord's
    #[arg(long)]
    crc: bool,
}

impl IndexArgs {
    pub(crate) fn run(&self) -> Result<()> {
        let mut subsystems = Subsystems::default();
        let shards = shards::list(&self.shards, &mut subsystems, &self.local)?;
        // From here on Ctrl-C has something to tidy up.
        let interrupt = Interrupt::install()?;
        let written = self.write(&shards, &interrupt);
        let report = written.map_err(|error| match interrupt.check() {
            // The error is that of the read that the signal ended.
            Err(Interrupted) => anyhow::Error::new(Interrupted)
                .context(format!("{} was not written", self.output.display())),
            Ok(()) => error,
        })?;
        report.print(self.format.output_format)
    }

    fn write(&self, shards: &[ListedShard], interrupt: &Interrupt) -> Result<IndexReport> {
        let cannot = || format!("cannot write {}", self.output.display());
        let file = BufWriter::new(PartialFile::create(&self.output)?);
        let mut writer = IndexWriter::new(file).with_context(cannot)?;
        let mut progress = Progress::transfer(Some(shards.iter().map(|shard| shard.bytes).sum()));
        let mut reports = Vec::new();
        for (number, shard) in (0..).zip(shards) {
            let mut sink = |samples: &[Sample]| writer.append(samples).with_context(cannot);
            let samples = &self.samples;
            let indexed = samples.index(number, shard, interrupt, &mut progress, &mut sink);
            reports.push(indexed.with_context(|| shard.name.to_string())?);
        }
        let file = writer.finish().with_context(cannot)?;
        let file = file.into_inner().map_err(|error| error.into_error()).with_context(cannot)?;
        file.finish().with_context(cannot)?;
        Ok(IndexReport { index: self.output.clone(), shards: reports })
    }
}

impl SampleArgs {
    fn options(&self) -> SampleOptions {
        let adjacent = TokenBlocks::adjacent(self.block_size);
        let blocks = TokenBlocks { stride: self.stride.unwrap_or(adjacent.stride), ..adjacent };
        SampleOptions { blocks, dtype: self.dtype, array: self.array.clone(), checksum: self.crc }
    }

    /// Gives the samples of a shard to `sink`, many at a time.
    fn index(
        &self,
        number: u32,
        shard: &ListedShard,
        interrupt: &Interrupt,
        progress: &mut Progress,
        sink: &mut dyn FnMut(&[Sample]) -> Result<()>,
    ) -> Result<ShardReport> {
        let pattern = if self.crc { ReadPattern::Whole } else { ReadPattern::Parts };
        let data = shard.place.watch(pattern, interrupt)?;
        let idx = shard.idx.as_ref().map(|idx| idx.watch(ReadPattern::Parts, interrupt));
        let idx = idx.transpose()?;
        let data = ShardBytes::new(number, &*data);
        let idx = idx.as_deref().map(|idx: &dyn ReadAt| ShardBytes::new(number, idx));
        let format = self.format(shard, data)?;
        let found = format.samples(ShardSource { data, idx }, &self.options())?;
        let mut batch = Vec::with_capacity(BATCH);
        let (mut samples, mut done_bytes) = (0, 0);
        for sample in found {
            let sample = sample?.sample;
            samples += 1;
            batch.push(sample);
            if batch.len() == BATCH {
                interrupt.check()?;
                sink(&batch)?;
                batch.clear();
            }
            let end = sample.offset.get() + u64::from(sample.length.get());
            progress.add(end.saturating_sub(done_bytes));
            done_bytes = end.max(done_bytes);
        }
        sink(&batch)?;
        progress.add(shard.bytes.saturating_sub(done_bytes));
        Ok(ShardReport { name: shard.name.clone(), bytes: shard.bytes, format, samples })
    }

    /// A `.bin` with an `.idx` is Megatron's, since its first bytes tell nothing.
    fn format(&self, shard: &ListedShard, data: ShardBytes<'_>) -> Result<ShardFormat> {
        Ok(match (self.format, &shard.idx) {
            (Some(format), _) => format.into(),
            (None, Some(_)) => ShardFormat::Megatron,
            (None, None) => detect(shard.name.as_str(), data)?,
        })
    }
}
