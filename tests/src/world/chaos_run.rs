//! Two hosts at work on two targets while everything goes wrong that can.

use std::time::Duration;

use feedrail_initiator::{ControllerOptions, Grant, ReplicaPolicy};
use feedrail_target::stepped::LiveChange;
use rdma::sim::{BottleneckStats, SimConfig};
use rdma::{GroupStats, Time};

use super::bottleneck_change::BottleneckChange;
use super::history::History;
use super::management::{Management, OperatorOrder};
use super::traffic::{Histories, Traffic, TrafficOptions};
use super::{
    Disk, DiskConfig, HostId, MachineNode, Random, TargetId, TargetOptions, Totals, Trace, World,
};

/// Bytes of a namespace.
const SIZE: usize = 128 << 10;
/// Requests of each host to each target.
const REQUESTS: u32 = 260;
const HOSTS: usize = 2;
const TARGETS: usize = 2;
/// How traffic takes its paths: half of it has one.
const POLICIES: [Option<ReplicaPolicy>; 6] = [
    None,
    None,
    None,
    Some(ReplicaPolicy::RoundRobin),
    Some(ReplicaPolicy::QueueDepth),
    Some(ReplicaPolicy::First),
];
/// Hosts that come after the chaos run.
const LATE_HOSTS: usize = 3;
/// Time until a host comes back. By then its targets have missed its Keep Alive: the commands from
/// before its crash, which it has forgotten, have ended.
const REBOOT: Duration = Duration::from_millis(2_500);
/// The longest that a core stalls, in ms: shorter than the time that a target allows beyond Keep
/// Alive.
const STALL_MS: u64 = 500;
/// Timeout of a connect, which takes about 20 round trips, and a bottleneck makes one 120 ms long.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of a pool in which reads that hang leave room for all hosts.
const ROOM_TO_HANG: u64 = 1 << 20;
/// Far more than a run takes.
const LIMIT: Duration = Duration::from_secs(1800);

/// The result of a run.
#[derive(Debug)]
pub struct Outcome {
    /// Equal for equal runs.
    pub trace: Trace,
    /// Counts of events by name.
    pub totals: Totals,
}

/// Runs the world of a seed to its end; prints its events if `verbose`.
///
/// # Panics
/// When a node reads wrong bytes, or does not end its work within virtual time.
pub fn chaos_run(seed: u64, verbose: bool) -> Outcome {
    let mut run = ChaosRun::new(seed, verbose);
    run.run_with_troubles();
    run.end_all_troubles();
    run.share_buffers();
    run.look_at_everything();
    run.lose_all_power();
    run.end()
}

struct ChaosRun {
    world: World,
    random: Random,
    hosts: Vec<HostId>,
    targets: Vec<TargetId>,
    /// One for each pair of host and target, by host.
    traffic: Vec<Traffic>,
    /// The expected contents of each target's media, by target.
    histories: Vec<Histories>,
    /// Bytes of each target's buffer pool.
    pools: Vec<u64>,
    base_network: SimConfig,
    disks: DiskConfig,
    /// Troubles to come, each after this many requests.
    due: Vec<u32>,
    bottleneck_change: BottleneckChange,
    management: Management,
    /// Troubles that end at a time.
    ends: Vec<(Time, End)>,
    totals: Totals,
    verbose: bool,
}

/// The end of a trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Partition(usize, usize),
    TargetDown(usize),
    HostDown(usize),
    Flap { host: usize, target: usize, left: u32, cut: bool },
    NetworkConditions,
    Disks(usize),
    Managed(usize, LiveChange),
}

