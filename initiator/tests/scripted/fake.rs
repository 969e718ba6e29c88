//! A target that does what a script tells it, on a simulated network.
#![expect(unsafe_code, reason = "posts its own memory to its queue pairs")]

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use nvme_proto::async_event::AsyncEvent;
use nvme_proto::fabrics::{ConnectResponse, PropertyGet};
use nvme_proto::feature::{Feature, QueueCounts};
use nvme_proto::identify::{
    Cns, ControllerType, FileInfo, IdDescriptor, Identify, IdentifyController, IdentifyNamespace,
    NamespaceList, Sgls, write_descriptors,
};
use nvme_proto::log::{DiscoveryEntry, DiscoveryHeader, GetLogPage, LogId, LogOffset};
use nvme_proto::rdma_cm::{ConnectAccept, ConnectRequest};
use nvme_proto::registers::{Cap, CapCss, Csts, Property};
use nvme_proto::{
    AdminCommand, AdminOpcode, Cid, Cntlid, Command, CommandCapsule, Cqe, FabricsCommand,
    FromZeros, IntoBytes, LbaFormat, Nsid, NvmCommand, Qid, Sgl, Sqe, Status,
};
use rdma::sim::{Sim, SimDevice, SimNetwork};
use rdma::{
    Access, CmEvent, ConnId, ConnOptions, ConnParams, ConnectionManager, Device, Group,
    GroupConfig, Mem, MemoryRegion, Op, PrivateData, Provider, QpConfig, QpKey, RecvWr, SendFlags,
    SendWr, Sge, Time, Wc, WcOpcode,
};

const CAPSULE_BYTES: usize = 64 + 8192;
const SEND_SLOTS: usize = 256;
const SEND_BYTES: usize = 8192 + 64;
const RECEIVES: usize = 64;

/// The action of the target on a command.
pub(crate) enum Action {
    /// Does it, and answers.
    Normal,
    /// Does it, and answers this instead of success.
    Answer(Cqe),
    /// Answers these bytes instead of a response capsule.
    Bytes(Vec<u8>),
    /// Answers this status without doing it.
    Fail(Status),
    /// Neither does it nor answers.
    Ignore,
    /// Does what this entry says.
    Instead(Sqe),
    /// Writes the data, but does not answer.
    DataOnly,
    /// Ends the connection of the queue.
    Disconnect,
}

/// The properties of a command that a script may look at.
pub(crate) struct Seen {
    pub(crate) qid: Qid,
    pub(crate) sqe: Sqe,
    pub(crate) in_capsule: usize,
}

type Script = Box<dyn FnMut(&Seen) -> Action>;

pub(crate) struct Fake {
    device: SimDevice,
    cm: <Sim as Provider>::Cm,
    group: <Sim as Provider>::Group,
    queues: BTreeMap<ConnId, Queue>,
    disk_region: <Sim as Provider>::Region,
    pub(crate) disk: Box<[u8]>,
    pub(crate) identify: Box<IdentifyController>,
    pub(crate) namespace: Box<IdentifyNamespace>,
    pub(crate) active: Box<NamespaceList>,
    pub(crate) uuid: [u8; 16],
    pub(crate) cap: Cap,
    pub(crate) crqsize: u16,
    pub(crate) granted_queues: u16,
    pub(crate) discovery: Vec<DiscoveryEntry>,
    pub(crate) genctr: u64,
    /// Said in the discovery log page instead of the number of entries.
    pub(crate) numrec: Option<u64>,
    /// The discovery log page has another generation each time it is read.
    pub(crate) restless: bool,
    pub(crate) reject: Option<Vec<u8>>,
    pub(crate) script: Script,
    /// Commands by queue and opcode.
    pub(crate) seen: Vec<Seen>,
    pub(crate) connections: usize,
    next_cntlid: u16,
    ignored: Vec<(ConnId, Cid)>,
    /// Asynchronous Event Requests that wait for an event.
    awaiting_events: Vec<(ConnId, Cid)>,
    /// The list of changed namespaces, empty once it was read.
    pub(crate) changed: Box<NamespaceList>,
}

