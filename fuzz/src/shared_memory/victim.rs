//! The victim: a device, its connection manager, and a group with its queue pairs.
#![expect(unsafe_code, reason = "pushes requests that name memory by address")]

use core::ops::Range;
use core::time::Duration;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use rdma::shm::{ShmCm, ShmDevice, ShmGroup, ShmOptions};
use rdma::{
    Access, CmEvent, ConnId, ConnOptions, ConnParams, ConnectionManager, Device, Group,
    GroupConfig, MemoryWindow, Op, PrivateData, Provider, QpConfig, QpKey, RecvWr, SendFlags,
    SendWr, Shm, Time, WakeFor, Wc, WcStatus,
};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::memory::{LANDING_BYTES, SLOT_BYTES, SLOTS, SOURCE_BYTES, VictimArea, VictimMemory};

const QP: QpConfig =
    QpConfig { send_wr: 16, recv_wr: 16, send_sge: 2, recv_sge: 2, inline_bytes: 64 };
/// Turns after which a victim has come to rest whose peer does nothing.
const TURNS_MAX: usize = 200;
/// Connections that a victim accepts.
pub(super) const LINKS_MAX: usize = 4;
/// Statuses with which each request may fail.
const SEND_FAILURES: [WcStatus; 10] = [
    WcStatus::LOCAL_QP_OPERATION_ERROR,
    WcStatus::LOCAL_PROTECTION_ERROR,
    WcStatus::WINDOW_BIND_ERROR,
    WcStatus::FLUSHED,
    WcStatus::BAD_RESPONSE,
    WcStatus::REMOTE_INVALID_REQUEST,
    WcStatus::REMOTE_ACCESS_ERROR,
    WcStatus::REMOTE_OPERATION_ERROR,
    WcStatus::RETRY_EXCEEDED,
    WcStatus::RNR_RETRY_EXCEEDED,
];

pub(super) struct ShmVictim {
    pub(super) device: ShmDevice,
    pub(super) group: ShmGroup,
    pub(super) cm: ShmCm,
    pub(super) address: SocketAddr,
    pub(super) memory: VictimMemory,
    pub(super) links: Vec<VictimLink>,
    pub(super) now: Time,
    /// Completions of the queue pair of the well-behaved peer.
    pub(super) friendly: Vec<Wc>,
    pub(super) friendly_qpn: u32,
    /// Connections that ask, and are to be accepted by somebody else.
    pub(super) strangers: Vec<ConnId>,
    pub(super) takes_strangers: bool,
    window: Option<<Shm as Provider>::Window>,
    next_wr: u64,
    slots_used: usize,
}

/// A queue pair whose peer is hostile.
pub(super) struct VictimLink {
    pub(super) conn: ConnId,
    pub(super) qp: QpKey,
    qpn: u32,
    sends: VecDeque<PostedSend>,
    receives: Vec<PostedReceive>,
    receive_failed: bool,
    send_failed: bool,
    /// Completed receives and what they had then.
    arrived: Vec<(Range<usize>, Vec<u8>)>,
}

struct PostedSend {
    wr_id: u64,
    signaled: bool,
}

struct PostedReceive {
    wr_id: u64,
    place: Range<usize>,
}

impl ShmVictim {
    pub(super) fn new() -> Self {
        let options = ShmOptions::new([127, 0, 0, 1].into());
        let device = ShmDevice::open(&options).expect("descriptors are left");
        let config = GroupConfig { completions: 64, queue_pairs: 8, completion_vector: 0 };
        let group = device.group(&config).expect("it is the first");
        let mut cm = device.connection_manager().expect("it is the first");
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = cm.listen(any, &ConnOptions::default()).expect("a port is free");
        let address = cm.local_addr(listener).expect("it listens");
        Self {
            memory: VictimMemory::new(&device),
            device,
            group,
            cm,
            address,
            links: Vec::new(),
            now: Time::from_nanos(1),
            friendly: Vec::new(),
            friendly_qpn: 0,
            strangers: Vec::new(),
            takes_strangers: true,
            window: None,
            next_wr: 0,
            slots_used: 0,
        }
    }

    /// Does all that is ready, and what comes of it. It must come to rest.
    pub(super) fn settle(&mut self) {
        for _ in 0..TURNS_MAX {
            self.now = self.now + Duration::from_millis(1);
            let mut idle = true;
            while let Some(event) = self.cm.poll(self.now) {
                self.hear(event);
                idle = false;
            }
            idle &= !self.poll();
            let due = |deadline: Option<Time>| deadline.is_some_and(|time| time <= self.now);
            if idle && !due(self.group.deadline()) && !due(self.cm.deadline()) {
                return;
            }
        }
        panic!("it never comes to rest");
    }

    /// Polls the group; returns whether anything completed.
    pub(super) fn poll(&mut self) -> bool {
        let mut wcs = [Wc::default(); 16];
        let count = self.group.poll(self.now, &mut wcs);
        for wc in &wcs[..count] {
            self.completed(wc);
        }
        count > 0
    }

