//! A machine that breaks the protocol: it names memory to targets that it has not opened to them,
//! writes to theirs with keys that it was not given, and posts its receives late. It panics when a
//! target went beyond the memory that is open.

use std::net::IpAddr;
use std::ops::Range;
use std::time::Duration;

use feedrail_initiator::{HostId, HostNqn, SubsystemAddress};
use nvme_proto::fabrics::{Connect, ConnectAttributes, ConnectData, PropertySet, PropertySize};
use nvme_proto::identify::{Cns, Identify};
use nvme_proto::rdma_cm::ConnectRequest;
use nvme_proto::registers::{Cc, Property};
use nvme_proto::{AdminCommand, Cid, Cntlid, Cqe, FromBytes, IntoBytes, Qid, Sgl, Sqe};
use raw_peers::{PeerEvent, RawMemory, RawPeer, RawPeerShape};
use rdma::sim::{Sim, SimNetwork};
use rdma::{Access, CmEvent, ConnId, ConnParams, GroupStats, Op, PrivateData, Time};

use super::{Machine, Random, Totals};

/// Memory that the target may reach in a correct machine; the length of the data that it is asked
/// for.
const PAGE: usize = 4096;
/// Registered for remote access. Before and behind it no target may write.
const OPEN: Range<usize> = PAGE..2 * PAGE;
/// The open part and the parts beside it.
const LAND_BYTES: usize = 3 * PAGE;
/// Where the data of Connect is, behind the capsules.
const CONNECT_DATA: usize = 2048;
const SHAPE: RawPeerShape =
    RawPeerShape { queue_pairs: 1, sends: 8, receives: 8, receive_bytes: size_of::<Cqe>() };
/// Fill of the memory that no target may write.
const UNTOUCHED: u8 = 0x9E;
/// Visits of one hostile machine in all.
const VISITS: u32 = 60;
/// Time between two visits, in microseconds.
const PAUSE: Range<u64> = 2_000..40_000;
/// A visit that takes longer is broken off.
const VISIT_TIMEOUT: Duration = Duration::from_secs(3);

/// The purpose of a visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attack {
    /// The target writes across the end of the open memory.
    BeyondTheEnd,
    /// The target writes from before the beginning of the open memory.
    BeforeTheBeginning,
    /// The target uses the key of memory that is no longer registered.
    StaleKey,
    /// The target uses a key that never was.
    WrongKey,
    /// Writes to the target, with a key that it was not given.
    ForeignMemory,
}

const ATTACKS: [Attack; 5] = [
    Attack::BeyondTheEnd,
    Attack::BeforeTheBeginning,
    Attack::StaleKey,
    Attack::WrongKey,
    Attack::ForeignMemory,
];

/// The commands of a visit, in order. Each has its own capsule and response in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Connect,
    Enable,
    Attack,
}

/// A connection to a target.
struct Visit {
    conn: ConnId,
    attack: Attack,
    step: Step,
    /// When the receive for the next response is posted.
    ready_at: Option<Time>,
    until: Time,
}

/// A machine whose requests break the protocol.
pub(super) struct HostileMachine {
    peer: RawPeer<Sim>,
    /// The memory that targets are to write to, and the memory beside it.
    land: RawMemory<Sim>,
    /// Capsules and the data of Connect.
    own: RawMemory<Sim>,
    stale_key: u32,
    random: Random,
    targets: Vec<SubsystemAddress>,
    visit: Option<Visit>,
    next_visit: Time,
    visits_left: u32,
    totals: Totals,
}

impl Machine for HostileMachine {
    /// Panics if memory changed that was not open.
    fn leave(mut self: Box<Self>) -> (Totals, GroupStats) {
        self.check_memory();
        self.totals.add("fault: attacks on memory that is not open", 0);
        self.totals.add("recovery: attackers disconnected", 0);
        (self.totals, self.peer.stats())
    }