struct Queue {
    qp: QpKey,
    qpn: u32,
    qid: Qid,
    receive: Buffer,
    send: Buffer,
    next_slot: usize,
    /// Responses that wait for an RDMA READ.
    waiting: BTreeMap<u64, Cqe>,
    next_id: u64,
}

struct Buffer {
    region: <Sim as Provider>::Region,
    bytes: Box<[u8]>,
}

impl Buffer {
    fn new(device: &SimDevice, length: usize) -> Self {
        let mut bytes = vec![0; length].into_boxed_slice();
        let memory = Mem::Host { addr: bytes.as_mut_ptr(), length };
        // SAFETY: the region is dropped before the bytes (field order), which never move.
        let region = unsafe { device.register(memory, Access::LOCAL_WRITE) }.unwrap();
        Self { region, bytes }
    }

    fn sge(&self, offset: usize, length: usize) -> Sge {
        let addr = self.bytes.as_ptr() as u64 + offset as u64;
        Sge { addr, length: length as u32, lkey: self.region.lkey() }
    }
}

impl Fake {
    /// A target with one namespace of `blocks` blocks of 512 bytes, filled with a pattern.
    pub(crate) fn new(network: &SimNetwork, address: SocketAddr, blocks: usize) -> Self {
        let device = network.device(address.ip(), 1).unwrap();
        let group = device
            .group(&GroupConfig { completions: 4096, queue_pairs: 16, completion_vector: 0 })
            .unwrap();
        let mut cm = device.connection_manager().unwrap();
        cm.listen(address, &ConnOptions::default()).unwrap();
        let mut disk: Box<[u8]> = (0..blocks * 512).map(pattern).collect();
        let memory = Mem::Host { addr: disk.as_mut_ptr(), length: disk.len() };
        // SAFETY: the region is dropped before the disk (field order), which never moves.
        let disk_region = unsafe { device.register(memory, Access::LOCAL_WRITE) }.unwrap();
        Self {
            device,
            cm,
            group,
            queues: BTreeMap::new(),
            disk_region,
            disk,
            identify: Box::new(identify()),
            namespace: Box::new(namespace(blocks as u64)),
            active: Box::new(NamespaceList::new([Nsid(1)])),
            uuid: [7; 16],
            cap: Cap::new()
                .with_mqes_z(127)
                .with_cqr(true)
                .with_to(1)
                .with_css(CapCss::new().with_nvm(true)),
            crqsize: 0,
            granted_queues: 16,
            discovery: Vec::new(),
            genctr: 1,
            numrec: None,
            restless: false,
            reject: None,
            ignored: Vec::new(),
            awaiting_events: Vec::new(),
            changed: Box::new(NamespaceList::EMPTY),
            script: Box::new(|_| Action::Normal),
            seen: Vec::new(),
            connections: 0,
            next_cntlid: 0,
        }
    }

    pub(crate) fn count(&self, what: impl Fn(&Seen) -> bool) -> usize {
        self.seen.iter().filter(|seen| what(seen)).count()
    }

    pub(crate) fn is_connected(&self) -> bool {
        !self.queues.is_empty()
    }

    /// Ends every connection, as a target does that stops.
    pub(crate) fn disconnect_all(&mut self, now: Time) {
        let conns: Vec<ConnId> = self.queues.keys().copied().collect();
        for conn in conns {
            self.cm.disconnect(now, conn);
        }
    }

    /// Answers an Asynchronous Event Request.
    pub(crate) fn raise(&mut self, event: AsyncEvent) {
        let (conn, cid) = self.awaiting_events.pop().expect("the host waits for events");
        if let Some(mut queue) = self.queues.remove(&conn) {
            let cqe = Cqe::success(cid).with_dw0(event.into_bits());
            self.respond(&mut queue, cqe.as_bytes(), None);
            self.queues.insert(conn, queue);
        }
    }

