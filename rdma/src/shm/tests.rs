//! Peers that do not keep to the protocol: each costs itself its connection, and nobody else
//! anything.
#![expect(unsafe_code, reason = "registers memory and pushes requests")]

mod placed;

use core::sync::atomic::Ordering::Relaxed;
use core::time::Duration;
use std::os::fd::{AsFd, OwnedFd};

use proptest::prelude::*;

use super::agreement::LinkAgreement;
use super::link::ShmLink;
use super::mapping::RingUse;
use super::message::{CmMessageKind, ShmCmMessage};
use super::queue_pair::ShmQueuePair;
use super::record::{AnswerRecord, MessagePart, Refusal, RequestRecord};
use super::ring::RingSize;
use super::ring::RingWriter;
use super::shared::ShmGroupMessage;
use super::sleep_word::PeerNews;
use super::socket::{self, Incoming};
use super::trust::PeerTrust;
use super::work_limits::WorkLimits;
use super::*;
use crate::software::regions::SoftwareRegion;
use crate::{
    Access, CmEvent, ConnId, ConnOptions, ConnParams, ConnectionManager, Device, Group,
    GroupConfig, Mem, MemoryRegion, Op, QpConfig, QpKey, RecvWr, SendFlags, SendWr, Sge, Time,
    WakeFor, Wc, WcStatus,
};

const QP: QpConfig =
    QpConfig { send_wr: 128, recv_wr: 16, send_sge: 2, recv_sge: 2, inline_bytes: 64 };
const DEPTH: u8 = 4;

/// A group with memory, and the peers' ends of its links.
struct Victim {
    device: ShmDevice,
    group: ShmGroup,
    /// Room that the peer may read and write, then as much that it may not touch.
    memory: Box<[u64]>,
    open: Option<SoftwareRegion>,
    closed: Option<SoftwareRegion>,
    now: Time,
}

const OPEN_BYTES: usize = 4096;
const SECRET: u64 = 0x5ec2_e75e_c2e7_5ec2;

impl Victim {
    fn new() -> Self {
        let device = ShmDevice::open(&ShmOptions::new([127, 0, 0, 1].into())).unwrap();
        let config = GroupConfig { completions: 64, queue_pairs: 4, completion_vector: 0 };
        let group = device.group(&config).unwrap();
        let mut memory = vec![SECRET; 2 * OPEN_BYTES / 8].into_boxed_slice();
        let start = memory.as_mut_ptr().cast::<u8>();
        let register = |offset, access| {
            let memory = Mem::Host { addr: start.wrapping_add(offset), length: OPEN_BYTES };
            // SAFETY: the regions are dropped before the memory, which is read only between polls.
            unsafe { device.register(memory, access) }.unwrap()
        };
        let all = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let (open, closed) = (register(0, all), register(OPEN_BYTES, Access::LOCAL_WRITE));
        let (open, closed) = (Some(open), Some(closed));
        Self { device, group, memory, open, closed, now: Time::ZERO }
    }

    /// A queue pair of the group, and the other end of its link.
    fn connect(&mut self) -> (QpKey, ShmLink) {
        let (peer, offer) = ShmLink::create().unwrap();
        let shared = self.device.shared_for_tests();
        let number = shared.numbers.take(1).unwrap();
        let name = (number.get().value(), number.serial());
        let link = ShmLink::accept(offer).unwrap();
        let limits = WorkLimits::granted(&QP);
        let qp = ShmQueuePair::new(number, limits, self.device.domain(), link);
        let key = self.group.adopt(ShmNewQp(Box::new(qp)));
        let params = ConnParams {
            responder_resources: DEPTH,
            initiator_depth: DEPTH,
            retry_count: 0,
            rnr_retry_count: 7,
            ..ConnParams::default()
        };
        let agreement = LinkAgreement::new(&params, 10);
        let message = ShmGroupMessage::Connect { number: name, agreement };
        shared.mailbox(1).unwrap().send(message);
        (key, peer)
    }

    fn addr(&self) -> u64 {
        self.memory.as_ptr().expose_provenance() as u64
    }

