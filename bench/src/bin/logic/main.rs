//! Measures the target's logic alone: reads of 4 KiB from a null namespace, over a provider that
//! moves no data.
//!
//! `feedrail-bench-logic READS` serves that many reads with the target. `feedrail-bench-logic READS
//! empty` makes only the provider calls of as many reads, in a loop. The difference of their
//! instruction counts, measured by callgrind, is the cost of the target. The first prints the
//! number of allocations for the reads, after a warm-up.
//!
//! `feedrail-bench-logic READS hosts HOSTS` serves the reads to so many hosts in turn, and
//! `feedrail-bench-logic READS authenticated` to one that has authenticated both of its queues.
//! `feedrail-bench-logic SECONDS idle HOSTS` connects that many hosts, each with an admin queue and
//! an I/O queue, and lets so many seconds of virtual time pass, in which each host sends a Keep
//! Alive after every half of its Keep Alive Timeout and nothing else.

mod allocations;
mod authentication;
mod provider;
mod wire;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use feedrail_target::Config;
use feedrail_target::stepped::Assembly;
use feedrail_target::stepped::Inline;
use feedrail_target::stepped::Inventory;
use feedrail_target::stepped::OpenPurpose;
use feedrail_target::stepped::Stepped;
use feedrail_target::stepped::Turn;
use nvme_proto::fabrics::{
    Connect, ConnectAttributes, ConnectData, ConnectResponse, PropertySet, PropertySize,
};
use nvme_proto::registers::{Cc, Property};
use nvme_proto::{AdminCommand, Cid, Cntlid, HostId, HostNqn, IntoBytes, Nqn, Qid, Sgl, Sqe};
use rdma::Time;

use crate::authentication::AuthenticatedHost;
use crate::provider::{InProcess, InProcessDevice};
use crate::wire::{ADMIN, IO, LoopbackWire, QUEUE_ENTRIES};

const NQN: &str = "nqn.2026-01.org.example:logic";
const HOST_NQN: &str = "nqn.2026-01.org.example:host";
const WARM_UP_READS: u64 = 1000;
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Turns of the target after which an expected event counts as missing.
const TURNS_MAX: u32 = 100_000;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let count: u64 = arguments.next().context("how many?")?.parse()?;
    match arguments.next().as_deref() {
        None => serve(count, LogicWorld::with_hosts(1)?, 1),
        Some("empty") => {
            provider::loop_alone(count);
            Ok(())
        }
        Some("hosts") => {
            let hosts = hosts(arguments.next())?;
            serve(count, LogicWorld::with_hosts(hosts)?, hosts)
        }
        Some("authenticated") => serve(count, LogicWorld::with_authenticated_host()?, 1),
        Some("idle") => idle(count, hosts(arguments.next())?),
        Some(other) => {
            anyhow::bail!("{other}: only `empty`, `hosts`, `authenticated` and `idle` are known")
        }
    }
}

fn hosts(argument: Option<String>) -> Result<usize> {
    Ok(argument.context("how many hosts?")?.parse()?)
}

fn idle(seconds: u64, hosts: usize) -> Result<()> {
    LogicWorld::with_hosts(hosts)?.idle(seconds, hosts)
}

fn serve(reads: u64, mut world: LogicWorld, hosts: usize) -> Result<()> {
    world.read(WARM_UP_READS.max(4 * hosts as u64), hosts)?;
    let before = allocations::count();
    world.read(reads, hosts)?;
    println!("{}", allocations::count() - before);
    Ok(())
}

/// Target, and the provider that simulates its host.
struct LogicWorld {
    wire: Arc<LoopbackWire>,
    target: Stepped,
    now: Time,
}

impl LogicWorld {
    /// Creates a target with more lines in the configuration of its subsystem.
    fn new(host: &str) -> Result<Self> {
        let wire = Arc::new(LoopbackWire::default());
        let device = InProcessDevice::new(Arc::clone(&wire));
        let text = format!(
            "provider = \"soft\"\ncores = 1\n[limits]\nconnections = 10000\n\
             [[port]]\naddress = \"{}:4420\"\n\
             [[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\n{host}\
             [[subsystem.namespace]]\nkind = \"null\"\nsize_bytes = \"1GiB\"\n",
            provider::ADDRESS
        );
        let config = Config::from_toml(Path::new("logic.toml"), &text)?;
        let inventory = Inventory::open_with(&config, OpenPurpose::Check, &|_, backend| backend)?;
        let mut assembly = Assembly::new(inventory, 1)?;
        assembly.add::<InProcess>(device)?;
        let target = Stepped::new(assembly, || Box::new(Inline::new()));
        Ok(Self { wire, target, now: Time::from_nanos(1) })
    }

    /// Creates a target to which this many hosts are connected.
    fn with_hosts(hosts: usize) -> Result<Self> {
        let mut world = Self::new("")?;
        (0..hosts).try_for_each(|host| world.connect(host))?;
        Ok(world)
    }

