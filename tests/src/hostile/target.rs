//! A target that takes connections and then answers as it likes.
#![expect(unsafe_code, reason = "lends memory to a device")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use feedrail_initiator::SubsystemAddress;
use nvme_proto::rdma_cm::ConnectAccept;
use nvme_proto::{Cid, FromBytes, IntoBytes, Sqe};
use rdma::soft::{PortChoice, Soft, SoftDevice, SoftOptions};
use rdma::{
    Access, CmEvent, ConnId, ConnOptions, ConnParams, ConnectionManager, Device, Group,
    GroupConfig, Mem, MemoryRegion, Op, PrivateData, Provider, QpConfig, QpKey, RecvWr, SendFlags,
    SendWr, Sge, Time, Wc, WcOpcode,
};

use crate::process::{loopback_address, pause};

const RECEIVES: u16 = 32;
const RECEIVE_BYTES: usize = 64 + 8192;
const ANSWER_BYTES: usize = 4096;
const ANSWERS_AT: usize = RECEIVES as usize * RECEIVE_BYTES;
const ANSWERS: usize = 128;
const BREATH: Duration = Duration::from_micros(200);

/// How a hostile target behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// Never answers a connection request.
    Deaf,
    /// Rejects with private data that means nothing.
    RejectsInTongues,
    /// Accepts with private data that means nothing.
    AcceptsInTongues,
    /// Accepts, and says nothing more.
    Silent,
    /// Accepts, and takes no command.
    TakesNothing,
    /// Accepts, and hangs up at the first command.
    HangsUp,
    /// Answers every command with success and zeros, and moves no data.
    Zeros,
    /// Answers every command with success and ones, and moves no data.
    Ones,
    /// Answers under an id that nobody used.
    WrongId,
    /// Answers everything twice.
    Twice,
    /// Answers with half a response.
    Short,
    /// Answers with far too much.
    Long,
    /// Answers a command with more responses than there are receives.
    Flood,
    /// Writes into memory of the host that it was not shown.
    Trespasses,
}

impl Manner {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::Deaf,
        Self::RejectsInTongues,
        Self::AcceptsInTongues,
        Self::Silent,
        Self::TakesNothing,
        Self::HangsUp,
        Self::Zeros,
        Self::Ones,
        Self::WrongId,
        Self::Twice,
        Self::Short,
        Self::Long,
        Self::Flood,
        Self::Trespasses,
    ];

    /// What it does, in words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Deaf => "never answers a connection request",
            Self::RejectsInTongues => "rejects with private data that means nothing",
            Self::AcceptsInTongues => "accepts with private data that means nothing",
            Self::Silent => "accepts, and says nothing more",
            Self::TakesNothing => "accepts, and takes no command",
            Self::HangsUp => "hangs up at the first command",
            Self::Zeros => "answers success and zeros, and moves no data",
            Self::Ones => "answers success and ones, and moves no data",
            Self::WrongId => "answers under an id that nobody used",
            Self::Twice => "answers everything twice",
            Self::Short => "answers with half a response",
            Self::Long => "answers with far too much",
            Self::Flood => "answers with more responses than there are receives",
            Self::Trespasses => "writes into memory that it was not shown",
        }
    }
}

/// A target on an address of its own, in a thread of its own.
#[derive(Debug)]
pub struct HostileTarget {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl HostileTarget {
    /// Listens.
    ///
    /// # Panics
    /// If there is no device for it.
    pub fn start(manner: Manner) -> Self {
        let device = SoftDevice::open(&SoftOptions::new(loopback_address(), PortChoice::Roce));
        let device = device.expect("the loopback address is free");
        let address = SocketAddr::new(device.local_ip(), 4420);
        let mut desk = Desk::new(&device, manner);
        desk.cm.listen(address, &ConnOptions::default()).expect("nobody else listens there");
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                if !desk.turn() {
                    pause(BREATH);
                }
            }
        });
        Self { address, stop, thread: Some(thread) }
    }

    /// What an initiator connects to.
    ///
    /// # Panics
    /// Never: the name is a constant.
    pub fn target(&self) -> SubsystemAddress {
        let nqn = "nqn.2026-01.org.example:hostile".parse().expect("a name");
        SubsystemAddress { address: self.address, nqn }
    }
}

impl Drop for HostileTarget {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || thread::panicking(), "the hostile target itself failed");
        }
    }
}

struct Desk {
    manner: Manner,
    device: SoftDevice,
    cm: <Soft as Provider>::Cm,
    group: <Soft as Provider>::Group,
    region: <Soft as Provider>::Region,
    memory: Box<[u8]>,
    connections: Vec<(ConnId, QpKey)>,
    answers: usize,
    start: Instant,
}

impl Desk {
    fn new(device: &SoftDevice, manner: Manner) -> Self {
        let config = GroupConfig { completions: 4096, queue_pairs: 16, completion_vector: 0 };
        let mut memory = vec![0u8; ANSWERS_AT + ANSWERS * ANSWER_BYTES].into_boxed_slice();
        let mem = Mem::Host { addr: memory.as_mut_ptr(), length: memory.len() };
        // SAFETY: the memory is freed after the region, and read and written between turns only.
        let region = unsafe { device.register(mem, Access::LOCAL_WRITE) };
        Self {
            manner,
            cm: device.connection_manager().expect("nobody has it yet"),
            group: device.group(&config).expect("nobody has it yet"),
            region: region.expect("memory can be registered"),
            memory,
            device: device.clone(),
            connections: Vec::new(),
            answers: 0,
            start: clock(),
        }
    }

