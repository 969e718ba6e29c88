//! `feedrail bench-checkpoint`: saves and loads of a training job's checkpoint by many processes,
//! beside local files.

mod bench_volume;
mod beside;
mod cold_reads;
mod figures;
mod local_volume;
mod messages;
mod model;
mod rank_group;
mod rank_process;
mod report;
mod rounds;
mod seeded_bytes;
mod target_counters;

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Args;
use feedrail_dataset::url::{self, SourceUrl};
use serde_json::{Value, json};

use self::bench_volume::{BenchFormat, BenchVolume};
use self::beside::BesideFolder;
use self::cold_reads::ColdReads;
use self::local_volume::LocalVolume;
use self::model::{CheckpointModel, CheckpointShape};
pub(crate) use self::rank_process::RankProcess;
use self::report::CheckpointReport;
use self::rounds::{BenchFigures, BenchRounds};
use self::target_counters::MetricsUrl;
use crate::interrupt::Interrupt;
use crate::options::{Format, Local, Output};
use crate::output;
use crate::seed::fresh_seed;
use crate::size::ByteSize;

const EXAMPLES: &str = "\
Examples:
  feedrail bench-checkpoint --local /data --beside /data --drop-caches
  feedrail bench-checkpoint nvmf://192.0.2.10/nqn.2026-01.org.example:ckpt --saves 10 --loads 10 \\
      --metrics http://192.0.2.10:9420/metrics
  feedrail bench-checkpoint nvmf://192.0.2.10/nqn.2026-01.org.example:ckpt --model llama3-70b \\
      --ranks 16 --beside /lustre/me --python ~/torch/bin/python -o json";

/// Measures saves and loads of a training job's checkpoint by many processes
///
/// Each rank is a process. It makes its bytes before a save begins, writes them to space that this
/// process has reserved, and flushes; then this process commits. The time of a save is that until
/// the commit, that of a load until the slowest rank has its bytes, which are compared afterwards.
/// Connections are made before. The shape is that of MLPerf Storage, with fewer bytes; results are
/// not comparable with its results.
///
/// The volume must be formatted (`feedrail checkpoint format`), or --format does it. With --local,
/// a target of this run serves a new file in a folder. The saved checkpoints are removed at the
/// end, also after Ctrl-C and errors.
///
/// --beside alternates with ranks that write a file each (write, fsync, rename, fsync of the
/// folder), and with --python also with torch's FileSystemWriter and FileSystemReader in gloo
/// processes.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchCheckpoint {
    /// Namespace of the volume: `nvmf://host[:port]/<nqn>[/<name or nsid:N>]`; further ones are its
    /// replicas
    #[arg(value_name = "URL", value_parser = parse_url, required_unless_present = "local")]
    urls: Vec<SourceUrl>,
    /// Serve a file in this folder, instead of a volume that exists
    #[arg(long, value_name = "DIR", conflicts_with_all = ["urls", "format", "metrics"])]
    local: Option<PathBuf>,
    /// Number of replicas that must have a commit [default: more than half]
    #[arg(long, value_name = "K")]
    write_quorum: Option<usize>,
    /// Model whose bytes and ranks are used
    #[arg(long, value_enum, value_name = "NAME", default_value_t = CheckpointModel::Llama8B)]
    model: CheckpointModel,
    /// Divide the bytes of the model by this
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    scale: u64,
    /// Number of ranks, each a process [default: the model's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    ranks: Option<u16>,
    /// Number of saves of each writer
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    saves: u32,
    /// Number of loads of the last checkpoint, each by new processes
    #[arg(long, value_name = "N", default_value_t = 3)]
    loads: u32,
    /// Registered memory of each rank for bytes on their way
    #[arg(long, value_name = "BYTES", default_value = "64M")]
    staging: ByteSize,
    /// Measure writers of local files in this folder too
    #[arg(long, value_name = "DIR")]
    beside: Option<PathBuf>,
    /// Python that has torch and numpy, to measure torch's FileSystemWriter in the folder too
    #[arg(long, value_name = "PATH", requires = "beside")]
    python: Option<PathBuf>,
    /// Metrics of the target, to see that it read the bytes of each load; one for each URL, in the
    /// same order [default: the counters of this host; with --local those of the target]
    #[arg(long, value_name = "URL")]
    metrics: Vec<MetricsUrl>,
    /// Drop the volume's file and those beside from the page cache before each load
    #[arg(long, requires = "local")]
    drop_caches: bool,
    /// Format the namespaces first
    #[arg(long)]
    format: bool,
    /// Destroy what the namespaces hold
    #[arg(long, requires = "format")]
    force: bool,
    /// Keep the last checkpoint, and the files
    #[arg(long)]
    keep_data: bool,
    /// Seed of the bytes [default: a new one each time, printed]
    #[arg(long, value_name = "N")]
    randseed: Option<u64>,
    #[command(flatten)]
    connection: Local,
    #[command(flatten)]
    output: Output,
}

