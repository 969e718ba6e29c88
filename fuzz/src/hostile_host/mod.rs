//! A target as a hostile host sees it, and a well-behaved host that must not notice.

mod host;
mod script;
mod witness;

use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use feedrail_target::Config;
use feedrail_target::stepped::Assembly;
use feedrail_target::stepped::Inline;
use feedrail_target::stepped::Inventory;
use feedrail_target::stepped::OpenPurpose;
use feedrail_target::stepped::Stepped;
use feedrail_target::stepped::Turn;
use feedrail_target::testing::Delay;
use rdma::sim::{Sim, SimConfig, SimDevice, SimNetwork};
use rdma::{Device, Time};

use self::host::FuzzHost;
use self::witness::{ADMIN, NAMESPACE_BYTES, Witness};
use crate::clockwork::Clockwork;
use crate::input::Input;

const TARGET: [u8; 4] = [10, 0, 0, 1];
const HOSTILE: [u8; 4] = [10, 0, 0, 2];
const WITNESS: [u8; 4] = [10, 0, 0, 3];
/// The subsystem that any host may connect to, and the one for the witness only.
const OPEN: &str = "nqn.2026-01.io.feedrail:open";
const PRIVATE: &str = "nqn.2026-01.io.feedrail:private";
const WITNESS_NQN: &str = "nqn.2026-01.io.feedrail:witness";
const OPERATIONS_MAX: usize = 40;

/// Runs a sequence of operations of sixteen bytes each.
///
/// Must hold: the witness is served and reads the bytes that it wrote; a command is answered at
/// most once; when the hostile host is gone, all that the target and its device held for it is free
/// again.
///
/// The target and the witness live on from one execution to the next: each ends only when
/// everything is as it was.
pub fn run(data: &[u8]) {
    thread_local! {
        static WORLD: Cell<Option<Box<HostWorld>>> = const { Cell::new(None) };
    }
    // One whose execution fails is not used again.
    let mut world = WORLD.take().unwrap_or_else(|| Box::new(HostWorld::new()));
    world.play(data);
    world.end();
    WORLD.set(Some(world));
}

struct HostWorld {
    now: Time,
    network: SimNetwork,
    target: Stepped,
    device: SimDevice,
    address: SocketAddr,
    hostile: FuzzHost,
    witness: Witness,
    /// Resources held for the witness alone.
    held: HostHoldings,
}

/// Resources that are held for hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct HostHoldings {
    associations: usize,
    connections: u64,
    pool_bytes: u64,
    regions: u64,
    queue_pairs: u64,
    host_regions: u64,
    host_queue_pairs: u64,
}

impl HostWorld {
    fn new() -> Self {
        let network = SimNetwork::new(1, SimConfig::default());
        let open = |address: [u8; 4]| network.device(address.into(), 1).expect("it is free");
        let inventory =
            Inventory::open_with(&config(), OpenPurpose::Check, &|namespace, backend| {
                match &*namespace.name {
                    "slow" => Arc::new(Delay::new(backend, Duration::from_micros(300))),
                    _ => backend,
                }
            });
        let inventory = inventory.expect("memory can be exported");
        let device = open(TARGET);
        let mut assembly = Assembly::new(Arc::clone(&inventory), 1).expect("memory is to be had");
        let refused = assembly.add::<Sim>(device.clone()).expect("the device has room");
        assert!(refused.is_empty(), "{refused:?}");
        let target = Stepped::new(assembly, || Box::new(Inline::new()));
        let mut world = Self {
            now: Time::from_nanos(1),
            target,
            device,
            address: inventory.ports()[0].address(),
            hostile: FuzzHost::new(open(HOSTILE)),
            witness: Witness::new(open(WITNESS), WITNESS_NQN, PRIVATE),
            network,
            held: HostHoldings::default(),
        };
        world.connect_witness();
        world.held = world.held();
        world
    }

    fn connect_witness(&mut self) {
        for queue in 0..2 {
            self.witness.link(self.now, self.address);
            self.settle();
            self.witness.connect();
            self.settle();
            if queue == ADMIN {
                self.witness.enable();
            }
        }
        self.rest();
        assert!(self.witness.is_served());
    }

    fn held(&mut self) -> HostHoldings {
        HostHoldings {
            associations: self.target.associations().controllers().len(),
            connections: self.target.connections(),
            pool_bytes: self.target.stats().iter().map(|group| group.pool.used_bytes).sum(),
            regions: self.device.stats().regions,
            queue_pairs: self.device.stats().queue_pairs,
            host_regions: self.hostile.device().stats().regions,
            host_queue_pairs: self.hostile.device().stats().queue_pairs,
        }
    }