    fn rkey(&self) -> u32 {
        self.open.as_ref().unwrap().rkey()
    }

    fn sge(&self, length: u32) -> Sge {
        Sge { addr: self.addr(), length, lkey: self.rkey() }
    }

    fn recv(&mut self, qp: QpKey, wr_id: u64) {
        let sges = [self.sge(64)];
        // SAFETY: the memory lives as long as the group.
        unsafe { self.group.push_recv(qp, &RecvWr { wr_id, sges: &sges }) }.unwrap();
    }

    fn send(&mut self, qp: QpKey, wr_id: u64, op: Op) {
        let (sges, flags) = ([self.sge(64)], SendFlags::SIGNALED);
        // SAFETY: as in `recv`.
        unsafe { self.group.push_send(qp, &SendWr { wr_id, op, flags, sges: &sges }) }.unwrap();
        self.group.flush(self.now);
    }

    /// Polls a few times.
    fn poll(&mut self) -> Vec<Wc> {
        let mut all = Vec::new();
        for _ in 0..20 {
            let mut wcs = [Wc::default(); 16];
            let count = self.group.poll(self.now, &mut wcs);
            all.extend_from_slice(&wcs[..count]);
        }
        all
    }

    /// Whether a sleep on the group ends immediately.
    fn is_readable(&self) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let fd = self.group.fd().unwrap();
        poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&at_once)).unwrap() == 1
    }

    fn assert_untouched(&self) {
        assert!(self.memory[OPEN_BYTES / 8..].iter().all(|&word| word == SECRET));
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        (self.open, self.closed) = (None, None);
    }
}

/// Writes a record as our own code would, whatever it says.
fn write(link: &ShmLink, which: RingUse, words: impl Fn(u32) -> [u64; 4], length: u32) {
    let ring = link.outgoing(which);
    let mut writer = RingWriter::default();
    let space = writer.space(&ring, length).unwrap();
    writer.commit(&ring, &space, words(length));
    writer.publish(&ring);
}

fn part(total: u32, first: bool, last: bool) -> MessagePart {
    MessagePart { total, first, last }
}

type Attack = fn(&Victim, &ShmLink);

fn request(link: &ShmLink, request: RequestRecord, length: u32) {
    write(link, RingUse::Requests, |length| request.encode(length), length);
}

fn answer(link: &ShmLink, answer: AnswerRecord, length: u32) {
    write(link, RingUse::Answers, |length| answer.encode(length), length);
}

