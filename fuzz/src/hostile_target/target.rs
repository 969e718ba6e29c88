//! A target with its bones showing: it does what it should, unless it is told otherwise.
#![expect(unsafe_code, reason = "posts its own memory to its queue pairs")]

use std::collections::VecDeque;
use std::net::SocketAddr;

use nvme_proto::fabrics::{ConnectResponse, PropertyGet};
use nvme_proto::feature::{Feature, QueueCounts};
use nvme_proto::log::LogOffset;
use nvme_proto::rdma_cm::{ConnectAccept, ConnectRequest, Reject, RejectStatus};
use nvme_proto::registers::{Cap, CapCss, Csts, Property};
use nvme_proto::{
    AdminCommand, Cid, Cntlid, Command, CommandCapsule, Cqe, FabricsCommand, IntoBytes, LbaRange,
    NvmCommand, Qid, Sgl, Sqe, Status,
};
use rdma::sim::{Sim, SimDevice};
use rdma::{
    Access, CmEvent, ConnId, ConnOptions, ConnParams, ConnectionManager, Device, Group,
    GroupConfig, Op, PrivateData, Provider, QpConfig, QpKey, RecvWr, SendFlags, SendWr, Sge, Time,
    Wc, WcOpcode,
};

use super::behaviour::{AnswerFault, Behaviour, DataFault};
use super::pages::{IdentifyPages, PAGE_BYTES};
use crate::memory::DeviceMemory;

pub(super) const LBA_BYTES: usize = 512;
/// Bytes of its namespace.
pub(super) const DISK_BYTES: usize = 64 << 10;
/// A host writes only before here; what follows stays as it is.
pub(super) const WRITABLE_BYTES: usize = DISK_BYTES / 2;
const IN_CAPSULE_BYTES: usize = 4096;
const CAPSULE_BYTES: usize = size_of::<Sqe>() + IN_CAPSULE_BYTES;
const RECEIVES: usize = 32;
/// Places for pages and responses on their way.
const STAGES: usize = 64;
/// Commands that it remembers.
const REMEMBERED: usize = 16;

pub(super) struct FuzzedTarget {
    device: SimDevice,
    cm: <Sim as Provider>::Cm,
    group: <Sim as Provider>::Group,
    queues: Vec<HostileQueue>,
    disk: DeviceMemory,
    /// What is on the disk at first.
    formatted: Box<[u8]>,
    staged: DeviceMemory,
    next_stage: usize,
    pub(super) pages: IdentifyPages,
    /// What it does with the next commands.
    pub(super) plan: VecDeque<Behaviour>,
    /// The next connection is refused.
    pub(super) refuses: bool,
    /// The room for commands that it says it has, whatever there is and whatever it was asked for.
    pub(super) claimed_entries: Option<u16>,
    /// What hosts asked for lately, answered or not.
    remembered: VecDeque<(ConnId, Sqe)>,
    next_cntlid: u16,
    /// What it said was done was done.
    pub(super) truthful: bool,
}

/// A connection.
struct HostileQueue {
    conn: ConnId,
    qp: QpKey,
    qid: Qid,
    capsules: DeviceMemory,
    /// Responses that wait for RDMA READs, by the identifiers of those.
    fetching: Vec<(u64, Sqe, Behaviour)>,
    next_fetch: u64,
}

impl FuzzedTarget {
    pub(super) fn new(device: SimDevice, address: SocketAddr) -> Self {
        let config = GroupConfig { completions: 4096, queue_pairs: 16, completion_vector: 0 };
        let mut cm = device.connection_manager().expect("nobody else has it");
        cm.listen(address, &ConnOptions::default()).expect("nobody else listens");
        let disk = DeviceMemory::new(&device, DISK_BYTES, Access::LOCAL_WRITE);
        let formatted: Box<[u8]> = (0..DISK_BYTES).map(pattern).collect();
        disk.put(0, &formatted);
        Self {
            cm,
            group: device.group(&config).expect("it was opened for one"),
            queues: Vec::new(),
            disk,
            formatted,
            staged: DeviceMemory::new(&device, STAGES * PAGE_BYTES, Access::LOCAL_WRITE),
            next_stage: 0,
            pages: pages(),
            plan: VecDeque::new(),
            refuses: false,
            claimed_entries: None,
            remembered: VecDeque::new(),
            next_cntlid: 0,
            truthful: true,
            device,
        }
    }

