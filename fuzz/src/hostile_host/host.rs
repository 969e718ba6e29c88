//! A host with its bones showing: queue pairs, hand-made capsules, and no rule that it keeps to.
#![expect(unsafe_code, reason = "posts its own memory to its queue pairs")]

use std::net::SocketAddr;
use std::time::Duration;

use nvme_proto::{Cntlid, Cqe, FromBytes, Sgl};
use rdma::sim::{Sim, SimDevice};
use rdma::{
    Access, CmEvent, ConnId, ConnOptions, ConnParams, ConnectionManager, Device, Group,
    GroupConfig, Op, Provider, QpConfig, QpKey, RecvWr, SendFlags, SendWr, Time, Wc, WcOpcode,
};

use crate::memory::DeviceMemory;

/// Capsules that are on their way at once; one that is sent later takes the place of the oldest.
pub(super) const CAPSULES: usize = 16;
pub(super) const CAPSULE_BYTES: usize = 64 + 4096 + 64;
/// Memory that commands point at.
pub(super) const DATA_BYTES: usize = 64 << 10;
const DATA_AT: usize = CAPSULES * CAPSULE_BYTES;
/// Connections of one execution.
pub(super) const LINKS_MAX: usize = 6;
/// Receives that a connection can have posted, each with a place for a response.
const RECEIVES_MAX: usize = 64;
const RESPONSE_BYTES: usize = size_of::<Cqe>();

/// One device with everything that a host has on it.
pub(super) struct FuzzHost {
    device: SimDevice,
    cm: <Sim as Provider>::Cm,
    group: <Sim as Provider>::Group,
    pub(super) links: Vec<Link>,
    /// Capsules and data.
    memory: DeviceMemory,
    /// Where responses arrive.
    responses: DeviceMemory,
    next_capsule: usize,
}

/// One connection.
pub(super) struct Link {
    conn: ConnId,
    qp: Option<QpKey>,
    stage: HostStage,
    params: ConnParams,
    /// Receives that it begins with.
    receives: usize,
    /// Places without a receive.
    free_responses: Vec<usize>,
    /// Commands that were sent and are not answered, by the place of their capsule, which is their
    /// identifier.
    owed: [u8; CAPSULES],
    /// Responses that nobody looked at yet.
    pub(super) answers: Vec<Cqe>,
    /// Which identifier the latest Connect had.
    pub(super) connect: Option<u16>,
    /// The controller that Connect led to.
    pub(super) cntlid: Option<Cntlid>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HostStage {
    Connecting,
    Up,
    Down,
}

impl Link {
    pub(super) fn is_up(&self) -> bool {
        self.stage == HostStage::Up
    }
}

impl FuzzHost {
    pub(super) fn new(device: SimDevice) -> Self {
        let config = GroupConfig { completions: 1024, queue_pairs: 16, completion_vector: 0 };
        Self {
            cm: device.connection_manager().expect("nobody else has it"),
            group: device.group(&config).expect("it was opened for one"),
            links: Vec::new(),
            memory: open_memory(&device),
            responses: DeviceMemory::new(
                &device,
                LINKS_MAX * RECEIVES_MAX * RESPONSE_BYTES,
                Access::LOCAL_WRITE,
            ),
            next_capsule: 0,
            device,
        }
    }

    pub(super) fn device(&self) -> &SimDevice {
        &self.device
    }

    /// Asks for a connection. As many receives are posted as are said, and it may be more or fewer
    /// than it said.
    pub(super) fn connect(
        &mut self,
        now: Time,
        to: SocketAddr,
        params: ConnParams,
        receives: usize,
    ) {
        if self.links.len() == LINKS_MAX {
            return;
        }
        let timeout = Duration::from_secs(5);
        let conn = self.cm.resolve(now, to, timeout, &ConnOptions::default());
        self.links.push(Link {
            conn: conn.expect("the network has the address"),
            qp: None,
            stage: HostStage::Connecting,
            params,
            receives,
            free_responses: (0..RECEIVES_MAX).rev().collect(),
            owed: [0; CAPSULES],
            answers: Vec::new(),
            connect: None,
            cntlid: None,
        });
    }