const ATTACKS: [(&str, Attack); 24] = [
    ("a head beyond the ring", |_, link| {
        link.outgoing(RingUse::Requests).head.store(RingSize::REQUESTS.bytes() + 64, Relaxed);
    }),
    ("an odd head", |_, link| link.outgoing(RingUse::Requests).head.store(1, Relaxed)),
    ("a head of answers beyond", |_, link| {
        link.outgoing(RingUse::Answers).head.store(u64::MAX, Relaxed);
    }),
    ("a tail of what was not written", |_, link| {
        link.incoming(RingUse::Requests).tail.store(1 << 20, Relaxed);
    }),
    ("a tail of answers that were not", |_, link| {
        link.incoming(RingUse::Answers).tail.store(64, Relaxed);
    }),
    ("a closing that is none", |_, link| link.close_for_tests(77)),
    ("a kind that is none", |_, link| {
        write(link, RingUse::Requests, |length| [0x99 << 32 | u64::from(length), 0, 0, 0], 8);
    }),
    ("an answer among requests", |_, link| {
        let words = AnswerRecord::ReadData { last: true }.encode(8);
        write(link, RingUse::Requests, |_| words, 8);
    }),
    ("a request among answers", |_, link| {
        let words = RequestRecord::Send { part: part(8, true, true), invalidate: None }.encode(8);
        write(link, RingUse::Answers, |_| words, 8);
    }),
    ("a length beyond what was written", |_, link| {
        write(link, RingUse::Requests, |_| [1 << 32 | 0xFFFF_FFFF, 0, 0, 0], 8);
    }),
    ("a message that goes on and never began", |_, link| {
        request(link, RequestRecord::Send { part: part(8, false, true), invalidate: None }, 8);
    }),
    ("a message longer than it says", |_, link| {
        request(link, RequestRecord::Send { part: part(4, true, true), invalidate: None }, 8);
    }),
    ("a message that ends too soon", |_, link| {
        request(link, RequestRecord::Send { part: part(16, true, true), invalidate: None }, 8);
    }),
    ("a message that does not end", |_, link| {
        request(link, RequestRecord::Send { part: part(16, true, false), invalidate: None }, 8);
    }),
    ("a message longer than the receive", |_, link| {
        request(link, RequestRecord::Send { part: part(65, true, true), invalidate: None }, 65);
    }),
    ("an invalidation of what is no window", |victim, link| {
        let invalidate = Some(victim.rkey());
        request(link, RequestRecord::Send { part: part(8, true, true), invalidate }, 8);
    }),
    ("a write to a closed region", |victim, link| {
        let (addr, rkey) = (victim.addr() + OPEN_BYTES as u64, victim.rkey() + (1 << 14));
        request(link, RequestRecord::Write { part: part(8, true, true), addr, rkey }, 8);
    }),
    ("a write past the region that says it is shorter", |victim, link| {
        let (addr, rkey) = (victim.addr() + OPEN_BYTES as u64 - 4, victim.rkey());
        request(link, RequestRecord::Write { part: part(1, true, true), addr, rkey }, 8);
    }),
    ("a later part of a write past the region", |victim, link| {
        let (addr, rkey) = (victim.addr() + OPEN_BYTES as u64, victim.rkey());
        request(link, RequestRecord::Write { part: part(8, false, true), addr, rkey }, 8);
    }),
    ("a read of a closed region", |victim, link| {
        let (addr, rkey) = (victim.addr() + OPEN_BYTES as u64, victim.rkey());
        request(link, RequestRecord::Read { addr, rkey, length: 8 }, 0);
    }),
    ("data that nobody asked for", |_, link| {
        answer(link, AnswerRecord::ReadData { last: true }, 8);
    }),
    ("a refusal of nothing", |_, link| {
        answer(link, AnswerRecord::Refused(Refusal::Access), 0);
    }),
    ("a refusal for no known reason", |_, link| {
        let [first, ..] = AnswerRecord::Refused(Refusal::Access).encode(0);
        write(link, RingUse::Answers, |_| [first, 99, 0, 0], 0);
    }),
    ("its end", |_, link| link.close_for_tests(2)),
];

#[test]
fn a_hostile_peer_loses_its_connection_only() {
    for (what, attack) in ATTACKS {
        let mut victim = Victim::new();
        let (attacked, hostile) = victim.connect();
        let (other, honest) = victim.connect();
        assert!(victim.poll().is_empty());
        for qp in [attacked, other] {
            victim.recv(qp, 1);
        }
        attack(&victim, &hostile);
        hostile.count_news_for_tests();
        let wcs = victim.poll();
        let qpn = victim.group.qpn(attacked);
        assert!(wcs.iter().all(|wc| wc.qpn == qpn && wc.wr_id == 1), "{what}: {wcs:?}");
        assert!(wcs.len() <= 1 && wcs.iter().all(|wc| !wc.is_success()), "{what}: {wcs:?}");
        victim.assert_untouched();
        // All but a message that does not end are answered with the end.
        let waits = what == "a message that does not end";
        assert_eq!(hostile.peer_closing().is_none(), waits, "{what}");
        let message = RequestRecord::Send { part: part(8, true, true), invalidate: None };
        request(&honest, message, 8);
        let wcs = victim.poll();
        assert_eq!(wcs.len(), 1, "{what}");
        assert_eq!((wcs[0].status, wcs[0].qpn), (WcStatus::SUCCESS, victim.group.qpn(other)));
    }
}