    /// Is good again, and as it was.
    pub(super) fn reform(&mut self) {
        self.disk.put(0, &self.formatted);
        self.pages = pages();
        self.plan.clear();
        self.refuses = false;
        self.claimed_entries = None;
        self.remembered.clear();
        self.next_cntlid = 0;
        self.truthful = true;
    }

    /// Has other bytes on its disk from now on, and says nothing.
    #[cfg(test)]
    pub(super) fn scribble(&mut self) {
        self.disk.put(0, &[0xEE; DISK_BYTES]);
    }

    pub(super) fn device(&self) -> &SimDevice {
        &self.device
    }

    /// Does all that is ready; true if there was anything.
    pub(super) fn turn(&mut self, now: Time) -> bool {
        let mut worked = false;
        while let Some(event) = self.cm.poll(now) {
            worked = true;
            match event {
                CmEvent::ConnectRequest { conn, params, .. } => self.accept(now, conn, &params),
                CmEvent::Disconnected { conn, .. } | CmEvent::ConnectFailed { conn, .. } => {
                    self.forget(conn);
                }
                _ => {}
            }
        }
        let mut wcs = [Wc::default(); 32];
        let count = self.group.poll(now, &mut wcs);
        for wc in &wcs[..count] {
            self.completed(now, wc);
        }
        self.group.flush(now);
        worked || count > 0
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.cm.deadline().into_iter().chain(self.group.deadline()).min()
    }

    /// Ends a connection.
    pub(super) fn disconnect(&mut self, now: Time, which: usize) {
        if let Some(index) = which.checked_rem(self.queues.len()) {
            self.cm.disconnect(now, self.queues[index].conn);
        }
    }

    /// Ends all connections.
    pub(super) fn disconnect_all(&mut self, now: Time) {
        self.queues.iter().for_each(|queue| self.cm.disconnect(now, queue.conn));
    }

    /// Answers a command that it remembers, for the first time or again.
    pub(super) fn answer_again(&mut self, which: usize, status: u16) {
        self.truthful = false;
        let Some((queue, sqe)) = self.remembered_command(which) else { return };
        let cqe = Cqe::new(sqe.cid(), Status::from_bits(status));
        self.send(queue, cqe.as_bytes(), Op::Send);
    }

    /// Reads or writes memory of a command that it remembers, near where that was.
    pub(super) fn touch(&mut self, which: usize, write: bool, offset: i32, length: u16) {
        self.truthful = false;
        let Some((queue, sqe)) = self.remembered_command(which) else { return };
        let Ok(Sgl::Keyed { address, key: rkey, .. }) = sqe.dptr.parse() else { return };
        let remote_addr = address.wrapping_add_signed(offset.into());
        let op = match write {
            true => Op::RdmaWrite { remote_addr, rkey },
            false => Op::RdmaRead { remote_addr, rkey },
        };
        let sge = self.stage(&[0xDD; PAGE_BYTES][..usize::from(length) % PAGE_BYTES]);
        self.push(queue, 0, op, sge);
    }

    fn remembered_command(&self, which: usize) -> Option<(usize, Sqe)> {
        let (conn, sqe) = self.remembered.get(which.checked_rem(self.remembered.len())?)?;
        let queue = self.queues.iter().position(|queue| queue.conn == *conn)?;
        Some((queue, *sqe))
    }

    fn forget(&mut self, conn: ConnId) {
        if let Some(index) = self.queues.iter().position(|queue| queue.conn == conn) {
            let queue = self.queues.swap_remove(index);
            self.group.release(queue.qp);
        }
        self.cm.close(conn);
    }

