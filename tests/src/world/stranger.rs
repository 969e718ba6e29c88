//! A machine that keeps no rules: it names memory to targets that it has not opened to them, writes
//! to theirs with keys that it was not given, and posts its receives late. It tells when somebody
//! went beyond what is open.
#![expect(unsafe_code, reason = "lends memory to a device")]

use std::net::IpAddr;
use std::ops::Range;
use std::time::Duration;

use feedrail_initiator::{HostId, HostNqn, SubsystemAddress};
use nvme_proto::fabrics::{Connect, ConnectAttributes, ConnectData, PropertySet, PropertySize};
use nvme_proto::identify::{Cns, Identify};
use nvme_proto::rdma_cm::ConnectRequest;
use nvme_proto::registers::{Cc, Property};
use nvme_proto::{AdminCommand, Cid, Cntlid, Cqe, FromBytes, IntoBytes, Qid, Sgl, Sqe};
use rdma::sim::{Sim, SimNetwork};
use rdma::{
    Access, CmEvent, ConnId, ConnOptions, ConnParams, ConnectionManager, Device, Group,
    GroupConfig, GroupStats, Mem, MemoryRegion, Op, PrivateData, Provider, QpConfig, QpKey, RecvWr,
    SendFlags, SendWr, Sge, Time, Wc, WcOpcode,
};

use super::{Machine, Random, Totals};

type Region = <Sim as Provider>::Region;

/// What the target may reach in an honest machine; the length of the data that it is asked for.
const PAGE: usize = 4096;
/// Registered for remote access. Before and behind it nobody may write.
const OPEN: Range<usize> = PAGE..2 * PAGE;
/// Capsules, responses and the data of Connect.
const OWN: usize = 3 * PAGE;
const CONNECT_DATA: usize = OWN + 2048;
const MEMORY: usize = 4 * PAGE;
/// What memory is filled with that nobody may write.
const UNTOUCHED: u8 = 0x9E;
/// Visits in all.
const VISITS: u32 = 60;
/// Between two visits, in microseconds.
const PAUSE: Range<u64> = 2_000..40_000;
/// A visit that takes longer is broken off.
const PATIENCE: Duration = Duration::from_secs(3);

/// What a visit is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attack {
    /// Has the target write across the end of the open memory.
    BeyondTheEnd,
    /// Has the target write from before its beginning.
    BeforeTheBeginning,
    /// Has the target use the key of memory that is not registered any more.
    StaleKey,
    /// Has the target use a key that never was.
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
    qp: Option<QpKey>,
    attack: Attack,
    step: Step,
    /// When the receive for the next response is posted.
    ready_at: Option<Time>,
    until: Time,
}

/// The machine.
pub(super) struct Stranger {
    device: <Sim as Provider>::Device,
    cm: <Sim as Provider>::Cm,
    group: <Sim as Provider>::Group,
    // Regions go before the memory.
    open: Region,
    own: Region,
    stale_key: u32,
    memory: Box<[u8]>,
    random: Random,
    targets: Vec<SubsystemAddress>,
    visit: Option<Visit>,
    next_visit: Time,
    visits_left: u32,
    totals: Totals,
}

impl Machine for Stranger {
    /// Panics if memory changed that was not open.
    fn leave(mut self: Box<Self>) -> (Totals, GroupStats) {
        self.check_memory();
        self.totals.add("fault: attacks on memory that is not open", 0);
        self.totals.add("recovery: attackers disconnected", 0);
        (self.totals, self.group.stats())
    }

    fn turn(&mut self, now: Time) -> bool {
        let mut busy = self.take_events(now) | self.take_completions(now);
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
                self.post_receive();
                busy = true;
            }
            _ => {}
        }
        self.group.flush(now);
        busy
    }

    fn deadline(&self) -> Option<Time> {
        let own = match &self.visit {
            None => (self.visits_left > 0).then_some(self.next_visit),
            Some(visit) => Some(visit.ready_at.map_or(visit.until, |at| at.min(visit.until))),
        };
        let devices = self.cm.deadline().into_iter().chain(self.group.deadline());
        devices.chain(own).min()
    }
}