#[test]
fn no_peer_reads_more_at_once_than_was_agreed() {
    let mut victim = Victim::new();
    let (_, hostile) = victim.connect();
    let (ring, mut writer) = (hostile.outgoing(RingUse::Requests), RingWriter::default());
    let read = RequestRecord::Read { addr: victim.addr(), rkey: victim.rkey(), length: 4096 };
    for _ in 0..=DEPTH {
        let space = writer.space(&ring, 0).unwrap();
        writer.commit(&ring, &space, read.encode(0));
    }
    writer.publish(&ring);
    victim.poll();
    assert!(hostile.peer_closing().is_some());
}

#[test]
fn a_peer_that_answers_a_read_wrongly_fails_it() {
    for (length, last) in [(63, true), (64, false), (65, true), (0, true)] {
        let mut victim = Victim::new();
        let (qp, hostile) = victim.connect();
        victim.poll();
        victim.send(qp, 5, Op::RdmaRead { remote_addr: 1, rkey: 2 });
        answer(&hostile, AnswerRecord::ReadData { last }, length);
        let wcs = victim.poll();
        assert_eq!(wcs.len(), 1, "{length} {last}");
        assert_eq!((wcs[0].wr_id, wcs[0].status), (5, WcStatus::BAD_RESPONSE));
        victim.assert_untouched();
    }
}

#[test]
fn a_peer_that_stops_is_given_up() {
    let mut victim = Victim::new();
    let (qp, _hostile) = victim.connect();
    victim.poll();
    victim.send(qp, 5, Op::Send);
    assert!(victim.poll().is_empty());
    let deadline = victim.group.deadline().expect("a silent peer is given up");
    victim.now = deadline + Duration::from_millis(1);
    let wcs = victim.poll();
    assert_eq!((wcs.len(), wcs[0].wr_id, wcs[0].status), (1, 5, WcStatus::RETRY_EXCEEDED));
    assert_eq!(victim.group.stats().ack_timeouts, 1);
}

/// Whoever arms a group may poll it once more before sleeping.
#[test]
fn a_poll_after_arming_keeps_the_wake_up() {
    for what in [WakeFor::Arrivals, WakeFor::Everything] {
        let mut victim = Victim::new();
        let (qp, peer) = victim.connect();
        victim.recv(qp, 1);
        victim.poll();
        assert!(!victim.group.arm(what));
        assert!(victim.poll().is_empty() && !victim.is_readable());
        let message = RequestRecord::Send { part: part(8, true, true), invalidate: None };
        request(&peer, message, 8);
        peer.tell(PeerNews { records: true, read: false });
        assert!(victim.is_readable(), "{what:?}");
        victim.group.acknowledge_wake();
        assert!(!victim.is_readable());
        assert_eq!(victim.poll().len(), 1);
    }
}

/// One thread may poll a group while another thread sleeps on it, and the peer rings once.
#[test]
fn a_poll_leaves_the_wake_up_to_a_sleeper() {
    let mut victim = Victim::new();
    let (qp, peer) = victim.connect();
    victim.recv(qp, 1);
    victim.poll();
    assert!(!victim.group.arm(WakeFor::Arrivals));
    request(&peer, RequestRecord::Send { part: part(8, true, true), invalidate: None }, 8);
    peer.tell(PeerNews { records: true, read: false });
    victim.now = victim.now + Duration::from_secs(1);
    assert_eq!(victim.poll().len(), 1);
    assert!(victim.is_readable());
    victim.group.acknowledge_wake();
    assert!(!victim.is_readable());
    // That a peer is gone is seen all the same.
    victim.recv(qp, 2);
    assert!(!victim.group.arm(WakeFor::Arrivals));
    drop(peer);
    let mut flushed = Vec::new();
    for _ in 0..2 {
        victim.now = victim.now + Duration::from_secs(1);
        flushed.extend(victim.poll());
    }
    assert_eq!(flushed.len(), 1);
}