    fn accept(&mut self, now: Time, conn: ConnId, params: &ConnParams) {
        if std::mem::take(&mut self.refuses) {
            let reject = Reject::new(RejectStatus::NO_RESOURCES);
            // It may have gone meanwhile.
            let _ = self.cm.reject(now, conn, reject.as_bytes());
            return;
        }
        let request =
            ConnectRequest::parse(params.private_data.as_slice()).expect("a host is correct");
        let entries = request.send_entries().min(RECEIVES as u32) as u16;
        let entries = self.claimed_entries.unwrap_or(entries);
        let config = QpConfig {
            send_wr: 256,
            recv_wr: RECEIVES as u32,
            send_sge: 1,
            recv_sge: 1,
            inline_bytes: 0,
        };
        let Ok(new) = self.cm.create_qp(conn, &self.group.handle(), &self.device, &config) else {
            return;
        };
        self.queues.push(HostileQueue {
            conn,
            qp: self.group.adopt(new),
            qid: request.qid(),
            capsules: DeviceMemory::new(
                &self.device,
                RECEIVES * CAPSULE_BYTES,
                Access::LOCAL_WRITE,
            ),
            fetching: Vec::new(),
            next_fetch: 0,
        });
        for receive in 0..RECEIVES {
            self.post_receive(self.queues.len() - 1, receive);
        }
        let accept = ConnectAccept::new(entries);
        let params = ConnParams {
            private_data: PrivateData::new(accept.as_bytes()).expect("it fits"),
            initiator_depth: 4,
            rnr_retry_count: 7,
            retry_count: 7,
            ..ConnParams::default()
        };
        if self.cm.accept(now, conn, &params).is_err() {
            self.forget(conn);
        }
    }

    fn post_receive(&mut self, queue: usize, receive: usize) {
        let queue = &self.queues[queue];
        let sges = [queue.capsules.sge(receive * CAPSULE_BYTES, CAPSULE_BYTES)];
        let wr = RecvWr { wr_id: receive as u64, sges: &sges };
        // SAFETY: the memory is deregistered before it is freed, and read only once the receive has
        // completed.
        unsafe { self.group.push_recv(queue.qp, &wr) }.expect("there are as many places");
    }

    fn completed(&mut self, now: Time, wc: &Wc) {
        let found = self.queues.iter().position(|queue| self.group.qpn(queue.qp) == wc.qpn);
        let Some(index) = found.filter(|_| wc.is_success()) else { return };
        let queue = &mut self.queues[index];
        match wc.opcode {
            WcOpcode::RECV => {
                let receive = wc.wr_id as usize;
                let bytes = queue.capsules.get(receive * CAPSULE_BYTES, wc.byte_len as usize);
                let bytes: Vec<u8> = bytes.collect();
                self.post_receive(index, receive);
                self.command(now, index, &bytes);
            }
            WcOpcode::RDMA_READ => {
                let found = queue.fetching.iter().position(|(id, ..)| *id == wc.wr_id);
                if let Some(at) = found {
                    let (_, sqe, behaviour) = queue.fetching.swap_remove(at);
                    self.respond(now, index, &sqe, Cqe::success(sqe.cid()), &behaviour);
                }
            }
            _ => {}
        }
    }

    fn command(&mut self, now: Time, queue: usize, bytes: &[u8]) {
        let capsule = CommandCapsule::parse(bytes).expect("a host sends commands");
        let sqe = *capsule.sqe;
        self.remembered.push_back((self.queues[queue].conn, sqe));
        if self.remembered.len() > REMEMBERED {
            self.remembered.pop_front();
        }
        let behaviour = self.plan.pop_front().unwrap_or_default();
        self.truthful &= behaviour.is_truthful();
        if let AnswerFault::Status(status) = behaviour.answer {
            let cqe = Cqe::new(sqe.cid(), Status::from_bits(status));
            return self.send(queue, cqe.as_bytes(), Op::Send);
        }
        let command = Command::parse(self.queues[queue].qid, &sqe);
        let done = Cqe::success(sqe.cid());
        match command.expect("a host sends what can be parsed") {
            Command::Nvm(NvmCommand::Read(io)) => {
                let sge = self.blocks(&io.range, DISK_BYTES);
                self.give(now, queue, &sqe, sge, done, &behaviour);
            }
            Command::Nvm(NvmCommand::Write(io)) => {
                self.take(now, queue, &capsule, &io.range, &behaviour);
            }
            Command::Nvm(_) => self.respond(now, queue, &sqe, done, &behaviour),
            Command::Fabrics(command) => {
                let cqe = self.fabrics(&command, done);
                self.respond(now, queue, &sqe, cqe, &behaviour);
            }
            Command::Admin(command) => self.admin(now, queue, &sqe, &command, &behaviour),
        }
    }

