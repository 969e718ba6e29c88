//! A host over UDP, in real time.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use nvme_proto::fabrics::{Connect, ConnectAttributes, ConnectData, PropertySet, PropertySize};
use nvme_proto::nvm::{Flush, Io};
use nvme_proto::registers::{Cc, Property};
use nvme_proto::{Cid, Cntlid, Cqe, HostId, HostNqn, IntoBytes, Nqn, Nsid, NvmCommand, Qid, Sqe};
use rdma::Time;
use rdma::soft::{PortChoice, Soft, SoftDevice, SoftOptions};

use crate::serving::host::{self, Host};

pub(crate) const NQN: &str = "nqn.2026-01.io.feedrail:threads";

/// Random loopback address; there are 2^24, so concurrent tests do not collide.
pub(crate) fn random_loopback() -> String {
    let mut random = [0u8; 3];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).unwrap();
    format!("127.{}.{}.{}", random[0], random[1], random[2].clamp(2, 254))
}

pub(crate) struct Link {
    host: Host<Soft>,
    address: SocketAddr,
    start: Instant,
    next_cid: u16,
}

impl Link {
    pub(crate) fn new(address: SocketAddr) -> Self {
        let own: IpAddr = random_loopback().parse().unwrap();
        let device = SoftDevice::open(&SoftOptions::new(own, PortChoice::Any)).unwrap();
        Self { host: Host::new(&device), address, start: clock(), next_cid: 0 }
    }

    fn now(&self) -> Time {
        Time::from_nanos(1 + self.start.elapsed().as_nanos() as u64)
    }

    fn turn(&mut self) {
        let now = self.now();
        if !self.host.turn(now) {
            std::thread::yield_now();
        }
    }

    /// Connects an admin queue and one I/O queue.
    pub(crate) fn associate(&mut self) {
        let admin = self.connect(0, Cntlid::DYNAMIC, 32);
        let cc = Cc::new().with_en(true).with_iosqes(6).with_iocqes(4);
        let size = PropertySize::FourBytes;
        let set = PropertySet { property: Property::CC, size, value: cc.into_bits().into() };
        self.command(0, &set.to_sqe());
        self.connect(1, Cntlid(admin.dw0.get() as u16), 32);
    }

    fn connect(&mut self, qid: u16, cntlid: Cntlid, entries: u16) -> Cqe {
        let now = self.now();
        let queue = self.host.connect(now, self.address, qid, entries);
        while !matches!(self.host.state(queue), host::Link::Up(_)) {
            self.turn();
        }
        let hostnqn: Nqn = "nqn.2026-01.io.feedrail:host".parse().unwrap();
        let data =
            ConnectData::new(HostId([7; 16]), cntlid, NQN.parse().unwrap(), HostNqn(hostnqn));
        self.host.put(0, data.as_bytes());
        let connect = Connect {
            qid: Qid(qid),
            queue_entries: entries.into(),
            attributes: ConnectAttributes::new(),
            keep_alive_timeout_ms: if qid == 0 { 120_000 } else { 0 },
        };
        self.command(queue, &connect.to_sqe().with_data(self.host.keyed(0, 1024)))
    }

    fn command(&mut self, queue: usize, sqe: &Sqe) -> Cqe {
        self.next_cid = self.next_cid.wrapping_add(1);
        self.host.send(queue, &sqe.with_cid(Cid(self.next_cid)), &[]);
        loop {
            self.turn();
            if let Some(cqe) = self.host.responses(queue).pop_front() {
                assert!(cqe.status().is_success(), "{cqe:?}");
                return cqe;
            }
        }
    }

    pub(crate) fn read(&mut self, slba: u64, length: usize) -> Vec<u8> {
        let sqe = NvmCommand::Read(Io::new(Nsid(1), slba, (length / 512) as u32)).to_sqe();
        self.host.fill(0, length, 0xEE);
        self.command(1, &sqe.with_data(self.host.keyed(0, length)));
        self.host.get(0, length)
    }

    pub(crate) fn write(&mut self, slba: u64, bytes: &[u8]) {
        let sqe = NvmCommand::Write(Io::new(Nsid(1), slba, (bytes.len() / 512) as u32)).to_sqe();
        self.host.put(0, bytes);
        self.command(1, &sqe.with_data(self.host.keyed(0, bytes.len())));
    }

    pub(crate) fn flush(&mut self) {
        self.command(1, &Flush { nsid: Nsid(1) }.to_sqe());
    }

    pub(crate) fn idle(&self, time: Duration) {
        let (_sender, receiver) = std::sync::mpsc::channel::<()>();
        let _ = receiver.recv_timeout(time);
    }
}

#[expect(clippy::disallowed_methods, reason = "a test in real time")]
fn clock() -> Instant {
    Instant::now()
}