    /// The identifier of the next command that is sent.
    pub(super) fn next_cid(&self) -> u16 {
        (self.next_capsule % CAPSULES) as u16
    }

    /// Sends a capsule, with [`FuzzHost::next_cid`] for its identifier if it is long enough to have
    /// one.
    pub(super) fn send(&mut self, link: usize, capsule: &[&[u8]]) {
        let Some(qp) = self.links[link].qp else { return };
        let cid = self.next_cid();
        let start = usize::from(cid) * CAPSULE_BYTES;
        let mut length = 0;
        for part in capsule {
            self.memory.put(start + length, part);
            length += part.len();
        }
        if length >= 4 {
            self.memory.put(start + 2, &cid.to_le_bytes());
        }
        self.next_capsule += 1;
        if self.push(qp, Op::Send, start, length) {
            self.links[link].owed[usize::from(cid)] += 1;
        }
    }

    /// An operation that is no command, with data memory.
    pub(super) fn operate(&mut self, link: usize, op: Op, at: usize, length: usize) {
        if let Some(qp) = self.links[link].qp {
            self.push(qp, op, DATA_AT + at, length);
        }
    }

    /// Says whether there was room for it.
    fn push(&mut self, qp: QpKey, op: Op, at: usize, length: usize) -> bool {
        let sges = [self.memory.sge(at, length)];
        let wr = SendWr { wr_id: 0, op, flags: SendFlags::SIGNALED, sges: &sges };
        // SAFETY: the memory is kept as long as it is registered, and what is in it at any time is
        // as good as anything else.
        unsafe { self.group.push_send(qp, &wr) }.is_ok()
    }

    /// Posts receives for responses.
    pub(super) fn post_receives(&mut self, link: usize, count: usize) {
        let index = link;
        let link = &mut self.links[link];
        let Some(qp) = link.qp else { return };
        for _ in 0..count {
            let Some(&free) = link.free_responses.last() else { return };
            let slot = index * RECEIVES_MAX + free;
            let sges = [self.responses.sge(slot * RESPONSE_BYTES, RESPONSE_BYTES)];
            let wr = RecvWr { wr_id: slot as u64, sges: &sges };
            // SAFETY: as for sends.
            if unsafe { self.group.push_recv(qp, &wr) }.is_err() {
                return;
            }
            link.free_responses.pop();
        }
    }

    /// Writes to data memory.
    pub(super) fn put(&self, at: usize, bytes: &[u8]) {
        self.memory.put(DATA_AT + at, bytes);
    }

    /// Reads data memory.
    pub(super) fn get(&self, at: usize, length: usize) -> impl Iterator<Item = u8> + '_ {
        self.memory.get(DATA_AT + at, length)
    }

    /// A descriptor of data memory; nothing keeps it from naming bytes that are not there.
    pub(super) fn keyed(&self, at: usize, length: usize) -> Sgl {
        let (address, key) = (self.memory.address(DATA_AT + at), self.memory.rkey());
        Sgl::Keyed { address, length: length as u32, key, invalidate: false }
    }

    /// Takes the memory away under whatever is using it; what replaces it has another key.
    pub(super) fn replace_memory(&mut self) {
        self.memory = open_memory(&self.device);
    }

    /// Ends a connection in order.
    pub(super) fn disconnect(&mut self, now: Time, link: usize) {
        self.cm.disconnect(now, self.links[link].conn);
    }

    /// The queue pair fails, and nobody is told.
    pub(super) fn fail(&mut self, link: usize) {
        if let Some(qp) = self.links[link].qp {
            self.group.fail(qp);
        }
    }