    /// Where blocks lie on the disk, before `end`; what lies elsewhere is somewhere there too.
    fn blocks(&self, range: &LbaRange, end: usize) -> Sge {
        let length = (range.blocks as usize * LBA_BYTES).min(end);
        let at = (range.slba as usize).wrapping_mul(LBA_BYTES) % end;
        self.disk.sge(at.min(end - length), length)
    }

    fn fabrics(&mut self, command: &FabricsCommand, done: Cqe) -> Cqe {
        match command {
            FabricsCommand::Connect(connect) => {
                self.next_cntlid += u16::from(connect.qid.is_admin());
                self.pages.set_cntlid(self.next_cntlid);
                let response = ConnectResponse::controller(Cntlid(self.next_cntlid));
                done.with_dw0(response.into_bits())
            }
            FabricsCommand::PropertyGet(PropertyGet { property: Property::CAP, .. }) => {
                let css = CapCss::new().with_nvm(true);
                let cap = Cap::new().with_mqes_z(127).with_cqr(true).with_to(1).with_css(css);
                done.with_result(cap.into_bits())
            }
            FabricsCommand::PropertyGet(PropertyGet { property: Property::CSTS, .. }) => {
                done.with_dw0(Csts::new().with_rdy(true).into_bits())
            }
            _ => done,
        }
    }

    fn admin(
        &mut self,
        now: Time,
        queue: usize,
        sqe: &Sqe,
        command: &AdminCommand,
        behaviour: &Behaviour,
    ) {
        let done = Cqe::success(sqe.cid());
        match command {
            AdminCommand::Identify(command) => {
                let page = self.pages.identify(command).to_vec();
                let sge = self.stage(&page);
                self.give(now, queue, sqe, sge, done, behaviour);
            }
            AdminCommand::GetLogPage(page) => {
                let LogOffset::Bytes(offset) = page.offset else { panic!("an index") };
                let log = self.pages.discovery().iter().copied();
                let length = (page.length_bytes as usize).min(PAGE_BYTES);
                let log = log.skip(offset as usize).chain(std::iter::repeat(0));
                let bytes: Vec<u8> = log.take(length).collect();
                let sge = self.stage(&bytes);
                self.give(now, queue, sqe, sge, done, behaviour);
            }
            AdminCommand::SetFeatures(_) => {
                let counts = Feature::NumberOfQueues(QueueCounts::pairs(4)).value();
                self.respond(now, queue, sqe, done.with_dw0(counts), behaviour);
            }
            AdminCommand::AsyncEventRequest => {}
            _ => self.respond(now, queue, sqe, done, behaviour),
        }
    }

    /// Sends data to the host, and the response.
    fn give(
        &mut self,
        now: Time,
        queue: usize,
        sqe: &Sqe,
        sge: Sge,
        cqe: Cqe,
        behaviour: &Behaviour,
    ) {
        let Ok(Sgl::Keyed { address, key, length, .. }) = sqe.dptr.parse() else {
            panic!("a command without memory: {sqe:?}");
        };
        let sge = Sge { length: sge.length.min(length), ..sge };
        if behaviour.hasty {
            self.respond(now, queue, sqe, cqe, behaviour);
        }
        if let Some((remote_addr, rkey, sge)) = transfer(address, key, sge, behaviour.data) {
            self.push(queue, 0, Op::RdmaWrite { remote_addr, rkey }, sge);
        }
        if !behaviour.hasty {
            self.respond(now, queue, sqe, cqe, behaviour);
        }
    }

    /// Takes data from the host, and responds then.
    fn take(
        &mut self,
        now: Time,
        queue: usize,
        capsule: &CommandCapsule<'_>,
        range: &LbaRange,
        behaviour: &Behaviour,
    ) {
        let sqe = capsule.sqe;
        let sge = self.blocks(range, WRITABLE_BYTES);
        let done = Cqe::success(sqe.cid());
        match sqe.dptr.parse() {
            Ok(Sgl::InCapsule { offset, length }) => {
                let data = capsule.in_capsule(offset, length).expect("a host sends what it says");
                let at = (sge.addr - self.disk.address(0)) as usize;
                self.disk.put(at, &data[..data.len().min(sge.length as usize)]);
                self.respond(now, queue, sqe, done, behaviour);
            }
            Ok(Sgl::Keyed { address, key, length, .. }) => {
                let sge = Sge { length: sge.length.min(length), ..sge };
                match transfer(address, key, sge, behaviour.data) {
                    Some((remote_addr, rkey, sge)) => {
                        let id = 1 + self.queues[queue].next_fetch;
                        self.queues[queue].next_fetch = id;
                        self.queues[queue].fetching.push((id, *sqe, *behaviour));
                        self.push(queue, id, Op::RdmaRead { remote_addr, rkey }, sge);
                    }
                    None => self.respond(now, queue, sqe, done, behaviour),
                }
            }
            other => panic!("a write without data: {other:?}"),
        }
    }