    fn completed(&mut self, wc: &Wc) {
        if wc.qpn == self.friendly_qpn {
            return self.friendly.push(*wc);
        }
        let link = self.links.iter_mut().find(|link| link.qpn == wc.qpn);
        let link = link.unwrap_or_else(|| panic!("{wc:?} is of no queue pair"));
        if link.receives.iter().any(|receive| receive.wr_id == wc.wr_id) {
            link.received(wc, &self.memory);
        } else {
            link.sent(wc);
        }
    }

    fn hear(&mut self, event: CmEvent) {
        if let CmEvent::ConnectRequest { conn, params, .. } = event {
            if !self.takes_strangers {
                self.strangers.push(conn);
            } else if self.links.len() < LINKS_MAX {
                self.accept(conn, &params);
            } else {
                self.cm.reject(self.now, conn, b"full").expect("it asks");
            }
        }
    }

    /// Makes a queue pair of the group for a connection.
    pub(super) fn make_qp(&mut self, conn: ConnId) -> Option<QpKey> {
        let handle = self.group.handle();
        let qp = self.cm.create_qp(conn, &handle, &self.device, &QP).ok()?;
        Some(self.group.adopt(qp))
    }

    fn accept(&mut self, conn: ConnId, params: &ConnParams) {
        let Some(qp) = self.make_qp(conn) else { return self.cm.close(conn) };
        self.add(conn, qp);
        let _ = self.cm.accept(self.now, conn, params);
    }

    /// Connects to a listener.
    pub(super) fn connect(&mut self, to: SocketAddr) {
        let timeout = Duration::from_secs(1);
        let options = ConnOptions { ack_timeout_exponent: Some(14), ..ConnOptions::default() };
        let conn = self.cm.resolve(self.now, to, timeout, &options).expect("an address of a peer");
        let qp = self.make_qp(conn).expect("descriptors are left");
        self.add(conn, qp);
        let params = ConnParams {
            responder_resources: 4,
            initiator_depth: 4,
            retry_count: 1,
            rnr_retry_count: 3,
            private_data: PrivateData::EMPTY,
        };
        self.cm.connect(self.now, conn, &params).expect("it is resolved");
    }

    fn add(&mut self, conn: ConnId, qp: QpKey) {
        self.links.push(VictimLink {
            conn,
            qp,
            qpn: self.group.qpn(qp),
            sends: VecDeque::new(),
            receives: Vec::new(),
            receive_failed: false,
            send_failed: false,
            arrived: Vec::new(),
        });
    }

    /// Posts a receive, until all slots of this execution are used.
    pub(super) fn receive(&mut self, link: usize, length: usize) {
        let Some(link) = self.links.get_mut(link) else { return };
        if self.slots_used == SLOTS {
            return;
        }
        let length = length.min(SLOT_BYTES);
        let start = self.slots_used * SLOT_BYTES;
        let half = length / 2;
        let sges = [
            self.memory.sge(VictimArea::Slots, start, half),
            self.memory.sge(VictimArea::Slots, start + half, length - half),
        ];
        self.next_wr += 1;
        let wr = RecvWr { wr_id: self.next_wr, sges: &sges };
        // SAFETY: the slot is nobody else's, and the memory lives as long as the group.
        if unsafe { self.group.push_recv(link.qp, &wr) }.is_ok() {
            self.slots_used += 1;
            let place = start..start + length;
            self.memory.allow(VictimArea::Slots, place.clone());
            link.receives.push(PostedReceive { wr_id: self.next_wr, place });
        }
    }

    /// Posts a send request.
    pub(super) fn send(&mut self, link: usize, op: Op, flags: SendFlags, length: usize) {
        let Some(link) = self.links.get_mut(link) else { return };
        let is_read = matches!(op, Op::RdmaRead { .. });
        let sge = match op {
            Op::Bind(_) | Op::LocalInvalidate { .. } => None,
            Op::RdmaRead { .. } => {
                Some(self.memory.sge(VictimArea::Landing, 0, length.min(LANDING_BYTES)))
            }
            _ if self.memory.region(VictimArea::Open).is_none() => return,
            _ if flags.contains(SendFlags::INLINE) => {
                Some(self.memory.sge(VictimArea::Open, 0, length % 65))
            }
            _ => Some(self.memory.sge(VictimArea::Open, 0, length.min(SOURCE_BYTES))),
        };
        let sges = sge.as_slice();
        self.next_wr += 1;
        let wr = SendWr { wr_id: self.next_wr, op, flags, sges };
        // SAFETY: the memory lives as long as the group; reads may land on one another.
        if unsafe { self.group.push_send(link.qp, &wr) }.is_ok() {
            if let (true, Some(sge)) = (is_read, sge) {
                self.memory.allow(VictimArea::Landing, 0..sge.length as usize);
            }
            let signaled = flags.contains(SendFlags::SIGNALED);
            link.sends.push_back(PostedSend { wr_id: self.next_wr, signaled });
        }
        self.group.flush(self.now);
    }