/// A peer stays asked to ring while the group is awake, and rings once.
#[test]
fn a_peer_that_rings_an_awake_group_is_noticed_before_it_sleeps() {
    let mut victim = Victim::new();
    let (qp, peer) = victim.connect();
    let send = || {
        request(&peer, RequestRecord::Send { part: part(8, true, true), invalidate: None }, 8);
        peer.tell(PeerNews { records: true, read: false });
    };
    victim.recv(qp, 1);
    victim.recv(qp, 2);
    victim.poll();
    assert!(!victim.group.arm(WakeFor::Arrivals));
    victim.group.acknowledge_wake();
    send();
    assert!(victim.group.arm(WakeFor::Arrivals));
    assert!(!victim.is_readable());
    assert_eq!(victim.poll().len(), 1);
    assert!(!victim.group.arm(WakeFor::Arrivals));
    send();
    assert!(victim.is_readable());
}

/// A queue pair may be connected after its group was armed.
#[test]
fn a_connection_after_arming_wakes() {
    let mut victim = Victim::new();
    victim.poll();
    assert!(!victim.group.arm(WakeFor::Arrivals));
    let (qp, peer) = victim.connect();
    victim.recv(qp, 1);
    victim.poll();
    assert!(!victim.is_readable());
    request(&peer, RequestRecord::Send { part: part(8, true, true), invalidate: None }, 8);
    peer.tell(PeerNews { records: true, read: false });
    assert!(victim.is_readable());
}

/// A change that a peer does not count is found before the group sleeps.
#[test]
fn a_peer_that_does_not_count_is_served_before_a_sleep() {
    let mut victim = Victim::new();
    let (qp, peer) = victim.connect();
    assert!(victim.poll().is_empty());
    victim.recv(qp, 1);
    let ring = peer.outgoing(RingUse::Requests);
    ring.head.store(RingSize::REQUESTS.bytes() + 64, Relaxed);
    assert!(victim.poll().is_empty());
    assert!(victim.group.arm(WakeFor::Arrivals));
    assert_eq!(victim.poll().len(), 1, "the receive is flushed");
    assert!(peer.peer_closing().is_some());
}

/// A queue pair may run out of room after its group was armed for arrivals only.
#[test]
fn room_after_arming_wakes() {
    let mut victim = Victim::new();
    let (qp, peer) = victim.connect();
    victim.poll();
    assert!(!victim.group.arm(WakeFor::Arrivals));
    let sges = [victim.sge(4096), victim.sge(4096)];
    let op = Op::RdmaWrite { remote_addr: 0, rkey: 0 };
    let write = SendWr { wr_id: 1, op, flags: SendFlags::NONE, sges: &sges };
    for _ in 0..QP.send_wr {
        // SAFETY: the memory lives as long as the group.
        unsafe { victim.group.push_send(qp, &write) }.unwrap();
    }
    victim.group.flush(victim.now);
    victim.poll();
    let ring = peer.incoming(RingUse::Requests);
    ring.tail.store(ring.head.load(Relaxed), Relaxed);
    peer.count_news_for_tests();
    peer.tell(PeerNews { records: false, read: true });
    assert!(victim.is_readable());
    let written = ring.head.load(Relaxed);
    victim.group.acknowledge_wake();
    victim.poll();
    assert!(ring.head.load(Relaxed) > written, "it goes on");
}

/// News that came before a group is armed does not ring again.
#[test]
fn arming_tells_of_what_has_come() {
    let mut victim = Victim::new();
    let (qp, peer) = victim.connect();
    victim.recv(qp, 1);
    victim.poll();
    request(&peer, RequestRecord::Send { part: part(8, true, true), invalidate: None }, 8);
    assert!(victim.group.arm(WakeFor::Arrivals));
    assert_eq!(victim.poll().len(), 1);
    assert!(!victim.group.arm(WakeFor::Arrivals));
}