    /// Answers the commands that were ignored.
    pub(crate) fn complete_ignored(&mut self, status: Status) {
        for (conn, cid) in std::mem::take(&mut self.ignored) {
            if let Some(mut queue) = self.queues.remove(&conn) {
                self.respond(&mut queue, Cqe::new(cid, status).as_bytes(), None);
                self.queues.insert(conn, queue);
            }
        }
    }

    pub(crate) fn turn(&mut self, now: Time) -> bool {
        let mut worked = false;
        while let Some(event) = self.cm.poll(now) {
            worked = true;
            self.handle_event(now, event);
        }
        let mut wcs = [Wc::default(); 32];
        let count = self.group.poll(now, &mut wcs);
        for wc in &wcs[..count] {
            self.handle_completion(now, wc);
        }
        self.group.flush(now);
        worked || count > 0
    }

    pub(crate) fn deadline(&self) -> Option<Time> {
        [self.cm.deadline(), self.group.deadline()].into_iter().flatten().min()
    }

    fn handle_event(&mut self, now: Time, event: CmEvent) {
        match event {
            CmEvent::ConnectRequest { conn, params, .. } => self.accept(now, conn, &params),
            CmEvent::Disconnected { conn, .. } | CmEvent::ConnectFailed { conn, .. } => {
                self.forget(conn);
            }
            _ => {}
        }
    }

    fn forget(&mut self, conn: ConnId) {
        if let Some(queue) = self.queues.remove(&conn) {
            self.group.release(queue.qp);
        }
        self.cm.close(conn);
    }

    fn accept(&mut self, now: Time, conn: ConnId, params: &ConnParams) {
        if let Some(private) = &self.reject {
            return self.cm.reject(now, conn, private).unwrap();
        }
        let request = *ConnectRequest::parse(params.private_data.as_slice()).unwrap();
        let config = QpConfig {
            send_wr: 1024,
            recv_wr: RECEIVES as u32,
            send_sge: 2,
            recv_sge: 1,
            inline_bytes: 0,
        };
        // A host that gave up meanwhile is no longer there to be accepted.
        let Ok(new) = self.cm.create_qp(conn, &self.group.handle(), &self.device, &config) else {
            return;
        };
        let qp = self.group.adopt(new);
        let queue = Queue {
            qp,
            qpn: self.group.qpn(qp),
            qid: request.qid(),
            receive: Buffer::new(&self.device, RECEIVES * CAPSULE_BYTES),
            send: Buffer::new(&self.device, SEND_SLOTS * SEND_BYTES),
            next_slot: 0,
            waiting: BTreeMap::new(),
            next_id: 0,
        };
        for index in 0..RECEIVES {
            self.post_receive(&queue, index);
        }
        self.queues.insert(conn, queue);
        self.connections += 1;
        let crqsize = match self.crqsize {
            0 => request.send_entries() as u16,
            crqsize => crqsize,
        };
        let params = ConnParams {
            private_data: PrivateData::new(ConnectAccept::new(crqsize).as_bytes()).unwrap(),
            initiator_depth: 8,
            rnr_retry_count: 7,
            retry_count: 7,
            ..ConnParams::default()
        };
        if self.cm.accept(now, conn, &params).is_err() {
            self.forget(conn);
        }
    }

    fn post_receive(&mut self, queue: &Queue, index: usize) {
        let sges = [queue.receive.sge(index * CAPSULE_BYTES, CAPSULE_BYTES)];
        let wr = RecvWr { wr_id: index as u64, sges: &sges };
        // SAFETY: the buffer is read only after the receive completed, before it is posted again.
        unsafe { self.group.push_recv(queue.qp, &wr) }.unwrap();
    }