    fn play(&mut self, data: &[u8]) {
        let mut input = Input::new(data);
        for _ in 0..OPERATIONS_MAX {
            if input.is_empty() {
                break;
            }
            self.operate(&mut Input::new(input.slice(16)));
            self.turn();
        }
    }

    /// The hostile host goes, and is not missed.
    fn end(&mut self) {
        self.heal();
        for link in 0..self.hostile.links.len() {
            self.hostile.disconnect(self.now, link);
        }
        // Each of two rounds reads the bytes that were written.
        for _ in 0..2 {
            self.witness.act(0, 15);
            self.rest();
        }
        self.hostile.forget();
        self.rest();
        assert!(self.witness.is_served());
        assert_eq!(self.held(), self.held);
    }

    fn cut(&self) {
        self.network.cut(TARGET.into(), HOSTILE.into());
    }

    fn heal(&self) {
        self.network.heal(TARGET.into(), HOSTILE.into());
    }
}

impl Clockwork for HostWorld {
    const STEPS_MAX: usize = 100_000;

    fn turn(&mut self) -> Turn {
        let busy = self.hostile.turn(self.now) | self.witness.host.turn(self.now);
        self.witness.check();
        let target = match self.target.turn(self.now) {
            Turn::SleepUntil(time) if !busy => time,
            _ => return Turn::Busy,
        };
        let hosts = [self.hostile.deadline(), self.witness.host.deadline()];
        let next = hosts.into_iter().flatten().chain(target).chain(self.network.next_event());
        Turn::SleepUntil(next.min())
    }

    fn now(&mut self) -> &mut Time {
        &mut self.now
    }

    fn network(&self) -> &SimNetwork {
        &self.network
    }
}

/// One core with little memory, so that it runs short of it.
fn config() -> Config {
    let target = IpAddr::from(TARGET);
    let text = format!(
        r#"
        cores = 1
        provider = "soft"
        [limits]
        queue_depth = 16
        io_queues = 4
        max_transfer_bytes = "16KiB"
        pool_bytes = "96KiB"
        connections = 6
        [[port]]
        address = "{target}:4420"
        [[subsystem]]
        nqn = "{OPEN}"
        allow_any_host = true
        [[subsystem.namespace]]
        kind = "memory"
        name = "quick"
        size_bytes = "256KiB"
        read_only = false
        [[subsystem.namespace]]
        kind = "memory"
        name = "slow"
        size_bytes = "256KiB"
        read_only = false
        [[subsystem.namespace]]
        kind = "null"
        name = "read-only"
        size_bytes = "1MiB"
        [[subsystem]]
        nqn = "{PRIVATE}"
        allowed_hosts = ["{WITNESS_NQN}"]
        [[subsystem.namespace]]
        kind = "memory"
        name = "private"
        size_bytes = {NAMESPACE_BYTES}
        read_only = false
        "#
    );
    Config::from_toml(Path::new("fuzz.toml"), &text).expect("the configuration is valid")
}

#[cfg(test)]
mod tests {
    use nvme_proto::Status;

    use super::*;

    /// The statuses that the hostile host got.
    fn answers(script: &[u8]) -> Vec<Status> {
        let mut world = HostWorld::new();
        world.play(script);
        let answers = world.hostile.links.iter().flat_map(|link| &link.answers);
        let statuses = answers.map(|cqe| cqe.status().without_flags()).collect();
        world.end();
        statuses
    }

    #[test]
    fn valid_beginnings_are_served() {
        const DONE: Status = Status::SUCCESS;
        let admin = include_bytes!("../../corpus/hostile_host/admin");
        assert_eq!(answers(admin), [DONE; 3]);
        let discovery = include_bytes!("../../corpus/hostile_host/discovery");
        assert_eq!(answers(discovery), [DONE; 3]);
        let read = include_bytes!("../../corpus/hostile_host/read");
        assert_eq!(answers(read), [DONE; 4]);
        let write = include_bytes!("../../corpus/hostile_host/write");
        assert_eq!(answers(write), [DONE; 5]);
        let abort = include_bytes!("../../corpus/hostile_host/abort");
        assert_eq!(answers(abort), [DONE, DONE, DONE, DONE, Status::ABORT_REQUESTED]);
    }

    #[test]
    #[should_panic(expected = "associations: 2")]
    fn an_association_that_stays_is_seen() {
        let mut world = HostWorld::new();
        world.play(include_bytes!("../../corpus/hostile_host/read"));
        assert_eq!(world.held(), world.held);
    }
}