    /// Frees all connections, as if there had been none.
    pub(super) fn forget(&mut self) {
        for link in self.links.drain(..) {
            if let Some(qp) = link.qp {
                self.group.release(qp);
            }
            self.cm.close(link.conn);
        }
        self.next_capsule = 0;
    }

    /// Does all that is ready; true if there was anything.
    pub(super) fn turn(&mut self, now: Time) -> bool {
        let mut worked = false;
        while let Some(event) = self.cm.poll(now) {
            worked = true;
            self.handle(now, event);
        }
        let mut wcs = [Wc::default(); 32];
        let count = self.group.poll(now, &mut wcs);
        for wc in &wcs[..count] {
            self.completed(wc);
        }
        self.group.flush(now);
        worked || count > 0
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.cm.deadline().into_iter().chain(self.group.deadline()).min()
    }

    fn handle(&mut self, now: Time, event: CmEvent) {
        match event {
            CmEvent::Resolved { conn } => self.resolved(now, conn),
            CmEvent::Established { conn, .. } => {
                if let Some(link) = self.find(conn) {
                    self.links[link].stage = HostStage::Up;
                }
            }
            CmEvent::Rejected { conn, .. }
            | CmEvent::Disconnected { conn, .. }
            | CmEvent::ConnectFailed { conn, .. } => {
                if let Some(link) = self.find(conn) {
                    self.links[link].stage = HostStage::Down;
                }
            }
            other => panic!("{other:?}"),
        }
    }

    fn find(&self, conn: ConnId) -> Option<usize> {
        self.links.iter().position(|link| link.conn == conn)
    }

    fn resolved(&mut self, now: Time, conn: ConnId) {
        let Some(index) = self.find(conn) else { return };
        let config = QpConfig {
            send_wr: 64,
            recv_wr: RECEIVES_MAX as u32,
            send_sge: 1,
            recv_sge: 1,
            inline_bytes: 0,
        };
        let qp = self.cm.create_qp(conn, &self.group.handle(), &self.device, &config);
        let qp = self.group.adopt(qp.expect("the device has room"));
        self.links[index].qp = Some(qp);
        self.post_receives(index, self.links[index].receives);
        let params = self.links[index].params;
        self.cm.connect(now, conn, &params).expect("it was resolved");
    }

    fn completed(&mut self, wc: &Wc) {
        if !wc.is_success() || wc.opcode != WcOpcode::RECV {
            return;
        }
        let group = &self.group;
        let mut links = self.links.iter_mut();
        let link = links.find(|link| link.qp.is_some_and(|qp| group.qpn(qp) == wc.qpn));
        let link = link.expect("completions are of queue pairs that there are");
        assert_eq!(wc.byte_len as usize, RESPONSE_BYTES, "a response capsule has 16 bytes");
        let mut bytes = [0; RESPONSE_BYTES];
        let arrived = self.responses.get(wc.wr_id as usize * RESPONSE_BYTES, RESPONSE_BYTES);
        bytes.iter_mut().zip(arrived).for_each(|(to, byte)| *to = byte);
        let cqe = Cqe::read_from_bytes(&bytes).expect("as long as that");
        link.free_responses.push(wc.wr_id as usize % RECEIVES_MAX);
        link.answered(&cqe);
    }
}

impl Link {
    fn answered(&mut self, cqe: &Cqe) {
        let cid = cqe.cid().0;
        let owed = self.owed.get_mut(usize::from(cid)).filter(|owed| **owed > 0);
        *owed.expect("only a command is answered, and once") -= 1;
        if self.connect == Some(cid) && cqe.status().is_success() {
            self.connect = None;
            self.cntlid = Some(Cntlid(cqe.dw0.get() as u16));
        }
        self.answers.push(*cqe);
    }
}

fn open_memory(device: &SimDevice) -> DeviceMemory {
    let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
    DeviceMemory::new(device, DATA_AT + DATA_BYTES, access)
}
