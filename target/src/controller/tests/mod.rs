//! Controllers without a transport: entries and data in, completions and data out.

mod admin;
mod connect;
mod discovery;
mod hostile;
mod io;
mod keep_alive;
mod life;
mod namespaces;
mod protection;
mod support;

use std::path::Path;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use nvme_proto::fabrics::{
    Connect, ConnectAttributes, ConnectData, PropertyGet, PropertySet, PropertySize,
};
use nvme_proto::registers::{Cc, CcCss, Csts, Property};
use nvme_proto::{Cid, Cntlid, Cqe, HostId, HostNqn, IntoBytes, Nqn, Qid, Sqe, Status};
use rdma::Time;

use super::{
    Accepted, Associations, CommandHold, CommandOutcome, CommandWork, Execution, IoWork, Lost,
    Queue, QueueEvent, TransferDirection,
};
use crate::backend::BackendError;
use crate::config::Config;
use crate::inventory::Inventory;
use crate::inventory::open::OpenPurpose;

const SUBSYSTEM: &str = "nqn.2026-01.io.feedrail:t";
const CONFIG: &str = r#"
[[port]]
address = "127.0.0.1:4420"
[limits]
max_transfer_bytes = "64KiB"
io_queues = 4
queue_depth = 32
[[subsystem]]
nqn = "nqn.2026-01.io.feedrail:t"
allow_any_host = true
[[subsystem.namespace]]
kind = "memory"
size_bytes = "1MiB"
[[subsystem.namespace]]
nsid = 3
kind = "null"
size_bytes = "4TiB"
read_only = true
lba_bytes = 4096
[[subsystem]]
nqn = "nqn.2026-01.io.feedrail:private"
allowed_hosts = ["nqn.2026-01.io.feedrail:host.friend"]
[[subsystem.namespace]]
kind = "null"
size_bytes = "1MiB"
"#;

fn associations() -> Arc<Associations> {
    associations_of(CONFIG)
}

fn associations_of(text: &str) -> Arc<Associations> {
    let config = Config::from_toml(Path::new("/test.toml"), text).expect("a valid configuration");
    let inventory = Inventory::open(&config, OpenPurpose::Check);
    Associations::new(inventory.expect("memory can be opened"))
}

fn seconds(seconds: u64) -> Time {
    Time::ZERO + Duration::from_secs(seconds)
}

/// One queue seen from the host.
struct Line {
    queue: Queue,
    /// Set as if the connection manager had lost the connection.
    lost: Arc<Lost>,
    now: Time,
    next_cid: u16,
}

impl Line {
    fn new(associations: &Arc<Associations>, qid: u16, now: Time) -> Self {
        Self::at_port(associations, 0, qid, now)
    }

    fn at_port(associations: &Arc<Associations>, port: usize, qid: u16, now: Time) -> Self {
        let lost = Arc::new(Lost::default());
        let accepted = Accepted {
            port: Arc::clone(&associations.inventory().ports()[port]),
            qid: Qid(qid),
            entries: 32,
            peer: std::net::SocketAddr::from(([127, 0, 0, 9], 50_000)).into(),
            waker: Waker::noop().clone(),
            now,
            lost: Arc::clone(&lost),
        };
        let queue = Queue::new(
            Arc::clone(associations),
            associations.inventory().open_core_io_stats(),
            accepted,
        );
        Self { queue, lost, now, next_cid: 0x1000 }
    }

    /// Sends a control command with its data and returns the completion, or `None` when it parked.
    fn control(&mut self, sqe: Sqe, data: &mut [u8]) -> Option<Cqe> {
        let cid = Cid(self.next_cid);
        self.next_cid += 1;
        let outcome = match self.queue.parse(self.now, &sqe.with_cid(cid)) {
            Err(outcome) => outcome,
            Ok(command) => {
                let length = command.transfer.map_or(0, |transfer| transfer.length_bytes as usize);
                let CommandWork::Control(work) = command.work else { panic!("a control command") };
                match self.queue.execute(self.now, cid, work, &mut data[..length]) {
                    Execution::Complete(outcome)
                    | Execution::CompleteAndClose(outcome)
                    | Execution::Disconnect(outcome) => outcome,
                    Execution::Parked | Execution::Postponed => return None,
                }
            }
        };
        Some(self.queue.completion(cid, outcome))
    }

    fn without_data(&mut self, sqe: Sqe) -> Cqe {
        self.control(sqe, &mut [0; 65_536]).expect("it does not park")
    }

