//! A target that does what a script tells it, on a simulated network.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use nvme_proto::async_event::AsyncEvent;
use nvme_proto::fabrics::{ConnectResponse, PropertyGet};
use nvme_proto::feature::{Feature, QueueCounts};
use nvme_proto::identify::{
    Cns, ControllerType, FileInfo, IdDescriptor, Identify, IdentifyController, IdentifyNamespace,
    NamespaceList, Sgls, write_descriptors,
};
use nvme_proto::log::{
    AnaGroup, AnaHeader, AnaState, DiscoveryEntry, DiscoveryHeader, GetLogPage, LogId, LogOffset,
};
use nvme_proto::nvm::ListedRange;
use nvme_proto::rdma_cm::{ConnectAccept, ConnectRequest};
use nvme_proto::registers::{Cap, CapCss, Csts, Property};
use nvme_proto::{
    AdminCommand, AdminOpcode, Cid, Cntlid, Command, CommandCapsule, Cqe, FabricsCommand,
    FromZeros, IntoBytes, LbaFormat, Nsid, NvmCommand, Qid, Sgl, Sqe, Status,
};
use raw_peers::{RawPiece, RawTarget, RawTargetEvent, RawTargetShape};
use rdma::sim::{Sim, SimNetwork};
use rdma::{ConnId, ConnParams, Op, PrivateData, Time};

use super::fake_auth::{AuthReaction, FakeAuth, MESSAGE_BYTES, MESSAGES};

const RECEIVES: u32 = 64;
/// Time for a response to arrive, before its connection ends.
const LAST_RESPONSE: Duration = Duration::from_millis(1);
/// The longest piece of a page that is sent in one transfer.
const PIECE_BYTES: usize = 4096;

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
    raw: RawTarget<Sim>,
    queues: BTreeMap<ConnId, Queue>,
    disk_bytes: usize,
    pub(crate) identify: Box<IdentifyController>,
    pub(crate) namespace: Box<IdentifyNamespace>,
    pub(crate) active: Box<NamespaceList>,
    pub(crate) uuid: [u8; 16],
    /// How the namespace is reached, if it is in ANA group 1.
    pub(crate) ana: AnaState,
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
    pub(crate) auth: FakeAuth,
    /// The most ranges of a list that it reads.
    pub(crate) most_of_list: u32,
    /// Connections that end at these times, after their last responses have arrived.
    leaving: Vec<(Time, ConnId)>,
    now: Time,
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
    qid: Qid,
    /// Responses that wait for an RDMA READ.
    waiting: BTreeMap<u64, Cqe>,
    next_id: u64,
}

impl Fake {
    /// A target with one namespace of `blocks` blocks of 512 bytes, filled with a pattern.
    pub(crate) fn new(network: &SimNetwork, address: SocketAddr, blocks: usize) -> Self {
        let device = network.device(address.ip(), 1).unwrap();
        let shape = RawTargetShape {
            queue_pairs: 16,
            sends: 1024,
            receives: RECEIVES,
            capsule_bytes: 64 + 8192,
            places: 1024,
            place_bytes: PIECE_BYTES,
            data_bytes: blocks * 512 + MESSAGES * MESSAGE_BYTES,
        };
        let raw = RawTarget::new(device, address, shape);
        raw.put(0, &(0..blocks * 512).map(pattern).collect::<Vec<_>>());
        Self {
            raw,
            queues: BTreeMap::new(),
            disk_bytes: blocks * 512,
            identify: Box::new(identify()),
            namespace: Box::new(namespace(blocks as u64)),
            active: Box::new(NamespaceList::new([Nsid(1)])),
            uuid: [7; 16],
            ana: AnaState::OPTIMIZED,
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
            auth: FakeAuth::default(),
            most_of_list: u32::MAX,
            leaving: Vec::new(),
            now: Time::ZERO,
            script: Box::new(|_| Action::Normal),
            seen: Vec::new(),
            connections: 0,
            next_cntlid: 0,
        }
    }

