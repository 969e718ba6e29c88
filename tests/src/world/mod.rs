//! Targets, hosts, disks and a network in one thread, under one virtual clock and one seed.
//!
//! Everything is the real thing, except the packets' way from socket to socket and the passing of
//! time: two runs with the same seed and the same calls are the same.

mod bottleneck_change;
mod bulk_flow;
mod chaos_run;
mod contest;
mod disk;
mod engine;
mod history;
mod host;
mod hostile_machine;
mod line;
mod link_trial;
mod management;
mod medium;
mod random;
mod resetter;
mod row_batch;
mod seeds;
mod target;
mod totals;
mod trace;
mod traffic;
mod workload;

use std::future::Future;
use std::net::IpAddr;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use feedrail_initiator::{Controller, ControllerOptions, EngineTurn, Error, Namespace, Nsid};
use feedrail_target::stepped::Turn as TargetTurn;
use rdma::sim::{LinkConfig, SimConfig, SimNetwork};
use rdma::{GroupStats, Time};

use self::hostile_machine::HostileMachine;
use self::resetter::Resetter;

pub use self::bulk_flow::{BulkDirection, BulkFlow};
pub use self::chaos_run::{Outcome, chaos_run};
pub use self::disk::Disk;
pub use self::engine::{DiskConfig, DiskStats};
pub use self::host::HostNode;
pub use self::link_trial::{
    ENDLESS_QUEUE, GIGABIT, LinkFigures, LinkTrial, SHORT_QUEUE, expect_few_repeats, plain_link,
};
pub use self::random::Random;
pub use self::seeds::{all_worlds, only_seed, with_seeds};
pub use self::target::{TargetNode, TargetOptions};
pub use self::totals::Totals;
pub use self::trace::Trace;
pub use self::workload::{Workload, WorkloadOptions};

/// Turns without any passing of time after which something is taken to spin.
const MAX_TURNS_AT_ONCE: u32 = 100_000;

/// Names a target of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetId(usize);

/// Names a host of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostId(usize);

/// A network, and the nodes on it.
pub struct World {
    seed: u64,
    network: SimNetwork,
    now: Time,
    turns_at_once: u32,
    /// No node had anything to do in the last turn.
    idle: bool,
    hosts: Vec<Host>,
    targets: Vec<Target>,
    machines: Vec<MachineNode>,
    /// Targets print their system calls.
    verbose: bool,
    /// No step goes beyond this time.
    alarm: Option<Time>,
    trace: Trace,
}

/// A host and how the world treats it.
struct Host {
    /// None once the host has vanished.
    node: Option<HostNode>,
    ip: IpAddr,
    options: ControllerOptions,
    /// Time until which the host gets no turn.
    paused_until: Time,
}

/// A target and how the world treats it.
struct Target {
    node: TargetNode,
    /// Time until which the target gets no turn.
    paused_until: Time,
    rest: Rest,
}

/// A machine that speaks for itself, and how the world treats it.
struct MachineNode {
    machine: Box<dyn Machine>,
    ip: IpAddr,
    rest: Rest,
}

/// A host that is not one of ours.
trait Machine {
    /// Does all that is ready; true if there was anything.
    fn turn(&mut self, now: Time) -> bool;

    /// When it wants a turn though nothing arrives.
    fn deadline(&self) -> Option<Time>;

    /// Ends the machine; returns its totals, and its provider's counters.
    fn leave(self: Box<Self>) -> (Totals, GroupStats);
}

/// Whether a node sleeps: one that has twice had nothing to do gets no turn before the time that it
/// named, unless something arrives.
#[derive(Default)]
struct Rest {
    idle_turns: u32,
    due: Option<Time>,
}

impl Rest {
    fn goes_on(&mut self, now: Time, mail: bool) -> bool {
        if mail || self.due.is_some_and(|due| due <= now) {
            self.idle_turns = 0;
        }
        self.idle_turns >= 2
    }

    fn note_idle(&mut self, due: Option<Time>) {
        self.idle_turns += 1;
        self.due = due;
    }

    fn end(&mut self) {
        self.idle_turns = 0;
    }
}