    fn respond(&mut self, now: Time, queue: usize, sqe: &Sqe, cqe: Cqe, behaviour: &Behaviour) {
        let op = match sqe.dptr.parse() {
            Ok(Sgl::Keyed { key: rkey, invalidate: true, .. }) => Op::SendWithInvalidate { rkey },
            _ => Op::Send,
        };
        match behaviour.answer {
            AnswerFault::Missing | AnswerFault::Status(_) => {}
            AnswerFault::Disconnect => self.cm.disconnect(now, self.queues[queue].conn),
            AnswerFault::None => self.send(queue, cqe.as_bytes(), op),
            AnswerFault::Twice => {
                self.send(queue, cqe.as_bytes(), op);
                self.send(queue, cqe.as_bytes(), Op::Send);
            }
            AnswerFault::Result(result) => {
                self.send(queue, cqe.with_result(result).as_bytes(), op);
            }
            AnswerFault::Cid(cid) => {
                let other = Cqe::success(Cid(sqe.cid().0 ^ cid));
                self.send(queue, other.as_bytes(), op);
            }
            AnswerFault::Invalidates(key) => {
                let rkey = match op {
                    Op::SendWithInvalidate { rkey } => rkey ^ key,
                    _ => key,
                };
                self.send(queue, cqe.as_bytes(), Op::SendWithInvalidate { rkey });
            }
            AnswerFault::Bytes(length, with) => {
                let mut bytes = vec![with; length];
                if let Some(cid) = bytes.get_mut(12..14) {
                    cid.copy_from_slice(&sqe.cid().0.to_le_bytes());
                }
                self.send(queue, &bytes, op);
            }
        }
    }

    fn send(&mut self, queue: usize, bytes: &[u8], op: Op) {
        let sge = self.stage(bytes);
        self.push(queue, 0, op, sge);
    }

    /// Puts bytes where they can be sent from.
    fn stage(&mut self, bytes: &[u8]) -> Sge {
        let at = self.next_stage % STAGES * PAGE_BYTES;
        self.next_stage += 1;
        self.staged.put(at, bytes);
        self.staged.sge(at, bytes.len())
    }

    fn push(&mut self, queue: usize, wr_id: u64, op: Op, sge: Sge) {
        let wr = SendWr { wr_id, op, flags: SendFlags::SIGNALED, sges: &[sge] };
        // SAFETY: the memory is the target's own and is deregistered before it is freed.
        let pushed = unsafe { self.group.push_send(self.queues[queue].qp, &wr) };
        // What finds no room is as good as lost.
        self.truthful &= pushed.is_ok();
    }
}

/// Where data goes or comes from, and how much: the peer's address and key, and memory of ours.
fn transfer(address: u64, key: u32, sge: Sge, fault: DataFault) -> Option<(u64, u32, Sge)> {
    match fault {
        DataFault::None => Some((address, key, sge)),
        DataFault::Missing => None,
        DataFault::Shifted(by) => Some((address.wrapping_add_signed(by.into()), key, sge)),
        DataFault::Key(with) => Some((address, key ^ with, sge)),
        DataFault::Longer(by) => {
            Some((address, key, Sge { length: sge.length + u32::from(by), ..sge }))
        }
    }
}

/// Byte `at` of the disk.
pub(super) fn pattern(at: usize) -> u8 {
    (at ^ (at >> 8).wrapping_mul(31)) as u8
}

fn pages() -> IdentifyPages {
    IdentifyPages::new((DISK_BYTES / LBA_BYTES) as u64, IN_CAPSULE_BYTES as u32)
}