    fn turn(&mut self) -> bool {
        let now = Time::from_nanos(1) + (clock() - self.start);
        let mut progress = false;
        while let Some(event) = self.cm.poll(now) {
            progress = true;
            match event {
                CmEvent::ConnectRequest { conn, params, .. } => self.requested(now, conn, params),
                CmEvent::Disconnected { conn, .. } | CmEvent::ConnectFailed { conn, .. } => {
                    self.forget(conn);
                }
                _ => {}
            }
        }
        let mut completions = [Wc::default(); 32];
        let count = self.group.poll(now, &mut completions);
        for completion in &completions[..count] {
            self.completed(now, completion);
        }
        self.group.flush(now);
        progress | (count > 0)
    }

    fn requested(&mut self, now: Time, conn: ConnId, params: ConnParams) {
        let tongues = [0xA5; 32];
        let private_data = match self.manner {
            Manner::Deaf => return,
            Manner::RejectsInTongues => {
                self.cm.reject(now, conn, &tongues).expect("it waits for an answer");
                return;
            }
            Manner::AcceptsInTongues => PrivateData::new(&tongues),
            _ => PrivateData::new(ConnectAccept::new(RECEIVES).as_bytes()),
        };
        let config =
            QpConfig { send_wr: 128, recv_wr: 64, send_sge: 1, recv_sge: 1, inline_bytes: 0 };
        let handle = self.group.handle();
        let qp = self.cm.create_qp(conn, &handle, &self.device, &config).expect("there is room");
        let qp = self.group.adopt(qp);
        self.connections.push((conn, qp));
        if self.manner != Manner::TakesNothing {
            (0..RECEIVES).for_each(|slot| self.post_receive(qp, slot.into()));
        }
        let private_data = private_data.expect("it fits");
        let params = ConnParams { private_data, ..params };
        self.cm.accept(now, conn, &params).expect("it waits for an answer");
    }

    fn forget(&mut self, conn: ConnId) {
        self.cm.close(conn);
        if let Some(at) = self.connections.iter().position(|(other, _)| *other == conn) {
            let (_, qp) = self.connections.swap_remove(at);
            self.group.release(qp);
        }
    }

    fn completed(&mut self, now: Time, completion: &Wc) {
        let found =
            self.connections.iter().find(|(_, qp)| self.group.qpn(*qp) == completion.qpn).copied();
        let Some((conn, qp)) = found.filter(|_| completion.is_success()) else { return };
        if completion.opcode != WcOpcode::RECV {
            return;
        }
        let at = completion.wr_id as usize * RECEIVE_BYTES;
        let sqe = Sqe::read_from_bytes(&self.memory[at..at + 64]).expect("64 bytes");
        self.post_receive(qp, completion.wr_id);
        self.answer(now, conn, qp, sqe.cid());
    }

    fn answer(&mut self, now: Time, conn: ConnId, qp: QpKey, cid: Cid) {
        let good = response(0, cid);
        match self.manner {
            Manner::HangsUp => self.cm.disconnect(now, conn),
            Manner::Zeros => self.send(qp, &good),
            Manner::Ones => self.send(qp, &response(0xFF, cid)),
            Manner::WrongId => self.send(qp, &response(0, Cid(cid.0 ^ 0x5555))),
            Manner::Twice => [good; 2].iter().for_each(|answer| self.send(qp, answer)),
            Manner::Short => self.send(qp, &good[..8]),
            Manner::Long => self.send(qp, &[0xA5; ANSWER_BYTES]),
            Manner::Flood => [good; 100].iter().for_each(|answer| self.send(qp, answer)),
            Manner::Trespasses => {
                let somewhere = Op::RdmaWrite { remote_addr: 0x1000, rkey: 0xDEAD_BEEF };
                self.push(qp, somewhere, &[0xA5; ANSWER_BYTES]);
            }
            Manner::Deaf
            | Manner::RejectsInTongues
            | Manner::AcceptsInTongues
            | Manner::Silent
            | Manner::TakesNothing => {}
        }
    }

    fn send(&mut self, qp: QpKey, bytes: &[u8]) {
        self.push(qp, Op::Send, bytes);
    }

    /// Does something with these bytes, unless there is no room for one thing more.
    fn push(&mut self, qp: QpKey, op: Op, bytes: &[u8]) {
        let at = ANSWERS_AT + self.answers % ANSWERS * ANSWER_BYTES;
        self.answers += 1;
        self.memory[at..at + bytes.len()].copy_from_slice(bytes);
        let sge = self.sge(at, bytes.len());
        let wr = SendWr { wr_id: 0, op, flags: SendFlags::SIGNALED, sges: &[sge] };
        // SAFETY: the memory lives as long as the region, and what is spoilt in it is only a lie.
        let _ = unsafe { self.group.push_send(qp, &wr) };
    }

    fn post_receive(&mut self, qp: QpKey, slot: u64) {
        let sge = self.sge(slot as usize * RECEIVE_BYTES, RECEIVE_BYTES);
        let wr = RecvWr { wr_id: slot, sges: &[sge] };
        // SAFETY: the memory lives as long as the region; connections may overwrite each other's
        // commands.
        unsafe { self.group.push_recv(qp, &wr) }.expect("fewer are posted than fit");
    }

    fn sge(&self, at: usize, length: usize) -> Sge {
        let addr = self.memory.as_ptr() as u64 + at as u64;
        Sge { addr, length: length as u32, lkey: self.region.lkey() }
    }
}

/// A response with success as its status and the same byte everywhere else.
fn response(fill: u8, cid: Cid) -> [u8; 16] {
    let mut bytes = [fill; 16];
    bytes[12..14].copy_from_slice(&cid.0.to_le_bytes());
    bytes[14..16].fill(0);
    bytes
}

#[expect(clippy::disallowed_methods, reason = "this target is its own driver")]
fn clock() -> Instant {
    Instant::now()
}