impl ChaosRun {
    fn new(seed: u64, verbose: bool) -> Self {
        let mut random = Random::new(seed);
        let random = &mut random;
        let base_network = base_network(random);
        let mut world = World::new(seed, base_network);
        world.verbose = verbose;
        let (mut histories, mut pools) = (Vec::new(), Vec::new());
        let targets: Vec<TargetId> = (0..TARGETS)
            .map(|_| add_target(&mut world, &mut histories, &mut pools, random))
            .collect();
        let hosts: Vec<HostId> = (0..HOSTS).map(|_| add_host(&mut world, random)).collect();
        let traffic = (0..HOSTS * TARGETS).map(|pair| add_traffic(pair, random, verbose)).collect();
        let total = REQUESTS * (HOSTS * TARGETS) as u32;
        let mut due: Vec<u32> =
            (0..random.within(6..16)).map(|_| random.within(1..u64::from(total)) as u32).collect();
        due.sort_unstable_by(|a, b| b.cmp(a));
        world.add_hostile_machine(random.next_u64());
        world.add_resetter(random.next_u64());
        // In some worlds, the page cache has whole lists of ranges.
        let cached_ppm = if seed.is_multiple_of(3) { 1_000_000 } else { 500_000 };
        let disks = DiskConfig { cached_ppm, ..disks(random) };
        for &target in &targets {
            world.target(target).set_disk_config(disks);
        }
        let bottleneck_change = BottleneckChange::new(seed, total);
        let management = Management::new(seed, total);
        let random = random.clone();
        let (ends, totals) = (Vec::new(), Totals::default());
        Self {
            world,
            random,
            hosts,
            targets,
            traffic,
            histories,
            pools,
            base_network,
            disks,
            due,
            bottleneck_change,
            management,
            ends,
            totals,
            verbose,
        }
    }

    /// Runs until all requests have ended, one trouble after the other.
    fn run_with_troubles(&mut self) {
        self.run("the requests end", |run| {
            let finished: u32 = run.traffic.iter().map(Traffic::finished).sum();
            while run.due.last().is_some_and(|&due| due <= finished) {
                run.due.pop();
                run.make_trouble();
            }
            run.narrow(finished);
            run.manage(finished);
            run.traffic.iter().all(Traffic::is_over)
        });
    }

    /// Ends all troubles, now.
    fn end_all_troubles(&mut self) {
        self.run("hosts are back", |run| {
            !run.ends.iter().any(|(_, end)| matches!(end, End::HostDown(_)))
        });
        while let Some((_, end)) = self.ends.pop() {
            self.end_trouble(end, true);
        }
        for MachineNode { machine, .. } in std::mem::take(&mut self.world.machines) {
            let (totals, network) = machine.leave();
            self.totals.add_all(&totals);
            count_network(&mut self.totals, &network);
        }
        self.world.set_faults(|faults| {
            let SimConfig { latency, path_mtu, .. } = *faults;
            *faults = SimConfig { latency, path_mtu, ..SimConfig::default() };
        });
        let calm = DiskConfig { stall_ppm: 0, error_ppm: 0, no_space_ppm: 0, ..self.disks };
        for &target in &self.targets {
            self.world.target(target).set_disk_config(calm);
            self.world.target(target).hang_reads(0);
        }
        if let Some(stats) = self.world.network().remove_bottleneck() {
            count_bottleneck(&mut self.totals, &stats);
        }
        self.run("all are connected", |run| run.traffic.iter().all(Traffic::is_up));
    }

    /// Makes hosts, and some that come only for this, want more buffers than exist.
    fn share_buffers(&mut self) {
        let mut few = vec![self.hosts[0]];
        few.extend((0..LATE_HOSTS).map(|_| self.world.add_host(ControllerOptions::default())));
        for target in self.targets.clone() {
            super::contest::contend(&mut self.world, &mut self.random, self.hosts[1], &few, target);
        }
    }

    /// Reads every byte of every namespace from every host.
    fn look_at_everything(&mut self) {
        self.traffic.iter_mut().for_each(Traffic::read_all);
        self.run("everything is read", |run| run.traffic.iter().all(Traffic::is_over));
    }

    /// Flushes everything; so it must survive when all targets lose their power.
    fn lose_all_power(&mut self) {
        self.traffic.iter_mut().for_each(Traffic::flush_all);
        self.run("everything is flushed", |run| run.traffic.iter().all(Traffic::is_over));
        for target in 0..TARGETS {
            self.take_power(target);
            self.world.target(self.targets[target]).start();
        }
        let now = self.world.now();
        self.traffic.iter_mut().for_each(|traffic| traffic.reset(now));
        self.run("all are connected again", |run| run.traffic.iter().all(Traffic::is_up));
        self.look_at_everything();
    }

    fn end(mut self) -> Outcome {
        for traffic in &self.traffic {
            traffic.check_returned_memory();
            self.totals.add_all(traffic.totals());
        }
        self.count();
        self.traffic.clear();
        self.world.expect_clean(LIMIT);
        Outcome { trace: self.world.trace(), totals: self.totals }
    }