impl Stranger {
    pub(super) fn new(
        network: &SimNetwork,
        ip: IpAddr,
        targets: Vec<SubsystemAddress>,
        seed: u64,
    ) -> Self {
        let device = network.device(ip, 1).expect("nothing has the address");
        let mut memory = vec![UNTOUCHED; MEMORY].into_boxed_slice();
        let base = memory.as_mut_ptr();
        let register = |part: Range<usize>, access| {
            let mem = Mem::Host { addr: base.wrapping_add(part.start), length: part.len() };
            // SAFETY: the box is kept as long as the region, and only read and written between
            // turns.
            unsafe { device.register(mem, access) }.expect("a simulated device has room")
        };
        let remote = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let stale_key = register(0..PAGE, remote).rkey();
        let (open, own) = (register(OPEN, remote), register(OWN..MEMORY, remote));
        let config = GroupConfig { completions: 64, queue_pairs: 1, completion_vector: 0 };
        Self {
            cm: device.connection_manager().expect("it has none yet"),
            group: device.group(&config).expect("a simulated device has room"),
            open,
            own,
            stale_key,
            memory,
            device,
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
        self.memory[CONNECT_DATA..][..size_of::<ConnectData>()].copy_from_slice(data.as_bytes());
        let attack = self.random.pick(&ATTACKS);
        let resolved = self.cm.resolve(now, to.address, PATIENCE, &ConnOptions::default());
        let conn = resolved.expect("the address is one of this network");
        let (step, until) = (Step::Connect, now + PATIENCE);
        self.visit = Some(Visit { conn, qp: None, attack, step, ready_at: None, until });
    }

    /// Goes, whatever the target thinks of it.
    fn end(&mut self, now: Time) {
        let Some(visit) = self.visit.take() else { return };
        self.cm.disconnect(now, visit.conn);
        self.cm.close(visit.conn);
        if let Some(qp) = visit.qp {
            self.group.release(qp);
        }
        self.next_visit = now + Duration::from_micros(self.random.within(PAUSE));
        self.check_memory();
    }

    fn take_events(&mut self, now: Time) -> bool {
        let mut any = false;
        while let Some(event) = self.cm.poll(now) {
            any = true;
            match event {
                CmEvent::Resolved { conn } => self.connect(now, conn),
                CmEvent::Established { .. } => self.send_command(now),
                _ => self.end(now),
            }
        }
        any
    }

    fn connect(&mut self, now: Time, conn: ConnId) {
        let config = QpConfig { send_wr: 8, recv_wr: 8, send_sge: 1, recv_sge: 1, inline_bytes: 0 };
        let handle = self.group.handle();
        let qp = self.cm.create_qp(conn, &handle, &self.device, &config).expect("it was resolved");
        let request = ConnectRequest::new(Qid::ADMIN, Cntlid(0), ENTRIES, ENTRIES.into());
        let private_data = PrivateData::new(request.as_bytes()).expect("a request fits");
        let params = ConnParams {
            responder_resources: 4,
            initiator_depth: 0,
            retry_count: 7,
            rnr_retry_count: 7,
            private_data,
        };
        let qp = self.group.adopt(qp);
        if let Some(visit) = &mut self.visit {
            visit.qp = Some(qp);
        }
        self.cm.connect(now, conn, &params).expect("it was resolved");
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
                let sgl = self.lie(attack);
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
        connect.to_sqe().with_data(Sgl::Keyed {
            address: self.address(CONNECT_DATA),
            length: size_of::<ConnectData>() as u32,
            key: self.own.rkey(),
            invalidate: false,
        })
    }

    /// A descriptor of memory that is not, or not all, open.
    fn lie(&mut self, attack: Attack) -> Sgl {
        let (start, key) = (self.address(OPEN.start), self.open.rkey());
        let beside = self.random.within(1..PAGE as u64);
        let (address, key) = match attack {
            Attack::BeyondTheEnd => (start + beside, key),
            Attack::BeforeTheBeginning => (start - beside, key),
            Attack::StaleKey => (self.address(0), self.stale_key),
            Attack::WrongKey | Attack::ForeignMemory => {
                (start, key ^ (1 << self.random.within(0..14)))
            }
        };
        Sgl::Keyed { address, length: PAGE as u32, key, invalidate: false }
    }

    fn send_capsule(&mut self, step: Step, sqe: &Sqe) {
        let at = OWN + step as usize * size_of::<Sqe>();
        let sqe = sqe.with_cid(Cid(step as u16));
        self.memory[at..at + size_of::<Sqe>()].copy_from_slice(sqe.as_bytes());
        self.push_send(Op::Send, at, size_of::<Sqe>());
    }

    fn write_to_target(&mut self) {
        self.totals.add("fault: attacks on memory that is not open", 1);
        let (remote_addr, rkey) = (self.address(OPEN.start), self.random.next_u64() as u32);
        let op = Op::RdmaWrite { remote_addr, rkey };
        self.push_send(op, OWN, size_of::<Sqe>());
    }

    fn push_send(&mut self, op: Op, at: usize, length: usize) {
        let Some(qp) = self.visit.as_ref().and_then(|visit| visit.qp) else { return };
        let sge = self.sge(at, length);
        let wr = SendWr { wr_id: 0, op, flags: SendFlags::SIGNALED, sges: &[sge] };
        // SAFETY: each step has its own part of memory, which is kept; a visit ends before the next
        // begins.
        unsafe { self.group.push_send(qp, &wr) }.expect("a visit has few commands");
    }

    fn post_receive(&mut self) {
        let Some((qp, step)) = self.visit.as_ref().and_then(|visit| Some((visit.qp?, visit.step)))
        else {
            return;
        };
        let sge = self.sge(response_of(step), size_of::<Cqe>());
        let wr = RecvWr { wr_id: 0, sges: &[sge] };
        // SAFETY: as for sends.
        unsafe { self.group.push_recv(qp, &wr) }.expect("a visit has few responses");
    }

    fn take_completions(&mut self, now: Time) -> bool {
        let mut completions = [Wc::default(); 8];
        let count = self.group.poll(now, &mut completions);
        for wc in &completions[..count] {
            // What an ended visit left behind.
            let Some(visit) = &self.visit else { continue };
            if visit.qp.is_none_or(|qp| self.group.qpn(qp) != wc.qpn) {
                continue;
            }
            if !wc.is_success() {
                let attacked = visit.step == Step::Attack;
                self.totals.add("recovery: attackers disconnected", u64::from(attacked));
                self.end(now);
            } else if wc.opcode == WcOpcode::RECV {
                self.answered(now);
            }
        }
        count > 0
    }

    /// The response of the present step has come.
    fn answered(&mut self, now: Time) {
        let Some(visit) = &mut self.visit else { return };
        let at = response_of(visit.step);
        let cqe = Cqe::read_from_bytes(&self.memory[at..at + size_of::<Cqe>()]);
        let well = cqe.expect("an entry's bytes").status().is_success();
        visit.step = match visit.step {
            Step::Connect if well => Step::Enable,
            Step::Enable if well => Step::Attack,
            Step::Attack if well => panic!("{:?} succeeded", visit.attack),
            _ => return self.end(now),
        };
        self.send_command(now);
    }

    fn check_memory(&self) {
        let closed = [0..OPEN.start, OPEN.end..OWN];
        let untouched =
            |part: Range<usize>| self.memory[part].iter().all(|&byte| byte == UNTOUCHED);
        assert!(closed.into_iter().all(untouched), "memory was written that is not open");
    }

    fn address(&self, offset: usize) -> u64 {
        self.memory.as_ptr() as u64 + offset as u64
    }

    fn sge(&self, at: usize, length: usize) -> Sge {
        Sge { addr: self.address(at), length: length as u32, lkey: self.own.lkey() }
    }
}

const HOST_ID: HostId = HostId([0xEE; 16]);
/// Of its queue.
const ENTRIES: u16 = 32;

fn enable_command() -> Sqe {
    let cc = Cc::new().with_en(true).with_iosqes(6).with_iocqes(4);
    let (property, size) = (Property::CC, PropertySize::FourBytes);
    PropertySet { property, size, value: cc.into_bits().into() }.to_sqe()
}

fn response_of(step: Step) -> usize {
    OWN + 1024 + step as usize * size_of::<Cqe>()
}