    fn turn(&mut self, now: Time) -> bool {
        let mut busy = self.take_events(now);
        match &mut self.visit {
            None if self.visits_left > 0 && self.next_visit <= now => {
                self.begin(now);
                busy = true;
            }
            Some(visit) if visit.until <= now => {
                self.end(now);
                busy = true;
            }
            Some(visit) if visit.ready_at.is_some_and(|at| at <= now) => {
                visit.ready_at = None;
                self.peer.post_receives(visit.conn, 1);
                busy = true;
            }
            _ => {}
        }
        self.peer.flush(now);
        busy
    }

    fn deadline(&self) -> Option<Time> {
        let own = match &self.visit {
            None => (self.visits_left > 0).then_some(self.next_visit),
            Some(visit) => Some(visit.ready_at.map_or(visit.until, |at| at.min(visit.until))),
        };
        self.peer.deadline().into_iter().chain(own).min()
    }
}

impl HostileMachine {
    pub(super) fn new(
        network: &SimNetwork,
        ip: IpAddr,
        targets: Vec<SubsystemAddress>,
        seed: u64,
    ) -> Self {
        let device = network.device(ip, 1).expect("nothing has the address");
        let remote = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let land = RawMemory::within(&device, LAND_BYTES, OPEN, remote);
        land.fill(0, LAND_BYTES, UNTOUCHED);
        Self {
            stale_key: land.void_key(&device, 0..PAGE, remote),
            own: RawMemory::new(&device, PAGE, remote),
            land,
            peer: RawPeer::new(device, SHAPE),
            random: Random::new(seed),
            targets,
            visit: None,
            next_visit: Time::ZERO,
            visits_left: VISITS,
            totals: Totals::default(),
        }
    }

    fn begin(&mut self, now: Time) {
        let to = self.random.pick(&self.targets);
        self.visits_left -= 1;
        let data =
            ConnectData::new(HOST_ID, Cntlid::DYNAMIC, to.nqn, HostNqn::from_host_id(HOST_ID));
        self.own.put(CONNECT_DATA, data.as_bytes());
        let attack = self.random.pick(&ATTACKS);
        let conn = self.peer.dial(now, to.address, VISIT_TIMEOUT);
        let (step, until) = (Step::Connect, now + VISIT_TIMEOUT);
        self.visit = Some(Visit { conn, attack, step, ready_at: None, until });
    }

    /// Goes, whatever the target thinks of it.
    fn end(&mut self, now: Time) {
        let Some(visit) = self.visit.take() else { return };
        self.peer.disconnect(now, visit.conn);
        self.peer.release(visit.conn);
        self.next_visit = now + Duration::from_micros(self.random.within(PAUSE));
        self.check_memory();
    }

    fn take_events(&mut self, now: Time) -> bool {
        let mut any = false;
        while let Some(event) = self.peer.poll(now) {
            any = true;
            match event {
                PeerEvent::Connection(CmEvent::Resolved { conn }) => self.connect(now, conn),
                PeerEvent::Connection(CmEvent::Established { .. }) => self.send_command(now),
                PeerEvent::Connection(_) => self.end(now),
                PeerEvent::Arrived { bytes, .. } => self.answered(now, &bytes),
                PeerEvent::Failed { .. } => {
                    let attacked = self.visit.as_ref().is_some_and(|it| it.step == Step::Attack);
                    self.totals.add("recovery: attackers disconnected", u64::from(attacked));
                    self.end(now);
                }
                PeerEvent::Sent { .. } | PeerEvent::Stale => {}
            }
        }
        any
    }