/// Requests that a peer published before it was killed are carried out.
#[test]
fn what_a_peer_wrote_before_its_end_arrives() {
    let mut victim = Victim::new();
    let (qp, peer) = victim.connect();
    victim.recv(qp, 1);
    victim.recv(qp, 2);
    let message = RequestRecord::Send { part: part(8, true, true), invalidate: None };
    request(&peer, message, 8);
    drop(peer);
    victim.group.acknowledge_wake();
    let wcs = victim.poll();
    let statuses: Vec<_> = wcs.iter().map(|wc| wc.status).collect();
    assert_eq!(statuses, [WcStatus::SUCCESS, WcStatus::FLUSHED]);
}

/// Whoever connects and says nothing makes way for others, and none of them has to wait.
#[test]
fn silent_peers_make_way() {
    let victim = Victim::new();
    let mut cm = victim.device.connection_manager().unwrap();
    let listener = cm.listen(([127, 0, 0, 1], 0).into(), &ConnOptions::default()).unwrap();
    let address = cm.local_addr(listener).unwrap();
    let mut now = Time::ZERO;
    let mut silent = Vec::new();
    for _ in 0..10 {
        silent.extend((0..100).map(|_| socket::connect(address, PeerTrust::default()).unwrap()));
        // Fewer are accepted in one go, and the sockets are looked at now and then.
        for _ in 0..4 {
            now = now + Duration::from_millis(1);
            assert!(cm.poll(now).is_none());
        }
    }
    let closed = |peer: &OwnedFd| matches!(socket::receive(peer.as_fd()), Incoming::End);
    assert_eq!(silent.iter().filter(|peer| closed(peer)).count(), 1000 - 256);
    assert!(!closed(silent.last().unwrap()));
    assert!(silent[..1000 - 256].iter().all(closed), "the oldest ones made way");
}

/// A connection that a peer has asked for and the group has accepted.
struct AcceptedConnection {
    cm: ShmCm,
    conn: ConnId,
    peer: OwnedFd,
    _link: ShmLink,
}

impl AcceptedConnection {
    fn new(victim: &mut Victim) -> Self {
        let mut cm = victim.device.connection_manager().unwrap();
        let listener = cm.listen(([127, 0, 0, 1], 0).into(), &ConnOptions::default()).unwrap();
        let peer = socket::connect(cm.local_addr(listener).unwrap(), PeerTrust::default()).unwrap();
        let (link, offer) = ShmLink::create().unwrap();
        let request = ShmCmMessage::plain(CmMessageKind::Request);
        socket::send_request(peer.as_fd(), &request, &offer).unwrap();
        let event = cm.poll(later(1));
        let Some(CmEvent::ConnectRequest { conn, .. }) = event else { panic!("asked") };
        let group = victim.group.handle();
        let qp = cm.create_qp(conn, &group, &victim.device, &QP).unwrap();
        victim.group.adopt(qp);
        cm.accept(later(1), conn, &ConnParams::default()).unwrap();
        let accepted = Self { cm, conn, peer, _link: link };
        assert_eq!(accepted.received(), Some(CmMessageKind::Accept));
        accepted
    }

    /// Sends a message as the peer.
    fn say(&self, kind: CmMessageKind) -> std::io::Result<()> {
        socket::send(self.peer.as_fd(), &ShmCmMessage::plain(kind))
    }

    /// The next message to the peer.
    fn received(&self) -> Option<CmMessageKind> {
        match socket::receive(self.peer.as_fd()) {
            Incoming::Message(message) => Some(message.kind),
            _ => None,
        }
    }
}

fn later(ms: u64) -> Time {
    Time::ZERO + Duration::from_millis(ms)
}

/// A peer could have us read messages without end of a connection that has ended.
#[test]
fn nobody_listens_to_a_connection_that_is_over() {
    let mut victim = Victim::new();
    let mut accepted = AcceptedConnection::new(&mut victim);
    accepted.say(CmMessageKind::Disconnect).unwrap();
    assert!(matches!(accepted.cm.poll(later(2)), Some(CmEvent::ConnectFailed { .. })));
    assert_eq!(accepted.received(), Some(CmMessageKind::Disconnected));
    assert!(matches!(socket::receive(accepted.peer.as_fd()), Incoming::End));
    assert!(accepted.say(CmMessageKind::Disconnect).is_err());
}

