//! `feedrail perf`: how fast a namespace is, in fio's words.

mod job;
mod measure;
mod workload;

use core::time::Duration;
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::{Value, json};

use self::job::{Job, Limits};
use self::measure::Measure;
use self::workload::Pattern;
use crate::args::{Format, Namespace, Output};
use crate::clock::{cpu_time, now};
use crate::interrupt::Interrupt;
use crate::output;
use crate::random::fresh_seed;
use crate::session::Session;
use crate::size::{ByteSize, human};

const EXAMPLES: &str = "\
Examples:
  feedrail perf -a 192.0.2.10 -n NQN --rw randread --bs 4k --iodepth 32
  feedrail perf -a 192.0.2.10 -n NQN --rw read --bs 128k --iodepth 8 --numjobs 2 -o json";

/// Measures a namespace: IOPS, throughput and a histogram of latencies
///
/// Options are fio's. Each job is a thread with a host and connections of its own. MB/s are 10^6 bytes per second.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Perf {
    #[command(flatten)]
    namespace: Namespace,
    #[command(flatten)]
    output: Output,
    /// Access pattern
    #[arg(long, value_enum, default_value_t = Pattern::Randread)]
    rw: Pattern,
    /// Percentage of reads in a mixed pattern
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u8).range(0..=100))]
    rwmixread: u8,
    /// Bytes of one I/O
    #[arg(long, value_name = "BYTES", default_value = "4K")]
    bs: ByteSize,
    /// I/Os in flight, per job
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    iodepth: u32,
    /// Jobs
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    numjobs: u16,
    /// Connections of each job, over which its I/Os in flight are spread
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    connections: u16,
    /// How long to measure in seconds [default: 10, or until --number-ios are done]
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u32).range(1..))]
    runtime: Option<u32>,
    /// I/Os of each job after which it ends
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    number_ios: Option<u64>,
    /// Use only the first bytes of the namespace [default: all of it]
    #[arg(long, value_name = "BYTES")]
    size: Option<ByteSize>,
    /// Seed of the random offsets [default: a new one each time, printed]
    #[arg(long, value_name = "N")]
    randseed: Option<u64>,
    /// Let a pattern that writes overwrite the namespace's data with zeros
    #[arg(long)]
    allow_writes: bool,
}

/// Everything that a run found out.
struct Report {
    seed: u64,
    provider: String,
    measure: Measure,
    elapsed: Duration,
    /// CPU time of the process while the jobs ran.
    cpu: Duration,
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
        let measure = run_all(jobs, &interrupt)?;
        let (elapsed, cpu) = (start.elapsed(), cpu_time() - cpu_before);
        self.print(&Report { seed, provider, measure, elapsed, cpu })?;
        // What was measured until then is worth showing.
        Ok(interrupt.check()?)
    }

    fn check(&self) -> Result<()> {
        ensure!(self.bs.0 > 0, "--bs must be at least 1 byte");
        if self.rw.writes() && !self.allow_writes {
            bail!(
                "--rw {} destroys data of the namespace; add --allow-writes if that is intended",
                self.rw.name()
            );
        }
        Ok(())
    }

    fn open_job(&self, number: u16, seed: u64) -> Result<Job> {
        let mut session = Session::open(&self.namespace.subsystem)?;
        session.connect_more(self.connections.into())?;
        let workload = |namespace_bytes: u64| {
            let size = self.size.map_or(namespace_bytes, |size| size.0.min(namespace_bytes));
            let (job, jobs) = (u64::from(number), u64::from(self.numjobs));
            workload::Workload::new(self.rw, self.rwmixread, self.bs.0, size, job, jobs, seed)
                .with_context(|| {
                    format!("a block of {} does not fit into {}", human(self.bs.0), human(size))
                })
        };
        let limits = Limits {
            depth: self.iodepth as usize,
            block_bytes: usize::try_from(self.bs.0).context("--bs is too large")?,
            runtime: self.runtime(),
            ios: self.number_ios,
        };
        Job::new(session, self.namespace.namespace_id, limits, workload)
    }

    fn runtime(&self) -> Option<Duration> {
        let default = if self.number_ios.is_none() { Some(10) } else { None };
        self.runtime.or(default).map(|seconds| Duration::from_secs(seconds.into()))
    }

    fn print(&self, report: &Report) -> Result<()> {
        output::print(&match self.output.output_format {
            Format::Json => output::json(&self.to_json(report)),
            Format::Normal => self.to_text(report),
        })
    }

    fn to_json(&self, report: &Report) -> Value {
        json!({
            "rw": self.rw.name(),
            "bs": self.bs.0,
            "iodepth": self.iodepth,
            "numjobs": self.numjobs,
            "connections": self.connections,
            "randseed": report.seed,
            "provider": report.provider,
            "cpu_seconds": report.cpu.as_secs_f64(),
            "results": report.measure.to_json(report.elapsed),
        })
    }

    fn to_text(&self, report: &Report) -> String {
        let text = format!(
            "{}: bs={}, iodepth={}, numjobs={}, runtime={:.2} s, randseed={}\n  provider: {}\n",
            self.rw.name(),
            self.bs.0,
            self.iodepth,
            self.numjobs,
            report.elapsed.as_secs_f64(),
            report.seed,
            report.provider,
        );
        text + &report.measure.to_text(report.elapsed)
    }
}

/// Runs the jobs side by side and adds up what they did.
fn run_all(jobs: Vec<Job>, interrupt: &Interrupt) -> Result<Measure> {
    thread::scope(|scope| {
        let running: Vec<_> =
            jobs.into_iter().map(|job| scope.spawn(move || job.run(interrupt))).collect();
        let mut total = Measure::default();
        let mut failure = None;
        for job in running {
            match job.join().expect("a job does not panic") {
                Ok(measure) => total.add(&measure),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        failure.map_or(Ok(total), Err)
    })
}