    /// Creates a target that demands that its host authenticates, and connects that host.
    fn with_authenticated_host() -> Result<Self> {
        let host = AuthenticatedHost::new(format!("{HOST_NQN}0").parse()?, NQN.parse()?)?;
        let mut world = Self::new(&host.configuration())?;
        world.connect_queues(0, |world, queue| host.authenticate(world, queue))?;
        Ok(world)
    }

    fn connect(&mut self, host: usize) -> Result<()> {
        self.connect_queues(host, |_, _| Ok(()))
    }

    /// Connects an admin queue of a host, enables the controller, and connects an I/O queue.
    /// `authenticate` follows each Connect.
    fn connect_queues(
        &mut self,
        host: usize,
        authenticate: impl Fn(&mut Self, usize) -> Result<()>,
    ) -> Result<()> {
        let [admin, io] = [ADMIN, IO].map(|queue| queue + 2 * host);
        self.wire.request_connection(admin, 32);
        let response = self.command(admin, &connect(admin, Cntlid::DYNAMIC, 32)?)?;
        let cntlid = ConnectResponse::from_bits(response).cntlid();
        authenticate(self, admin)?;
        let cc = Cc::new().with_en(true).with_iosqes(6).with_iocqes(4);
        let size = PropertySize::FourBytes;
        let set = PropertySet { property: Property::CC, size, value: cc.into_bits().into() };
        self.command(admin, &set.to_sqe())?;
        self.wire.request_connection(io, QUEUE_ENTRIES);
        self.command(io, &connect(io, cntlid, QUEUE_ENTRIES)?)?;
        authenticate(self, io)
    }

    /// Simulates idle hosts. The target gets a turn when a command arrives and when it has asked
    /// for one, until it may sleep.
    fn idle(&mut self, seconds: u64, hosts: usize) -> Result<()> {
        let end = self.now + Duration::from_secs(seconds);
        let interval = KEEP_ALIVE_TIMEOUT / 2 / u32::try_from(hosts)?;
        let keep_alive = AdminCommand::KeepAlive.to_sqe().with_cid(Cid(2));
        let (mut next_command, mut host) = (self.now + interval, 0);
        let mut answered = 0;
        while self.now < end {
            if self.now >= next_command {
                self.wire.send(ADMIN + 2 * host, keep_alive);
                (next_command, host) = (next_command + interval, (host + 1) % hosts);
            }
            let due = loop {
                match self.target.turn(self.now) {
                    Turn::Busy => {}
                    Turn::SleepUntil(due) => break due,
                }
            };
            while let Some(cqe) = self.wire.response() {
                ensure!(cqe.status().is_success(), "{cqe:?}");
                answered += 1;
            }
            let later = self.now + Duration::from_nanos(1);
            self.now = due.into_iter().chain([next_command]).min().unwrap_or(end).max(later);
        }
        ensure!(self.target.connections() == 2 * hosts as u64, "connections were lost");
        println!("{answered}");
        Ok(())
    }

    /// Sends one command and waits for its result (DW0 of the completion).
    fn command(&mut self, queue: usize, sqe: &Sqe) -> Result<u32> {
        self.wire.send(queue, sqe.with_cid(Cid(1)));
        for _ in 0..TURNS_MAX {
            self.turn();
            if let Some(cqe) = self.wire.response() {
                ensure!(cqe.status().is_success(), "{cqe:?}");
                return Ok(cqe.dw0.get());
            }
        }
        anyhow::bail!("a command was not answered")
    }

    fn read(&mut self, reads: u64, hosts: usize) -> Result<()> {
        self.wire.ask_for_reads(reads, hosts);
        let turns_max = u64::from(TURNS_MAX) + reads;
        for _ in 0..turns_max {
            self.turn();
            if self.wire.all_read() {
                return Ok(());
            }
        }
        anyhow::bail!("reads were not answered")
    }

    fn turn(&mut self) {
        self.target.turn(self.now);
        self.now = self.now + Duration::from_micros(10);
    }
}

/// Creates a Connect command.
fn connect(queue: usize, cntlid: Cntlid, entries: u16) -> Result<Sqe> {
    let number = queue as u32 / 2;
    let (nqn, host): (Nqn, Nqn) = (NQN.parse()?, format!("{HOST_NQN}{number}").parse()?);
    let mut id = [7; 16];
    id[..4].copy_from_slice(&number.to_le_bytes());
    let data = ConnectData::new(HostId(id), cntlid, nqn, HostNqn(host));
    let connect = Connect {
        qid: Qid((queue % 2) as u16),
        queue_entries: entries.into(),
        attributes: ConnectAttributes::new(),
        keep_alive_timeout_ms: KEEP_ALIVE_TIMEOUT.as_millis() as u32,
    };
    Ok(connect.to_sqe().with_data(lent(data.as_bytes().to_vec().leak())))
}

/// Describes data of a command. The caller leaks it, since the target uses it later.
fn lent(data: &mut [u8]) -> Sgl {
    let length = data.len() as u32;
    let address = data.as_mut_ptr().expose_provenance() as u64;
    Sgl::Keyed { address, length, key: 1, invalidate: false }
}
