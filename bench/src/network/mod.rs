//! Feedrail over a network that loses, queues and marks packets, beside TCP of the kernel's over
//! the same path.
//!
//! Target and hosts are in network namespaces of their own, and all packets between them pass a
//! router of the bench's: a bottleneck of 1 Gbit/s with a queue, a delay, random loss, and marks
//! (ECN). So the kernel needs no traffic control, only TUN devices.

mod bottleneck;
mod ecn;
mod memory_target;
mod namespace;
mod path;
mod requirements;
mod router;
mod tcp;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use feedrail_tests::process::pause;
use tun_rs::SyncDevice;

pub(crate) use self::requirements::requirements;

use self::bottleneck::PacketCounts;
use self::memory_target::{HostsOutcome, MemoryTarget};
use self::namespace::NetworkNamespace;
use self::path::Path;
use self::router::Router;
use self::tcp::TcpFlow;
use crate::clock::now;
use crate::figures::Figures;
use crate::load::Load;

const READ: Load = Load::new("randread", 128 << 10, 32);
const WRITE: Load = Load::new("randwrite", 128 << 10, 32);
const SMALL_READ: Load = Load::new("randread", 4 << 10, 1);

/// The congestion controls of TCP that a flow meets.
const TCP: [&str; 3] = ["cubic", "reno", "bbr"];

/// A flow has left slow start after this long.
const WARM_UP: Duration = Duration::from_millis(500);

const MOST_HOSTS: usize = 16;

const ROUND_TRIPS_MS: [u64; 2] = [1, 10];
const LOSSES_PER_MILLION: [u32; 4] = [0, 100, 1_000, 10_000];

/// Target and hosts, and the devices that lead from each to the router.
struct NetworkBench {
    target: NetworkNamespace,
    hosts: NetworkNamespace,
    devices: [Arc<SyncDevice>; 2],
    target_daemon: MemoryTarget,
    seconds: u32,
    _folder: tempfile::TempDir,
}

/// Measures all, and adds the figures.
pub(crate) fn measure(seconds: u32, figures: &mut Figures) -> Result<()> {
    let network = NetworkBench::new(seconds)?;
    network.alone(figures)?;
    network.beside_tcp(figures)?;
    network.fairness(figures)?;
    network.marks(figures)?;
    network.distance(figures)
}

impl NetworkBench {
    fn new(seconds: u32) -> Result<Self> {
        let (target, target_device) = NetworkNamespace::new(&[Ipv4Addr::new(10, 77, 0, 1)])?;
        let addresses: Vec<Ipv4Addr> =
            (0..MOST_HOSTS).map(|host| Ipv4Addr::new(10, 77, 0, 16 + host as u8)).collect();
        let (hosts, hosts_device) = NetworkNamespace::new(&addresses)?;
        let folder = tempfile::tempdir()?;
        let target_daemon = MemoryTarget::start(folder.path(), &target)?;
        let devices = [Arc::new(target_device), Arc::new(hosts_device)];
        Ok(Self { target, hosts, devices, target_daemon, seconds, _folder: folder })
    }

    /// Runs something over a path. Returns what happened to the packets of the target, and to
    /// those of the hosts.
    fn over<R>(
        &self,
        path: Path,
        action: impl FnOnce() -> Result<R>,
    ) -> Result<(R, [PacketCounts; 2])> {
        let router = Router::start(path, &self.devices);
        let outcome = action();
        let counts = router.stop()?;
        Ok((outcome?, counts))
    }

    fn run(&self, hosts: usize, load: &Load) -> Result<HostsOutcome> {
        self.target_daemon.measure(&self.hosts, 0..hosts, load, self.seconds)
    }

    /// A TCP flow in the direction in which a load moves data.
    fn tcp(&self, load: &Load, congestion_control: &str) -> Result<TcpFlow> {
        let (from, to) = match load.pattern {
            "randwrite" => (&self.hosts, &self.target),
            _ => (&self.target, &self.hosts),
        };
        let flow = TcpFlow::start(from, to, congestion_control)?;
        pause(WARM_UP);
        Ok(flow)
    }

    /// Bytes per second of a TCP flow that has the path for itself.
    fn tcp_alone(&self, path: Path, congestion_control: &str) -> Result<f64> {
        let (rate, _) = self.over(path, || {
            let flow = self.tcp(&READ, congestion_control)?;
            let (before, start) = (flow.received(), now());
            pause(Duration::from_secs(self.seconds.into()));
            Ok((flow.received() - before) as f64 / start.elapsed().as_secs_f64())
        })?;
        ensure!(rate > 0.0, "a TCP flow ({congestion_control}) carried nothing");
        Ok(rate)
    }

