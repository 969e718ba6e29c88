//! Measures the target's logic alone: reads of 4 KiB from a null namespace, over a provider that
//! moves no data.
//!
//! `feedrail-bench-logic READS` serves that many reads with the target. `feedrail-bench-logic READS
//! empty` makes only the provider calls of as many reads, in a loop. The difference of their
//! instruction counts, measured by callgrind, is the cost of the target. The first prints the
//! number of allocations for the reads, after a warm-up.

mod allocations;
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
use nvme_proto::fabrics::{Connect, ConnectAttributes, ConnectData, PropertySet, PropertySize};
use nvme_proto::registers::{Cc, Property};
use nvme_proto::{Cid, Cntlid, HostId, HostNqn, IntoBytes, Nqn, Qid, Sgl, Sqe};
use rdma::Time;

use crate::provider::{InProcess, InProcessDevice};
use crate::wire::{ADMIN, IO, LoopbackWire, QUEUE_ENTRIES};

const NQN: &str = "nqn.2026-01.org.example:logic";
const HOST_NQN: &str = "nqn.2026-01.org.example:host";
const WARM_UP_READS: u64 = 1000;
/// Turns of the target after which an expected event counts as missing.
const TURNS_MAX: u32 = 100_000;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let reads: u64 = arguments.next().context("how many reads?")?.parse()?;
    match arguments.next().as_deref() {
        None => serve(reads),
        Some("empty") => {
            provider::loop_alone(reads);
            Ok(())
        }
        Some(other) => anyhow::bail!("{other}: only `empty` is known"),
    }
}

fn serve(reads: u64) -> Result<()> {
    let mut world = LogicWorld::new()?;
    world.connect()?;
    world.read(WARM_UP_READS)?;
    let before = allocations::count();
    world.read(reads)?;
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
    fn new() -> Result<Self> {
        let wire = Arc::new(LoopbackWire::default());
        let device = InProcessDevice::new(Arc::clone(&wire));
        let text = format!(
            "provider = \"soft\"\ncores = 1\n[[port]]\naddress = \"{}:4420\"\n\
             [[subsystem]]\nnqn = \"{NQN}\"\nallow_any_host = true\n\
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

    /// Connects an admin queue, enables the controller, and connects an I/O queue.
    fn connect(&mut self) -> Result<()> {
        self.wire.request_connection(ADMIN, 32);
        let cntlid = self.command(ADMIN, &connect(ADMIN, Cntlid::DYNAMIC, 32)?)?;
        let cc = Cc::new().with_en(true).with_iosqes(6).with_iocqes(4);
        let size = PropertySize::FourBytes;
        let set = PropertySet { property: Property::CC, size, value: cc.into_bits().into() };
        self.command(ADMIN, &set.to_sqe())?;
        self.wire.request_connection(IO, QUEUE_ENTRIES);
        self.command(IO, &connect(IO, Cntlid(cntlid as u16), QUEUE_ENTRIES)?)?;
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

    fn read(&mut self, reads: u64) -> Result<()> {
        self.wire.ask_for_reads(reads);
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

/// Creates a Connect command. Its data is leaked, since the target fetches it later.
fn connect(queue: usize, cntlid: Cntlid, entries: u16) -> Result<Sqe> {
    let (nqn, host): (Nqn, Nqn) = (NQN.parse()?, HOST_NQN.parse()?);
    let data = ConnectData::new(HostId([7; 16]), cntlid, nqn, HostNqn(host));
    let data: &'static [u8] = Box::leak(data.as_bytes().to_vec().into_boxed_slice());
    let connect = Connect {
        qid: Qid(queue as u16),
        queue_entries: entries.into(),
        attributes: ConnectAttributes::new(),
        keep_alive_timeout_ms: 0,
    };
    let address = data.as_ptr().expose_provenance() as u64;
    let length = data.len() as u32;
    Ok(connect.to_sqe().with_data(Sgl::Keyed { address, length, key: 1, invalidate: false }))
}
