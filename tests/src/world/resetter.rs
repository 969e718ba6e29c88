//! A host that resets its controller in the middle of writes: when a reset is complete, none of
//! them may still land.

use std::net::IpAddr;
use std::ops::Range;
use std::time::Duration;

use feedrail_initiator::{HostId, HostNqn, SubsystemAddress};
use nvme_proto::fabrics::{
    Connect, ConnectAttributes, ConnectData, PropertyGet, PropertySet, PropertySize,
};
use nvme_proto::nvm::Io;
use nvme_proto::rdma_cm::ConnectRequest;
use nvme_proto::registers::{Cc, Csts, Property};
use nvme_proto::{Cid, Cntlid, Cqe, FromBytes, IntoBytes, Nsid, NvmCommand, Qid, Sqe};
use raw_peers::{PeerEvent, RawMemory, RawPeer, RawPeerShape};
use rdma::sim::{Sim, SimNetwork};
use rdma::{Access, CmEvent, ConnId, ConnParams, GroupStats, Op, PrivateData, Time};

use super::{Machine, Random, Totals};

/// The namespace that is this host's alone, and how long it is.
const NSID: Nsid = Nsid(3);
pub(super) const BLOCK: usize = 4096;
const OLD_DATA: usize = 0;
const NEW_DATA: usize = BLOCK;
const READ_DATA: usize = 2 * BLOCK;
const CAPSULES: usize = 3 * BLOCK;
const CONNECT_DATA: usize = CAPSULES + 2048;
const MEMORY: usize = 4 * BLOCK;
/// Commands on the way at most: each has a place for its capsule.
const PLACES: usize = 16;
const SHAPE: RawPeerShape = RawPeerShape {
    queue_pairs: 4,
    sends: PLACES as u32,
    receives: PLACES as u32,
    receive_bytes: size_of::<Cqe>(),
};
const ENTRIES: u16 = 16;
const HOST_ID: HostId = HostId([0xDD; 16]);
const KEEP_ALIVE_MS: u32 = 1_000;
const ROUNDS: u32 = 40;
/// Time between two rounds, in microseconds.
const PAUSE: Range<u64> = 1_000..60_000;
/// Time after which a target must have missed the Keep Alive of a round that ended badly: its
/// commands have ended by then.
const FENCE: Duration = Duration::from_secs(4);
/// A step that takes longer ends the round.
const STEP_TIMEOUT: Duration = Duration::from_secs(8);

/// The event that is waited for: a response, or the passing of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    AdminLink,
    AdminConnect,
    Enable,
    OldLink,
    OldConnect,
    /// The write is on its way, and is given some time.
    OldWrite,
    Disable,
    /// CSTS.RDY is to be 0.
    Disabled,
    /// Some time before it is looked at again.
    StillReady,
    EnableAgain,
    NewLink,
    NewConnect,
    NewWrite,
    ReadAtOnce,
    /// A write from before the reset has some time to land.
    Later,
    ReadLater,
}

struct Round {
    to: SubsystemAddress,
    step: Step,
    /// The end of a step that waits, or the time-out of a step that waits for a response.
    until: Time,
    cntlid: Cntlid,
    admin: ConnId,
    /// Connections of I/O queues, the latest last.
    io: Vec<ConnId>,
}

/// A host that resets its controller and continues.
pub(super) struct Resetter {
    peer: RawPeer<Sim>,
    memory: RawMemory<Sim>,
    random: Random,
    targets: Vec<SubsystemAddress>,
    round: Option<Round>,
    next_round: Time,
    rounds_left: u32,
    commands: usize,
    value: u8,
    totals: Totals,
}

impl Machine for Resetter {
    fn leave(mut self: Box<Self>) -> (Totals, GroupStats) {
        self.totals.add("fault: controller resets under writes", 0);
        self.totals.add("recovery: controller resets that were waited for", 0);
        (self.totals, self.peer.stats())
    }

    fn turn(&mut self, now: Time) -> bool {
        let mut busy = self.take_events(now);
        match &self.round {
            None if self.rounds_left > 0 && self.next_round <= now => {
                self.begin(now);
                busy = true;
            }
            Some(round) if round.until <= now => {
                self.time_is_up(now, round.step);
                busy = true;
            }
            _ => {}
        }
        self.peer.flush(now);
        busy
    }

    fn deadline(&self) -> Option<Time> {
        let own = match &self.round {
            None => (self.rounds_left > 0).then_some(self.next_round),
            Some(round) => Some(round.until),
        };
        self.peer.deadline().into_iter().chain(own).min()
    }
}

