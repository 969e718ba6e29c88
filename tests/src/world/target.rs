//! A simulated storage node.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use feedrail_initiator::SubsystemAddress as Subsystem;
use feedrail_target::Config;
use feedrail_target::backend::Backend;
use feedrail_target::config::Limits;
use feedrail_target::config::{
    Authentication, Cores, Discovery, HostPolicy, MetricsDetail, NamespaceConfig, Origin,
    PortConfig, ProviderChoice, QosLimits, SubsystemConfig,
};
use feedrail_target::config::{Machine, SubsystemIdentity};
use feedrail_target::stepped::Assembly;
use feedrail_target::stepped::Associations;
use feedrail_target::stepped::Inventory;
use feedrail_target::stepped::LiveChange;
use feedrail_target::stepped::OpenPurpose;
use feedrail_target::stepped::Stepped;
use feedrail_target::stepped::Stop;
use feedrail_target::stepped::Turn;
use feedrail_target::stepped::{Engine, Inline};
use nvme_proto::{AsciiField, Nqn, Nsid};
use rdma::sim::{Sim, SimDevice, SimNetwork};
use rdma::{Device, DeviceStats, GroupStats, Time};
use uuid::Uuid;

use super::engine::SimDisks;
use super::line::{Line, LineStats};
use super::{Disk, DiskConfig, DiskStats};

/// The ports that a target listens at.
const PORTS: [u16; 2] = [4420, 4421];

/// How a simulated target is to be.
#[derive(Clone, Debug)]
pub struct TargetOptions {
    /// Number of poll groups, each with a simulated core.
    pub cores: u16,
    /// Bounds of memory, queues and controllers.
    pub limits: Limits,
    /// The name of its subsystem, where another target serves the same; else it follows from its
    /// address.
    pub nqn: Option<Nqn>,
}

impl Default for TargetOptions {
    /// One core, and limits small enough that transfers are split and requests wait for buffers.
    fn default() -> Self {
        let limits = Limits {
            max_transfer_bytes: 32 << 10,
            pool_bytes: 1 << 20,
            connections: 256,
            ..Limits::default()
        };
        Self { cores: 1, limits, nqn: None }
    }
}

/// A storage node: it may run or not, and its disks stay.
pub struct TargetNode {
    network: SimNetwork,
    address: SocketAddr,
    nqn: Nqn,
    options: TargetOptions,
    /// The exports from the next start on: NSID 1, 2 and so on.
    pub disks: Vec<Disk>,
    sim_disks: SimDisks,
    running: Option<Running>,
    /// Counters of processes that ended.
    past: Past,
}

/// Counters of the processes of a node that ended.
#[derive(Default)]
struct Past {
    network: GroupStats,
    lines: LineStats,
    keep_alive_losses: u64,
}

/// The process. The target goes before its device.
struct Running {
    target: Stepped,
    device: SimDevice,
    /// Counters of the device when no host had connected yet.
    fresh: DeviceStats,
    /// Lines of each core, for the buffers of hosts and for those of anonymous connections.
    lines: Vec<[Line; 2]>,
}

impl Running {
    /// Follows the events of buffers. Reads into memory at the addresses of `hung` never end.
    fn follow_lines(&mut self, hung: &[usize]) {
        let events = self.target.buffer_events().flatten();
        for (line, events) in self.lines.as_flattened_mut().iter_mut().zip(events) {
            events.into_iter().for_each(|event| line.follow(event, hung));
        }
    }
}

impl TargetNode {
    pub(super) fn new(
        network: SimNetwork,
        ip: IpAddr,
        disks: Vec<Disk>,
        options: TargetOptions,
        seed: u64,
    ) -> Self {
        let own = || format!("nqn.2026-01.io.feedrail:{ip}").parse().expect("a valid name");
        let nqn = options.nqn.unwrap_or_else(own);
        let address = SocketAddr::new(ip, PORTS[0]);
        let (sim_disks, past) = (SimDisks::new(seed), Past::default());
        let mut node =
            Self { network, address, nqn, options, disks, sim_disks, running: None, past };
        node.start();
        node
    }