    /// Runs the world until `done` says so.
    fn run(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let end = self.world.now() + LIMIT;
        let mut goes_on = true;
        loop {
            self.turn_traffic();
            self.end_troubles();
            if done(self) {
                return;
            }
            assert!(goes_on && self.world.now() <= end, "timed out waiting until {what}");
            let now = self.world.now();
            let alarms = self.ends.iter().map(|&(at, _)| at);
            let alarms = alarms.chain(self.traffic.iter().filter_map(Traffic::deadline));
            self.world.set_alarm(alarms.filter(|&at| at > now).min());
            goes_on = self.world.step();
        }
    }

    fn turn_traffic(&mut self) {
        let now = self.world.now();
        let World { hosts, targets, trace, .. } = &mut self.world;
        for (pair, traffic) in self.traffic.iter_mut().enumerate() {
            let (host, target) = (pair / TARGETS, pair % TARGETS);
            let paused = hosts[host].paused_until > now;
            if let (Some(node), false) = (&hosts[host].node, paused) {
                let paths = targets[target].node.paths();
                traffic.turn(now, node, paths, &mut self.histories[target], trace);
            }
        }
    }

    fn end_troubles(&mut self) {
        let now = self.world.now();
        while let Some(at) = self.ends.iter().position(|&(end, _)| end <= now) {
            let (_, end) = self.ends.remove(at);
            self.end_trouble(end, false);
        }
    }

    fn make_trouble(&mut self) {
        let host = self.random.within(0..HOSTS as u64) as usize;
        let target = self.random.within(0..TARGETS as u64) as usize;
        let (host_id, target_id) = (self.hosts[host], self.targets[target]);
        let host_down = self.ends.iter().any(|(_, end)| *end == End::HostDown(host));
        let target_down = self.ends.iter().any(|(_, end)| *end == End::TargetDown(target));
        match self.random.within(0..17) {
            0 if !target_down => {
                self.note("fault: target crashes", || format!("target {target} crashes"));
                self.world.target(target_id).crash();
                self.later(End::TargetDown(target));
            }
            1 | 2 if !target_down => {
                self.take_power(target);
                self.later(End::TargetDown(target));
            }
            3 if !host_down => {
                self.note("fault: host crashes", || format!("host {host} crashes"));
                for target in 0..TARGETS {
                    self.traffic[host * TARGETS + target].forget(&mut self.histories[target]);
                }
                self.count_host(host);
                self.world.vanish(host_id);
                let at = self.world.now() + REBOOT;
                self.ends.push((at, End::HostDown(host)));
            }
            4 => {
                self.note("fault: partitions", || format!("cut: host {host}, target {target}"));
                self.world.cut(host_id, target_id);
                self.later(End::Partition(host, target));
            }
            5 => {
                let to_host = self.random.percent(50);
                self.note("fault: one-way partitions", || {
                    format!("cut: host {host}, target {target}, to the host: {to_host}")
                });
                self.world.cut_one_way(host_id, target_id, to_host);
                self.later(End::Partition(host, target));
            }
            6 => {
                self.note("fault: link flaps", || format!("flap: host {host}, target {target}"));
                self.flap(host, target, 6, false);
            }
            7 => {
                let time = self.some_time();
                self.note("fault: pauses", || format!("target {target} pauses {time:?}"));
                self.world.pause_target(target_id, time);
            }
            8 => {
                let time = self.some_time();
                self.note("fault: pauses", || format!("host {host} pauses {time:?}"));
                self.world.pause_host(host_id, time);
            }
            9 => {
                self.note("fault: bursts of loss", || "a burst of loss".into());
                self.world.set_faults(|faults| {
                    faults.loss_ppm = 300_000;
                    faults.reordering_ppm = 200_000;
                });
                self.later(End::NetworkConditions);
            }
            10 => {
                self.note("fault: sick disks", || format!("the disks of target {target} are sick"));
                let stall = Duration::from_millis(self.random.within(100..4_000));
                let sick = DiskConfig {
                    error_ppm: 200_000,
                    no_space_ppm: 50_000,
                    stall_ppm: 200_000,
                    stall,
                    ..self.disks
                };
                self.world.target(target_id).set_disk_config(sick);
                self.later(End::Disks(target));
            }
            11 => {
                let time = Duration::from_secs(self.random.within(5..60));
                let a_host = self.random.percent(50);
                self.note("fault: clock jumps", || {
                    let node =
                        if a_host { format!("host {host}") } else { format!("target {target}") };
                    format!("the clock of {node} jumps by {time:?}")
                });
                // All its time-outs have passed after the jump.
                if a_host {
                    self.world.pause_host(host_id, time);
                } else {
                    self.world.pause_target(target_id, time);
                }
            }
            12 if self.pools[target] >= ROOM_TO_HANG => {
                self.note("fault: hung reads", || format!("a read of target {target} hangs"));
                self.world.target(target_id).hang_reads(1);
            }
            13 | 14 => {
                let core = self.random.within(0..3) as usize;
                let time = Duration::from_millis(self.random.within(1..STALL_MS));
                self.note("fault: stalled cores", || {
                    format!(
                        "core {core} of target {target} stalls {time:?}, host {host} comes back"
                    )
                });
                let now = self.world.now();
                self.world.target(target_id).stall_core(core, now + time);
                self.traffic[host * TARGETS + target].reset(now);
            }
            _ => {
                self.note("fault: resets", || format!("host {host} resets target {target}"));
                let now = self.world.now();
                self.traffic[host * TARGETS + target].reset(now);
            }
        }
    }

