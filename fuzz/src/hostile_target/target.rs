//! A correct target, unless a script changes its behaviour.

use std::collections::VecDeque;
use std::net::SocketAddr;

use nvme_proto::fabrics::{ConnectResponse, PropertyGet};
use nvme_proto::feature::{Feature, QueueCounts};
use nvme_proto::log::LogOffset;
use nvme_proto::nvm::ListedRange;
use nvme_proto::rdma_cm::{ConnectAccept, ConnectRequest, Reject, RejectStatus};
use nvme_proto::registers::{Cap, CapCss, Csts, Property};
use nvme_proto::{
    AdminCommand, Cid, Cntlid, Command, CommandCapsule, Cqe, FabricsCommand, IntoBytes, LbaRange,
    NvmCommand, Qid, Sgl, Sqe, Status,
};
use raw_peers::{RawPiece, RawTarget, RawTargetEvent, RawTargetShape};
use rdma::sim::{Sim, SimDevice};
use rdma::{ConnId, ConnParams, Op, PrivateData, Time};

use super::behaviour::{AnswerFault, Behaviour, DataFault};
use super::pages::{IdentifyPages, PAGE_BYTES};

pub(super) const LBA_BYTES: usize = 512;
/// Bytes of its namespace.
pub(super) const DISK_BYTES: usize = 64 << 10;
/// A host writes only before this offset; the rest of the disk does not change.
pub(super) const WRITABLE_BYTES: usize = DISK_BYTES / 2;
const IN_CAPSULE_BYTES: usize = 4096;
const CAPSULE_BYTES: usize = size_of::<Sqe>() + IN_CAPSULE_BYTES;
const RECEIVES: u32 = 32;

const SHAPE: RawTargetShape = RawTargetShape {
    queue_pairs: 16,
    sends: 256,
    receives: RECEIVES,
    capsule_bytes: CAPSULE_BYTES,
    places: 64,
    place_bytes: PAGE_BYTES,
    data_bytes: DISK_BYTES,
};

/// Commands that it remembers.
const REMEMBERED: usize = 16;

pub(super) struct FuzzedTarget {
    raw: RawTarget<Sim>,
    queues: Vec<HostileQueue>,
    /// The content of the disk at first.
    formatted: Box<[u8]>,
    pub(super) pages: IdentifyPages,
    /// Behaviour for the next commands.
    pub(super) plan: VecDeque<Behaviour>,
    /// The next connection is refused.
    pub(super) refuses: bool,
    /// The room for commands that it says it has, whatever there is and whatever it was asked for.
    pub(super) claimed_entries: Option<u16>,
    /// Recent commands of hosts, answered or not.
    remembered: VecDeque<(ConnId, Sqe)>,
    next_cntlid: u16,
    /// Every command that it reported as done was done.
    pub(super) truthful: bool,
}

/// A connection of the initiator: one queue.
struct HostileQueue {
    conn: ConnId,
    qid: Qid,
    /// Responses that wait for RDMA READs, by the identifiers of those.
    fetching: Vec<(u64, Sqe, Behaviour)>,
    next_fetch: u64,
}

impl FuzzedTarget {
    pub(super) fn new(device: SimDevice, address: SocketAddr) -> Self {
        let raw = RawTarget::new(device, address, SHAPE);
        let formatted: Box<[u8]> = (0..DISK_BYTES).map(pattern).collect();
        raw.put(0, &formatted);
        Self {
            raw,
            queues: Vec::new(),
            formatted,
            pages: pages(),
            plan: VecDeque::new(),
            refuses: false,
            claimed_entries: None,
            remembered: VecDeque::new(),
            next_cntlid: 0,
            truthful: true,
        }
    }

    /// Is good again, and as it was.
    pub(super) fn restore(&mut self) {
        self.raw.put(0, &self.formatted);
        self.pages = pages();
        self.plan.clear();
        self.refuses = false;
        self.claimed_entries = None;
        self.remembered.clear();
        self.next_cntlid = 0;
        self.truthful = true;
    }

    /// Changes the bytes of the disk, and says nothing.
    #[cfg(test)]
    pub(super) fn change_disk(&mut self) {
        self.raw.put(0, &[0xEE; DISK_BYTES]);
    }