    /// The subsystem that hosts connect to.
    pub fn subsystem(&self) -> Subsystem {
        Subsystem { address: self.address, nqn: self.nqn }
    }

    /// The subsystem at each of its ports.
    pub fn paths(&self) -> [Subsystem; 2] {
        PORTS.map(|port| Subsystem { address: SocketAddr::new(self.ip(), port), nqn: self.nqn })
    }

    /// The IP address that it listens on.
    pub fn ip(&self) -> IpAddr {
        self.address.ip()
    }

    /// Starts the target, with empty volatile state and the media as they are.
    ///
    /// # Panics
    /// If it runs, or something of an earlier run is still there.
    pub fn start(&mut self) {
        assert!(self.running.is_none(), "the target runs already");
        let config = self.config();
        let decorate = |config: &NamespaceConfig, opened: Arc<dyn Backend>| {
            self.disks[config.nsid.0 as usize - 1].backend(opened, &self.sim_disks)
        };
        let inventory =
            Inventory::open_with(&config, OpenPurpose::Check, &decorate).expect("disks");
        let cores = config.cores.count();
        let device = self.network.device(self.ip(), cores).expect("nothing has the address");
        let mut assembly = Assembly::new(inventory, cores).expect("memory for a pool");
        assembly.add::<Sim>(device.clone()).expect("a simulated device has room");
        let target = Stepped::new(assembly, || self.engine());
        let fresh = device.stats();
        let lines = (0..cores).map(|_| Default::default()).collect();
        let mut running = Running { target, device, fresh, lines };
        running.follow_lines(&[]);
        self.running = Some(running);
    }

    fn engine(&self) -> Box<dyn Engine> {
        if self.disks.iter().any(Disk::is_simulated) {
            Box::new(self.sim_disks.engine())
        } else {
            Box::new(Inline::new())
        }
    }

    /// Ends the process from one moment to the next, without a message to its hosts.
    pub fn crash(&mut self) {
        self.past = Past {
            network: self.network_stats(),
            lines: self.line_stats(),
            keep_alive_losses: self.keep_alive_losses(),
        };
        self.running = None;
    }

    /// The node loses its power: the process ends, and simulated disks lose data that is not
    /// durable.
    pub fn lose_power(&mut self) {
        self.crash();
        self.sim_disks.lose_power();
    }

    /// How simulated disks behave from now on.
    pub fn set_disk_config(&self, config: DiskConfig) {
        self.sim_disks.set_config(config);
    }

    /// Hangs the next `count` reads of simulated disks, for as long as the process lives.
    pub fn hang_reads(&self, count: u32) {
        self.sim_disks.hang_reads(count);
    }

    /// Gives one core no turn until then, if the target runs and has that many.
    pub fn stall_core(&mut self, core: usize, until: Time) {
        if let Some(running) = &mut self.running {
            running.target.stall(core, until);
        }
    }

    /// Applies an operator's change; false if the node does not run, or refuses it.
    pub fn change(&mut self, change: LiveChange) -> bool {
        let running = self.running.as_mut();
        running.is_some_and(|running| running.target.change(&self.nqn, change).is_ok())
    }

    /// Prints the system calls on simulated disks from now on.
    pub(super) fn set_verbose(&mut self, name: String) {
        self.sim_disks.set_verbose(name);
    }

    /// Counters of the simulated disks.
    pub fn disk_stats(&self) -> DiskStats {
        self.sim_disks.stats()
    }

    /// Associations that ended because their host was silent for too long.
    pub fn keep_alive_losses(&self) -> u64 {
        let running = self.running.as_ref();
        self.past.keep_alive_losses
            + running.map_or(0, |running| running.target.associations().keep_alive_losses())
    }

    /// Whether the target runs now.
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Asks it to end its connections.
    pub fn stop(&mut self, how: Stop) {
        if let Some(running) = &mut self.running {
            running.target.stop(how);
        }
    }

