//! `feedrail perf`: measures the performance of a namespace, in fio's terms.

mod job;
mod local;
mod measure;
mod read_plans;
mod training;
mod workload;

use core::time::Duration;
use std::fs::File;
use std::mem;
use std::path::PathBuf;
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use feedrail_initiator::ReplicaPolicy;
use serde_json::{Value, json};

use self::job::{IoIterator, JobLimits, PerfJob};
use self::local::{AccessMethod, Baseline, Until};
use self::measure::Measure;
use self::training::Training;
use self::workload::Pattern;
use crate::clock::{cpu_time, now};
use crate::command_trace::PerfettoTrace;
use crate::interrupt::Interrupt;
use crate::options::{Format, NamespaceArgs, Output};
use crate::output;
use crate::seed::fresh_seed;
use crate::session::Session;
use crate::size::{ByteSize, human};

const EXAMPLES: &str = "\
Examples:
  feedrail perf -a 192.0.2.10 -n NQN --rw randread --bs 4k --iodepth 32
  feedrail perf -a 192.0.2.10 -n NQN --all-paths --path-policy queue-depth --iodepth 32
  feedrail perf -a 192.0.2.10 -n NQN --workload nanogpt-2050 --iodepth 64 --baseline train.bin
  feedrail perf -a 192.0.2.10 -n NQN --rw read --bs 128k --iodepth 8 --numjobs 2 -o json";

/// Measures a namespace: IOPS, throughput and a histogram of latencies
///
/// Options are fio's. Each job is a thread with its own host and connections. Reads with a queue
/// depth above 1 over one connection, or over all paths, are submitted in batches of up to 16, as
/// data loaders do; over several connections, and in patterns that write, each I/O is submitted by
/// itself. MB/s are 10^6 bytes per second.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Perf {
    #[command(flatten)]
    namespace: NamespaceArgs,
    #[command(flatten)]
    output: Output,
    /// Access pattern, named as in fio
    #[arg(long, value_enum, default_value_t = Pattern::Randread)]
    rw: Pattern,
    /// Percentage of reads in a mixed pattern
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u8).range(0..=100))]
    rwmixread: u8,
    /// Size of one I/O in bytes
    #[arg(long, value_name = "BYTES", default_value = "4K")]
    bs: ByteSize,
    /// Read what a training job reads, instead of a pattern of blocks
    #[arg(long, value_enum, value_name = "NAME", conflicts_with_all = ["rw", "rwmixread", "bs"])]
    workload: Option<Training>,
    /// Compare all data read with this file, which lowers the throughput
    #[arg(long, value_name = "FILE")]
    verify: Option<PathBuf>,
    /// Afterwards read this local file in the same pattern, with pread and with mmap, by one thread
    /// for each I/O in flight
    #[arg(long, value_name = "FILE")]
    baseline: Option<PathBuf>,
    /// Number of I/Os in flight per job
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    iodepth: u32,
    /// Number of concurrent jobs
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    numjobs: u16,
    /// Number of connections per job, over which its I/Os are spread
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    connections: u16,
    /// Use multipath: all ports of the subsystem in the discovery log page of the address and its
    /// referrals, by their ANA states
    #[arg(long, conflicts_with = "connections")]
    all_paths: bool,
    /// Path selection policy, among the paths with the best ANA state
    #[arg(long, value_enum, value_name = "NAME", requires = "all_paths", default_value_t = PathPolicy::RoundRobin)]
    path_policy: PathPolicy,
    /// Duration in seconds [default: 10, or until --number-ios have completed]
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..))]
    runtime: Option<u32>,
    /// Number of I/Os after which each job ends
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    number_ios: Option<u64>,
    /// Use only the first bytes of the namespace [default: all of it]
    #[arg(long, value_name = "BYTES")]
    size: Option<ByteSize>,
    /// Seed of the random offsets [default: a new one each time, printed]
    #[arg(long, value_name = "N")]
    randseed: Option<u64>,
    /// Write the times at which each command was queued, sent and completed to this file, for
    /// Perfetto (ui.perfetto.dev); the first 10,000 commands of each job. See target trace and
    /// merge-traces
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Allow patterns that write, which overwrite the namespace with zeros
    #[arg(long)]
    allow_writes: bool,
}