/// The peer has said so before it heard that the connection ends; it does not say so again.
#[test]
fn a_peer_may_be_ready_for_a_connection_that_ends() {
    for times in [1, 2] {
        let mut victim = Victim::new();
        let mut accepted = AcceptedConnection::new(&mut victim);
        accepted.cm.disconnect(later(2), accepted.conn);
        assert_eq!(accepted.received(), Some(CmMessageKind::Disconnect));
        for _ in 0..times {
            accepted.say(CmMessageKind::Ready).unwrap();
        }
        let event = accepted.cm.poll(later(3));
        assert_eq!(event.is_none(), times == 1, "{event:?}");
        if times == 1 {
            accepted.say(CmMessageKind::Disconnected).unwrap();
            let event = accepted.cm.poll(later(4));
            assert!(matches!(event, Some(CmEvent::Disconnected { confirmed: true, .. })));
        }
    }
}

/// One step of a peer that does whatever comes to its mind.
#[derive(Clone, Debug)]
enum Scribble {
    Head(bool, u64),
    Tail(bool, u64),
    Closed(u64),
    Words { answers: bool, slot: usize, words: [u64; 4], plausible: bool },
    Poll,
}

fn scribbles() -> impl Strategy<Value = Scribble> {
    let position = prop_oneof![(0..64u64).prop_map(|slot| slot * 64), any::<u64>()];
    prop_oneof![
        3 => (any::<bool>(), position.clone()).prop_map(|(a, p)| Scribble::Head(a, p)),
        1 => (any::<bool>(), position).prop_map(|(a, p)| Scribble::Tail(a, p)),
        1 => (0..4u64).prop_map(Scribble::Closed),
        8 => (any::<bool>(), 0..16usize, any::<[u64; 4]>(), any::<bool>()).prop_map(
            |(answers, slot, words, plausible)| Scribble::Words { answers, slot, words, plausible },
        ),
        3 => Just(Scribble::Poll),
    ]
}

fn scribble(victim: &mut Victim, link: &ShmLink, step: &Scribble) {
    let which = |answers| if answers { RingUse::Answers } else { RingUse::Requests };
    match *step {
        Scribble::Head(answers, at) => link.outgoing(which(answers)).head.store(at, Relaxed),
        Scribble::Tail(answers, at) => link.incoming(which(answers)).tail.store(at, Relaxed),
        Scribble::Closed(value) => link.close_for_tests(value),
        Scribble::Words { answers, slot, mut words, plausible } => {
            if plausible {
                let (kind, flags, length) = (words[0] % 9, (words[0] >> 8) % 4, words[0] >> 57);
                let addr = victim.addr() + words[1] % (2 * OPEN_BYTES as u64);
                let rkey = u64::from(victim.rkey());
                words = [flags << 40 | kind << 32 | length, addr, rkey, words[3] >> 57];
            }
            link.outgoing(which(answers)).write_header(slot as u64 * 64, words);
        }
        Scribble::Poll => drop(victim.poll()),
    }
}

proptest! {
    #[test]
    fn scribbling_touches_nothing_that_is_not_open(
        steps in prop::collection::vec(scribbles(), 1..60),
    ) {
        let mut victim = Victim::new();
        let (attacked, hostile) = victim.connect();
        let (other, honest) = victim.connect();
        victim.poll();
        for wr_id in 0..4 {
            victim.recv(attacked, wr_id);
        }
        victim.send(attacked, 9, Op::RdmaRead { remote_addr: 1, rkey: 2 });
        victim.send(attacked, 10, Op::Send);
        for step in &steps {
            scribble(&mut victim, &hostile, step);
        }
        victim.poll();
        victim.assert_untouched();
        victim.recv(other, 77);
        let message = RequestRecord::Send { part: part(8, true, true), invalidate: None };
        request(&honest, message, 8);
        let wcs = victim.poll();
        let qpn = victim.group.qpn(other);
        prop_assert!(wcs.iter().any(|wc| wc.qpn == qpn && wc.wr_id == 77 && wc.is_success()));
    }
}