    /// Contents of its disk.
    pub(crate) fn disk(&self) -> Vec<u8> {
        self.raw.get(0, self.disk_bytes).collect()
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
            self.raw.disconnect(now, conn);
        }
    }

    /// Answers an Asynchronous Event Request.
    pub(crate) fn raise(&mut self, event: AsyncEvent) {
        let (conn, cid) = self.awaiting_events.pop().expect("the host waits for events");
        if self.queues.contains_key(&conn) {
            let cqe = Cqe::success(cid).with_dw0(event.into_bits());
            self.respond(conn, cqe.as_bytes(), None);
        }
    }

    /// Answers the commands that were ignored.
    pub(crate) fn complete_ignored(&mut self, status: Status) {
        for (conn, cid) in std::mem::take(&mut self.ignored) {
            if self.queues.contains_key(&conn) {
                self.respond(conn, Cqe::new(cid, status).as_bytes(), None);
            }
        }
    }

    pub(crate) fn turn(&mut self, now: Time) -> bool {
        let mut worked = false;
        self.now = now;
        while self.leaving.first().is_some_and(|(time, _)| *time <= now) {
            let (_, conn) = self.leaving.remove(0);
            if self.queues.contains_key(&conn) {
                self.raw.disconnect(now, conn);
            }
            worked = true;
        }
        while let Some(event) = self.raw.poll(now) {
            worked = true;
            match event {
                RawTargetEvent::Request { conn, params } => self.accept(now, conn, &params),
                RawTargetEvent::Gone { conn } => {
                    self.queues.remove(&conn);
                    self.auth.forget(conn);
                }
                RawTargetEvent::Capsule { conn, bytes } => {
                    if !self.handle_command(conn, &bytes) {
                        self.raw.disconnect(now, conn);
                    }
                }
                RawTargetEvent::Fetched { conn, wr_id } if wr_id >> 32 == 2 => {
                    self.take_message(conn, wr_id);
                }
                RawTargetEvent::Fetched { conn, wr_id } => {
                    let queue = self.queues.get_mut(&conn).unwrap();
                    if let Some(cqe) = queue.waiting.remove(&wr_id) {
                        self.respond(conn, cqe.as_bytes(), None);
                    }
                }
                RawTargetEvent::Other => {}
            }
        }
        self.raw.flush(now);
        worked
    }

    pub(crate) fn deadline(&self) -> Option<Time> {
        let leaving = self.leaving.first().map(|(time, _)| *time);
        self.raw.deadline().into_iter().chain(leaving).min()
    }

    fn accept(&mut self, now: Time, conn: ConnId, params: &ConnParams) {
        if let Some(private) = &self.reject {
            return self.raw.reject(now, conn, private);
        }
        let request = *ConnectRequest::parse(params.private_data.as_slice()).unwrap();
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
        // A host that has given up is no longer there to be accepted.
        if self.raw.accept(now, conn, &params, RECEIVES as usize) {
            let (qid, waiting) = (request.qid(), BTreeMap::new());
            self.queues.insert(conn, Queue { qid, waiting, next_id: 0 });
            self.connections += 1;
        }
    }

    /// `false` ends the connection.
    fn handle_command(&mut self, conn: ConnId, bytes: &[u8]) -> bool {
        let capsule = CommandCapsule::parse(bytes).unwrap();
        let (sqe, cid) = (*capsule.sqe, capsule.sqe.cid());
        let seen = Seen { qid: self.queues[&conn].qid, sqe, in_capsule: capsule.data.len() };
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
            Action::Fail(status) => self.respond(conn, Cqe::new(cid, status).as_bytes(), None),
            Action::Bytes(bytes) => self.respond(conn, &bytes, None),
            Action::Normal if !self.auth.admits(conn, &sqe) => {
                let status = Status::AUTHENTICATION_REQUIRED;
                self.respond(conn, Cqe::new(cid, status).as_bytes(), None);
            }
            Action::Normal => self.perform(conn, &capsule, Some(Cqe::success(cid))),
            Action::Instead(sqe) => {
                let capsule = CommandCapsule::parse(sqe.as_bytes()).unwrap();
                self.perform(conn, &capsule, Some(Cqe::success(cid)));
            }
            Action::Answer(cqe) => self.perform(conn, &capsule, Some(cqe)),
            Action::DataOnly => self.perform(conn, &capsule, None),
        }
        true
    }

    fn perform(&mut self, conn: ConnId, capsule: &CommandCapsule<'_>, cqe: Option<Cqe>) {
        let sqe = *capsule.sqe;
        if let Some(reaction) = self.auth.command(conn, &sqe) {
            return self.react(conn, &sqe, reaction, cqe);
        }
        match Command::parse(self.queues[&conn].qid, &sqe).unwrap() {
            Command::Nvm(NvmCommand::Read(io)) => {
                let (at, length) = span(&io.range);
                self.write_to_host(conn, &sqe, self.raw.data(at, length));
                self.finish(conn, &sqe, cqe);
            }
            Command::Nvm(NvmCommand::ReadRanges(command)) => {
                let list = command.ranges_in(capsule.data, self.disk_bytes as u64).unwrap();
                let read = self.most_of_list.min(command.ranges);
                self.write_ranges_to_host(conn, &sqe, &list[..read as usize]);
                let answers = |cqe: Cqe| if cqe.dw0.get() == 0 { cqe.with_dw0(read) } else { cqe };
                self.finish(conn, &sqe, cqe.map(answers));
            }
            Command::Nvm(NvmCommand::Write(io)) => {
                let (at, length) = span(&io.range);
                if let Ok(Sgl::InCapsule { offset, length: given }) = sqe.dptr.parse() {
                    assert_eq!(given as usize, length);
                    let data = capsule.in_capsule(offset, given).unwrap();
                    self.raw.put(at, data);
                    return self.finish(conn, &sqe, cqe);
                }
                let Ok(Sgl::Keyed { address, length: given, key, .. }) = sqe.dptr.parse() else {
                    panic!("a write without data");
                };
                assert_eq!(given as usize, length);
                let queue = self.queues.get_mut(&conn).unwrap();
                let id = 1 << 32 | queue.next_id;
                queue.next_id += 1;
                if let Some(cqe) = cqe {
                    queue.waiting.insert(id, cqe);
                }
                let op = Op::RdmaRead { remote_addr: address, rkey: key };
                self.push(conn, id, op, self.raw.data(at, length));
            }
            Command::Nvm(_) => self.finish(conn, &sqe, cqe),
            Command::Fabrics(FabricsCommand::Connect(connect)) => {
                let cntlid = if connect.qid.is_admin() {
                    self.next_cntlid += 1;
                    self.next_cntlid
                } else {
                    self.next_cntlid
                };
                self.identify.set_cntlid(Cntlid(cntlid));
                let response = ConnectResponse::controller(Cntlid(cntlid));
                let dw0 = self.auth.connected(conn, response).into_bits();
                self.finish(conn, &sqe, cqe.map(|cqe| cqe.with_dw0(dw0)));
            }
            Command::Fabrics(FabricsCommand::PropertyGet(PropertyGet { property, .. })) => {
                let value = match property {
                    Property::CAP => self.cap.into_bits(),
                    Property::CSTS => Csts::new().with_rdy(true).into_bits().into(),
                    _ => 0,
                };
                self.finish(conn, &sqe, cqe.map(|cqe| cqe.with_result(value)));
            }
            Command::Fabrics(_) => self.finish(conn, &sqe, cqe),
            Command::Admin(command) => self.admin(conn, &sqe, command, cqe),
        }
    }

    fn react(&mut self, conn: ConnId, sqe: &Sqe, reaction: AuthReaction, cqe: Option<Cqe>) {
        match reaction {
            AuthReaction::Fetch { length, place } => {
                let Ok(Sgl::Keyed { address, key, .. }) = sqe.dptr.parse() else {
                    panic!("a message without memory");
                };
                if let Some(cqe) = cqe {
                    self.auth.fetching.insert((conn, place), (length, cqe));
                }
                let op = Op::RdmaRead { remote_addr: address, rkey: key };
                let piece = self.raw.data(self.disk_bytes + place * MESSAGE_BYTES, length);
                self.push(conn, 2 << 32 | place as u64, op, piece);
            }
            AuthReaction::Message { bytes, leaves } => {
                self.write_bytes_to_host(conn, sqe, &bytes);
                self.finish(conn, sqe, cqe);
                self.leave(conn, leaves);
            }
            AuthReaction::Answer(status) => {
                let cqe = cqe.map(|cqe| Cqe::new(cqe.cid(), status));
                self.finish(conn, sqe, cqe);
            }
        }
    }

    /// Takes a message that was fetched from the host.
    fn take_message(&mut self, conn: ConnId, wr_id: u64) {
        let place = wr_id as u32 as usize;
        let Some((length, cqe)) = self.auth.fetching.remove(&(conn, place)) else { return };
        let at = self.disk_bytes + place * MESSAGE_BYTES;
        let bytes: Vec<u8> = self.raw.get(at, length).collect();
        let (status, leaves) = self.auth.message(conn, &bytes);
        let cqe = if status.is_success() { cqe } else { Cqe::new(cqe.cid(), status) };
        self.respond(conn, cqe.as_bytes(), None);
        self.leave(conn, leaves);
    }

    fn leave(&mut self, conn: ConnId, leaves: bool) {
        self.leaving.extend(leaves.then_some((self.now + LAST_RESPONSE, conn)));
    }

    fn admin(&mut self, conn: ConnId, sqe: &Sqe, command: AdminCommand, cqe: Option<Cqe>) {
        match command {
            AdminCommand::Identify(command) => {
                let data = self.identify_data(command);
                self.write_bytes_to_host(conn, sqe, &data);
                self.finish(conn, sqe, cqe);
            }
            AdminCommand::GetLogPage(page) => {
                let data = self.log_data(&page);
                self.write_bytes_to_host(conn, sqe, &data);
                self.finish(conn, sqe, cqe);
            }
            AdminCommand::SetFeatures(_) => {
                let counts = Feature::NumberOfQueues(QueueCounts::pairs(self.granted_queues));
                self.finish(conn, sqe, cqe.map(|cqe| cqe.with_dw0(counts.value())));
            }
            AdminCommand::AsyncEventRequest => {}
            _ => self.finish(conn, sqe, cqe),
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
        if page.lid == LogId::ANA {
            let group = AnaGroup::new(1, 0, self.ana);
            let mut data = AnaHeader::new(0, 1).as_bytes().to_vec();
            data.extend(group.as_bytes());
            data.resize(page.length_bytes as usize, 0);
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

    fn write_bytes_to_host(&mut self, conn: ConnId, sqe: &Sqe, data: &[u8]) {
        let Ok(Sgl::Keyed { address, key, .. }) = sqe.dptr.parse() else { panic!("no SGL") };
        for (index, bytes) in data.chunks(PIECE_BYTES).enumerate() {
            let piece = self.raw.stage(bytes);
            let remote_addr = address + (index * PIECE_BYTES) as u64;
            self.push(conn, 0, Op::RdmaWrite { remote_addr, rkey: key }, piece);
        }
    }

    fn write_ranges_to_host(&mut self, conn: ConnId, sqe: &Sqe, ranges: &[ListedRange]) {
        let Ok(Sgl::Keyed { address, key, .. }) = sqe.dptr.parse() else { panic!("no memory") };
        let mut remote_addr = address;
        for range in ranges {
            let length = range.length_bytes.get() as usize;
            let piece = self.raw.data(range.offset_bytes.get() as usize, length);
            self.push(conn, 0, Op::RdmaWrite { remote_addr, rkey: key }, piece);
            remote_addr += length as u64;
        }
    }

    fn write_to_host(&mut self, conn: ConnId, sqe: &Sqe, piece: RawPiece) {
        let Ok(Sgl::Keyed { address, length, key, .. }) = sqe.dptr.parse() else {
            panic!("a read without memory");
        };
        assert_eq!(length as usize, piece.len(), "the SGL has the length of the data");
        self.push(conn, 0, Op::RdmaWrite { remote_addr: address, rkey: key }, piece);
    }

    fn finish(&mut self, conn: ConnId, sqe: &Sqe, cqe: Option<Cqe>) {
        let invalidate = match sqe.dptr.parse() {
            Ok(Sgl::Keyed { key, invalidate: true, .. }) => Some(key),
            _ => None,
        };
        if let Some(cqe) = cqe {
            self.respond(conn, cqe.as_bytes(), invalidate);
        }
    }

    fn respond(&mut self, conn: ConnId, bytes: &[u8], invalidate: Option<u32>) {
        let op = invalidate.map_or(Op::Send, |rkey| Op::SendWithInvalidate { rkey });
        let piece = self.raw.stage(bytes);
        self.push(conn, 0, op, piece);
    }

    fn push(&mut self, conn: ConnId, wr_id: u64, op: Op, piece: RawPiece) {
        self.raw.push(conn, wr_id, op, piece).unwrap();
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
