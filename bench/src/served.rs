//! Feedrail under load: a target on one core and `feedrail perf` on another, over the soft provider
//! or in shared memory.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, ensure};
use feedrail_initiator::SubsystemAddress;
use feedrail_tests::process::{
    Bytes, Daemon, DaemonOptions, binary, loopback_address, write_configuration,
};
use serde_json::Value;

use crate::cores::{HOST_CORE, TARGET_CORE, pinned};
use crate::figures::Figures;
use crate::load::{BenchProvider, Load, MediumKind};
use crate::neighbour::Neighbour;
use crate::process::cpu_seconds;

/// Queue entries: more than the deepest load needs.
const QUEUE_ENTRIES: u16 = 512;
/// Bytes of the in-memory namespace, and of the file that fits into the page cache.
pub(crate) const MEMORY_BYTES: u64 = 256 << 20;

/// Running target with a namespace of each medium.
pub(crate) struct Served {
    daemon: Daemon,
    provider: BenchProvider,
}

impl Served {
    /// Starts the target; the file must exist. Its configuration, and a second file that fits into
    /// the page cache, are created in `folder`.
    pub(crate) fn start(folder: &Path, file: &Path, provider: BenchProvider) -> Result<Self> {
        let bytes = file.metadata().context("the file to serve")?.len();
        let hot = folder.join("hot.bin");
        if !hot.exists() {
            write_file(&hot, MEMORY_BYTES)?;
        }
        let options = options(folder, &configuration(file, bytes, &hot, provider));
        let daemon = options.try_start();
        let daemon =
            daemon.map_err(|ended| anyhow!("the target did not start: {}", ended.stderr))?;
        let served = Self { daemon, provider };
        served.fill_memory()?;
        Ok(served)
    }

    /// Writes the whole in-memory namespace, since reads of unwritten memory would cost nothing.
    fn fill_memory(&self) -> Result<()> {
        let load = Load::new("write", 1 << 20, 8);
        let mut seconds = 0;
        let mut written = 0.0;
        while written < MEMORY_BYTES as f64 {
            seconds += 1;
            let report = self.perf(MediumKind::Memory, &load, seconds)?;
            written = report["results"]["write"]["io_bytes"].as_f64().unwrap_or(0.0);
            ensure!(seconds < 10, "the namespace in memory takes more than 10 s to be written");
        }
        Ok(())
    }

    /// Address and NQN of the target's subsystem.
    pub(crate) fn target(&self) -> SubsystemAddress {
        self.daemon.target()
    }

    /// Process id of the target.
    pub(crate) fn id(&self) -> u32 {
        self.daemon.id()
    }

    /// Runs a load and adds its figures: rates, latency, and CPU time of each side.
    pub(crate) fn measure(
        &self,
        backend: MediumKind,
        load: &Load,
        seconds: u32,
        figures: &mut Figures,
    ) -> Result<()> {
        let (counted, cpu) = (self.daemon.stats(), cpu_seconds(self.daemon.id()));
        let neighbour = load.beside.map(|side| Neighbour::on(side.core()));
        let report = self.perf(backend, load, seconds)?;
        drop(neighbour);
        let cpu = cpu_seconds(self.daemon.id()) - cpu;
        let grown = Growth { before: counted, after: self.daemon.stats() };
        let name = format!("{}/{}/{}", self.provider.section(), backend.name(), load.name());
        LoadOutcome { report: &report, grown: &grown, target_cpu_seconds: cpu }
            .add_to(&name, figures)
    }

    /// Measures the file that fits into the page cache, after reading it once.
    pub(crate) fn measure_hot(&self, seconds: u32, figures: &mut Figures) -> Result<()> {
        let load = Load::new("read", 1 << 20, 8);
        self.perf(MediumKind::HotFile, &load, 1)?;
        self.measure(MediumKind::HotFile, &Load::HOT, seconds, figures)
    }

    fn perf(&self, backend: MediumKind, load: &Load, seconds: u32) -> Result<Value> {
        let [program, arguments @ ..] = pinned(HOST_CORE);
        let mut command = Command::new(program);
        command.args(arguments).arg(binary("feedrail")).args([
            "perf",
            "-o",
            "json",
            "--allow-writes",
        ]);
        command.args(self.daemon.options()).args(["--provider", self.provider.name()]);
        let option = |name: &str, value: u32| [format!("--{name}"), value.to_string()];
        command.args(["--rw", load.pattern]).args(option("bs", load.block_bytes));
        command.args(option("iodepth", load.depth)).args(option("runtime", seconds));
        command.args(option("namespace-id", backend.nsid()));
        command.args(option("connections", load.connections.into()));
        command.args(option("nr-io-queues", load.queues.into()));
        command.args(option("numjobs", load.threads.into()));
        let entries = u32::from(QUEUE_ENTRIES / load.connections.min(64)).max(8);
        command.args(option("queue-size", entries));
        let output = command.output().context("cannot run taskset, of util-linux")?;
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "feedrail perf failed: {}", complaint.trim());
        serde_json::from_slice(&output.stdout).context("feedrail perf printed no JSON")
    }
}

/// Creates a file without holes, since reads of holes would cost nothing.
pub(crate) fn write_file(path: &Path, bytes: u64) -> Result<()> {
    const BLOCK_BYTES: usize = 1 << 20;
    let mut file = File::create(path).with_context(|| path.display().to_string())?;
    for seed in 0..bytes / BLOCK_BYTES as u64 {
        file.write_all(&Bytes::new(seed).take(BLOCK_BYTES))?;
    }
    Ok(file.sync_all()?)
}