    fn handle_completion(&mut self, now: Time, wc: &Wc) {
        let found = self.queues.iter().find(|(_, queue)| queue.qpn == wc.qpn);
        let Some(conn) = found.map(|(&conn, _)| conn) else { return };
        if !wc.is_success() {
            return;
        }
        let mut queue = self.queues.remove(&conn).unwrap();
        match wc.opcode {
            WcOpcode::RECV => {
                let index = wc.wr_id as usize;
                let at = index * CAPSULE_BYTES;
                let bytes = queue.receive.bytes[at..at + wc.byte_len as usize].to_vec();
                self.post_receive(&queue, index);
                if !self.handle_command(conn, &mut queue, &bytes) {
                    self.cm.disconnect(now, conn);
                }
            }
            WcOpcode::RDMA_READ => {
                if let Some(cqe) = queue.waiting.remove(&wc.wr_id) {
                    self.respond(&mut queue, cqe.as_bytes(), None);
                }
            }
            _ => {}
        }
        self.queues.insert(conn, queue);
    }

    /// `false` ends the connection.
    fn handle_command(&mut self, conn: ConnId, queue: &mut Queue, bytes: &[u8]) -> bool {
        let capsule = CommandCapsule::parse(bytes).unwrap();
        let (sqe, cid) = (*capsule.sqe, capsule.sqe.cid());
        let seen = Seen { qid: queue.qid, sqe, in_capsule: capsule.data.len() };
        let awaits_event = seen.qid.is_admin()
            && !sqe.is_fabrics()
            && sqe.opcode == AdminOpcode::ASYNC_EVENT_REQUEST.0;
        if awaits_event {
            self.awaiting_events.push((conn, cid));
        }
        let action = (self.script)(&seen);
        self.seen.push(seen);
        match action {
            Action::Ignore => self.ignored.push((conn, cid)),
            Action::Disconnect => return false,
            Action::Fail(status) => self.respond(queue, Cqe::new(cid, status).as_bytes(), None),
            Action::Bytes(bytes) => self.respond(queue, &bytes, None),
            Action::Normal => self.perform(queue, &capsule, Some(Cqe::success(cid))),
            Action::Instead(sqe) => {
                let capsule = CommandCapsule::parse(sqe.as_bytes()).unwrap();
                self.perform(queue, &capsule, Some(Cqe::success(cid)));
            }
            Action::Answer(cqe) => self.perform(queue, &capsule, Some(cqe)),
            Action::DataOnly => self.perform(queue, &capsule, None),
        }
        true
    }

    fn perform(&mut self, queue: &mut Queue, capsule: &CommandCapsule<'_>, cqe: Option<Cqe>) {
        let sqe = *capsule.sqe;
        match Command::parse(queue.qid, &sqe).unwrap() {
            Command::Nvm(NvmCommand::Read(io)) => {
                let (at, length) = span(&io.range);
                let sge = Sge {
                    addr: self.disk.as_ptr() as u64 + at as u64,
                    length: length as u32,
                    lkey: self.disk_region.lkey(),
                };
                self.write_to_host(queue, &sqe, sge);
                self.finish(queue, &sqe, cqe);
            }
            Command::Nvm(NvmCommand::Write(io)) => {
                let (at, length) = span(&io.range);
                if let Ok(Sgl::InCapsule { offset, length: given }) = sqe.dptr.parse() {
                    assert_eq!(given as usize, length);
                    let data = capsule.in_capsule(offset, given).unwrap();
                    self.disk[at..at + length].copy_from_slice(data);
                    return self.finish(queue, &sqe, cqe);
                }
                let Ok(Sgl::Keyed { address, length: given, key, .. }) = sqe.dptr.parse() else {
                    panic!("a write without data");
                };
                assert_eq!(given as usize, length);
                let sge = Sge {
                    addr: self.disk.as_ptr() as u64 + at as u64,
                    length: given,
                    lkey: self.disk_region.lkey(),
                };
                let id = 1 << 32 | queue.next_id;
                queue.next_id += 1;
                if let Some(cqe) = cqe {
                    queue.waiting.insert(id, cqe);
                }
                let op = Op::RdmaRead { remote_addr: address, rkey: key };
                self.push(queue, id, op, &[sge]);
            }
            Command::Nvm(_) => self.finish(queue, &sqe, cqe),
            Command::Fabrics(FabricsCommand::Connect(connect)) => {
                let cntlid = if connect.qid.is_admin() {
                    self.next_cntlid += 1;
                    self.next_cntlid
                } else {
                    self.next_cntlid
                };
                self.identify.set_cntlid(Cntlid(cntlid));
                let dw0 = ConnectResponse::controller(Cntlid(cntlid)).into_bits();
                self.finish(queue, &sqe, cqe.map(|cqe| cqe.with_dw0(dw0)));
            }
            Command::Fabrics(FabricsCommand::PropertyGet(PropertyGet { property, .. })) => {
                let value = match property {
                    Property::CAP => self.cap.into_bits(),
                    Property::CSTS => Csts::new().with_rdy(true).into_bits().into(),
                    _ => 0,
                };
                self.finish(queue, &sqe, cqe.map(|cqe| cqe.with_result(value)));
            }
            Command::Fabrics(_) => self.finish(queue, &sqe, cqe),
            Command::Admin(command) => self.admin(queue, &sqe, command, cqe),
        }
    }