impl World {
    /// A world without hosts and targets, at time zero.
    pub fn new(seed: u64, network: SimConfig) -> Self {
        Self {
            seed,
            network: SimNetwork::new(seed, network),
            now: Time::from_nanos(1),
            turns_at_once: 0,
            idle: false,
            hosts: Vec::new(),
            targets: Vec::new(),
            machines: Vec::new(),
            verbose: false,
            alarm: None,
            trace: Trace::default(),
        }
    }

    /// Adds a target that exports disks, and starts it.
    pub fn add_target(&mut self, disks: Vec<Disk>, options: TargetOptions) -> TargetId {
        let index = self.targets.len();
        let seed = self.seed.wrapping_add(index as u64);
        let mut node =
            TargetNode::new(self.network.clone(), address(0, index), disks, options, seed);
        if self.verbose {
            node.set_verbose(format!("target {index}"));
        }
        self.targets.push(Target { node, paused_until: Time::ZERO, rest: Rest::default() });
        TargetId(index)
    }

    /// Adds a host with a network address of its own.
    pub fn add_host(&mut self, options: ControllerOptions) -> HostId {
        let ip = address(1, self.hosts.len());
        let node = Some(HostNode::new(&self.network, ip, options.clone()));
        self.hosts.push(Host { node, ip, options, paused_until: Time::ZERO });
        HostId(self.hosts.len() - 1)
    }

    /// Adds a machine that keeps no rules, and visits all targets.
    fn add_hostile_machine(&mut self, seed: u64) {
        let targets = self.targets.iter().map(|target| target.node.subsystem()).collect();
        let ip = address(2, self.machines.len());
        let machine = Box::new(HostileMachine::new(&self.network, ip, targets, seed));
        self.machines.push(MachineNode { machine, ip, rest: Rest::default() });
    }

    /// Adds a host that resets its controllers, on namespace 3 of all targets.
    fn add_resetter(&mut self, seed: u64) {
        let targets = self.targets.iter().map(|target| target.node.subsystem()).collect();
        let ip = address(2, self.machines.len());
        let machine = Box::new(Resetter::new(&self.network, ip, targets, seed));
        self.machines.push(MachineNode { machine, ip, rest: Rest::default() });
    }

    /// The target with this id, which gets a turn at the next step.
    pub fn target(&mut self, id: TargetId) -> &mut TargetNode {
        let target = &mut self.targets[id.0];
        target.rest.end();
        &mut target.node
    }

    /// The host with this id.
    ///
    /// # Panics
    /// If it has vanished.
    pub fn host(&self, id: HostId) -> &HostNode {
        self.hosts[id.0].node.as_ref().expect("the host is there")
    }

    /// Takes a host away from one moment to the next, without a message to its targets. All that
    /// was made from it must have been dropped before; their messages of disconnection would be
    /// sent in a later turn, which does not come.
    pub fn vanish(&mut self, id: HostId) {
        self.hosts[id.0].node = None;
    }

    /// Brings a host back that had vanished. It is the same host, and remembers nothing.
    ///
    /// # Panics
    /// If it is there.
    pub fn bring_back(&mut self, id: HostId) {
        let host = &mut self.hosts[id.0];
        assert!(host.node.is_none(), "the host is there");
        host.node = Some(HostNode::new(&self.network, host.ip, host.options.clone()));
    }

    /// Gives a host no turn for a while: when it gets one again, its clock has jumped.
    pub fn pause_host(&mut self, id: HostId, time: Duration) {
        self.hosts[id.0].paused_until = self.now + time;
    }

    /// Stops a target for this time, as [`World::pause_host`] does with a host.
    pub fn pause_target(&mut self, id: TargetId, time: Duration) {
        self.targets[id.0].paused_until = self.now + time;
    }

    /// Limits steps to end at a time; `None` removes the limit.
    pub fn set_alarm(&mut self, at: Option<Time>) {
        self.alarm = at;
    }

    /// The virtual time, which starts at zero.
    pub fn now(&self) -> Time {
        self.now
    }

    /// The network: its counters, and how it behaves.
    pub fn network(&self) -> &SimNetwork {
        &self.network
    }