    fn connect(&mut self, now: Time, conn: ConnId) {
        assert!(self.peer.create_queue_pair(conn), "it was resolved");
        let request = ConnectRequest::new(Qid::ADMIN, Cntlid(0), ENTRIES, ENTRIES.into());
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

    /// Sends the capsule of the present step. The receive for its response may come late.
    fn send_command(&mut self, now: Time) {
        let Some(visit) = &mut self.visit else { return };
        let late = self.random.percent(30);
        let delay = if late { self.random.within(1..3_000) } else { 0 };
        visit.ready_at = Some(now + Duration::from_micros(delay));
        let (step, attack) = (visit.step, visit.attack);
        match step {
            Step::Connect => self.send_capsule(step, &self.connect_command()),
            Step::Enable => self.send_capsule(step, &enable_command()),
            Step::Attack if attack == Attack::ForeignMemory => self.write_to_target(),
            Step::Attack => {
                let sgl = self.forbidden_descriptor(attack);
                self.totals.add("fault: attacks on memory that is not open", 1);
                let identify = AdminCommand::Identify(Identify::new(Cns::CONTROLLER));
                self.send_capsule(step, &identify.to_sqe().with_data(sgl));
            }
        }
    }

    fn connect_command(&self) -> Sqe {
        let connect = Connect {
            qid: Qid::ADMIN,
            queue_entries: ENTRIES.into(),
            attributes: ConnectAttributes::new(),
            keep_alive_timeout_ms: 1_000,
        };
        let data = self.own.keyed(CONNECT_DATA, size_of::<ConnectData>());
        connect.to_sqe().with_data(data)
    }

    /// A descriptor of memory that is not, or not all, open.
    fn forbidden_descriptor(&mut self, attack: Attack) -> Sgl {
        let (start, key) = (self.land.address(OPEN.start), self.land.rkey());
        let beside = self.random.within(1..PAGE as u64);
        let (address, key) = match attack {
            Attack::BeyondTheEnd => (start + beside, key),
            Attack::BeforeTheBeginning => (start - beside, key),
            Attack::StaleKey => (self.land.address(0), self.stale_key),
            Attack::WrongKey | Attack::ForeignMemory => {
                (start, key ^ (1 << self.random.within(0..14)))
            }
        };
        Sgl::Keyed { address, length: PAGE as u32, key, invalidate: false }
    }

    fn send_capsule(&mut self, step: Step, sqe: &Sqe) {
        let at = step as usize * size_of::<Sqe>();
        self.own.put(at, sqe.with_cid(Cid(step as u16)).as_bytes());
        self.push_send(Op::Send, at, size_of::<Sqe>());
    }

    fn write_to_target(&mut self) {
        self.totals.add("fault: attacks on memory that is not open", 1);
        let (remote_addr, rkey) = (self.land.address(OPEN.start), self.random.next_u64() as u32);
        let op = Op::RdmaWrite { remote_addr, rkey };
        self.push_send(op, 0, size_of::<Sqe>());
    }

    fn push_send(&mut self, op: Op, at: usize, length: usize) {
        let Some(visit) = &self.visit else { return };
        let pushed = self.peer.push(visit.conn, 0, op, &self.own, at, length);
        pushed.expect("a visit has few commands");
    }

    /// The response of the present step has come.
    fn answered(&mut self, now: Time, response: &[u8]) {
        let Some(visit) = &mut self.visit else { return };
        let cqe = Cqe::read_from_bytes(response).expect("a response capsule");
        let well = cqe.status().is_success();
        visit.step = match visit.step {
            Step::Connect if well => Step::Enable,
            Step::Enable if well => Step::Attack,
            Step::Attack if well => panic!("{:?} succeeded", visit.attack),
            _ => return self.end(now),
        };
        self.send_command(now);
    }

    fn check_memory(&self) {
        let closed = [0..OPEN.start, OPEN.end..LAND_BYTES];
        let untouched =
            |part: Range<usize>| self.land.get(part.start, part.len()).all(|it| it == UNTOUCHED);
        assert!(closed.into_iter().all(untouched), "memory was written that is not open");
    }
}

const HOST_ID: HostId = HostId([0xEE; 16]);
/// Entries of its one queue.
const ENTRIES: u16 = 32;

fn enable_command() -> Sqe {
    let cc = Cc::new().with_en(true).with_iosqes(6).with_iocqes(4);
    let (property, size) = (Property::CC, PropertySize::FourBytes);
    PropertySet { property, size, value: cc.into_bits().into() }.to_sqe()
}
