//! Measures the work of a data loader: batches from a file that is not in the page cache, small
//! reads during large ones, and the cancellation of plans.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use feedrail_initiator::{
    Class, Entry, Grant, Host, Namespace, Nsid, Region, Shards, Submit, SubsystemAddress, Ticket,
};
use feedrail_tests::process::{binary, host};
use rustix::time::{ClockId, clock_gettime};
use serde_json::Value;

use crate::clock::now;
use crate::cores::{HOST_CORE, pin};
use crate::figures::{Figures, Spread};
use crate::load::MediumKind;
use crate::served::Served;

/// Number of ranges in the plan that is cancelled.
const CANCELLED_RANGES: u64 = 1_000_000;
const CANCELLED_BYTES: u32 = 64;

/// A batch of 400 MiB, like reads of a checkpoint, in ranges at 64 places of the 256 MiB in-memory
/// namespace.
const BATCH_RANGES: u64 = 100;
const BATCH_RANGE_BYTES: u32 = 4 << 20;
const BATCH_PLACES: u64 = 64;
const SMALL_BYTES: u32 = 4 << 10;

/// Timeout that no read of these measurements reaches.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// Adds the figures of one run.
pub(crate) fn measure(
    served: &Served,
    file: &Path,
    steps: u32,
    figures: &mut Figures,
) -> Result<()> {
    let target = served.target();
    let plans = thread::spawn(move || {
        // The host's own thread runs on the core of the thread that creates it.
        pin(HOST_CORE);
        PlanFigures::measure(target)
    });
    plans.join().expect("a measurement does not panic")?.add_to(figures);
    cold_file(served, file, steps, figures)
}

/// Figures of plans that one host reads.
struct PlanFigures {
    cancel_cpu_seconds: f64,
    /// CPU seconds to cancel a plan whose shards have two replicas.
    cancel_replicated_cpu_seconds: f64,
    submit_cpu_seconds: f64,
    /// Milliseconds of each small read: without a batch, and during a batch of each class.
    alone: Vec<f64>,
    beside: Vec<(Class, Vec<f64>)>,
}

impl PlanFigures {
    fn measure(target: SubsystemAddress) -> Result<Self> {
        let host = host().build()?;
        let open = || -> Result<Namespace> {
            let controller = host.connect(target).wait()?;
            Ok(controller.namespace(Nsid(MediumKind::Memory.nsid())).wait()?)
        };
        let replicas: [Namespace; 2] = [open()?, open()?];
        let (replicated, unlike) = Shards::replicated([replicas.to_vec()])?;
        ensure!(unlike.is_empty(), "one namespace has two sizes or UUIDs: {unlike:?}");
        let plans = |shards| Plans { host: host.clone(), shards };
        let (cancel_replicated_cpu_seconds, _) = plans(replicated).cancel()?;
        let [namespace, _] = replicas;
        let plans = plans(Shards::new([namespace])?);
        let (cancel_cpu_seconds, submit_cpu_seconds) = plans.cancel()?;
        let alone = plans.small_reads_alone()?;
        let classes = [Class::Foreground, Class::Background];
        let beside = |class| Ok((class, plans.small_reads_beside(class)?));
        Ok(Self {
            cancel_cpu_seconds,
            cancel_replicated_cpu_seconds,
            submit_cpu_seconds,
            alone,
            beside: classes.into_iter().map(beside).collect::<Result<_>>()?,
        })
    }

    fn add_to(&self, figures: &mut Figures) {
        figures.add("loader/cancel-1000000/cpu_seconds", self.cancel_cpu_seconds);
        figures.add("loader/cancel-1000000/submit_cpu_seconds", self.submit_cpu_seconds);
        let replicated = self.cancel_replicated_cpu_seconds;
        figures.add("loader/cancel-1000000-replicated/cpu_seconds", replicated);
        add_times("small-read-alone", &self.alone, figures);
        for (class, times) in &self.beside {
            let class = if *class == Class::Background { "background" } else { "foreground" };
            add_times(&format!("small-read-beside-400-mib-{class}"), times, figures);
        }
    }
}

fn add_times(name: &str, milliseconds: &[f64], figures: &mut Figures) {
    if let Some(Spread { median, max, .. }) = Spread::of(milliseconds) {
        figures.add(format!("loader/{name}/p50_ms"), median);
        figures.add(format!("loader/{name}/max_ms"), max);
    }
}

/// Host with one connection, and the shards that its plans read.
struct Plans {
    host: Host,
    shards: Shards,
}

impl Plans {
    fn submit(&self, plan: &[Entry], region: &Region, class: Class) -> Result<Ticket> {
        let options = Submit { class, deadline: Some(READ_TIMEOUT) };
        Ok(self.host.submit(&self.shards, plan, region, options)?)
    }