fn parse_url(text: &str) -> Result<SourceUrl, String> {
    text.parse().map_err(|error: url::Error| error.to_string())
}

impl BenchCheckpoint {
    pub(crate) fn run(&self) -> Result<()> {
        ensure!(
            self.metrics.is_empty() || self.metrics.len() == self.urls.len(),
            "there are {} URLs, and {} of metrics",
            self.urls.len(),
            self.metrics.len()
        );
        let interrupt = Interrupt::install()?;
        let shape = self.model.scaled_down(self.scale, self.ranks);
        let seed = self.randseed.unwrap_or_else(fresh_seed);
        let beside = self.beside.as_deref().map(BesideFolder::new).transpose()?;
        let local = self
            .local
            .as_deref()
            .map(|folder| LocalVolume::start(folder, shape, self.connection.provider, &interrupt));
        let local = local.transpose()?;
        let mut rounds = BenchRounds {
            shape,
            seed,
            saves: self.saves,
            loads: self.loads,
            staging_bytes: usize::try_from(self.staging.0)?,
            is_cache_dropped: self.drop_caches,
            volume: self.open(local.as_ref(), shape)?,
            counters: self.counters(local.as_ref()),
            local: local.as_ref(),
            beside: beside.as_ref(),
            python: self.python.clone(),
            interrupt: &interrupt,
        };
        let mut figures =
            BenchFigures { writers: Vec::new(), cold: ColdReads::default(), connect_seconds: 0.0 };
        let ended = rounds.run(&mut figures);
        let removed = if self.keep_data { Ok(()) } else { rounds.volume.remove() };
        let provider = rounds.volume.providers();
        let closed = rounds.volume.close();
        if figures.writers.iter().any(|one| !one.saves.is_empty()) {
            self.print(shape, seed, &provider, &figures)?;
        }
        interrupt.check()?;
        ended?;
        removed?;
        let kept = closed?;
        if self.keep_data { self.keep(kept.as_deref(), local, beside) } else { Ok(()) }
    }

    fn open(&self, local: Option<&LocalVolume>, shape: CheckpointShape) -> Result<BenchVolume> {
        let (urls, format) = match local {
            Some(local) => {
                (std::slice::from_ref(local.url()), BenchFormat::Format { is_forced: false })
            }
            None if self.format => (&self.urls[..], BenchFormat::Format { is_forced: self.force }),
            None => (&self.urls[..], BenchFormat::Keep),
        };
        BenchVolume::open(urls, self.write_quorum, format, shape, &self.connection)
    }

    fn counters(&self, local: Option<&LocalVolume>) -> Vec<(MetricsUrl, String)> {
        let own = local.and_then(|local| Some((local.metrics()?, local.url().nqn.to_string())));
        let given = self.metrics.iter().cloned();
        own.into_iter().chain(given.zip(self.urls.iter().map(|url| url.nqn.to_string()))).collect()
    }

    fn print(
        &self,
        shape: CheckpointShape,
        seed: u64,
        provider: &str,
        figures: &BenchFigures,
    ) -> Result<()> {
        let report = CheckpointReport {
            figures,
            total_bytes: shape.total_bytes(),
            parameters: self.parameters(shape, seed, provider, figures),
            title: format!(
                "{}/{}: {} bytes on {} ranks, saves {}, loads {}, randseed {seed}\nprovider: \
                 {provider}",
                self.model.name(),
                self.scale,
                shape.total_bytes(),
                shape.ranks,
                self.saves,
                self.loads,
            ),
        };
        output::print(&match self.output.output_format {
            Format::Json => output::json(&report.to_json()),
            Format::Normal => report.to_text(),
        })
    }

    fn parameters(
        &self,
        shape: CheckpointShape,
        seed: u64,
        provider: &str,
        figures: &BenchFigures,
    ) -> Value {
        json!({
            "model": self.model.name(),
            "scale": self.scale,
            "ranks": shape.ranks,
            "rank_bytes": shape.rank_bytes,
            "bytes": shape.total_bytes(),
            "saves": self.saves,
            "loads": self.loads,
            "randseed": seed,
            "staging_bytes": self.staging.0,
            "replicas": self.urls.len().max(1),
            "provider": provider,
            "connect_seconds": figures.connect_seconds,
            "version": env!("CARGO_PKG_VERSION"),
            "kernel": rustix::system::uname().release().to_string_lossy(),
        })
    }

    /// Keeps files, and says on stderr where they are.
    fn keep(
        &self,
        checkpoint: Option<&str>,
        local: Option<LocalVolume>,
        beside: Option<BesideFolder>,
    ) -> Result<()> {
        let name = checkpoint.unwrap_or("no checkpoint");
        match local {
            Some(local) => output::note(format_args!("{name} is in {}", local.keep()?.display())),
            None => output::note(format_args!("{name} is on the volume")),
        }
        if let Some(beside) = beside {
            output::note(format_args!("the files are in {}", beside.keep().display()));
        }
        Ok(())
    }
}