    fn admin(&mut self, queue: &mut Queue, sqe: &Sqe, command: AdminCommand, cqe: Option<Cqe>) {
        match command {
            AdminCommand::Identify(command) => {
                let data = self.identify_data(command);
                self.write_bytes_to_host(queue, sqe, &data);
                self.finish(queue, sqe, cqe);
            }
            AdminCommand::GetLogPage(page) => {
                let data = self.log_data(&page);
                self.write_bytes_to_host(queue, sqe, &data);
                self.finish(queue, sqe, cqe);
            }
            AdminCommand::SetFeatures(_) => {
                let counts = Feature::NumberOfQueues(QueueCounts::pairs(self.granted_queues));
                self.finish(queue, sqe, cqe.map(|cqe| cqe.with_dw0(counts.value())));
            }
            AdminCommand::AsyncEventRequest => {}
            _ => self.finish(queue, sqe, cqe),
        }
    }

    fn identify_data(&self, command: Identify) -> Vec<u8> {
        match command.cns {
            Cns::CONTROLLER => self.identify.as_bytes().to_vec(),
            Cns::NAMESPACE => self.namespace.as_bytes().to_vec(),
            Cns::NAMESPACE_DESCRIPTORS => {
                let mut data = vec![0; 4096];
                write_descriptors(&mut data, &[IdDescriptor::Uuid(self.uuid)]);
                data
            }
            Cns::ACTIVE_NAMESPACES => self.active.as_bytes().to_vec(),
            _ => vec![0; 4096],
        }
    }

    fn log_data(&mut self, page: &GetLogPage) -> Vec<u8> {
        if page.lid == LogId::CHANGED_NAMESPACES {
            let data = self.changed.as_bytes().to_vec();
            *self.changed = NamespaceList::EMPTY;
            return data;
        }
        assert_eq!(page.lid, LogId::DISCOVERY);
        self.genctr += u64::from(self.restless);
        let numrec = self.numrec.unwrap_or(self.discovery.len() as u64);
        let mut log = DiscoveryHeader::new(self.genctr, numrec).as_bytes().to_vec();
        log.extend(self.discovery.iter().flat_map(|entry| entry.as_bytes()));
        let LogOffset::Bytes(offset) = page.offset else { panic!("an index") };
        let mut data: Vec<u8> = log.into_iter().skip(offset as usize).collect();
        data.resize(page.length_bytes as usize, 0);
        data
    }