    /// Puts a bottleneck between hosts and targets, or changes it, where that is due.
    fn narrow(&mut self, finished: u32) {
        while let Some([to_targets, to_hosts]) = self.bottleneck_change.next(finished) {
            self.note("fault: bottlenecks, put there or changed", || {
                format!("to targets: {to_targets:?}, to hosts: {to_hosts:?}")
            });
            self.world.set_bottleneck(to_targets, to_hosts);
        }
    }

    /// Makes an operator change something, where that is due. A target that is down has none.
    fn manage(&mut self, finished: u32) {
        while let Some(target) = self.management.next(finished, TARGETS) {
            let node = self.world.target(self.targets[target]);
            if !node.is_running() {
                continue;
            }
            let address = node.subsystem().address;
            let order = self.management.order(address);
            let OperatorOrder { change, name, undo, then_crash } = order;
            if !self.world.target(self.targets[target]).change(change) {
                // An earlier change is not undone yet.
                continue;
            }
            self.note(name, || format!("target {target}: {change:?}"));
            if let Some(undo) = undo {
                self.later(End::Managed(target, undo));
            }
            if then_crash {
                self.note("management: crashes before cores acknowledged", || {
                    format!("target {target} crashes")
                });
                self.world.target(self.targets[target]).crash();
                self.later(End::TargetDown(target));
            }
        }
    }

    fn take_power(&mut self, target: usize) {
        self.note("fault: power losses", || format!("target {target} loses its power"));
        self.world.target(self.targets[target]).lose_power();
        self.histories[target].iter_mut().for_each(History::lose_power);
    }

    /// Cuts or heals a connection, and arranges for the opposite.
    fn flap(&mut self, host: usize, target: usize, left: u32, cut: bool) {
        let (host_id, target_id) = (self.hosts[host], self.targets[target]);
        if cut {
            self.world.heal(host_id, target_id);
        } else {
            self.world.cut(host_id, target_id);
        }
        if left > 0 {
            let time = Duration::from_micros(self.random.within(100..60_000));
            let end = End::Flap { host, target, left: left - 1, cut: !cut };
            self.ends.push((self.world.now() + time, end));
        } else {
            self.world.heal(host_id, target_id);
        }
    }

    fn end_trouble(&mut self, end: End, for_good: bool) {
        if self.verbose {
            super::print_event(self.world.now(), "chaos", &format!("end of {end:?}"));
        }
        match end {
            End::Partition(host, target) => self.world.heal(self.hosts[host], self.targets[target]),
            End::TargetDown(target) => self.world.target(self.targets[target]).start(),
            End::HostDown(host) => self.world.bring_back(self.hosts[host]),
            End::Flap { host, target, left, cut } => {
                self.flap(host, target, if for_good { 0 } else { left }, cut);
            }
            End::NetworkConditions => {
                let base_network = self.base_network;
                self.world.set_faults(|faults| *faults = base_network);
            }
            End::Managed(target, change) => {
                // A target that was restarted has its configuration.
                self.world.target(self.targets[target]).change(change);
            }
            End::Disks(target) => {
                self.world.target(self.targets[target]).set_disk_config(self.disks);
            }
        }
    }