    /// Submits a plan and cancels it immediately. Returns CPU seconds of this process: from the
    /// cancellation until all ranges have ended, and those of the submission.
    fn cancel(&self) -> Result<(f64, f64)> {
        let entry = |number| {
            let at = number * u64::from(CANCELLED_BYTES);
            Entry { shard: 0, length: CANCELLED_BYTES, offset: at, dst: at }
        };
        let plan: Vec<Entry> = (0..CANCELLED_RANGES).map(entry).collect();
        let bytes = plan.len() * CANCELLED_BYTES as usize;
        let region = Region::allocate(bytes, Grant::Persistent)?;
        let begin = process_cpu_seconds();
        let ticket = self.submit(&plan, &region, Class::Foreground)?;
        let submitted = process_cpu_seconds();
        ticket.cancel();
        let ended = ticket.wait(plan.len(), Some(READ_TIMEOUT));
        let after = process_cpu_seconds();
        ensure!(ended.is_done(), "a plan that was cancelled did not end: {ended:?}");
        ensure!(ended.failed > plan.len() / 2, "most ranges were read before: {ended:?}");
        Ok((after - submitted, submitted - begin))
    }

    fn small_reads_alone(&self) -> Result<Vec<f64>> {
        let region = Region::allocate(SMALL_BYTES as usize, Grant::Persistent)?;
        (0..1000).map(|number| self.small_read(number, &region)).collect()
    }

    /// Returns the milliseconds of reads of 4 KiB, one after the other while a batch is read.
    fn small_reads_beside(&self, class: Class) -> Result<Vec<f64>> {
        let small = Region::allocate(SMALL_BYTES as usize, Grant::Persistent)?;
        let length = BATCH_RANGE_BYTES;
        let bytes = BATCH_RANGES * u64::from(length);
        let large = Region::allocate(usize::try_from(bytes)?, Grant::Persistent)?;
        let entry = |number| {
            let offset = number % BATCH_PLACES * u64::from(length);
            Entry { shard: 0, length, offset, dst: number * u64::from(length) }
        };
        let plan: Vec<Entry> = (0..BATCH_RANGES).map(entry).collect();
        let batch = self.submit(&plan, &large, class)?;
        let mut times = Vec::new();
        while !batch.is_done() {
            times.push(self.small_read(times.len() as u64, &small)?);
        }
        ensure!(batch.progress().failed == 0, "a range of the batch failed");
        ensure!(!times.is_empty(), "the batch was there before a small read");
        Ok(times)
    }

    /// Returns the milliseconds of one small read.
    fn small_read(&self, number: u64, region: &Region) -> Result<f64> {
        let offset = number % 1000 * u64::from(SMALL_BYTES);
        let plan = [Entry { shard: 0, length: SMALL_BYTES, offset, dst: 0 }];
        let began = now();
        let ticket = self.submit(&plan, region, Class::Foreground)?;
        let ended = ticket.wait(1, Some(READ_TIMEOUT));
        ensure!(ended.is_done() && ended.failed == 0, "a small read failed: {:?}", ticket.error(0));
        Ok(began.elapsed().as_secs_f64() * 1e3)
    }
}

fn process_cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Measures batches of 64 samples of 128 KiB from the exported file, which is dropped from the page
/// cache before, and the same reads by 16 threads with O_DIRECT.
fn cold_file(served: &Served, file: &Path, steps: u32, figures: &mut Figures) -> Result<()> {
    let target = served.target();
    let nsid = MediumKind::File.nsid();
    let output = Command::new(binary("feedrail"))
        .arg("bench-loader")
        .arg(format!("nvmf://{}/{}/nsid:{nsid}", target.address, target.nqn))
        .arg("--local")
        .arg(file)
        .args(["--sample-size", "128K", "--batch-size", "64", "--prefetch", "2", "--rounds", "1"])
        .args(["--baselines", "pread", "--caches", "cold,direct", "--read-threads", "16"])
        .args(["--steps", &steps.to_string(), "--target-pid", &served.id().to_string()])
        .args(["--provider", "soft", "-o", "json"])
        .output()
        .context("cannot run feedrail bench-loader")?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "feedrail bench-loader failed: {}", complaint.trim());
    let report: Value = serde_json::from_slice(&output.stdout)?;
    let ours = reader(&report, "feedrail", "cold")?;
    let pread = reader(&report, "pread", "direct")?;
    if let Some(reason) = pread["unavailable"].as_str() {
        eprintln!("  loader: no reads with O_DIRECT here: {reason}");
        return Ok(());
    }
    let client = number(ours, "client_cpu_seconds_per_gb")?;
    let both = client + number(ours, "target_cpu_seconds_per_gb")?;
    let theirs = number(pread, "client_cpu_seconds_per_gb")?;
    let rates = [ours, pread].map(|one| number(one, "mb_per_second"));
    let [rate, their_rate] = rates;
    let mut add = |name: &str, value| figures.add(format!("loader/cold-file/{name}"), value);
    add("mb_per_second", rate?);
    add("direct_pread_mb_per_second", their_rate?);
    add("client_cpu_seconds_per_gb", client);
    add("cpu_seconds_per_gb", both);
    add("direct_pread_cpu_seconds_per_gb", theirs);
    Ok(())
}

fn reader<'a>(report: &'a Value, reader: &str, cache: &str) -> Result<&'a Value> {
    let mut results = report["results"].as_array().into_iter().flatten();
    let found = results.find(|one| one["reader"] == reader && one["cache"] == cache);
    found.ok_or_else(|| anyhow!("feedrail bench-loader measured no {reader}, {cache}"))
}

fn number(result: &Value, name: &str) -> Result<f64> {
    result[name].as_f64().with_context(|| format!("feedrail bench-loader gave no {name}"))
}
