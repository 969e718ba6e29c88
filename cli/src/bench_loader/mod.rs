//! `feedrail bench-loader`: the loop of a training job over batches from targets, beside readers of
//! local files.

mod barrier;
mod blocks;
mod contest;
mod figures;
mod local_files;
mod local_target;
mod order;
mod page_cache;
mod pool;
mod reader;
mod remote;
mod report;
mod samples;
mod schedule;
mod shape;
mod turn;
mod uring_reader;
mod verify;

use core::time::Duration;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use feedrail_initiator::{HostCounters, Namespace, Shards};
use serde_json::{Value, json};

use self::contest::{Contestant, LocalMethod, Sources};
use self::local_files::LocalFiles;
use self::local_target::LocalTarget;
use self::page_cache::CacheState;
pub(crate) use self::page_cache::{Residency, drop_from_page_cache};
use self::remote::RemoteShards;
use self::report::LoaderReport;
use self::samples::{LimitedSet, SampleSet};
use self::schedule::Schedule;
use self::shape::{LoaderShape, LoaderWorkload, SampleLayout};
use self::turn::LoopSettings;
use self::verify::Verifier;
use crate::clock::now;
use crate::interrupt::Interrupt;
use crate::options::{Format, Local, Output};
use crate::output;
use crate::progress::Progress;
use crate::seed::fresh_seed;
use crate::shards::{self, ListedShard, ShardArg, ShardLocation, Subsystems};
use crate::size::ByteSize;
use crate::training_data::SampleSizes;

const EXAMPLES: &str = "\
Examples:
  feedrail bench-loader nvmf://192.0.2.10/nqn.2026-01.org.example:shards --workload resnet50
  feedrail bench-loader nvmf://192.0.2.10/nqn.2026-01.org.example:shards/train.bin \\
      --workload nanogpt --local train.bin --target-pid $(pidof feedrail-target)
  feedrail bench-loader nvmf://192.0.2.10/nqn.2026-01.org.example:shards --index index.npy \\
      --batch-size 64 --compute-time 20 --ranks 2 -o json
  feedrail bench-loader nvmf://192.0.2.10/nqn.2026-01.org.example:shards/a.bin \\
      --sample-size 112K --batch-size 64 --prefetch 0 --local a.bin --caches cold,direct --verify";

/// Measures the input loop of a training job: batches of samples in random order, compute time, a
/// barrier
///
/// The loop is that of DLIO, with a sleep as compute time. Prints the accelerator utilisation (AU),
/// throughput, CPU time and the wait for data; with --local also for readers of the same bytes in
/// local files, which alternate with the targets on the same batches. Results are not comparable
/// with those of other benchmarks.
///
/// Page cache: before a turn the local files are read (warm) or dropped from the page cache (cold),
/// and their residency is measured. If a target on this machine exports the same files, it shares
/// these pages: with --target-pid this is detected, and the target's turns are prepared in the same
/// way. Without it, the state of a target's cache is unknown.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchLoader {
    /// `nvmf://host[:port]/<nqn>[/<name or nsid:N>]`; in the order of the index
    #[arg(required = true, value_name = "SHARD")]
    shards: Vec<ShardArg>,
    /// Training job whose sizes of samples, batch size and computing time are used
    #[arg(long, value_enum, value_name = "NAME")]
    workload: Option<LoaderWorkload>,
    /// Divide the bytes of each of the workload's samples by this
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    scale: u32,
    /// Samples are those of this index, as `feedrail index` writes it
    #[arg(long, value_name = "FILE", conflicts_with = "sample_size")]
    index: Option<PathBuf>,
    /// Sample size in bytes [default: the workload's]
    #[arg(long, value_name = "BYTES")]
    sample_size: Option<ByteSize>,
    /// Samples per batch and rank [default: the workload's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    batch_size: Option<u32>,
    /// Use only the first samples (of dlrm: row groups) [default: all that fit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    samples: Option<u64>,
    /// Compute time per batch in milliseconds, simulated by a sleep [default: the workload's, else
    /// 0]
    #[arg(long, value_name = "MS", value_parser = milliseconds)]
    compute_time: Option<Duration>,
    /// Number of batches to prefetch
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(0..=1024))]
    prefetch: u16,
    /// Number of ranks: loops in this process, each with its own batches
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    ranks: u16,
    /// Steps of a turn; the first is a warm-up
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(2..))]
    steps: u32,
    /// Turns of each reader
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Local copy of a shard, one for each shard: compared with the first batch of each turn, and
    /// read by the baselines
    #[arg(long, value_name = "FILE")]
    local: Vec<PathBuf>,
    /// Local readers to measure
    #[arg(long, value_enum, value_delimiter = ',', requires = "local",
        default_values_t = [LocalMethod::Pread, LocalMethod::Mmap, LocalMethod::IoUring])]
    baselines: Vec<LocalMethod>,
    /// Page cache states in which the local readers are measured
    #[arg(long, value_enum, value_delimiter = ',', requires = "local",
        default_values_t = [CacheState::Warm, CacheState::Cold, CacheState::Direct])]
    caches: Vec<CacheState>,
    /// Threads per rank of the pread and mmap baselines
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1024))]
    read_threads: u16,
    /// Compare all batches with the local files, which lowers the throughput
    #[arg(long, requires = "local")]
    verify: bool,
    /// PID of the target, if it runs on this machine, to measure its CPU time
    #[arg(long, value_name = "PID")]
    target_pid: Option<u32>,
    /// Seed of the order [default: a new one each time, printed]
    #[arg(long, value_name = "N")]
    randseed: Option<u64>,
    #[command(flatten)]
    connection: Local,
    #[command(flatten)]
    output: Output,
}

