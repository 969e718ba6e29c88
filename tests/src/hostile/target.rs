//! A target that takes connections and then answers as it likes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use feedrail_initiator::SubsystemAddress;
use nvme_proto::rdma_cm::ConnectAccept;
use nvme_proto::{Cid, FromBytes, IntoBytes, Sqe};
use raw_peers::{RawTarget, RawTargetEvent, RawTargetShape};
use rdma::soft::{PortChoice, Soft, SoftDevice, SoftOptions};
use rdma::{ConnId, ConnParams, Device, Op, PrivateData, Time};

use crate::process::{loopback_address, pause};

const RECEIVES: u16 = 32;
const ANSWER_BYTES: usize = 4096;
const IDLE_SLEEP: Duration = Duration::from_micros(200);

const SHAPE: RawTargetShape = RawTargetShape {
    queue_pairs: 16,
    sends: 128,
    receives: RECEIVES as u32,
    capsule_bytes: 64 + 8192,
    places: 128,
    place_bytes: ANSWER_BYTES,
    data_bytes: 0,
};

/// How a hostile target behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// Never answers a connection request.
    IgnoresRequests,
    /// Rejects with private data that means nothing.
    RejectsWithGarbage,
    /// Accepts with private data that means nothing.
    AcceptsWithGarbage,
    /// Accepts, and says nothing more.
    Silent,
    /// Accepts, and takes no command.
    TakesNothing,
    /// Accepts, and disconnects at the first command.
    Disconnects,
    /// Answers every command with success and zeros, and moves no data.
    Zeros,
    /// Answers every command with success and ones, and moves no data.
    Ones,
    /// Answers under an id that no command used.
    WrongId,
    /// Answers every command twice.
    Twice,
    /// Answers with half a response.
    Short,
    /// Answers with far too much.
    Long,
    /// Answers a command with more responses than there are receives.
    Flood,
    /// Writes into memory of the host that it was not shown.
    WritesOutOfBounds,
}

impl Manner {
    /// Every manner, for tests that try each.
    pub const ALL: [Self; 14] = [
        Self::IgnoresRequests,
        Self::RejectsWithGarbage,
        Self::AcceptsWithGarbage,
        Self::Silent,
        Self::TakesNothing,
        Self::Disconnects,
        Self::Zeros,
        Self::Ones,
        Self::WrongId,
        Self::Twice,
        Self::Short,
        Self::Long,
        Self::Flood,
        Self::WritesOutOfBounds,
    ];

    /// Description of the behaviour, for the table.
    pub fn words(self) -> &'static str {
        match self {
            Self::IgnoresRequests => "never answers a connection request",
            Self::RejectsWithGarbage => "rejects with private data that means nothing",
            Self::AcceptsWithGarbage => "accepts with private data that means nothing",
            Self::Silent => "accepts, and sends nothing more",
            Self::TakesNothing => "accepts, and takes no command",
            Self::Disconnects => "disconnects at the first command",
            Self::Zeros => "answers success and zeros, and moves no data",
            Self::Ones => "answers success and ones, and moves no data",
            Self::WrongId => "answers under an unused id",
            Self::Twice => "answers every command twice",
            Self::Short => "answers with half a response",
            Self::Long => "answers with a response that is too long",
            Self::Flood => "answers with more responses than there are receives",
            Self::WritesOutOfBounds => "writes into memory without a key for it",
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
    /// Listens on a loopback address of its own, in a thread.
    ///
    /// # Panics
    /// If there is no device for it.
    pub fn start(manner: Manner) -> Self {
        let device = SoftDevice::open(&SoftOptions::new(loopback_address(), PortChoice::Roce));
        let device = device.expect("the loopback address is free");
        let address = SocketAddr::new(device.local_ip(), 4420);
        let raw = RawTarget::new(device, address, SHAPE);
        let mut server = HostileServer { manner, raw, start: clock() };
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                if !server.turn() {
                    pause(IDLE_SLEEP);
                }
            }
        });
        Self { address, stop, thread: Some(thread) }
    }

    /// The subsystem that an initiator connects to.
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

struct HostileServer {
    manner: Manner,
    raw: RawTarget<Soft>,
    start: Instant,
}

impl HostileServer {
    fn turn(&mut self) -> bool {
        let now = Time::from_nanos(1) + (clock() - self.start);
        let mut progress = false;
        while let Some(event) = self.raw.poll(now) {
            progress = true;
            match event {
                RawTargetEvent::Request { conn, params } => self.requested(now, conn, params),
                RawTargetEvent::Capsule { conn, bytes } => {
                    let sqe = Sqe::read_from_prefix(&bytes).expect("64 bytes and more").0;
                    self.answer(now, conn, sqe.cid());
                }
                RawTargetEvent::Gone { .. }
                | RawTargetEvent::Fetched { .. }
                | RawTargetEvent::Other => {}
            }
        }
        self.raw.flush(now);
        progress
    }

    fn requested(&mut self, now: Time, conn: ConnId, params: ConnParams) {
        let tongues = [0xA5; 32];
        let private_data = match self.manner {
            Manner::IgnoresRequests => return,
            Manner::RejectsWithGarbage => {
                return self.raw.reject(now, conn, &tongues);
            }
            Manner::AcceptsWithGarbage => PrivateData::new(&tongues),
            _ => PrivateData::new(ConnectAccept::new(RECEIVES).as_bytes()),
        };
        let receives = if self.manner == Manner::TakesNothing { 0 } else { RECEIVES };
        let params = ConnParams { private_data: private_data.expect("it fits"), ..params };
        let accepted = self.raw.accept(now, conn, &params, receives.into());
        assert!(accepted, "it waits for an answer");
    }

    fn answer(&mut self, now: Time, conn: ConnId, cid: Cid) {
        let good = response(0, cid);
        match self.manner {
            Manner::Disconnects => self.raw.disconnect(now, conn),
            Manner::Zeros => self.send(conn, Op::Send, &good),
            Manner::Ones => self.send(conn, Op::Send, &response(0xFF, cid)),
            Manner::WrongId => self.send(conn, Op::Send, &response(0, Cid(cid.0 ^ 0x5555))),
            Manner::Twice => [good; 2].iter().for_each(|answer| self.send(conn, Op::Send, answer)),
            Manner::Short => self.send(conn, Op::Send, &good[..8]),
            Manner::Long => self.send(conn, Op::Send, &[0xA5; ANSWER_BYTES]),
            Manner::Flood => {
                [good; 100].iter().for_each(|answer| self.send(conn, Op::Send, answer))
            }
            Manner::WritesOutOfBounds => {
                let somewhere = Op::RdmaWrite { remote_addr: 0x1000, rkey: 0xDEAD_BEEF };
                self.send(conn, somewhere, &[0xA5; ANSWER_BYTES]);
            }
            Manner::IgnoresRequests
            | Manner::RejectsWithGarbage
            | Manner::AcceptsWithGarbage
            | Manner::Silent
            | Manner::TakesNothing => {}
        }
    }

    /// Does something with these bytes, unless there is no room for one thing more.
    fn send(&mut self, conn: ConnId, op: Op, bytes: &[u8]) {
        let _ = self.raw.send(conn, op, bytes);
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