    /// Parses an I/O command.
    fn io(
        &mut self,
        sqe: Sqe,
    ) -> Result<(Option<(TransferDirection, u32)>, IoWork), CommandOutcome> {
        let command = self.queue.parse(self.now, &sqe)?;
        let CommandWork::Io(work) = command.work else { panic!("an I/O command") };
        Ok((command.transfer.map(|t| (t.direction, t.length_bytes)), work))
    }

    fn refused(&mut self, sqe: Sqe) -> Status {
        self.queue.parse(self.now, &sqe).expect_err("it is refused").status
    }

    fn connect(&mut self, connect: &Connect, data: &ConnectData) -> Cqe {
        let mut bytes = data.as_bytes().to_vec();
        self.control(connect.to_sqe(), &mut bytes).expect("connect does not park")
    }

    fn property(&mut self, property: Property) -> u64 {
        let size = property.size().unwrap_or(PropertySize::FourBytes);
        let cqe = self.without_data(PropertyGet { property, size }.to_sqe());
        assert!(cqe.status().is_success(), "{:?}", cqe.status());
        cqe.result()
    }

    fn csts(&mut self) -> Csts {
        Csts::from_bits(self.property(Property::CSTS) as u32)
    }

    fn set_cc(&mut self, cc: Cc) -> Status {
        let value = cc.into_bits().into();
        let set = PropertySet { property: Property::CC, size: PropertySize::FourBytes, value };
        self.without_data(set.to_sqe()).status()
    }

    fn events(&mut self) -> Vec<QueueEvent> {
        let mut events = Vec::new();
        while let Some(event) = self.queue.poll(self.now) {
            let closes = matches!(event, QueueEvent::Close(_));
            events.push(event);
            if closes {
                break;
            }
        }
        events
    }

    /// Executes the flushes of the controller with this result, and returns all other events.
    fn serve(&mut self, result: Result<(), BackendError>) -> Vec<QueueEvent> {
        let mut events = Vec::new();
        while let Some(event) = self.queue.poll(self.now) {
            match event {
                QueueEvent::Flush(flush) => self.queue.flushed(self.now, flush, result),
                QueueEvent::Close(_) => {
                    events.push(event);
                    break;
                }
                event => events.push(event),
            }
        }
        events
    }

    /// Ends the connection when storage has nothing left to do.
    fn close(self) {
        drop(self.queue.close());
    }

    /// Ends the connection while storage executes a command that changes the medium.
    fn close_with_a_write(self) -> CommandHold {
        self.queue.close().expect("it was connected")
    }
}

fn host(name: &str) -> HostNqn {
    HostNqn(Nqn::new(&format!("nqn.2026-01.io.feedrail:host.{name}")).expect("a valid name"))
}

const HOST_ID: HostId = HostId([7; 16]);

fn connect_data(cntlid: Cntlid) -> ConnectData {
    ConnectData::new(HOST_ID, cntlid, Nqn::new(SUBSYSTEM).expect("valid"), host("a"))
}

fn connect_command(qid: u16) -> Connect {
    Connect {
        qid: Qid(qid),
        queue_entries: 32,
        attributes: ConnectAttributes::new(),
        keep_alive_timeout_ms: if qid == 0 { 5000 } else { 0 },
    }
}

fn enabled() -> Cc {
    Cc::new().with_en(true).with_css(CcCss::NVM).with_iosqes(Cc::IOSQES).with_iocqes(Cc::IOCQES)
}

/// A connected admin queue.
fn admin(associations: &Arc<Associations>, now: Time) -> (Line, Cntlid) {
    let mut line = Line::new(associations, 0, now);
    let cqe = line.connect(&connect_command(0), &connect_data(Cntlid::DYNAMIC));
    assert!(cqe.status().is_success(), "{:?}", cqe.status());
    (line, Cntlid(cqe.result() as u16))
}

/// An admin queue as in [`admin`], with the controller enabled.
fn ready(associations: &Arc<Associations>, now: Time) -> (Line, Cntlid) {
    let (mut line, cntlid) = admin(associations, now);
    assert!(line.set_cc(enabled()).is_success());
    assert!(line.csts().rdy());
    (line, cntlid)
}

fn io_queue(associations: &Arc<Associations>, qid: u16, cntlid: Cntlid, now: Time) -> Line {
    let mut line = Line::new(associations, qid, now);
    let cqe = line.connect(&connect_command(qid), &connect_data(cntlid));
    assert!(cqe.status().is_success(), "{:?}", cqe.status());
    line
}