    fn write_bytes_to_host(&mut self, queue: &mut Queue, sqe: &Sqe, data: &[u8]) {
        for (piece, bytes) in data.chunks(SEND_BYTES).enumerate() {
            let slot = queue.next_slot % SEND_SLOTS;
            queue.next_slot += 1;
            let at = slot * SEND_BYTES;
            queue.send.bytes[at..at + bytes.len()].copy_from_slice(bytes);
            let sge = queue.send.sge(at, bytes.len());
            let Ok(Sgl::Keyed { address, key, .. }) = sqe.dptr.parse() else { panic!("no SGL") };
            let remote_addr = address + (piece * SEND_BYTES) as u64;
            self.push(queue, 0, Op::RdmaWrite { remote_addr, rkey: key }, &[sge]);
        }
    }

    fn write_to_host(&mut self, queue: &mut Queue, sqe: &Sqe, sge: Sge) {
        let Ok(Sgl::Keyed { address, length, key, .. }) = sqe.dptr.parse() else {
            panic!("a read without memory");
        };
        assert_eq!(length, sge.length, "the SGL has the length of the data");
        self.push(queue, 0, Op::RdmaWrite { remote_addr: address, rkey: key }, &[sge]);
    }

    fn finish(&mut self, queue: &mut Queue, sqe: &Sqe, cqe: Option<Cqe>) {
        let invalidate = match sqe.dptr.parse() {
            Ok(Sgl::Keyed { key, invalidate: true, .. }) => Some(key),
            _ => None,
        };
        if let Some(cqe) = cqe {
            self.respond(queue, cqe.as_bytes(), invalidate);
        }
    }

    fn respond(&mut self, queue: &mut Queue, bytes: &[u8], invalidate: Option<u32>) {
        let slot = queue.next_slot % SEND_SLOTS;
        queue.next_slot += 1;
        let at = slot * SEND_BYTES;
        queue.send.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        let sge = queue.send.sge(at, bytes.len());
        let op = match invalidate {
            Some(rkey) => Op::SendWithInvalidate { rkey },
            None => Op::Send,
        };
        self.push(queue, 0, op, &[sge]);
    }

    fn push(&mut self, queue: &Queue, wr_id: u64, op: Op, sges: &[Sge]) {
        let wr = SendWr { wr_id, op, flags: SendFlags::SIGNALED, sges };
        // SAFETY: the memory is the target's own and outlives the queue pair; slots are reused long
        // after their requests completed.
        unsafe { self.group.push_send(queue.qp, &wr) }.unwrap();
    }
}

/// Byte `at` of the disk.
pub(crate) fn pattern(at: usize) -> u8 {
    (at ^ (at >> 8).wrapping_mul(31) ^ (at >> 16).wrapping_mul(17)) as u8
}

fn span(range: &nvme_proto::LbaRange) -> (usize, usize) {
    (range.slba as usize * 512, range.blocks as usize * 512)
}

fn identify() -> IdentifyController {
    let mut identify = IdentifyController::blank();
    identify.cntrltype = ControllerType::IO;
    identify.mdts = 5;
    identify.sgls = Sgls::new().with_supported(1).with_keyed(true).with_offset(true);
    identify.ioccsz.set((64 + 4096) / 16);
    identify.iorcsz.set(1);
    identify.maxcmd.set(128);
    identify.kas.set(10);
    identify.msdbd = 1;
    identify.nn.set(1);
    identify
}

fn namespace(blocks: u64) -> IdentifyNamespace {
    let mut namespace = IdentifyNamespace::new_zeroed();
    namespace.nsze.set(blocks);
    namespace.ncap.set(blocks);
    namespace.nuse.set(blocks);
    namespace.lbaf[0] = LbaFormat::new(512).unwrap();
    namespace
}

/// Says that a file of `length` bytes is behind the namespace.
pub(crate) fn set_file(namespace: &mut IdentifyNamespace, length: u64, name: &str) {
    namespace.set_file_info(&FileInfo::new(length, name));
}

/// An address of a simulated network.
pub(crate) fn ip(last: u8) -> IpAddr {
    [10, 0, 0, last].into()
}