impl Resetter {
    pub(super) fn new(
        network: &SimNetwork,
        ip: IpAddr,
        targets: Vec<SubsystemAddress>,
        seed: u64,
    ) -> Self {
        let device = network.device(ip, 1).expect("nothing has the address");
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        Self {
            memory: RawMemory::new(&device, MEMORY, access),
            peer: RawPeer::new(device, SHAPE),
            random: Random::new(seed),
            targets,
            round: None,
            next_round: Time::ZERO,
            rounds_left: ROUNDS,
            commands: 0,
            value: 0,
            totals: Totals::default(),
        }
    }

    fn begin(&mut self, now: Time) {
        self.rounds_left -= 1;
        let to = self.random.pick(&self.targets);
        let admin = self.peer.dial(now, to.address, STEP_TIMEOUT);
        let (step, until) = (Step::AdminLink, now + STEP_TIMEOUT);
        let cntlid = Cntlid::DYNAMIC;
        self.round = Some(Round { to, step, until, cntlid, admin, io: Vec::new() });
    }

    /// Ends the round. A round that did not complete may have left a write behind.
    fn end(&mut self, now: Time, well: bool) {
        let Some(round) = self.round.take() else { return };
        for conn in round.io.into_iter().chain([round.admin]) {
            self.peer.disconnect(now, conn);
            self.peer.release(conn);
        }
        let pause = Duration::from_micros(self.random.within(PAUSE));
        self.next_round = now + if well { pause } else { FENCE + pause };
    }

    fn take_events(&mut self, now: Time) -> bool {
        let mut any = false;
        while let Some(event) = self.peer.poll(now) {
            any = true;
            match event {
                PeerEvent::Connection(event) => self.connection_event(now, event),
                PeerEvent::Arrived { bytes, .. } => {
                    let cqe = Cqe::read_from_bytes(&bytes).expect("a response capsule");
                    self.answered(now, &cqe);
                }
                PeerEvent::Sent { .. } | PeerEvent::Failed { .. } | PeerEvent::Stale => {}
            }
        }
        any
    }

    fn connection_event(&mut self, now: Time, event: CmEvent) {
        match event {
            CmEvent::Resolved { conn } => self.connect(now, conn),
            CmEvent::Established { conn, .. } if self.latest(conn) => self.linked(now),
            CmEvent::Disconnected { conn, .. } | CmEvent::ConnectFailed { conn, .. }
                if self.is_old(conn) => {}
            _ => self.end(now, false),
        }
    }

    /// Whether a reset ends this connection.
    fn is_old(&self, conn: ConnId) -> bool {
        let Some(round) = &self.round else { return true };
        let old = round.io.first() == Some(&conn);
        old && !matches!(round.step, Step::OldLink | Step::OldConnect | Step::OldWrite)
    }

    fn latest(&self, conn: ConnId) -> bool {
        let latest = self.round.as_ref().map(|round| round.io.last().unwrap_or(&round.admin));
        latest == Some(&conn)
    }

    fn connect(&mut self, now: Time, conn: ConnId) {
        assert!(self.peer.create_queue_pair(conn), "it was resolved");
        let Some(round) = &self.round else { return };
        let qid = Qid(u16::from(!round.io.is_empty()));
        let request = ConnectRequest::new(qid, round.cntlid, ENTRIES, ENTRIES.into());
        let private_data = PrivateData::new(request.as_bytes()).expect("a request fits");
        let params = ConnParams {
            responder_resources: 4,
            initiator_depth: 0,
            retry_count: 7,
            rnr_retry_count: 7,
            private_data,
        };
        self.peer.connect(now, conn, &params);
    }

    /// A connection is there.
    fn linked(&mut self, now: Time) {
        let Some(round) = &self.round else { return };
        let (step, qid) = match round.step {
            Step::AdminLink => (Step::AdminConnect, Qid::ADMIN),
            Step::OldLink => (Step::OldConnect, Qid(1)),
            Step::NewLink => (Step::NewConnect, Qid(1)),
            _ => return,
        };
        let (nqn, cntlid) = (round.to.nqn, round.cntlid);
        let data = ConnectData::new(HOST_ID, cntlid, nqn, HostNqn::from_host_id(HOST_ID));
        self.memory.put(CONNECT_DATA, data.as_bytes());
        let connect = Connect {
            qid,
            queue_entries: ENTRIES.into(),
            attributes: ConnectAttributes::new(),
            keep_alive_timeout_ms: if qid.is_admin() { KEEP_ALIVE_MS } else { 0 },
        };
        let sgl = self.memory.keyed(CONNECT_DATA, size_of::<ConnectData>());
        self.send(now, step, !qid.is_admin(), &connect.to_sqe().with_data(sgl));
    }

    /// Ends a step that only waits, or the round if its step has taken too long.
    fn time_is_up(&mut self, now: Time, step: Step) {
        match step {
            Step::OldWrite => {
                self.totals.add("fault: controller resets under writes", 1);
                self.send(now, Step::Disable, false, &set_cc(Cc::new()));
            }
            Step::StillReady => self.send(now, Step::Disabled, false, &get_csts()),
            Step::Later => self.read(now, Step::ReadLater),
            _ => self.end(now, false),
        }
    }