/// Options to start a target, pinned to its core, with a configuration.
fn options(folder: &Path, configuration: &str) -> DaemonOptions {
    let path: PathBuf = write_configuration(folder, configuration);
    DaemonOptions::default().wrapped_by(pinned(TARGET_CORE)).arg("--config").arg(path)
}

fn configuration(file: &Path, bytes: u64, hot: &Path, provider: BenchProvider) -> String {
    format!(
        r#"
        provider = "{provider}"
        cores = [{TARGET_CORE}]

        [limits]
        queue_depth = {QUEUE_ENTRIES}

        [[port]]
        address = "{address}:4420"

        [[subsystem]]
        nqn = "nqn.2026-01.org.example:bench"
        allow_any_host = true

        [[subsystem.namespace]]
        nsid = {null}
        kind = "null"
        size_bytes = {bytes}

        [[subsystem.namespace]]
        nsid = {memory}
        kind = "memory"
        size_bytes = {MEMORY_BYTES}

        [[subsystem.namespace]]
        nsid = {own}
        path = "{file}"
        read_only = false

        [[subsystem.namespace]]
        nsid = {in_memory}
        path = "{hot}"
        "#,
        provider = provider.name(),
        address = loopback_address(),
        null = MediumKind::Null.nsid(),
        memory = MediumKind::Memory.nsid(),
        own = MediumKind::File.nsid(),
        in_memory = MediumKind::HotFile.nsid(),
        file = file.display(),
        hot = hot.display(),
    )
}

/// Counters of the target before and after a load.
struct Growth {
    before: Value,
    after: Value,
}

impl Growth {
    fn of(&self, path: &str) -> f64 {
        let at = |counters: &Value| counters.pointer(path).and_then(Value::as_f64).unwrap_or(0.0);
        at(&self.after) - at(&self.before)
    }

    /// Sum of the increases of all counters in a group.
    fn of_all(&self, path: &str) -> f64 {
        let members = self.after.pointer(path).and_then(Value::as_object);
        members.into_iter().flatten().map(|(name, _)| self.of(&format!("{path}/{name}"))).sum()
    }
}

/// Report of `feedrail perf`, and what the target counted and used during the load.
struct LoadOutcome<'a> {
    report: &'a Value,
    grown: &'a Growth,
    target_cpu_seconds: f64,
}

impl LoadOutcome<'_> {
    fn add_to(&self, name: &str, figures: &mut Figures) -> Result<()> {
        let (ios, bytes) = (self.sum("total_ios")?, self.sum("io_bytes")?);
        ensure!(ios > 0.0, "{name}: not one I/O was done");
        figures.add(format!("{name}/iops"), self.sum("iops")?);
        figures.add(format!("{name}/bytes_per_second"), self.sum("bytes_per_second")?);
        for (percentile, short) in [("50.0", "p50_us"), ("99.0", "p99_us"), ("99.9", "p999_us")] {
            figures.add(format!("{name}/{short}"), self.latency_us(percentile)?);
        }
        let host_cpu = self.number("/cpu_seconds")?;
        for (side, seconds) in [("target", self.target_cpu_seconds), ("host", host_cpu)] {
            figures.add(format!("{name}/{side}_cpu_seconds_per_million_ios"), seconds / ios * 1e6);
            figures.add(format!("{name}/{side}_cpu_seconds_per_gb"), seconds / bytes * 1e9);
        }
        let calls = self.grown.of_all("/system_calls");
        figures.add(format!("{name}/target_system_calls_per_io"), calls / ios);
        let calls = self.number("/results/wire/system_calls")?;
        figures.add(format!("{name}/host_system_calls_per_io"), calls / ios);
        let packets =
            self.grown.of("/network/packets_sent") + self.number("/results/wire/packets_sent")?;
        figures.add(format!("{name}/packets_per_io"), packets / ios);
        let again = self.grown.of("/network/packets_retransmitted")
            + self.number("/results/wire/packets_retransmitted")?;
        figures.add(format!("{name}/packets_sent_again_per_million"), again / packets * 1e6);
        // Copies besides the one with which the soft provider replaces the DMA of a NIC.
        let copied =
            self.number("/results/bounced_bytes")? / bytes + self.grown.of("/io/bounced") / ios;
        figures.add(format!("{name}/copies_per_byte"), copied);
        Ok(())
    }

    /// Sum of a member of the report over reads and writes.
    fn sum(&self, member: &str) -> Result<f64> {
        let side = |side: &str| self.number(&format!("/results/{side}/{member}"));
        Ok(side("read")? + side("write")?)
    }

    /// Percentile of the latency in microseconds, of reads or of writes, whichever the load does.
    fn latency_us(&self, percentile: &str) -> Result<f64> {
        let side =
            |side: &str| self.report["results"][side]["lat_ns"]["percentile"][percentile].as_f64();
        let both = side("read").zip(side("write"));
        let (read, write) =
            both.with_context(|| format!("perf gave no percentile {percentile}"))?;
        Ok(read.max(write) / 1e3)
    }

    fn number(&self, path: &str) -> Result<f64> {
        let value = self.report.pointer(path).and_then(Value::as_f64);
        value.with_context(|| format!("perf gave no {path}"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn counters_grow() {
        let counters = |send: u32| json!({"system_calls": {"send": send, "receive": 2 * send}});
        let growth = Growth { before: counters(10), after: counters(15) };
        assert_eq!(growth.of("/system_calls/send"), 5.0);
        assert_eq!(growth.of_all("/system_calls"), 15.0);
        assert_eq!(growth.of("/no/such"), 0.0);
    }
}
