//! A host that may do anything: its queue pairs and capsules are made by hand.
#![expect(unsafe_code, reason = "lends memory to a device")]

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use nvme_proto::fabrics::{Connect, ConnectAttributes, ConnectData, PropertySet, PropertySize};
use nvme_proto::nvm::Io;
use nvme_proto::rdma_cm::{ConnectRequest, Reject, RejectStatus};
use nvme_proto::registers::{Cc, Property};
use nvme_proto::{
    Cid, Cntlid, Cqe, FromBytes, HostId, HostNqn, IntoBytes, Nqn, Nsid, NvmCommand, Qid, Sgl, Sqe,
    Status,
};
use rdma::soft::{Faults, PortChoice, Soft, SoftDevice, SoftOptions};
use rdma::{
    Access, CmEvent, ConnId, ConnOptions, ConnParams, ConnectionManager, Device, Group,
    GroupConfig, Mem, MemoryRegion, Op, PrivateData, Provider, PushError, QpConfig, QpKey, RecvWr,
    SendFlags, SendWr, Sge, Time, Wc, WcOpcode,
};

use crate::process::{Daemon, loopback_address, pause};

const CAPSULE_BYTES: usize = 64 + 16_384;
const CAPSULES: usize = 256;
const RESPONSES: usize = 2048;
const DATA_AT: usize = CAPSULES * CAPSULE_BYTES + RESPONSES * 16;
const DATA_BYTES: usize = 8 << 20;
/// Queue pairs of one host.
const QUEUE_PAIRS: u32 = 64;
/// What a target may take to answer, generously.
const PATIENCE: Duration = Duration::from_secs(60);
/// A target answers within microseconds, or it is busy for longer.
const BREATH: Duration = Duration::from_micros(200);

/// A host on an address of its own.
pub struct HostileHost {
    device: SoftDevice,
    cm: <Soft as Provider>::Cm,
    group: <Soft as Provider>::Group,
    region: Option<<Soft as Provider>::Region>,
    memory: Box<[u8]>,
    queues: Vec<Queue>,
    capsules: usize,
    responses: usize,
    next_cid: u16,
    id: HostId,
    start: Instant,
}

/// Names a queue of a [`HostileHost`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueKey(usize);

struct Queue {
    conn: ConnId,
    qp: Option<QpKey>,
    private: Vec<u8>,
    link: Link,
    /// Responses that it still makes room for.
    receives_left: usize,
    responses: VecDeque<Cqe>,
}

/// What became of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// The target has not answered.
    Pending,
    /// It is there.
    Up,
    /// The target does not want it.
    Rejected(RejectStatus),
    /// The connection manager of the target does not want it.
    Refused,
    /// It ended.
    Down,
}