    pub(super) fn device(&self) -> &SimDevice {
        self.raw.device()
    }

    /// Does all that is ready; true if there was anything.
    pub(super) fn turn(&mut self, now: Time) -> bool {
        let mut worked = false;
        while let Some(event) = self.raw.poll(now) {
            worked = true;
            match event {
                RawTargetEvent::Request { conn, params } => self.accept(now, conn, &params),
                RawTargetEvent::Gone { conn } => self.queues.retain(|queue| queue.conn != conn),
                RawTargetEvent::Capsule { conn, bytes } => {
                    if let Some(queue) = self.queue_of(conn) {
                        self.command(now, queue, &bytes);
                    }
                }
                RawTargetEvent::Fetched { conn, wr_id } => self.fetched(now, conn, wr_id),
                RawTargetEvent::Other => {}
            }
        }
        self.raw.flush(now);
        worked
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.raw.deadline()
    }

    /// Disconnects one of the queues, which the number picks modulo their count.
    pub(super) fn disconnect(&mut self, now: Time, which: usize) {
        if let Some(index) = which.checked_rem(self.queues.len()) {
            self.raw.disconnect(now, self.queues[index].conn);
        }
    }

    /// Disconnects every queue of the initiator.
    pub(super) fn disconnect_all(&mut self, now: Time) {
        self.queues.iter().for_each(|queue| self.raw.disconnect(now, queue.conn));
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
        let piece = self.raw.stage(&[0xDD; PAGE_BYTES][..usize::from(length) % PAGE_BYTES]);
        self.push(queue, 0, op, piece);
    }

    fn remembered_command(&self, which: usize) -> Option<(usize, Sqe)> {
        let (conn, sqe) = self.remembered.get(which.checked_rem(self.remembered.len())?)?;
        Some((self.queue_of(*conn)?, *sqe))
    }

    fn queue_of(&self, conn: ConnId) -> Option<usize> {
        self.queues.iter().position(|queue| queue.conn == conn)
    }

    fn accept(&mut self, now: Time, conn: ConnId, params: &ConnParams) {
        if std::mem::take(&mut self.refuses) {
            let reject = Reject::new(RejectStatus::NO_RESOURCES);
            return self.raw.reject(now, conn, reject.as_bytes());
        }
        let request =
            ConnectRequest::parse(params.private_data.as_slice()).expect("a host is correct");
        let entries = request.send_entries().min(RECEIVES) as u16;
        let entries = self.claimed_entries.unwrap_or(entries);
        let accept = ConnectAccept::new(entries);
        let params = ConnParams {
            private_data: PrivateData::new(accept.as_bytes()).expect("it fits"),
            initiator_depth: 4,
            rnr_retry_count: 7,
            retry_count: 7,
            ..ConnParams::default()
        };
        if self.raw.accept(now, conn, &params, RECEIVES as usize) {
            let (qid, fetching) = (request.qid(), Vec::new());
            self.queues.push(HostileQueue { conn, qid, fetching, next_fetch: 0 });
        }
    }

