//! A host over real sockets that may do anything.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use nvme_proto::fabrics::{Connect, ConnectAttributes, ConnectData, PropertySet, PropertySize};
use nvme_proto::nvm::Io;
use nvme_proto::rdma_cm::ConnectRequest;
use nvme_proto::registers::{Cc, Property};
use nvme_proto::{
    Cid, Cntlid, Cqe, HostId, HostNqn, IntoBytes, Nqn, Nsid, NvmCommand, Qid, Sgl, Sqe, Status,
};
use raw_peers::{RawHost, RawHostShape, RawLinkState, RawReceives};
use rdma::soft::{Faults, PortChoice, Soft, SoftDevice, SoftOptions};
use rdma::{PushError, Time};

use crate::process::{Daemon, loopback_address, pause};

/// The most that a target may take to answer, generously.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);
/// A target answers within microseconds, or it is busy for longer.
const IDLE_SLEEP: Duration = Duration::from_micros(200);
/// Receives that a queue has posted at first.
const RECEIVES_AT_FIRST: usize = 128;

const SHAPE: RawHostShape = RawHostShape {
    queue_pairs: 64,
    sends: 512,
    receives: 512,
    capsules: 256,
    capsule_bytes: 64 + 16_384,
    data_bytes: 8 << 20,
    timeout: RESPONSE_TIMEOUT,
};

/// A host on an address of its own.
pub struct HostileHost {
    raw: RawHost<Soft>,
    next_cid: u16,
    id: HostId,
    start: Instant,
}

/// Names a queue of a [`HostileHost`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueKey(usize);

/// Queues of one association.
#[derive(Clone, Copy, Debug)]
pub struct Association {
    /// The admin queue, with queue id 0.
    pub admin: QueueKey,
    /// The first I/O queue.
    pub io: QueueKey,
    /// The controller id that Connect returned.
    pub cntlid: Cntlid,
}