    /// Changes how the network behaves from now on.
    pub fn set_faults(&self, change: impl FnOnce(&mut SimConfig)) {
        let mut config = self.network.config();
        change(&mut config);
        self.network.set_config(config);
    }

    /// Puts a bottleneck before all targets, with a link for each direction; or changes it, if it
    /// exists.
    pub fn set_bottleneck(&self, to_targets: LinkConfig, to_hosts: LinkConfig) {
        let targets = self.targets.iter().map(|target| target.node.ip());
        self.network.set_bottleneck(targets, to_targets, to_hosts);
    }

    /// Loses everything between a host and a target from now on.
    pub fn cut(&self, host: HostId, target: TargetId) {
        self.network.cut(self.hosts[host.0].ip, self.targets[target.0].node.ip());
    }

    /// Loses the packets of a target to a host from now on, or those of the host to the target.
    pub fn cut_one_way(&self, host: HostId, target: TargetId, to_host: bool) {
        let (host, target) = (self.hosts[host.0].ip, self.targets[target.0].node.ip());
        let (from, to) = if to_host { (target, host) } else { (host, target) };
        self.network.cut_one_way(from, to);
    }

    /// Undoes [`World::cut`] and [`World::cut_one_way`].
    pub fn heal(&self, host: HostId, target: TargetId) {
        self.network.heal(self.hosts[host.0].ip, self.targets[target.0].node.ip());
    }

    /// Counters of all providers.
    pub fn network_stats(&mut self) -> GroupStats {
        let mut sum = GroupStats::default();
        for host in self.hosts.iter().filter_map(|host| host.node.as_ref()) {
            sum += host.network_stats();
        }
        for target in &mut self.targets {
            sum += target.node.network_stats();
        }
        sum
    }

    /// Gives every node a turn. If none had anything to do for the second time, time advances to
    /// the next event: in between the caller can check results, and start something. False if no
    /// further event will come.
    ///
    /// # Panics
    /// When a node claims to be busy again and again while no time passes.
    pub fn step(&mut self) -> bool {
        self.network.advance(self.now);
        let mut busy = false;
        let mut due: Option<Time> = self.alarm;
        for host in &self.hosts {
            if host.paused_until > self.now {
                due = earliest(due, Some(host.paused_until));
                continue;
            }
            let Some(node) = &host.node else { continue };
            match node.turn(self.now) {
                EngineTurn::Busy => busy = true,
                EngineTurn::SleepUntil(at) => {
                    due = earliest(due, at.map(|at| Time::from_nanos(at.as_nanos())));
                }
            }
        }
        for MachineNode { machine, ip, rest } in &mut self.machines {
            if !rest.goes_on(self.now, self.network.has_mail(*ip)) {
                if machine.turn(self.now) {
                    busy = true;
                    rest.end();
                } else {
                    rest.note_idle(machine.deadline());
                }
            }
            due = earliest(due, rest.due);
        }
        for Target { node, paused_until, rest } in &mut self.targets {
            if *paused_until > self.now {
                due = earliest(due, Some(*paused_until));
                continue;
            }
            if !rest.goes_on(self.now, self.network.has_mail(node.ip())) {
                match node.turn(self.now) {
                    TargetTurn::Busy => {
                        busy = true;
                        rest.end();
                    }
                    TargetTurn::SleepUntil(at) => rest.note_idle(at),
                }
            }
            due = earliest(due, rest.due);
        }
        let was_idle = std::mem::replace(&mut self.idle, !busy);
        if was_idle && !busy {
            // No node that may take a turn has left anything in a socket.
            let Some(due) = earliest(due, self.network.next_arrival()) else { return false };
            if due > self.now {
                self.now = due;
                self.turns_at_once = 0;
                self.idle = false;
                return true;
            }
        }
        self.turns_at_once += 1;
        assert!(self.turns_at_once < MAX_TURNS_AT_ONCE, "no node rests at {:?}", self.now);
        true
    }

    /// Advances time until something is so.
    ///
    /// # Panics
    /// If it is not so within `limit`, or cannot become so.
    pub fn run_until(
        &mut self,
        what: &str,
        limit: Duration,
        mut done: impl FnMut(&mut Self) -> bool,
    ) {
        let end = self.now + limit;
        let mut goes_on = true;
        while !done(self) {
            assert!(goes_on && self.now <= end, "not within {limit:?}: {what}");
            goes_on = self.step();
        }
    }

