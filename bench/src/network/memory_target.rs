//! A target in one namespace, and hosts in another.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::path::Path as FilePath;
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, anyhow, ensure};
use feedrail_tests::process::{Daemon, DaemonOptions, binary, write_configuration};
use serde_json::Value;

use super::namespace::NetworkNamespace;
use crate::load::Load;

/// A target that exports memory.
pub(super) struct MemoryTarget {
    daemon: Daemon,
}

/// What a host read or wrote.
pub(super) struct HostOutcome {
    pub(super) bytes_per_second: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    packets_sent: f64,
    packets_sent_again: f64,
}

/// What several hosts read or wrote at the same time.
pub(super) struct HostsOutcome {
    pub(super) hosts: Vec<HostOutcome>,
    /// Of all packets, of both sides, a million times.
    pub(super) sent_again_per_million: f64,
}

impl MemoryTarget {
    pub(super) fn start(folder: &FilePath, place: &NetworkNamespace) -> Result<Self> {
        let address = SocketAddr::new(place.addresses()[0].into(), 4420);
        let configuration = format!(
            r#"
            provider = "soft"

            [[port]]
            address = "{address}"

            [[subsystem]]
            nqn = "nqn.2026-01.org.example:network"
            allow_any_host = true

            [[subsystem.namespace]]
            nsid = 1
            kind = "memory"
            size_bytes = "256MiB"
            "#
        );
        let configuration = write_configuration(folder, &configuration);
        let options = DaemonOptions::default().at(address).arg("--config").arg(configuration);
        let started = place.run(|| Ok(options.try_start()))?;
        let daemon = started.map_err(|end| anyhow!("the target did not start: {}", end.stderr))?;
        Ok(Self { daemon })
    }

    /// Runs a load from each of some of the addresses of a place.
    pub(super) fn measure(
        &self,
        place: &NetworkNamespace,
        hosts: Range<usize>,
        load: &Load,
        seconds: u32,
    ) -> Result<HostsOutcome> {
        let before = self.packets()?;
        let addresses = place.addresses().get(hosts).context("a host without an address")?;
        let run = |&address| self.perf(place, IpAddr::V4(address), load, seconds);
        let hosts: Vec<HostOutcome> = thread::scope(|scope| {
            let running: Vec<_> =
                addresses.iter().map(|address| scope.spawn(move || run(address))).collect();
            let ended = running.into_iter().map(|host| {
                host.join().unwrap_or_else(|_| Err(anyhow!("a thread of the bench panicked")))
            });
            ended.collect::<Result<_>>()
        })?;
        let after = self.packets()?;
        let sum = |count: fn(&HostOutcome) -> f64| hosts.iter().map(count).sum::<f64>();
        let sent = sum(|host| host.packets_sent) + after.0 - before.0;
        let again = sum(|host| host.packets_sent_again) + after.1 - before.1;
        Ok(HostsOutcome { hosts, sent_again_per_million: again / sent * 1e6 })
    }

    fn perf(
        &self,
        place: &NetworkNamespace,
        from: IpAddr,
        load: &Load,
        seconds: u32,
    ) -> Result<HostOutcome> {
        let mut command = Command::new(binary("feedrail"));
        command.args(["perf", "-o", "json", "--allow-writes", "--provider", "soft"]);
        command.args(self.daemon.options()).args(["--host-traddr", &from.to_string()]);
        let option = |name: &str, value: u32| [format!("--{name}"), value.to_string()];
        command.args(["--rw", load.pattern]).args(option("bs", load.block_bytes));
        command.args(option("iodepth", load.depth)).args(option("runtime", seconds));
        let output = place.run(|| command.output().context("cannot run feedrail"))?;
        let complaint = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "feedrail perf failed: {}", complaint.trim());
        let report = serde_json::from_slice(&output.stdout);
        HostOutcome::of(&report.context("feedrail perf printed no JSON")?)
    }

    /// How many packets the target has sent, and how many of them again.
    fn packets(&self) -> Result<(f64, f64)> {
        let counters = self.daemon.stats();
        let count = |name: &str| number(&counters, &format!("/network/{name}"));
        Ok((count("packets_sent")?, count("packets_retransmitted")?))
    }
}

impl HostOutcome {
    fn of(report: &Value) -> Result<Self> {
        let both = |member: &str| -> Result<f64> {
            let side = |side: &str| number(report, &format!("/results/{side}/{member}"));
            Ok(side("read")? + side("write")?)
        };
        // The side that did nothing has no percentiles.
        let percentile = |name: &str| {
            let side = |side: &str| {
                report["results"][side]["lat_ns"]["percentile"][name].as_f64().unwrap_or(0.0)
            };
            side("read").max(side("write")) / 1e3
        };
        Ok(Self {
            bytes_per_second: both("bytes_per_second")?,
            p50_us: percentile("50.0"),
            p99_us: percentile("99.0"),
            packets_sent: number(report, "/results/wire/packets_sent")?,
            packets_sent_again: number(report, "/results/wire/packets_retransmitted")?,
        })
    }
}

impl HostsOutcome {
    pub(super) fn bytes_per_second(&self) -> f64 {
        self.hosts.iter().map(|host| host.bytes_per_second).sum()
    }

    /// Jain's index of fairness: 1 if all hosts got the same, `1 / n` if one got all.
    pub(super) fn fairness(&self) -> f64 {
        fairness(&self.hosts.iter().map(|host| host.bytes_per_second).collect::<Vec<_>>())
    }
}

fn fairness(rates: &[f64]) -> f64 {
    let sum: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
    sum * sum / (rates.len() as f64 * squares)
}

fn number(value: &Value, path: &str) -> Result<f64> {
    value.pointer(path).and_then(Value::as_f64).with_context(|| format!("no {path} was told"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jains_index() {
        assert_eq!(fairness(&[3.0; 4]), 1.0);
        assert_eq!(fairness(&[1.0, 0.0, 0.0, 0.0]), 0.25);
        assert!((fairness(&[1.0, 3.0]) - 0.8).abs() < 1e-9);
    }
}
