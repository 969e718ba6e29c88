//! Measures the cost of an idle target, and the time until it listens.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, anyhow};
use feedrail_initiator::Controller;
use feedrail_tests::process::{Daemon, DaemonOptions, host, pause};

use crate::clock::now;
use crate::figures::Figures;
use crate::process::{cpu_seconds, resident_bytes};

/// Numbers of connected controllers. Each has an admin queue and an I/O queue.
const CONTROLLERS: u16 = 16;
const MORE_CONTROLLERS: u16 = 64;
/// Time after which the work for a new connection has ended.
const SETTLED: Duration = Duration::from_millis(500);

/// Adds start time, CPU time and memory of a target that serves one file with default settings.
pub(crate) fn measure(file: &Path, time: Duration, figures: &mut Figures) -> Result<()> {
    let began = now();
    let daemon = DaemonOptions::files([file]).try_start();
    let daemon = daemon.map_err(|ended| anyhow!("the target did not start: {}", ended.stderr))?;
    figures.add("cost/listening_after_ms", began.elapsed().as_secs_f64() * 1e3);

    let host = host().build()?;
    let few = connect(&host, &daemon, CONTROLLERS)?;
    pause(SETTLED);
    let before = resident_bytes(daemon.id());
    let cpu = cpu_seconds(daemon.id());
    pause(time);
    let share = (cpu_seconds(daemon.id()) - cpu) / time.as_secs_f64();
    figures.add("cost/idle_cpu_percent_with_16_connections", share * 100.0);
    figures.add("cost/resident_mib_without_pool", mebibytes(before));

    let queues = queues(&daemon);
    let many = connect(&host, &daemon, MORE_CONTROLLERS)?;
    pause(SETTLED);
    let grown = resident_bytes(daemon.id()).saturating_sub(before);
    let more = (self::queues(&daemon) - queues).max(1.0);
    figures.add("cost/resident_kib_per_idle_connection", grown as f64 / 1024.0 / more);
    drop((few, many));
    Ok(())
}

fn connect(
    host: &feedrail_initiator::Host,
    daemon: &Daemon,
    count: u16,
) -> Result<Vec<Controller>> {
    (0..count).map(|_| Ok(host.connect(daemon.target()).wait()?)).collect()
}

/// Number of RDMA connections, one for each queue of all controllers.
fn queues(daemon: &Daemon) -> f64 {
    daemon.stats()["connections"].as_f64().unwrap_or(0.0)
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}