    /// Whether it was stopped and all its connections have ended.
    pub fn is_over(&self) -> bool {
        self.running.as_ref().is_none_or(|running| running.target.is_over())
    }

    /// Which hosts are connected.
    ///
    /// # Panics
    /// If it does not run.
    pub fn associations(&self) -> &Arc<Associations> {
        self.running.as_ref().expect("it runs").target.associations()
    }

    /// Counters of its provider's groups, past runs included.
    pub fn network_stats(&mut self) -> GroupStats {
        let mut sum = self.past.network;
        for group in self.running.iter_mut().flat_map(|running| running.target.stats()) {
            sum += group.network;
        }
        sum
    }

    /// Counts of requests that needed a buffer.
    pub(super) fn line_stats(&self) -> LineStats {
        let mut sum = self.past.lines;
        let running = self.running.iter();
        let lines = running.flat_map(|running| running.lines.as_flattened());
        lines.for_each(|line| sum += line.stats());
        sum
    }

    /// Resources that hosts that are gone have left behind; empty if all is well.
    pub fn leftovers(&mut self) -> String {
        let Some(running) = &mut self.running else { return String::new() };
        let mut left = String::new();
        let mut note = |what: &str, count: u64| {
            if count > 0 {
                left += &format!("{count} {what}, ");
            }
        };
        let now = running.device.stats();
        let groups = running.target.stats();
        note("controllers", running.target.associations().controllers().len() as u64);
        note("connections", running.target.connections());
        note("changes without an end", running.target.unfinished_changes() as u64);
        note("bytes of the pool", groups.iter().map(|group| group.pool.used_bytes).sum());
        note("queue pairs", now.queue_pairs);
        note("regions", now.regions.abs_diff(running.fresh.regions));
        left
    }

    pub(super) fn turn(&mut self, now: Time) -> Turn {
        self.sim_disks.set_time(now);
        match &mut self.running {
            Some(running) => {
                let turn = running.target.turn(now);
                running.follow_lines(&self.sim_disks.hung());
                match turn {
                    Turn::Busy => Turn::Busy,
                    Turn::SleepUntil(at) => {
                        Turn::SleepUntil(at.into_iter().chain(self.sim_disks.next_end()).min())
                    }
                }
            }
            None => Turn::SleepUntil(None),
        }
    }

    fn config(&self) -> Config {
        let origin = Origin("simulated".into());
        let ids = 1..;
        let port = |(path, id): (Subsystem, _)| {
            let (address, origin) = (path.address, origin.clone());
            PortConfig { id, address, subsystems: None, origin }
        };
        let ports = self.paths().into_iter().zip(ids).map(port).collect();
        let nsids = (1..).map(Nsid);
        let namespaces = self.disks.iter().zip(nsids);
        let machine = Machine::with_id(Uuid::from_u128(1));
        let subsystem = SubsystemConfig {
            nqn: self.nqn,
            serial: AsciiField::new("SIM").expect("ASCII"),
            model: AsciiField::new("Simulated").expect("ASCII"),
            hosts: HostPolicy::Any,
            authentication: Authentication::default(),
            host_entries: Vec::new(),
            each_host: QosLimits::default(),
            host_limits: Vec::new(),
            deallocate: true,
            identity: SubsystemIdentity::new(&machine, self.nqn, None),
            namespaces: namespaces.map(|(disk, nsid)| disk.namespace(&self.nqn, nsid)).collect(),
            directories: Vec::new(),
            origin,
        };
        Config {
            provider: ProviderChoice::Soft,
            send_with_invalidate: true,
            shared_memory_group: None,
            cores: Cores::Count(self.options.cores),
            polling: Duration::ZERO,
            management: Some(PathBuf::from("not served")),
            metrics: None,
            management_read_only: None,
            export_roots: None,
            confinement: None,
            metrics_detail: MetricsDetail::default(),
            state_dir: PathBuf::new(),
            discovery: Discovery::open(),
            discovery_nqn: Nqn::DISCOVERY,
            machine,
            limits: self.options.limits.clone(),
            ports,
            subsystems: vec![subsystem],
        }
    }
}