/// Data and parameters that all turns share.
struct LoaderBench {
    sources: Sources,
    set: LimitedSet,
    shape: LoaderShape,
    seed: u64,
    connect: Duration,
}

impl BenchLoader {
    pub(crate) fn run(&self) -> Result<()> {
        let interrupt = Interrupt::install()?;
        let shape = self.shape()?;
        let mut subsystems = Subsystems::default();
        let start = now();
        let shards = shards::list(&self.shards, &mut subsystems, &self.connection)?;
        let connect = start.elapsed();
        let bench = self.open(shape, &shards, &subsystems, connect)?;
        let mut contestants = self.contestants(&bench.sources);
        let ended = self.contest(&bench, &mut contestants, &interrupt);
        // Turns that ended before an error or Ctrl-C are shown.
        self.print(&bench, &contestants)?;
        interrupt.check()?;
        ended
    }

    /// Returns the shape of the loop: that of `--workload`, with the values that other options
    /// override.
    fn shape(&self) -> Result<LoaderShape> {
        let named = self.workload.map(LoaderWorkload::shape);
        let layout = named.map(|shape| shape.layout.scaled_down(self.scale));
        ensure!(
            self.index.is_none() || layout != Some(SampleLayout::RowGroups),
            "the samples of --workload dlrm are not those of an index"
        );
        let sizes = self.sample_size.map(|size| SampleLayout::Packed(SampleSizes::equal(size.0)));
        // Placeholder: samples of an index have lengths of their own.
        let indexed = self.index.as_ref().map(|_| SampleLayout::Packed(SampleSizes::equal(1)));
        let layout = indexed.or(sizes).or(layout);
        Ok(LoaderShape {
            layout: layout.context("give --workload, --index or --sample-size")?,
            batch_samples: self
                .batch_size
                .or(named.map(|shape| shape.batch_samples))
                .context("give --workload or --batch-size")?,
            compute: self
                .compute_time
                .or(named.map(|shape| shape.compute))
                .unwrap_or(Duration::ZERO),
        })
    }