    /// What each gets that has the bottleneck for itself.
    fn alone(&self, figures: &mut Figures) -> Result<()> {
        for congestion_control in TCP {
            let name = format!("network/switch/tcp-{congestion_control}/bytes_per_second");
            progress(&name);
            figures.add(name, self.tcp_alone(Path::SWITCH, congestion_control)?);
        }
        for load in [READ, WRITE] {
            let name = format!("network/switch/{}", load.name());
            progress(&name);
            let (outcome, _) = self.over(Path::SWITCH, || self.run(1, &load))?;
            add(figures, &name, &outcome);
        }
        Ok(())
    }

    /// The share of the bottleneck that a host gets beside a TCP flow.
    fn beside_tcp(&self, figures: &mut Figures) -> Result<()> {
        for load in [READ, WRITE] {
            for congestion_control in TCP {
                let name = format!("network/switch/{}-beside-{congestion_control}", load.name());
                progress(&name);
                let ((outcome, theirs), _) = self.over(Path::SWITCH, || {
                    let flow = self.tcp(&load, congestion_control)?;
                    let (before, start) = (flow.received(), now());
                    let outcome = self.run(1, &load)?;
                    let rate = (flow.received() - before) as f64 / start.elapsed().as_secs_f64();
                    Ok((outcome, rate))
                })?;
                let ours = outcome.bytes_per_second();
                figures.add(format!("{name}/share"), ours / (ours + theirs));
            }
        }
        Ok(())
    }

    /// How evenly hosts share the bottleneck.
    fn fairness(&self, figures: &mut Figures) -> Result<()> {
        for load in [READ, WRITE] {
            for hosts in [2, 4, MOST_HOSTS] {
                let name = format!("network/switch/{}-hosts-{hosts}", load.name());
                progress(&name);
                let (outcome, _) = self.over(Path::SWITCH, || self.run(hosts, &load))?;
                figures.add(format!("{name}/fairness"), outcome.fairness());
                add(figures, &name, &outcome);
            }
        }
        Ok(())
    }

    /// Drops, marks and CNPs where the bottleneck marks packets, and what a small read waits
    /// beside writes there.
    fn marks(&self, figures: &mut Figures) -> Result<()> {
        for load in [READ, WRITE] {
            let name = format!("network/marking/{}", load.name());
            progress(&name);
            let (outcome, [of_target, of_hosts]) =
                self.over(Path::MARKING_SWITCH, || self.run(1, &load))?;
            add(figures, &name, &outcome);
            let sum =
                |count: fn(&PacketCounts) -> u64| (count(&of_target) + count(&of_hosts)) as f64;
            figures.add(format!("{name}/packets_dropped"), sum(|counts| counts.dropped));
            figures.add(format!("{name}/packets_marked"), sum(|counts| counts.marked));
            let cnps = sum(|counts| counts.congestion_notifications);
            figures.add(format!("{name}/cnps_per_second"), cnps / f64::from(self.seconds));
        }
        let name = format!("network/marking/{}-beside-{}", SMALL_READ.name(), WRITE.name());
        progress(&name);
        let (outcome, _) = self.over(Path::MARKING_SWITCH, || {
            thread::scope(|scope| {
                let bulk = scope.spawn(|| self.run(1, &WRITE));
                pause(WARM_UP);
                let half = (self.seconds / 2).max(1);
                let small = self.target_daemon.measure(&self.hosts, 1..2, &SMALL_READ, half);
                bulk.join().map_err(|_| anyhow!("a thread of the bench panicked"))??;
                small
            })
        })?;
        let Some(host) = outcome.hosts.last() else { return Ok(()) };
        figures.add(format!("{name}/p50_us"), host.p50_us);
        figures.add(format!("{name}/p99_us"), host.p99_us);
        Ok(())
    }

    /// Over a distance, with random loss.
    fn distance(&self, figures: &mut Figures) -> Result<()> {
        for milliseconds in ROUND_TRIPS_MS {
            for lost_per_million in LOSSES_PER_MILLION {
                let path = Path::distant(Duration::from_millis(milliseconds), lost_per_million);
                let place = format!("network/rtt-{milliseconds}ms-loss-{lost_per_million}ppm");
                let name = format!("{place}/tcp-cubic/bytes_per_second");
                progress(&name);
                figures.add(name, self.tcp_alone(path, "cubic")?);
                for load in [READ, WRITE] {
                    let name = format!("{place}/{}", load.name());
                    progress(&name);
                    let (outcome, _) = self.over(path, || self.run(1, &load))?;
                    add(figures, &name, &outcome);
                }
            }
        }
        Ok(())
    }
}

fn add(figures: &mut Figures, name: &str, outcome: &HostsOutcome) {
    figures.add(format!("{name}/bytes_per_second"), outcome.bytes_per_second());
    figures.add(format!("{name}/packets_sent_again_per_million"), outcome.sent_again_per_million);
}

fn progress(name: &str) {
    eprintln!("  {name}");
}