/// Queues of one association.
#[derive(Clone, Copy, Debug)]
pub struct Association {
    /// The admin queue.
    pub admin: QueueKey,
    /// The first I/O queue.
    pub io: QueueKey,
    /// The controller.
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
        let config =
            GroupConfig { completions: 8192, queue_pairs: QUEUE_PAIRS, completion_vector: 0 };
        let mut memory = vec![0u8; DATA_AT + DATA_BYTES].into_boxed_slice();
        let mem = Mem::Host { addr: memory.as_mut_ptr(), length: memory.len() };
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        // SAFETY: the memory is freed after the region, and read and written between turns only.
        let region = unsafe { device.register(mem, access) }.expect("memory can be registered");
        let mut id = [0; 16];
        let unique = rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty());
        assert_eq!(unique, Ok(16), "the kernel has randomness");
        Self {
            cm: device.connection_manager().expect("nobody has it yet"),
            group: device.group(&config).expect("nobody has it yet"),
            region: Some(region),
            memory,
            device,
            queues: Vec::new(),
            capsules: 0,
            responses: 0,
            next_cid: 0,
            id: HostId(id),
            start: clock(),
        }
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
        let now = self.now();
        let conn = self.cm.resolve(now, to, PATIENCE, &ConnOptions::default());
        self.queues.push(Queue {
            conn: conn.expect("loopback is reachable"),
            qp: None,
            private: private.to_vec(),
            link: Link::Pending,
            receives_left: receives,
            responses: VecDeque::new(),
        });
        QueueKey(self.queues.len() - 1)
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
    /// If there is none.
    pub fn settle(&mut self, queue: QueueKey) -> Link {
        self.until("the target answers a connection request", |host| {
            let link = host.state(queue);
            (link != Link::Pending).then_some(link)
        })
    }

    /// An admin queue and an I/O queue with so many entries each, as a decent host has them.
    ///
    /// # Panics
    /// If the target does not want that.
    pub fn associate(&mut self, to: &Daemon, entries: u16) -> Association {
        let admin = self.link(to.address(), 0, 32, usize::MAX);
        let response = self.nvme_connect(to, admin, 0, Cntlid::DYNAMIC, 32);
        assert!(response.status().is_success(), "{response:?}");
        let cntlid = Cntlid(response.dw0.get() as u16);
        let cc = Cc::new().with_en(true).with_iosqes(6).with_iocqes(4);
        let value = cc.into_bits().into();
        let set = PropertySet { property: Property::CC, size: PropertySize::FourBytes, value };
        assert_eq!(self.status(admin, &set.to_sqe(), &[]), Some(Status::SUCCESS));
        let io = self.add_queue(to, cntlid, 1, entries, usize::MAX);
        Association { admin, io, cntlid }
    }

    /// One more I/O queue, with room for so many responses after that to Connect.
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
        let data = ConnectData::new(self.id, cntlid, subsystem, HostNqn::from_host_id(self.id));
        self.data(0, 1024).copy_from_slice(data.as_bytes());
        let connect = Connect {
            qid: Qid(qid),
            queue_entries: entries.into(),
            attributes: ConnectAttributes::new(),
            keep_alive_timeout_ms: if qid == 0 { 120_000 } else { 0 },
        };
        let sqe = connect.to_sqe().with_data(self.keyed(0, 1024));
        self.command(queue, &sqe, &[]).expect("the connection is up")
    }

    /// Sends a command and waits for its response; `None` if the connection ends first.
    pub fn command(&mut self, queue: QueueKey, sqe: &Sqe, in_capsule: &[u8]) -> Option<Cqe> {
        let cid = self.post(queue, sqe, in_capsule);
        self.response(queue, cid)
    }

    /// As [`HostileHost::command`], for the status without its flags.
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

    /// Sends any bytes as a capsule; what finds no place in the queue is lost.
    ///
    /// # Panics
    /// If there is no queue pair yet.
    pub fn send(&mut self, queue: QueueKey, bytes: &[u8]) {
        let at = self.capsules % CAPSULES * CAPSULE_BYTES;
        self.capsules += 1;
        self.memory[at..at + bytes.len()].copy_from_slice(bytes);
        let sge = self.sge(at, bytes.len());
        let wr = SendWr { wr_id: 0, op: Op::Send, flags: SendFlags::SIGNALED, sges: &[sge] };
        let qp = self.queues[queue.0].qp.expect("the queue was connected");
        // SAFETY: the memory lives as long as the region. A capsule whose place is used again
        // before it left says something else then, as hostile hosts may.
        let pushed = unsafe { self.group.push_send(qp, &wr) };
        assert!(matches!(pushed, Ok(()) | Err(PushError::QueueFull)), "{pushed:?}");
        self.turn();
    }

    /// The response to a command; `None` if the connection ends first.
    pub fn response(&mut self, queue: QueueKey, cid: Cid) -> Option<Cqe> {
        self.until("the target answers a command", |host| {
            let Queue { responses, link, .. } = &mut host.queues[queue.0];
            let at = responses.iter().position(|response| response.cid() == cid);
            match at.and_then(|at| responses.remove(at)) {
                Some(response) => Some(Some(response)),
                None => (*link == Link::Down).then_some(None),
            }
        })
    }

    /// How many responses came that nobody has asked for yet.
    pub fn responses(&self, queue: QueueKey) -> usize {
        self.queues[queue.0].responses.len()
    }

    /// Waits until the target ends a connection.
    ///
    /// # Panics
    /// If it does not.
    pub fn wait_down(&mut self, queue: QueueKey) {
        self.until("the target ends the connection", |host| {
            (host.state(queue) == Link::Down).then_some(())
        });
    }

    /// What has become of a connection so far.
    pub fn state(&self, queue: QueueKey) -> Link {
        self.queues[queue.0].link
    }

    /// Data memory that commands point at.
    pub fn data(&mut self, offset: usize, length: usize) -> &mut [u8] {
        &mut self.memory[DATA_AT + offset..DATA_AT + offset + length]
    }

    /// A descriptor of data memory.
    pub fn keyed(&self, offset: usize, length: usize) -> Sgl {
        let address = self.memory.as_ptr() as u64 + (DATA_AT + offset) as u64;
        let key = self.region.as_ref().map_or(0, MemoryRegion::rkey);
        Sgl::Keyed { address, length: length as u32, key, invalidate: false }
    }

    /// Ends a connection in order.
    pub fn leave(&mut self, queue: QueueKey) {
        let now = self.now();
        self.cm.disconnect(now, self.queues[queue.0].conn);
        self.wait_down(queue);
    }

    /// Ends all connections in order, those included whose request is answered only now.
    pub fn hang_up(&mut self) {
        let mut told = vec![false; self.queues.len()];
        self.until("the target lets it go", |host| {
            let now = host.now();
            let is_up = |queue: &Queue| queue.link == Link::Up;
            for (queue, told) in host.queues.iter().zip(&mut told) {
                if is_up(queue) && !std::mem::replace(told, true) {
                    host.cm.disconnect(now, queue.conn);
                }
            }
            (!host.queues.iter().any(is_up)).then_some(())
        });
    }

    /// Withdraws its memory: from here on every key of it is void.
    pub fn withdraw_memory(&mut self) {
        self.region = None;
    }

    /// Answers the target until something is so.
    ///
    /// # Panics
    /// If it is not so for a long time; `what` says what was waited for.
    pub fn until<T>(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> Option<T>) -> T {
        let rounds = PATIENCE.as_micros() / BREATH.as_micros();
        for _ in 0..rounds {
            while self.turn() {}
            if let Some(result) = done(self) {
                return result;
            }
            pause(BREATH);
        }
        panic!("waited in vain until {what}");
    }

    /// Does all that is ready; true if there was anything.
    pub fn turn(&mut self) -> bool {
        let now = self.now();
        let mut progress = false;
        while let Some(event) = self.cm.poll(now) {
            progress = true;
            self.handle(now, event);
        }
        let mut completions = [Wc::default(); 64];
        let count = self.group.poll(now, &mut completions);
        for completion in &completions[..count] {
            self.completed(completion);
        }
        self.group.flush(now);
        progress | (count > 0)
    }

    /// Makes so many queue pairs and sends a connection request for each, but hears no answer.
    pub fn knock_and_leave(&mut self, to: SocketAddr, knocks: usize) -> Vec<QueueKey> {
        let request = ConnectRequest::new(Qid::ADMIN, Cntlid(0), 32, 32);
        let queues = (0..knocks).map(|_| self.dial_with(to, request.as_bytes(), 0)).collect();
        let now = self.now();
        // The first polls say that the routes are known; once the requests are out, nothing is
        // polled any more.
        let mut ready = Vec::new();
        while ready.len() < knocks
            && let Some(event) = self.cm.poll(now)
        {
            if let CmEvent::Resolved { conn } = event {
                ready.push(conn);
            }
        }
        for conn in ready {
            self.request(now, conn);
        }
        queues
    }

    fn handle(&mut self, now: Time, event: CmEvent) {
        match event {
            CmEvent::Resolved { conn } => self.request(now, conn),
            CmEvent::Established { conn, .. } => self.queue_of(conn).link = Link::Up,
            CmEvent::Rejected { conn, private_data, reason } => {
                let ours = reason == rdma::REJECT_CONSUMER_DEFINED;
                let said = Reject::parse(private_data.as_slice()).filter(|_| ours);
                self.queue_of(conn).link =
                    said.map_or(Link::Refused, |reject| Link::Rejected(reject.status()));
            }
            CmEvent::Disconnected { conn, .. } | CmEvent::ConnectFailed { conn, .. } => {
                self.queue_of(conn).link = Link::Down;
                self.cm.close(conn);
            }
            _ => {}
        }
    }

    fn request(&mut self, now: Time, conn: ConnId) {
        let config =
            QpConfig { send_wr: 512, recv_wr: 512, send_sge: 1, recv_sge: 1, inline_bytes: 0 };
        let handle = self.group.handle();
        let qp = self.cm.create_qp(conn, &handle, &self.device, &config).expect("there is room");
        let qp = self.group.adopt(qp);
        let queue = self.queue_of(conn);
        queue.qp = Some(qp);
        let receives = queue.receives_left.min(128);
        queue.receives_left -= receives;
        let private_data = PrivateData::new(&queue.private).expect("it fits a request");
        for _ in 0..receives {
            let slot = self.responses % RESPONSES;
            self.responses += 1;
            self.post_receive(qp, slot);
        }
        let params = ConnParams {
            responder_resources: 4,
            initiator_depth: 0,
            retry_count: 7,
            rnr_retry_count: 7,
            private_data,
        };
        self.cm.connect(now, conn, &params).expect("the connection is at that point");
    }

    fn post_receive(&mut self, qp: QpKey, slot: usize) {
        let sge = self.sge(CAPSULES * CAPSULE_BYTES + slot * 16, 16);
        let wr = RecvWr { wr_id: slot as u64, sges: &[sge] };
        // SAFETY: the memory lives as long as the region; whatever overwrites a response only
        // spoils this host's own.
        unsafe { self.group.push_recv(qp, &wr) }.expect("fewer are posted than fit");
    }

    fn completed(&mut self, completion: &Wc) {
        let found = self
            .queues
            .iter()
            .position(|queue| queue.qp.is_some_and(|qp| self.group.qpn(qp) == completion.qpn));
        let Some(index) = found else { return };
        if !completion.is_success() {
            let link = &mut self.queues[index].link;
            // Receives of a connection that was rejected fail as well, and say less.
            if !matches!(link, Link::Rejected(_) | Link::Refused) {
                *link = Link::Down;
            }
            return;
        }
        if completion.opcode != WcOpcode::RECV {
            return;
        }
        let slot = completion.wr_id as usize;
        let at = CAPSULES * CAPSULE_BYTES + slot * 16;
        let response = Cqe::read_from_bytes(&self.memory[at..at + 16]).expect("sixteen bytes");
        let queue = &mut self.queues[index];
        queue.responses.push_back(response);
        if let (Some(left), Some(qp)) = (queue.receives_left.checked_sub(1), queue.qp) {
            queue.receives_left = left;
            // The same place: the others that were posted may still be waiting in theirs.
            self.post_receive(qp, slot);
        }
    }

    fn queue_of(&mut self, conn: ConnId) -> &mut Queue {
        let found = self.queues.iter_mut().find(|queue| queue.conn == conn);
        found.expect("every connection has its queue")
    }

    fn sge(&self, at: usize, length: usize) -> Sge {
        let lkey = self.region.as_ref().map_or(0, MemoryRegion::lkey);
        Sge { addr: self.memory.as_ptr() as u64 + at as u64, length: length as u32, lkey }
    }
}

impl std::fmt::Debug for HostileHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostileHost").field("queues", &self.queues.len()).finish_non_exhaustive()
    }
}

/// Reads so many bytes from a block on; the descriptor is still missing.
pub fn read(nsid: u32, slba: u64, length: usize) -> Sqe {
    NvmCommand::Read(io(nsid, slba, length)).to_sqe()
}

/// Writes so many bytes from a block on; the descriptor is still missing.
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