    /// The data of a write has come from the host.
    fn fetched(&mut self, now: Time, conn: ConnId, id: u64) {
        let Some(index) = self.queue_of(conn) else { return };
        let fetching = &mut self.queues[index].fetching;
        if let Some(at) = fetching.iter().position(|(other, ..)| *other == id) {
            let (_, sqe, behaviour) = fetching.swap_remove(at);
            self.respond(now, index, &sqe, Cqe::success(sqe.cid()), &behaviour);
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
        match command.expect("a host sends valid commands") {
            Command::Nvm(NvmCommand::Read(io)) => {
                let (at, length) = Self::blocks(&io.range, DISK_BYTES);
                let piece = self.raw.data(at, length);
                self.give(now, queue, &sqe, piece, done, &behaviour);
            }
            Command::Nvm(NvmCommand::ReadRanges(command)) => {
                let list = command.ranges_in(capsule.data, DISK_BYTES as u64);
                let list = list.expect("a host sends valid lists");
                let of = |range: &ListedRange| {
                    let at = range.offset_bytes.get() as usize;
                    self.raw.get(at, range.length_bytes.get() as usize)
                };
                let bytes: Vec<u8> = list.iter().flat_map(of).collect();
                let piece = self.raw.stage(&bytes);
                let done = done.with_dw0(command.ranges);
                self.give(now, queue, &sqe, piece, done, &behaviour);
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

    /// The place of blocks on the disk, before `end`, and their length in bytes; blocks beyond the
    /// disk are mapped into it.
    fn blocks(range: &LbaRange, end: usize) -> (usize, usize) {
        let length = (range.blocks as usize * LBA_BYTES).min(end);
        let at = (range.slba as usize).wrapping_mul(LBA_BYTES) % end;
        (at.min(end - length), length)
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
                let piece = self.raw.stage(&page);
                self.give(now, queue, sqe, piece, done, behaviour);
            }
            AdminCommand::GetLogPage(page) => {
                let LogOffset::Bytes(offset) = page.offset else { panic!("an index") };
                let log = self.pages.discovery().iter().copied();
                let length = (page.length_bytes as usize).min(PAGE_BYTES);
                let log = log.skip(offset as usize).chain(std::iter::repeat(0));
                let bytes: Vec<u8> = log.take(length).collect();
                let piece = self.raw.stage(&bytes);
                self.give(now, queue, sqe, piece, done, behaviour);
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
        piece: RawPiece,
        cqe: Cqe,
        behaviour: &Behaviour,
    ) {
        let Ok(Sgl::Keyed { address, key, length, .. }) = sqe.dptr.parse() else {
            panic!("a command without memory: {sqe:?}");
        };
        let piece = piece.with_len(piece.len().min(length as usize));
        if behaviour.hasty {
            self.respond(now, queue, sqe, cqe, behaviour);
        }
        if let Some((remote_addr, rkey, piece)) = transfer(address, key, piece, behaviour.data) {
            self.push(queue, 0, Op::RdmaWrite { remote_addr, rkey }, piece);
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
        let (at, room) = Self::blocks(range, WRITABLE_BYTES);
        let done = Cqe::success(sqe.cid());
        match sqe.dptr.parse() {
            Ok(Sgl::InCapsule { offset, length }) => {
                let data = capsule
                    .in_capsule(offset, length)
                    .expect("a host sends the data that it announces");
                self.raw.put(at, &data[..data.len().min(room)]);
                self.respond(now, queue, sqe, done, behaviour);
            }
            Ok(Sgl::Keyed { address, key, length, .. }) => {
                let piece = self.raw.data(at, room.min(length as usize));
                match transfer(address, key, piece, behaviour.data) {
                    Some((remote_addr, rkey, piece)) => {
                        let id = 1 + self.queues[queue].next_fetch;
                        self.queues[queue].next_fetch = id;
                        self.queues[queue].fetching.push((id, *sqe, *behaviour));
                        self.push(queue, id, Op::RdmaRead { remote_addr, rkey }, piece);
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
            AnswerFault::Disconnect => self.raw.disconnect(now, self.queues[queue].conn),
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
        let piece = self.raw.stage(bytes);
        self.push(queue, 0, op, piece);
    }

    fn push(&mut self, queue: usize, wr_id: u64, op: Op, piece: RawPiece) {
        // An RDMA operation that finds no room counts as lost.
        self.truthful &= self.raw.push(self.queues[queue].conn, wr_id, op, piece).is_ok();
    }
}

/// Where data goes or comes from, and how much: the peer's address and key, and memory of ours.
fn transfer(
    address: u64,
    key: u32,
    piece: RawPiece,
    fault: DataFault,
) -> Option<(u64, u32, RawPiece)> {
    match fault {
        DataFault::None => Some((address, key, piece)),
        DataFault::Missing => None,
        DataFault::Shifted(by) => Some((address.wrapping_add_signed(by.into()), key, piece)),
        DataFault::Key(with) => Some((address, key ^ with, piece)),
        DataFault::Longer(by) => {
            Some((address, key, piece.with_len(piece.len() + usize::from(by))))
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