impl HostileHost {
    /// A host whose network is faultless, unless `faults` are given.
    ///
    /// # Panics
    /// If there is no device for it.
    pub fn new(faults: Option<Faults>) -> Self {
        let mut options = SoftOptions::new(loopback_address(), PortChoice::Ephemeral);
        options.faults = faults;
        let device = SoftDevice::open(&options).expect("a loopback address can be used");
        let mut id = [0; 16];
        let unique = rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty());
        assert_eq!(unique, Ok(16), "the kernel has randomness");
        Self { raw: RawHost::new(device, SHAPE), next_cid: 0, id: HostId(id), start: clock() }
    }

    fn now(&self) -> Time {
        Time::from_nanos(1) + (clock() - self.start)
    }

    /// Begins a connection with well-formed private data, and room for `receives` responses.
    ///
    /// # Panics
    /// If the system refuses.
    pub fn dial(&mut self, to: SocketAddr, qid: u16, entries: u16, receives: usize) -> QueueKey {
        let request = ConnectRequest::new(Qid(qid), Cntlid(0), entries, entries.into());
        self.dial_with(to, request.as_bytes(), receives)
    }

    /// Begins a connection with any private data.
    ///
    /// # Panics
    /// If the system refuses.
    pub fn dial_with(&mut self, to: SocketAddr, private: &[u8], receives: usize) -> QueueKey {
        let at_first = receives.min(RECEIVES_AT_FIRST);
        let receives = RawReceives { at_first, later: receives - at_first };
        let request = RawHost::<Soft>::request(private);
        QueueKey(self.raw.dial(self.now(), to, request, receives))
    }

    /// Connects an RDMA queue pair, whatever the target says.
    ///
    /// # Panics
    /// If the target says nothing.
    pub fn link(&mut self, to: SocketAddr, qid: u16, entries: u16, receives: usize) -> QueueKey {
        let queue = self.dial(to, qid, entries, receives);
        self.settle(queue);
        queue
    }

    /// Waits for the target's answer to a connection request.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn settle(&mut self, queue: QueueKey) -> RawLinkState {
        self.until("the target answers a connection request", |host| {
            let link = host.state(queue);
            (link != RawLinkState::Pending).then_some(link)
        })
    }

    /// An admin queue and an I/O queue with `entries` entries each, as a well-behaved host has
    /// them.
    ///
    /// # Panics
    /// If the target does not want that.
    pub fn associate(&mut self, to: &Daemon, entries: u16) -> Association {
        let admin = self.link(to.address(), 0, 32, usize::MAX);
        let response = self.nvme_connect(to, admin, 0, Cntlid::DYNAMIC, 32);
        assert!(response.status().is_success(), "{response:?}");
        let cntlid = Cntlid(response.dw0.get() as u16);
        self.enable(admin);
        let io = self.add_queue(to, cntlid, 1, entries, usize::MAX);
        Association { admin, io, cntlid }
    }

    /// Sets CC.EN: hosts send no I/O before.
    ///
    /// # Panics
    /// If the target does not want that.
    pub fn enable(&mut self, admin: QueueKey) {
        let cc = Cc::new().with_en(true).with_iosqes(6).with_iocqes(4);
        let value = cc.into_bits().into();
        let set = PropertySet { property: Property::CC, size: PropertySize::FourBytes, value };
        assert_eq!(self.status(admin, &set.to_sqe(), &[]), Some(Status::SUCCESS));
    }

    /// Name with which it connects.
    pub fn nqn(&self) -> HostNqn {
        HostNqn::from_host_id(self.id)
    }

    /// One more I/O queue, with room for `room` responses after that to Connect.
    ///
    /// # Panics
    /// If the target does not want that.
    pub fn add_queue(
        &mut self,
        to: &Daemon,
        cntlid: Cntlid,
        qid: u16,
        entries: u16,
        receives: usize,
    ) -> QueueKey {
        let queue = self.link(to.address(), qid, entries, receives.saturating_add(1));
        let response = self.nvme_connect(to, queue, qid, cntlid, entries);
        assert!(response.status().is_success(), "{response:?}");
        queue
    }

    /// Sends a Connect command and waits for the response.
    ///
    /// # Panics
    /// If the connection ends instead.
    pub fn nvme_connect(
        &mut self,
        to: &Daemon,
        queue: QueueKey,
        qid: u16,
        cntlid: Cntlid,
        entries: u16,
    ) -> Cqe {
        let subsystem: Nqn = to.nqn().parse().expect("the daemon says its name");
        self.connect_queue(queue, qid, subsystem, cntlid, entries).expect("the connection is up")
    }

    /// Sends Connect for an admin queue with 32 entries, and returns whether that succeeds.
    pub fn connect_to(&mut self, queue: QueueKey, subsystem: Nqn) -> bool {
        let response = self.connect_queue(queue, 0, subsystem, Cntlid::DYNAMIC, 32);
        response.is_some_and(|response| response.status().is_success())
    }

    fn connect_queue(
        &mut self,
        queue: QueueKey,
        qid: u16,
        subsystem: Nqn,
        cntlid: Cntlid,
        entries: u16,
    ) -> Option<Cqe> {
        let data = ConnectData::new(self.id, cntlid, subsystem, HostNqn::from_host_id(self.id));
        self.raw.put(0, data.as_bytes());
        let connect = Connect {
            qid: Qid(qid),
            queue_entries: entries.into(),
            attributes: ConnectAttributes::new(),
            keep_alive_timeout_ms: if qid == 0 { 120_000 } else { 0 },
        };
        let sqe = connect.to_sqe().with_data(self.keyed(0, 1024));
        self.command(queue, &sqe, &[])
    }

    /// Sends a command and waits for its response; `None` if the connection ends first.
    pub fn command(&mut self, queue: QueueKey, sqe: &Sqe, in_capsule: &[u8]) -> Option<Cqe> {
        let cid = self.post(queue, sqe, in_capsule);
        self.response(queue, cid)
    }

    /// Sends a command as [`HostileHost::command`] does, and returns the status without its flags.
    pub fn status(&mut self, queue: QueueKey, sqe: &Sqe, in_capsule: &[u8]) -> Option<Status> {
        self.command(queue, sqe, in_capsule).map(|response| response.status().without_flags())
    }

    /// Sends a command under an id of its own.
    pub fn post(&mut self, queue: QueueKey, sqe: &Sqe, in_capsule: &[u8]) -> Cid {
        self.next_cid = self.next_cid.wrapping_add(1);
        let cid = Cid(self.next_cid);
        self.send(queue, &[sqe.with_cid(cid).as_bytes(), in_capsule].concat());
        cid
    }

    /// Sends any bytes as a capsule; a capsule that finds no place in the queue is lost.
    ///
    /// # Panics
    /// If there is no queue pair yet.
    pub fn send(&mut self, queue: QueueKey, bytes: &[u8]) {
        let pushed = self.raw.send(queue.0, bytes);
        assert!(matches!(pushed, Ok(()) | Err(PushError::QueueFull)), "{pushed:?}");
        self.turn();
    }

    /// The response to a command; `None` if the connection ends first.
    pub fn response(&mut self, queue: QueueKey, cid: Cid) -> Option<Cqe> {
        self.until("the target answers a command", |host| {
            let link = &mut host.raw.links[queue.0];
            let at = link.responses.iter().position(|response| response.cid() == cid);
            match at.and_then(|at| link.responses.remove(at)) {
                Some(response) => Some(Some(response)),
                None => (link.state == RawLinkState::Down).then_some(None),
            }
        })
    }

    /// Waits until the target ends a connection.
    ///
    /// # Panics
    /// If it does not.
    pub fn wait_down(&mut self, queue: QueueKey) {
        self.until("the target ends the connection", |host| {
            (host.state(queue) == RawLinkState::Down).then_some(())
        });
    }

    /// The state of a connection at present.
    pub fn state(&self, queue: QueueKey) -> RawLinkState {
        self.raw.links[queue.0].state
    }

    /// Writes to data memory, which commands point at.
    pub fn put(&self, offset: usize, bytes: &[u8]) {
        self.raw.put(offset, bytes);
    }

    /// Writes one byte to all of a part of data memory.
    pub fn fill(&self, offset: usize, length: usize, byte: u8) {
        self.raw.fill(offset, length, byte);
    }

    /// Reads the memory that a target reads and writes.
    pub fn get(&self, offset: usize, length: usize) -> Vec<u8> {
        self.raw.get(offset, length).collect()
    }

    /// A descriptor of data memory.
    pub fn keyed(&self, offset: usize, length: usize) -> Sgl {
        self.raw.keyed(offset, length)
    }

    /// Ends a connection in order.
    pub fn leave(&mut self, queue: QueueKey) {
        let now = self.now();
        self.raw.disconnect(now, queue.0);
        self.wait_down(queue);
    }

    /// Ends all connections in order, those included whose request is answered only now.
    pub fn disconnect_all(&mut self) {
        let mut told = vec![false; self.raw.links.len()];
        self.until("the target lets it go", |host| {
            let now = host.now();
            for (link, told) in told.iter_mut().enumerate() {
                if host.raw.links[link].is_up() && !std::mem::replace(told, true) {
                    host.raw.disconnect(now, link);
                }
            }
            (!host.raw.links.iter().any(|link| link.is_up())).then_some(())
        });
    }

    /// Withdraws its memory: from here on every key of it is void.
    pub fn withdraw_memory(&mut self) {
        self.raw.replace_memory();
    }

    /// Answers the target until something is so.
    ///
    /// # Panics
    /// If it is not so for a long time; `what` is for the message.
    pub fn until<T>(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> Option<T>) -> T {
        let rounds = RESPONSE_TIMEOUT.as_micros() / IDLE_SLEEP.as_micros();
        for _ in 0..rounds {
            while self.turn() {}
            if let Some(result) = done(self) {
                return result;
            }
            pause(IDLE_SLEEP);
        }
        panic!("timed out waiting until {what}");
    }

    /// Does all that is ready; true if there was anything.
    pub fn turn(&mut self) -> bool {
        let now = self.now();
        self.raw.turn(now)
    }

    /// Makes `knocks` queue pairs and sends a connection request for each, but hears no answer.
    pub fn request_and_abandon(&mut self, to: SocketAddr, knocks: usize) -> Vec<QueueKey> {
        let request = ConnectRequest::new(Qid::ADMIN, Cntlid(0), 32, 32);
        let queues: Vec<_> =
            (0..knocks).map(|_| self.dial_with(to, request.as_bytes(), 0)).collect();
        let now = self.now();
        self.raw.knock(now);
        queues
    }
}

impl std::fmt::Debug for HostileHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostileHost").field("queues", &self.raw.links.len()).finish_non_exhaustive()
    }
}

/// Reads `length` bytes from a block on; the descriptor is still missing.
pub fn read(nsid: u32, slba: u64, length: usize) -> Sqe {
    NvmCommand::Read(io(nsid, slba, length)).to_sqe()
}

/// Writes `length` bytes from a block on; the descriptor is still missing.
pub fn write(nsid: u32, slba: u64, length: usize) -> Sqe {
    NvmCommand::Write(io(nsid, slba, length)).to_sqe()
}

fn io(nsid: u32, slba: u64, length: usize) -> Io {
    Io::new(Nsid(nsid), slba, (length / 512) as u32)
}

#[expect(clippy::disallowed_methods, reason = "this host is its own driver")]
fn clock() -> Instant {
    Instant::now()
}