    /// The response of the present step has come.
    fn answered(&mut self, now: Time, cqe: &Cqe) {
        let Some(round) = &mut self.round else { return };
        let step = round.step;
        if cqe.cid() != Cid(step as u16) {
            // The old write has ended, well or not, before the reset.
            return;
        }
        if !cqe.status().is_success() {
            return self.end(now, false);
        }
        match step {
            Step::AdminConnect => {
                round.cntlid = Cntlid(cqe.dw0.get() as u16);
                self.send(now, Step::Enable, false, &set_cc(enabled()));
            }
            Step::Enable => self.link(now, Step::OldLink),
            Step::OldConnect => {
                self.write(now, Step::OldWrite, OLD_DATA);
                let rest = Duration::from_micros(self.random.within(1..3_000));
                self.wait(now + rest);
            }
            Step::Disable => self.send(now, Step::Disabled, false, &get_csts()),
            Step::Disabled if Csts::from_bits(cqe.dw0.get()).rdy() => {
                self.totals.add("recovery: controller resets that were waited for", 1);
                round.step = Step::StillReady;
                // The target sees each look as a sign of life.
                self.wait(now + Duration::from_millis(2));
            }
            Step::Disabled => self.send(now, Step::EnableAgain, false, &set_cc(enabled())),
            Step::EnableAgain => self.link(now, Step::NewLink),
            Step::NewConnect => self.write(now, Step::NewWrite, NEW_DATA),
            Step::NewWrite => self.read(now, Step::ReadAtOnce),
            Step::ReadAtOnce => {
                self.check();
                let rest = Duration::from_micros(self.random.within(1..700_000));
                if let Some(round) = &mut self.round {
                    round.step = Step::Later;
                }
                self.wait(now + rest);
            }
            Step::ReadLater => {
                self.check();
                self.end(now, true);
            }
            _ => {}
        }
    }

    fn link(&mut self, now: Time, step: Step) {
        let Some(to) = self.round.as_ref().map(|round| round.to) else { return };
        let conn = self.peer.dial(now, to.address, STEP_TIMEOUT);
        let Some(round) = &mut self.round else { return };
        round.io.push(conn);
        (round.step, round.until) = (step, now + STEP_TIMEOUT);
    }

    fn wait(&mut self, until: Time) {
        if let Some(round) = &mut self.round {
            round.until = until;
        }
    }

    fn write(&mut self, now: Time, step: Step, data: usize) {
        self.value = self.value.wrapping_add(1);
        self.memory.fill(data, BLOCK, self.value);
        let sqe = NvmCommand::Write(block()).to_sqe().with_data(self.memory.keyed(data, BLOCK));
        self.send(now, step, true, &sqe);
    }

    fn read(&mut self, now: Time, step: Step) {
        let sgl = self.memory.keyed(READ_DATA, BLOCK);
        self.send(now, step, true, &NvmCommand::Read(block()).to_sqe().with_data(sgl));
    }

    fn check(&self) {
        let [written, read] = [NEW_DATA, READ_DATA].map(|data| self.memory.get(data, BLOCK));
        assert!(read.eq(written), "a write of before a controller reset landed after it");
    }

    /// Sends the command of a step, on the I/O queue or the admin queue.
    fn send(&mut self, now: Time, step: Step, io: bool, sqe: &Sqe) {
        let Some(round) = &mut self.round else { return };
        (round.step, round.until) = (step, now + STEP_TIMEOUT);
        let conn = *round.io.last().filter(|_| io).unwrap_or(&round.admin);
        if !self.peer.has_queue_pair(conn) {
            return;
        }
        self.peer.post_receives(conn, 1);
        let capsule = capsule_of(self.commands % PLACES);
        self.commands += 1;
        self.memory.put(capsule, sqe.with_cid(Cid(step as u16)).as_bytes());
        let pushed = self.peer.push(conn, 0, Op::Send, &self.memory, capsule, size_of::<Sqe>());
        pushed.expect("few commands are on the way");
    }
}

fn enabled() -> Cc {
    Cc::new().with_en(true).with_iosqes(Cc::IOSQES).with_iocqes(Cc::IOCQES)
}

fn set_cc(cc: Cc) -> Sqe {
    let (property, size) = (Property::CC, PropertySize::FourBytes);
    PropertySet { property, size, value: cc.into_bits().into() }.to_sqe()
}

fn get_csts() -> Sqe {
    PropertyGet { property: Property::CSTS, size: PropertySize::FourBytes }.to_sqe()
}

/// The one block of the namespace.
fn block() -> Io {
    Io::new(NSID, 0, 1)
}

fn capsule_of(place: usize) -> usize {
    CAPSULES + place * size_of::<Sqe>()
}