    fn open(
        &self,
        shape: LoaderShape,
        shards: &[ListedShard],
        subsystems: &Subsystems,
        connect: Duration,
    ) -> Result<LoaderBench> {
        let shard_bytes: Vec<u64> = shards.iter().map(|shard| shard.bytes).collect();
        let seed = self.randseed.unwrap_or_else(fresh_seed);
        let set = match &self.index {
            None => SampleSet::laid_out(shape.layout, &shard_bytes, seed)?,
            Some(path) => {
                let about = || path.display().to_string();
                let file = fs::read(path).with_context(about)?;
                let found: Vec<_> = shards.iter().map(ListedShard::described).collect();
                SampleSet::indexed(file, &found).with_context(about)?
            }
        };
        let files = (!self.local.is_empty()).then(|| LocalFiles::new(&self.local, &shard_bytes));
        let sources = Sources {
            remote: remote_shards(shards, subsystems)?,
            local: files.transpose()?,
            target: self.target_pid.map(LocalTarget::new).transpose()?,
            read_threads: self.read_threads.into(),
        };
        Ok(LoaderBench { sources, set: set.truncated(self.samples), shape, seed, connect })
    }

    fn contestants(&self, sources: &Sources) -> Vec<Contestant> {
        let ways = sources.ways(&self.baselines, &self.caches);
        ways.into_iter().map(Contestant::new).collect()
    }

    /// Runs all turns. In each round all ways read the same batches, in an order of their own for
    /// that round.
    fn contest(
        &self,
        bench: &LoaderBench,
        contestants: &mut [Contestant],
        interrupt: &Interrupt,
    ) -> Result<()> {
        let verifier = bench.sources.local.as_ref().map(|files| Verifier::new(files, self.verify));
        let verifier = verifier.transpose()?;
        let settings = LoopSettings {
            compute: bench.shape.compute,
            prefetch: self.prefetch.into(),
            verifier: verifier.as_ref(),
            interrupt,
        };
        let mut progress = None;
        for round in 0..self.rounds {
            let schedule = self.schedule(bench, round)?;
            let turns = contestants.len() as u64 * u64::from(self.rounds);
            let progress = progress.get_or_insert_with(|| {
                Progress::transfer(Some(schedule.total_bytes().saturating_mul(turns)))
            });
            for contestant in contestants.iter_mut() {
                contestant.take_turn(&bench.sources, &schedule, settings, progress)?;
            }
        }
        Ok(())
    }

    fn schedule(&self, bench: &LoaderBench, round: u32) -> Result<Schedule> {
        let seed = bench.seed.wrapping_add(round.into());
        Schedule::new(&bench.set, &bench.shape, self.ranks, self.steps, seed)
    }

    fn print(&self, bench: &LoaderBench, contestants: &[Contestant]) -> Result<()> {
        let report = LoaderReport {
            contestants,
            compute: bench.shape.compute,
            batch_samples: bench.shape.batch_samples,
            parameters: self.parameters(bench),
            title: self.title(bench),
        };
        output::print(&match self.output.output_format {
            Format::Json => output::json(&report.to_json()),
            Format::Normal => report.to_text(),
        })
    }

    /// Returns the workload's name, followed by `/N` if `--scale N` divides its samples.
    fn name(&self) -> String {
        match (self.workload, self.scale) {
            (None, _) => "samples".to_owned(),
            (Some(workload), 1) => workload.name(),
            (Some(workload), scale) => format!("{}/{scale}", workload.name()),
        }
    }

    fn title(&self, bench: &LoaderBench) -> String {
        format!(
            "{}: batches of {} samples, computing {:.3} ms (slept), prefetch {}, ranks {}, steps \
             {}, rounds {}, read threads {}, randseed {}\nprovider: {}",
            self.name(),
            bench.shape.batch_samples,
            bench.shape.compute.as_secs_f64() * 1e3,
            self.prefetch,
            self.ranks,
            self.steps,
            self.rounds,
            self.read_threads,
            bench.seed,
            bench.sources.remote.host.providers().join("; "),
        )
    }