/// Commands recorded for each job, which take 3 MiB.
const TRACED: usize = 10_000;

/// Path policy, named as in Linux.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum PathPolicy {
    /// Round-robin over the paths
    RoundRobin,
    /// Path with the fewest bytes in flight
    QueueDepth,
    /// First path that is usable
    First,
    /// First usable path of those whose network device is nearest to the CPU (NUMA distance)
    Numa,
}

impl PathPolicy {
    fn policy(self) -> ReplicaPolicy {
        match self {
            Self::RoundRobin => ReplicaPolicy::RoundRobin,
            Self::QueueDepth => ReplicaPolicy::QueueDepth,
            Self::First => ReplicaPolicy::First,
            Self::Numa => ReplicaPolicy::Numa,
        }
    }
}

/// Results of a run.
struct PerfReport {
    seed: u64,
    provider: String,
    measure: Measure,
    elapsed: Duration,
    /// CPU time of the process while the jobs ran.
    cpu: Duration,
    baselines: Vec<Baseline>,
}

impl Perf {
    pub(crate) fn run(&self) -> Result<()> {
        self.check()?;
        let interrupt = Interrupt::install()?;
        let seed = self.randseed.unwrap_or_else(fresh_seed);
        let mut jobs = Vec::with_capacity(usize::from(self.numjobs));
        for number in 0..self.numjobs {
            jobs.push(self.open_job(number, seed)?);
        }
        let provider = jobs[0].provider();
        let (start, cpu_before) = (now(), cpu_time());
        let mut measure = run_all(jobs, &interrupt)?;
        if let Some(path) = &self.trace {
            let host = mem::take(&mut measure.trace);
            PerfettoTrace { host, ..PerfettoTrace::default() }.write(path)?;
        }
        let (elapsed, cpu) = (start.elapsed(), cpu_time() - cpu_before);
        let (baselines, failure) = match self.measure_baselines(seed, &interrupt) {
            Ok(baselines) => (baselines, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        // Measurements until the error or the signal are printed.
        self.print(&PerfReport { seed, provider, measure, elapsed, cpu, baselines })?;
        interrupt.check()?;
        failure.map_or(Ok(()), Err)
    }

    fn check(&self) -> Result<()> {
        ensure!(self.bs.0 > 0, "--bs must be at least 1 byte");
        if self.rw.writes() && !self.allow_writes {
            bail!(
                "--rw {} destroys data of the namespace; add --allow-writes if that is intended",
                self.rw.name()
            );
        }
        ensure!(
            self.baseline.is_none() || self.workload.is_some() || !self.rw.writes(),
            "--baseline is for what only reads"
        );
        Ok(())
    }

    fn measure_baselines(&self, seed: u64, interrupt: &Interrupt) -> Result<Vec<Baseline>> {
        let Some(path) = &self.baseline else { return Ok(Vec::new()) };
        let size = path.metadata().with_context(|| path.display().to_string())?.len();
        let size = self.size.map_or(size, |limit| limit.0.min(size));
        let threads = u64::from(self.iodepth) * u64::from(self.numjobs);
        let until = Until {
            runtime: self.runtime(),
            ios: self.number_ios.map(|ios| ios.div_ceil(self.iodepth.into())),
            longest_bytes: usize::try_from(self.longest_bytes())?,
            interrupt,
        };
        let measure = |way: AccessMethod| {
            let workloads = (0..threads).map(|thread| self.workload(size, thread, threads, seed));
            let workloads = workloads.collect::<Option<_>>().context("the file is too short")?;
            way.measure(path, workloads, until)
        };
        AccessMethod::ALL
            .into_iter()
            .take_while(|_| interrupt.check().is_ok())
            .map(measure)
            .collect()
    }

    fn open_job(&self, number: u16, seed: u64) -> Result<PerfJob> {
        let session = match self.all_paths {
            true => Session::open_paths(&self.namespace.subsystem)?,
            false => {
                let mut session = Session::open(&self.namespace.subsystem)?;
                session.connect_more(self.connections.into())?;
                session
            }
        };
        let workload = |namespace_bytes: u64| {
            let size = self.size.map_or(namespace_bytes, |size| size.0.min(namespace_bytes));
            self.workload(size, number.into(), self.numjobs.into(), seed).with_context(|| {
                format!(
                    "a block of {} does not fit into {}",
                    human(self.longest_bytes()),
                    human(size)
                )
            })
        };
        let expected = self.verify.as_ref().map(|path| {
            File::open(path).with_context(|| format!("cannot open {}", path.display()))
        });
        let limits = JobLimits {
            depth: self.iodepth as usize,
            longest_bytes: usize::try_from(self.longest_bytes()).context("--bs is too large")?,
            writes: self.workload.is_none() && self.rw.writes(),
            path_policy: self.path_policy.policy(),
            traced: self.trace.as_ref().map_or(0, |_| TRACED),
            runtime: self.runtime(),
            ios: self.number_ios,
        };
        PerfJob::new(session, self.namespace.namespace_id, limits, expected.transpose()?, workload)
    }

    /// Returns the workload of job `job` of `jobs`; `None` if not one I/O fits.
    fn workload(&self, size: u64, job: u64, jobs: u64, seed: u64) -> Option<IoIterator> {
        if let Some(training) = self.workload {
            return Some(Box::new(training.ranges(size, job, seed)?));
        }
        let Self { rw, rwmixread, bs, .. } = self;
        let blocks = workload::Workload::new(*rw, *rwmixread, bs.0, size, job, jobs, seed)?;
        Some(Box::new(blocks))
    }

    fn longest_bytes(&self) -> u64 {
        self.workload.map_or(self.bs.0, Training::longest_bytes)
    }

    /// Name of the pattern or of the training job.
    fn name(&self) -> String {
        self.workload.map_or_else(|| self.rw.name().to_owned(), Training::name)
    }

    fn runtime(&self) -> Option<Duration> {
        let default = if self.number_ios.is_none() { Some(10) } else { None };
        self.runtime.or(default).map(|seconds| Duration::from_secs(seconds.into()))
    }

    fn print(&self, report: &PerfReport) -> Result<()> {
        output::print(&match self.output.output_format {
            Format::Json => output::json(&self.to_json(report)),
            Format::Normal => self.to_text(report),
        })
    }

    fn to_json(&self, report: &PerfReport) -> Value {
        let baselines = report.baselines.iter().map(|one| (one.name().to_owned(), one.to_json()));
        json!({
            "rw": self.name(),
            "bs": self.longest_bytes(),
            "iodepth": self.iodepth,
            "numjobs": self.numjobs,
            "connections": self.connections,
            "randseed": report.seed,
            "provider": report.provider,
            "cpu_seconds": report.cpu.as_secs_f64(),
            "results": report.measure.to_json(report.elapsed),
            "baselines": baselines.collect::<serde_json::Map<_, _>>(),
        })
    }

    fn to_text(&self, report: &PerfReport) -> String {
        let text = format!(
            "{}: bs={}, iodepth={}, numjobs={}, runtime={:.2} s, randseed={}\n  provider: {}\n",
            self.name(),
            self.longest_bytes(),
            self.iodepth,
            self.numjobs,
            report.elapsed.as_secs_f64(),
            report.seed,
            report.provider,
        );
        let baselines: String = report.baselines.iter().map(Baseline::to_text).collect();
        text + &report.measure.to_text(report.elapsed) + &baselines
    }
}

/// Runs the jobs concurrently and adds up their figures.
fn run_all(jobs: Vec<PerfJob>, interrupt: &Interrupt) -> Result<Measure> {
    thread::scope(|scope| {
        let start = |job: PerfJob| {
            thread::Builder::new()
                .spawn_scoped(scope, move || job.run(interrupt))
                .context("cannot start a thread for each job: lower --numjobs")
        };
        let running: Vec<_> = jobs.into_iter().map(start).collect();
        let mut total = Measure::default();
        let mut failure = None;
        for job in running {
            match job.and_then(|job| job.join().expect("a job does not panic")) {
                Ok(measure) => total.add(&measure),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        failure.map_or(Ok(total), Err)
    })
}