    /// Runs the world for this virtual time.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end && self.step() {}
        self.now = self.now.max(end);
    }

    /// Runs until a future has its result.
    ///
    /// # Panics
    /// If it has no result within ten virtual minutes.
    pub fn run<F: Future>(&mut self, future: F) -> F::Output {
        let mut future = pin!(future);
        let mut context = Context::from_waker(Waker::noop());
        let mut output = None;
        self.run_until("a result", Duration::from_secs(600), |_| {
            if let Poll::Ready(ready) = future.as_mut().poll(&mut context) {
                output = Some(ready);
            }
            output.is_some()
        });
        output.expect("the run ended with it")
    }

    /// Connects a host to a target.
    ///
    /// # Errors
    /// The error of the host.
    pub fn connect(&mut self, host: HostId, target: TargetId) -> Result<Controller, Error> {
        let subsystem = self.targets[target.0].node.subsystem();
        let connecting = self.host(host).host.connect(subsystem);
        self.run(connecting)
    }

    /// Connects a host to a target and opens a namespace.
    ///
    /// # Panics
    /// If the target refuses, or has no such namespace.
    pub fn open(&mut self, host: HostId, target: TargetId, nsid: u32) -> Namespace {
        let controller = self.connect(host, target).expect("the target takes connections");
        let opening = controller.namespace(Nsid(nsid));
        self.run(opening).expect("the namespace exists")
    }

    /// Runs workloads to their ends. Their results become part of the trace.
    ///
    /// # Panics
    /// As the workloads do, and if they do not end within `limit`.
    pub fn run_workloads(&mut self, workloads: &mut [Workload], limit: Duration) {
        self.run_until("the workloads end", limit, |world| world.turn_workloads(workloads));
    }

    /// Gives workloads their turn; true when all have ended.
    pub fn turn_workloads(&mut self, workloads: &mut [Workload]) -> bool {
        let now = self.now;
        workloads.iter_mut().for_each(|workload| workload.turn(now, &mut self.trace));
        workloads.iter().all(Workload::is_over)
    }

    /// Runs flows for this virtual time.
    pub fn run_flows(&mut self, flows: &mut [BulkFlow], time: Duration) {
        let end = self.now + time;
        self.alarm = Some(end);
        while self.now < end {
            flows.iter_mut().for_each(BulkFlow::turn);
            self.step();
        }
        self.alarm = None;
    }

    /// Waits until nothing is left of all connections and ranges.
    ///
    /// # Panics
    /// If something is left.
    pub fn expect_clean(&mut self, limit: Duration) {
        let end = self.now + limit;
        let mut goes_on = true;
        loop {
            let left = self.leftovers();
            if left.is_empty() {
                return;
            }
            assert!(goes_on && self.now <= end, "left after {limit:?}: {left}");
            goes_on = self.step();
        }
    }

    /// Resources that connections that ended have left behind.
    pub fn leftovers(&mut self) -> String {
        let hosts = self.hosts.iter().filter_map(|host| host.node.as_ref());
        let hosts = hosts.map(HostNode::leftovers);
        let targets = self.targets.iter_mut().map(|target| target.node.leftovers());
        let left = hosts.chain(targets).filter(|left| !left.is_empty());
        left.collect::<Vec<_>>().join("; ")
    }

    /// A checksum over all packets (their times, lengths and outcomes) and all results until now.
    pub fn trace(&self) -> Trace {
        let mut trace = self.trace;
        trace.note(self.network.stats().trace);
        trace.note(self.now.as_nanos());
        trace
    }
}

/// Prints an event, for a run of one seed.
fn print_event(now: Time, node: &str, what: &str) {
    eprintln!("{:>12.6} ms  {node}: {what}", now.as_nanos() as f64 / 1e6);
}

fn address(net: u8, index: usize) -> IpAddr {
    let host = u8::try_from(index + 1).expect("a small world");
    [10, 0, net, host].into()
}

fn earliest(a: Option<Time>, b: Option<Time>) -> Option<Time> {
    a.into_iter().chain(b).min()
}