    fn parameters(&self, bench: &LoaderBench) -> Value {
        let RemoteShards { host, shards, .. } = &bench.sources.remote;
        let HostCounters { direct_bytes, bounced_bytes, retries, reconnects, .. } = host.counters();
        json!({
            "workload": self.name(),
            "batch_size": bench.shape.batch_samples,
            "compute_ms": bench.shape.compute.as_secs_f64() * 1e3,
            "prefetch": self.prefetch,
            "ranks": self.ranks,
            "steps": self.steps,
            "rounds": self.rounds,
            "read_threads": self.read_threads,
            "randseed": bench.seed,
            "units": bench.set.units(),
            "samples_per_unit": bench.shape.layout.samples_per_unit(),
            "shards": shards.len(),
            "provider": host.providers().join("; "),
            "connect_seconds": bench.connect.as_secs_f64(),
            "direct_bytes": direct_bytes,
            "bounced_bytes": bounced_bytes,
            "retries": retries,
            "reconnects": reconnects,
            "version": env!("CARGO_PKG_VERSION"),
            "kernel": rustix::system::uname().release().to_string_lossy(),
        })
    }
}

/// Returns the shards at their targets. A shard that is a local file is an error.
fn remote_shards(shards: &[ListedShard], subsystems: &Subsystems) -> Result<RemoteShards> {
    let (mut namespaces, mut names) = (Vec::<Namespace>::new(), Vec::new());
    for shard in shards {
        let ShardLocation::Namespace { namespace, subsystem } = &shard.place else {
            bail!("{} is a file: name a target, and the file with --local", shard.name);
        };
        namespaces.push(namespace.clone());
        names.push(format!("{}/{}/{}", subsystem.target, subsystem.nqn, shard.name));
    }
    let host = subsystems.host().context("no target")?.clone();
    Ok(RemoteShards { host, shards: Shards::new(namespaces)?, names: names.into() })
}

/// Parses a time in milliseconds, which may have decimals.
fn milliseconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().map(|milliseconds| milliseconds / 1e3);
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.ok_or_else(|| "expected milliseconds, such as 20 or 0.375".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        bench_loader: BenchLoader,
    }

    fn parse(options: &[&str]) -> Result<LoaderShape> {
        let words = ["bench-loader", "nvmf://192.0.2.1/nqn.2026-01.org.example:a"];
        let line = Line::try_parse_from(words.iter().chain(options))?;
        line.bench_loader.shape()
    }

    #[test]
    fn options_replace_parts_of_a_workload() {
        let shape = parse(&["--workload", "resnet50", "--batch-size", "64"]).unwrap();
        assert_eq!((shape.batch_samples, shape.compute.as_millis()), (64, 224));
        assert_eq!(shape.layout, SampleLayout::Packed(SampleSizes::equal(114_660)));
        let shape = parse(&["--workload", "unet3d", "--scale", "16", "--compute-time", "0.5"]);
        let shape = shape.unwrap();
        assert_eq!(shape.compute, Duration::from_micros(500));
        assert_eq!(shape.layout, SampleLayout::Packed(SampleSizes::UNET3D.scaled_down(16)));
        let shape = parse(&["--sample-size", "4K", "--batch-size", "2"]).unwrap();
        assert_eq!((shape.batch_samples, shape.compute), (2, Duration::ZERO));
    }

    #[test]
    fn what_is_missing_or_does_not_fit_is_said() {
        for (options, part) in [
            (&["--batch-size", "2"][..], "--sample-size"),
            (&["--sample-size", "2"], "--batch-size"),
            (&["--workload", "dlrm", "--index", "i"], "dlrm"),
            (&["--sample-size", "2", "--index", "i"], "cannot be used with"),
            (&["--workload", "resnet50", "--steps", "1"], "2.."),
            (&["--workload", "resnet50", "--verify"], "--local"),
            (&["--workload", "resnet50", "--compute-time=-1"], "expected milliseconds"),
        ] {
            let error = parse(options).unwrap_err().to_string();
            assert!(error.contains(part), "{options:?}: {error}");
        }
    }

    #[test]
    fn times_have_decimals() {
        assert_eq!(milliseconds("0.375"), Ok(Duration::from_micros(375)));
        for text in ["", "-1", "nan", "inf", "1e300", "1 ms"] {
            assert!(milliseconds(text).is_err(), "{text}");
        }
    }
}