    fn later(&mut self, end: End) {
        let at = self.world.now() + self.some_time();
        self.ends.push((at, end));
    }

    /// A time so short that no node notices, or so long that all do.
    fn some_time(&mut self) -> Duration {
        let most = self.random.pick(&[2, 50, 800, 5_000]);
        Duration::from_micros(self.random.within(100..most * 1_000))
    }

    fn note(&mut self, what: &'static str, text: impl FnOnce() -> String) {
        self.totals.add(what, 1);
        if self.verbose {
            super::print_event(self.world.now(), "chaos", &text());
        }
    }

    fn count(&mut self) {
        (0..HOSTS).for_each(|host| self.count_host(host));
        for &id in &self.targets {
            let node = self.world.target(id);
            let (disk, network) = (node.disk_stats(), node.network_stats());
            let lines = node.line_stats();
            let losses = node.keep_alive_losses();
            count_network(&mut self.totals, &network);
            let totals = &mut self.totals;
            totals.add("recovery: keep-alive losses", losses);
            totals.add("fault: disk errors (EIO)", disk.errors);
            totals.add("fault: disk full (ENOSPC)", disk.no_space);
            totals.add("fault: short reads and writes", disk.short);
            totals.add("fault: stalled system calls", disk.stalls);
            totals.add("fault: reads that never ended", disk.hung);
            totals.add("fault: system calls interrupted by a crash", disk.interrupted);
            totals.add("work: reads that a page cache had in part", disk.cached);
            totals.add("fault: sectors lost with the power", disk.sectors_lost);
            totals.add("recovery: system calls cancelled", disk.cancelled);
            totals.add("work: system calls", disk.calls);
            totals.add("wait: requests in line for a buffer", lines.waits);
            totals.add("wait: of those for more than a round", lines.long_waits);
            totals.add("wait: of those while others had the progress block", lines.overtaken);
        }
        let network = self.world.network().stats();
        let totals = &mut self.totals;
        totals.add("fault: packets lost, full buffers included", network.lost + network.overflowed);
        totals.add("fault: packets dropped at a bottleneck", network.queue_drops);
        totals.add("fault: packets marked at a bottleneck", network.marked);
        totals.add("fault: packets duplicated", network.duplicated);
        totals.add("fault: packets reordered", network.reordered);
        totals.add("fault: packets corrupted", network.corrupted);
        totals.add("fault: packets to unknown addresses", network.unreachable);
    }

    /// Adds the counters of a host, before it goes.
    fn count_host(&mut self, host: usize) {
        let node = self.world.host(self.hosts[host]);
        let counters = node.host.counters();
        count_network(&mut self.totals, &node.network_stats());
        assert_eq!(counters.protocol_violations, 0, "a target broke the protocol");
        let totals = &mut self.totals;
        totals.add("work: commands", counters.commands);
        totals.add("work: ranges that were read in lists", counters.listed_ranges);
        totals.add("recovery: ranges issued again", counters.retries);
        totals.add("recovery: reconnects", counters.reconnects);
        totals.add("recovery: ranges that continued over another path", counters.failovers);
        totals.add("recovery: connections lost", counters.connections_lost);
        totals.add("recovery: ranges that timed out", counters.timeouts);
        totals.add("recovery: aborts", counters.aborts);
    }
}

fn count_network(totals: &mut Totals, stats: &GroupStats) {
    totals.add("recovery: packets sent again", stats.packets_retransmitted);
    totals.add("recovery: sequence NAKs", stats.sequence_naks_sent);
    totals.add("recovery: ACK timeouts", stats.ack_timeouts);
    totals.add("recovery: corrupt packets dropped", stats.icrc_failures);
    totals.add("recovery: receiver-not-ready NAKs", stats.rnr_naks_sent);
    totals.add("recovery: sent again after receiver-not-ready", stats.rnr_naks_received);
}

fn count_bottleneck(totals: &mut Totals, stats: &BottleneckStats) {
    for link in [stats.inward, stats.outward] {
        totals.add("work: packets through a bottleneck", link.passed);
        totals.add("fault: bytes of a constant source there", link.others.source_bytes);
        totals.add("fault: bytes of a flow like TCP's there", link.others.flow_bytes);
    }
}