    /// Sends data that it places in the ring, in a room that is outdated sometimes.
    pub(super) fn place(&mut self, which: usize, total: u32, outdated: bool, addr: u64, rkey: u32) {
        let Some(qp) = self.links.get(which).map(|link| link.qp) else { return };
        let Some(room) = self.group.write_room(qp, total) else { return };
        // SAFETY: the room is as long, and nothing else uses it.
        unsafe { room.address().as_ptr().write_bytes(0x33, room.length() as usize) };
        if outdated {
            self.send(which, Op::Send, SendFlags::NONE, 64);
        }
        self.group.send_room(qp, room, addr, rkey);
        self.group.flush(self.now);
    }

    /// The request that opens the windowed area.
    pub(super) fn bind(&mut self, access: Access) -> Option<Op> {
        let region = self.memory.region(VictimArea::Windowed)?;
        let mut window = self.device.window().ok()?;
        let addr = self.memory.addr(VictimArea::Windowed, 0);
        let op = MemoryWindow::<Shm>::bind(&mut window, region, addr, 512, access);
        self.window = Some(window);
        self.memory.allow(VictimArea::Windowed, 0..512);
        Some(op)
    }

    /// The key of the window, if there is one.
    pub(super) fn window_key(&self) -> u32 {
        self.window.as_ref().map_or(0, MemoryWindow::<Shm>::rkey)
    }

    /// Sleeps and is woken, which must end.
    pub(super) fn sleep(&mut self, what: WakeFor) {
        for _ in 0..TURNS_MAX {
            let news = self.group.arm(what);
            let rung = self.group.fd().is_some_and(is_readable);
            if !news && !rung {
                self.group.acknowledge_wake();
                return;
            }
            self.group.acknowledge_wake();
            self.settle();
        }
        panic!("it never falls asleep");
    }

    /// The connection manager has nothing to wake for.
    pub(super) fn cm_sleeps(&mut self) {
        for _ in 0..TURNS_MAX {
            if !self.cm.fd().is_some_and(is_readable) {
                return;
            }
            self.settle();
        }
        panic!("the connection manager never falls asleep");
    }

    /// Ends all connections with hostile peers, and looks whether all is as before.
    pub(super) fn end(&mut self) {
        self.links.iter().for_each(|link| self.cm.disconnect(self.now, link.conn));
        self.settle();
        self.window = None;
        for link in core::mem::take(&mut self.links) {
            // Those that succeed without a signal are reported by none.
            let reported = link.sends.iter().any(|send| send.signaled);
            assert!(!reported, "a send request never completed");
            assert!(link.receives.is_empty(), "a receive never completed");
            for (place, bytes) in &link.arrived {
                let present = self.memory.slice(VictimArea::Slots, place.clone());
                assert!(present == bytes, "a receive was written after it completed");
            }
            self.group.release(link.qp);
            self.cm.close(link.conn);
        }
        self.cm_sleeps();
        assert_eq!(self.device.stats().queue_pairs, 1, "queue pairs are left");
        self.memory.check_and_restore(&self.device);
        self.slots_used = 0;
    }
}

impl VictimLink {
    fn received(&mut self, wc: &Wc, memory: &VictimMemory) {
        let index = self.receives.iter().position(|receive| receive.wr_id == wc.wr_id);
        let PostedReceive { place, .. } = self.receives.swap_remove(index.expect("posted"));
        match wc.status {
            WcStatus::SUCCESS => {
                assert!(!self.receive_failed, "a receive succeeded in ERROR");
                assert!(wc.byte_len as usize <= place.len(), "more came than was posted");
            }
            WcStatus::LOCAL_LENGTH_ERROR | WcStatus::REMOTE_ACCESS_ERROR | WcStatus::FLUSHED => {
                self.receive_failed = true;
            }
            status => panic!("a receive ended with {status}"),
        }
        self.arrived.push((place.clone(), memory.slice(VictimArea::Slots, place).to_vec()));
    }

    fn sent(&mut self, wc: &Wc) {
        let known = self.sends.iter().any(|send| send.wr_id == wc.wr_id);
        assert!(known, "{wc:?} completes nothing");
        while let Some(send) = self.sends.pop_front() {
            if send.wr_id == wc.wr_id {
                break;
            }
            assert!(!send.signaled && !self.send_failed, "a send request was left out");
        }
        if wc.is_success() {
            assert!(!self.send_failed, "a send request succeeded in ERROR");
        } else {
            let allowed = if self.send_failed { &[WcStatus::FLUSHED][..] } else { &SEND_FAILURES };
            assert!(allowed.contains(&wc.status), "a send request ended with {}", wc.status);
            self.send_failed = true;
        }
    }
}

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&at_once)) == Ok(1)
}