/// A network that is never quite well.
fn base_network(random: &mut Random) -> SimConfig {
    SimConfig {
        latency: Duration::from_micros(random.within(2..40)),
        jitter: Duration::from_micros(random.within(1..40)),
        loss_ppm: random.pick(&[0, 2_000, 30_000]),
        duplication_ppm: random.pick(&[0, 5_000, 20_000]),
        reordering_ppm: random.pick(&[0, 5_000, 20_000]),
        reordering_delay: Duration::from_micros(random.within(20..400)),
        corruption_ppm: random.pick(&[0, 1_000]),
        bandwidth: random.pick(&[None, None, Some(200 << 20)]),
        receive_buffer_bytes: random.pick(&[48 << 10, 208 << 10, 1 << 20]),
        path_mtu: random.pick(&[256, 512, 1024, 2048, 4096]),
    }
}

/// Disks that are never quite well.
fn disks(random: &mut Random) -> DiskConfig {
    DiskConfig {
        latency: Duration::from_micros(random.within(5..100)),
        jitter: Duration::from_micros(random.pick(&[1, 100, 2_000])),
        stall_ppm: 2_000,
        stall: Duration::from_millis(random.within(1..3_000)),
        error_ppm: random.pick(&[0, 2_000]),
        no_space_ppm: random.pick(&[0, 2_000]),
        short_ppm: random.pick(&[0, 50_000]),
        ..DiskConfig::default()
    }
}

fn add_target(
    world: &mut World,
    all: &mut Vec<Histories>,
    pools: &mut Vec<u64>,
    random: &mut Random,
) -> TargetId {
    let mut options = TargetOptions { cores: random.pick(&[1, 2, 3]), ..TargetOptions::default() };
    options.limits.in_capsule_data_bytes = random.pick(&[0, 4096]);
    options.limits.pool_bytes = random.pick(&[256 << 10, 1 << 20]);
    pools.push(options.limits.pool_bytes);
    let mut fill = || {
        let mut bytes = vec![0; SIZE];
        random.fill(&mut bytes);
        bytes
    };
    let (first, second) = (fill(), fill());
    let shift = random.pick(&[9, 12]);
    // As random as a draw, and seeds of before keep their runs but for this.
    let range_locks = first[0].is_multiple_of(2);
    let cached_reads = first[1].is_multiple_of(2);
    let disks = vec![
        Disk::simulated("writable", first.clone())
            .lba_shift(shift)
            .range_locks(range_locks)
            .cached_reads(cached_reads),
        Disk::simulated("protected", second.clone()).read_only(),
        Disk::simulated("reset", vec![0; super::resetter::BLOCK]).lba_shift(12),
    ];
    all.push([History::new(first), History::new(second)]);
    world.add_target(disks, options)
}

fn add_host(world: &mut World, random: &mut Random) -> HostId {
    let options = ControllerOptions::new()
        .io_queues(random.pick(&[1, 2, 3]))
        .queue_entries(random.pick(&[4, 16, 64]))
        .keep_alive_ms(1_000)
        .connect_timeout(CONNECT_TIMEOUT)
        .reconnect_delay(Duration::from_millis(200))
        .loss_timeout(Duration::from_secs(random.pick(&[2, 60])))
        .io_timeout(Duration::from_millis(random.pick(&[300, 2_000, 30_000])))
        .admin_timeout(Duration::from_secs(random.pick(&[2, 15])))
        .abort_timeout(Duration::from_millis(random.pick(&[50, 2_000])));
    world.add_host(options)
}

fn add_traffic(pair: usize, random: &mut Random, verbose: bool) -> Traffic {
    let (host, target) = (pair / TARGETS, pair % TARGETS);
    let half = SIZE / HOSTS;
    let options = TrafficOptions {
        area: host * half..(host + 1) * half,
        size: SIZE,
        requests: REQUESTS,
        depth: random.pick(&[4, 12, 24]),
        grant: random.pick(&[Grant::Persistent, Grant::PerCommand]),
        policy: random.pick(&POLICIES),
        seed: random.next_u64(),
    };
    Traffic::new(options, verbose.then(|| format!("host {host}, target {target}")))
}
