//! The queue pairs of one group: which packet is for whom, and whose turn it is.
#![expect(unsafe_code, reason = "packets are gathered where their payload lies")]

use core::time::Duration;
use std::collections::VecDeque;
use std::net::SocketAddr;

use roce_proto::Qpn;
use roce_proto::rc::{
    self, ConnectionParams, QueuePair, QueuePairState, ReadBudget, SGE_MAX, SendWindow,
    SharedLimits, Transmit,
};
use roce_proto::wire::{Ecn, Identification, Packet};

use super::convert;
use super::handled_until::HandledUntil;
use super::icrc;
use super::memory;
use super::new_qp::NewQp;
use super::numbers::{QpNumber, owner_of};
use super::paths::{PathKey, Paths};
use super::qp_table::QpTable;
use super::regions::{DomainId, DomainView, RegionsView};
use super::timers::Timers;
use super::wire::{Datagram, IpId, Outgoing, SenderIndex, Wire};
use crate::deliberate_bugs::{self, Bug};
use crate::{GroupStats, QpConfig, Time, Wc};

/// Bytes of payload that one queue pair sends before it is the next one's turn: about one train,
/// for which the other queue pairs wait.
const TURN_BYTES: usize = 60_000;
/// Packets sent before the engine receives again. Packets that arrive wait for as many to be sent.
const PACKETS_PER_ROUND: usize = 512;
/// Identifications below this are those of our own kind of sender: 0, or the index in a train.
const SMALL_ID: u16 = 128;
/// How long peers are told of an overflow. A peer that knows no round-trip time asks after 20 ms
/// what became of the last packet of a burst.
const OVERFLOW_TOLD_FOR: Duration = Duration::from_millis(50);
/// Packets from a peer after which it is believed to keep to small IPv4 identifications. A peer
/// that counts its packets passes through the small ones too, but cannot have sent that many of
/// them, even if some came twice.
const TRUSTED_AFTER: u16 = 2 * SMALL_ID;

/// All that a group does, but for its wire.
pub(super) struct GroupEngine {
    qps: QpTable<QueuePairEntry>,
    paths: Paths,
    reads: ReadBudget,
    handled_until: HandledUntil,
    /// The window of queue pairs that are not connected: nothing is ever charged to it.
    nowhere: SendWindow,
    timers: Timers,
    /// Queue pairs with something to send, in turn.
    ready: VecDeque<u32>,
    /// Queue pairs that the shared limits held up.
    blocked: VecDeque<u32>,
    /// Queue pairs with completions.
    completing: VecDeque<u32>,
    /// Something arrived, so that the limits may have room.
    unblock: bool,
    overflow: Overflow,
    transmit: Transmit,
    /// Counters of released queue pairs, and what is counted here.
    stats: GroupStats,
}

/// A queue pair and what the group knows about it.
struct QueuePairEntry {
    queue_pair: Box<QueuePair>,
    number: QpNumber,
    granted: QpConfig,
    domain: DomainId,
    peer: Option<Peer>,
    sending: bool,
    completing: bool,
}

/// The other end of a connected queue pair.
struct Peer {
    route: ConnectionRoute,
    path: PathKey,
    qpn: Qpn,
    /// The first packet is still awaited, and the connection manager wants to know of it.
    announce: bool,
    identifications: Identifications,
}

/// Where packets of a connection go, and where those of its peer come from.
#[derive(Clone, Copy)]
pub(super) struct ConnectionRoute {
    /// The endpoint to which packets are sent.
    pub(super) peer: SocketAddr,
    /// The sender of the group's wire that all our packets leave from.
    pub(super) sender: SenderIndex,
    /// The peer's packets come from this port alone. Those of foreign peers come from any.
    pub(super) udp_source: Option<u16>,
    /// The traffic class of our packets.
    pub(super) traffic_class: u8,
}

/// The IPv4 identifications that a peer uses, which decide how much its invariant CRCs are worth.
#[derive(Clone, Copy)]
enum Identifications {
    /// This many packets, and all had small ones.
    Small(u16),
    /// One that was not small came before the peer was trusted: all are accepted.
    Any,
}

/// The rest of the work on a datagram, for the caller of the engine.
pub(super) enum Handled {
    /// The datagram was handled or dropped.
    Done,
    /// The datagram was the first packet for a queue pair whose connection manager waits for one.
    PeerIsReady(u32),
    /// The datagram is for this queue pair, of another group or the connection manager.
    Foreign(Qpn),
}

impl GroupEngine {
    pub(super) fn new(queue_pairs: usize, receive_buffer_bytes: usize) -> Self {
        let mut timers = Timers::default();
        timers.reserve(queue_pairs);
        Self {
            qps: QpTable::new(queue_pairs),
            paths: Paths::default(),
            reads: ReadBudget::new(receive_buffer_bytes as u64),
            handled_until: HandledUntil::new(receive_buffer_bytes as u64),
            nowhere: SendWindow::new(),
            timers,
            ready: VecDeque::with_capacity(queue_pairs),
            blocked: VecDeque::with_capacity(queue_pairs),
            completing: VecDeque::with_capacity(queue_pairs),
            unblock: false,
            overflow: Overflow::default(),
            transmit: Transmit::new(),
            stats: GroupStats::default(),
        }
    }

    /// Takes over a queue pair.
    pub(super) fn adopt(&mut self, qp: NewQp) -> crate::QpKey {
        let number = qp.number.get().value();
        let slot = self.qps.insert(
            number,
            QueuePairEntry {
                queue_pair: qp.queue_pair,
                number: qp.number,
                granted: qp.granted,
                domain: qp.domain,
                peer: None,
                sending: false,
                completing: false,
            },
        );
        self.timers.reserve(self.qps.slots());
        for list in [&mut self.ready, &mut self.blocked, &mut self.completing] {
            list.reserve(self.qps.slots() - list.len());
        }
        self.qps.key(slot)
    }

    /// The slot that a caller's key names.
    pub(super) fn slot(&self, key: crate::QpKey) -> u32 {
        self.qps.slot(key)
    }

    pub(super) fn qpn(&self, slot: u32) -> u32 {
        self.qps.get(slot).number.get().value()
    }

    pub(super) fn granted(&self, slot: u32) -> QpConfig {
        self.qps.get(slot).granted
    }

    /// Connects a queue pair, unless it has been released.
    pub(super) fn connect(
        &mut self,
        number: (u32, u64),
        route: ConnectionRoute,
        announce: bool,
        connection: &ConnectionParams,
    ) {
        let Some(slot) = self.find(number) else { return };
        if self.qps.get(slot).queue_pair.state() != QueuePairState::Init {
            return;
        }
        let path = self.paths.join(route.peer);
        let entry = self.qps.get_mut(slot);
        entry.queue_pair.connect(connection);
        entry.peer = Some(Peer {
            route,
            path,
            qpn: connection.remote_qpn,
            announce,
            identifications: Identifications::Small(0),
        });
        self.look_at(slot);
    }

    /// Moves a queue pair to ERROR that the connection manager names.
    pub(super) fn fail_numbered(&mut self, number: (u32, u64)) {
        if let Some(slot) = self.find(number) {
            self.fail(slot);
        }
    }

    fn find(&self, (qpn, serial): (u32, u64)) -> Option<u32> {
        let slot = self.qps.find(qpn)?;
        (self.qps.get(slot).number.serial() == serial).then_some(slot)
    }

    /// Moves a queue pair to ERROR.
    pub(super) fn fail(&mut self, slot: u32) {
        let (queue_pair, mut limits) = self.borrow(slot);
        queue_pair.fail(&mut limits);
        self.unblock = true;
        self.look_at(slot);
    }

    /// Frees a queue pair.
    pub(super) fn release(&mut self, slot: u32) {
        let (queue_pair, mut limits) = self.borrow(slot);
        queue_pair.fail(&mut limits);
        self.unblock = true;
        for list in [&mut self.ready, &mut self.blocked, &mut self.completing] {
            list.retain(|&other| other != slot);
        }
        self.timers.remove(slot);
        let entry = self.qps.remove(slot);
        convert::add_counters(&mut self.stats, &entry.queue_pair.counters());
        if let Some(peer) = entry.peer {
            self.paths.leave(peer.path);
        }
    }

    /// Queues a send request. Its clock starts when it is sent.
    pub(super) fn post_send(
        &mut self,
        slot: u32,
        request: &rc::SendRequest<'_>,
    ) -> Result<(), rc::PostError> {
        let posted = self.qps.get_mut(slot).queue_pair.post_send(request);
        self.look_for_packets(slot);
        self.look_for_completions(slot);
        posted
    }

    /// Queues a receive, which by itself sends nothing.
    pub(super) fn post_recv(
        &mut self,
        slot: u32,
        request: &rc::RecvRequest<'_>,
    ) -> Result<(), rc::PostError> {
        let posted = self.qps.get_mut(slot).queue_pair.post_recv(request);
        self.look_for_completions(slot);
        posted
    }

    /// Counts a send request that was handed over.
    pub(super) fn count_send(&mut self) {
        self.stats.doorbells += 1;
    }

    /// Gives a datagram to the queue pair that it names. A datagram that does not parse, or that
    /// comes from an endpoint other than the queue pair's peer, is dropped and counted.
    pub(super) fn handle(
        &mut self,
        now: Time,
        group: u8,
        memory: &RegionsView<'_>,
        datagram: &Datagram<'_>,
    ) -> Handled {
        // Used where it lies: copying what was just stored would wait for all stores before it
        // (`Message::parse`).
        let parsed = Packet::parse(datagram.bytes);
        let Ok(packet) = &parsed else { return self.drop_packet() };
        let qpn = packet.bth.dest_qpn.value();
        let Some(slot) = self.qps.find(qpn) else {
            if owner_of(packet.bth.dest_qpn) != group {
                return Handled::Foreign(packet.bth.dest_qpn);
            }
            return self.drop_packet();
        };
        let entry = self.qps.get_mut(slot);
        let Some(peer) = entry.peer.as_mut().filter(|peer| peer.sends_from(datagram.from)) else {
            return self.drop_packet();
        };
        let path = self.paths.get(peer.path);
        let genuine = icrc::verify(datagram).is_ok_and(|id| peer.accepts(datagram, id));
        if !genuine && !deliberate_bugs::has(Bug::AcceptCorruptPackets) {
            path.count_icrc_failure();
            self.stats.icrc_failures += 1;
            return Handled::Done;
        }
        let announce = std::mem::take(&mut peer.announce);
        let window = &mut path.window;
        let overflowed = self.overflow.lately;
        let mut limits = SharedLimits { window, reads: &mut self.reads, overflowed };
        if datagram.ecn == Ecn::Ce {
            entry.queue_pair.handle_congestion(now, packet, &mut limits);
        }
        let memory = &mut memory.in_domain(entry.domain);
        entry.queue_pair.handle_packet(now, packet, memory, &mut limits);
        self.unblock = true;
        self.look_at(slot);
        if announce { Handled::PeerIsReady(qpn) } else { Handled::Done }
    }

    /// Notes how many packets found the receive buffer full. Peers are told of them.
    pub(super) fn note_overflows(&mut self, now: Time, count: u32) {
        self.overflow.note(now, count);
    }

    fn drop_packet(&mut self) -> Handled {
        self.count_drop();
        Handled::Done
    }

    /// Counts a packet that was dropped.
    pub(super) fn count_drop(&mut self) {
        self.stats.packets_dropped += 1;
    }

    /// Does what the queue pairs' clocks ask for, once for each, after a batch with this much
    /// payload was handled, which drained the socket or did not. The clocks stand at the time until
    /// which all was heard: nothing is late that may wait in the socket.
    pub(super) fn expire(&mut self, now: Time, bytes: u64, drained: bool) {
        let handled = self.handled_until.read(now, bytes, drained);
        self.unblock |= self.reads.forget(handled);
        for _ in 0..self.qps.slots() {
            let Some(slot) = self.timers.pop_due(handled) else { return };
            // The deadline may have moved since the timer was set.
            if self.qps.get(slot).queue_pair.deadline().is_some_and(|time| time <= handled) {
                let (queue_pair, mut limits) = self.borrow(slot);
                queue_pair.handle_deadline(handled, &mut limits);
                self.unblock = true;
            }
            self.look_at(slot);
        }
    }

    /// Sends what may be sent; returns whether there is more.
    pub(super) fn send<W: Wire>(
        &mut self,
        now: Time,
        memory: &RegionsView<'_>,
        wire: &mut W,
    ) -> bool {
        if std::mem::take(&mut self.unblock) {
            while let Some(slot) = self.blocked.pop_back() {
                self.ready.push_front(slot);
            }
        }
        if wire.is_blocked() {
            wire.flush(now);
        }
        let mut packets = 0;
        let unsent = Unsent(wire);
        while packets < PACKETS_PER_ROUND
            && !unsent.0.is_blocked()
            && let Some(slot) = self.ready.pop_front()
        {
            packets += self.take_turn(now, slot, memory, unsent.0);
        }
        // The memory that was gathered from is there as long as the section that `memory` stands
        // for.
        unsent.0.flush(now);
        !self.ready.is_empty() && !unsent.0.is_blocked()
    }

    /// Sends a train of one queue pair; returns how many packets it sent.
    fn take_turn<W: Wire>(
        &mut self,
        now: Time,
        slot: u32,
        memory: &RegionsView<'_>,
        wire: &mut W,
    ) -> usize {
        let mut packets = 0;
        let mut bytes = 0;
        let entry = self.qps.get_mut(slot);
        let mut memory = memory.in_domain(entry.domain);
        let window = match &entry.peer {
            Some(peer) => &mut self.paths.get(peer.path).window,
            None => &mut self.nowhere,
        };
        let overflowed = self.overflow.lately;
        let mut limits = SharedLimits { window, reads: &mut self.reads, overflowed };
        let out = &mut self.transmit;
        while bytes < TURN_BYTES
            && !wire.is_blocked()
            && entry.queue_pair.poll_transmit(now, &mut memory, &mut limits, out)
        {
            packets += 1;
            bytes += out.payload_bytes() + out.headers().len();
            if let Some(peer) = &entry.peer {
                send_packet(now, peer, memory, out, wire);
            }
        }
        entry.sending = entry.queue_pair.wants_transmit();
        match (entry.sending, bytes < TURN_BYTES) {
            (true, true) if wire.is_blocked() => self.ready.push_front(slot),
            // Before its turn ended there was something that it might not send.
            (true, true) => self.blocked.push_back(slot),
            (true, false) => self.ready.push_back(slot),
            (false, _) => {}
        }
        self.look_for_completions(slot);
        self.look_at_clock(slot);
        packets
    }

    /// Moves completions of all queue pairs to `out` until it is full; returns how many.
    pub(super) fn reap(&mut self, out: &mut [Wc]) -> usize {
        let mut count = 0;
        while let Some(&slot) = self.completing.front() {
            let entry = self.qps.get_mut(slot);
            let qpn = entry.number.get().value();
            while count < out.len() {
                let Some(completion) = entry.queue_pair.poll_completion() else { break };
                out[count] = convert::completion(qpn, &completion);
                count += 1;
            }
            if entry.queue_pair.has_completions() {
                break;
            }
            entry.completing = false;
            self.completing.pop_front();
        }
        count
    }

    /// Whether there is something to do now, be it to send.
    pub(super) fn is_busy(&self) -> bool {
        self.has_completions() || !self.ready.is_empty() || self.unblock && !self.blocked.is_empty()
    }

    /// Whether there is something to report.
    pub(super) fn has_completions(&self) -> bool {
        !self.completing.is_empty()
    }

    /// When [`GroupEngine::expire`] must run at the latest.
    pub(super) fn deadline(&self) -> Option<Time> {
        let forgets = if self.blocked.is_empty() { None } else { self.reads.forgets_at() };
        self.timers.earliest().into_iter().chain(forgets).min()
    }

    pub(super) fn stats(&self) -> GroupStats {
        let mut stats = self.stats;
        for entry in self.qps.iter() {
            convert::add_counters(&mut stats, &entry.queue_pair.counters());
        }
        stats
    }

    /// Puts a queue pair on the lists that it belongs to.
    fn look_at(&mut self, slot: u32) {
        self.look_for_packets(slot);
        self.look_for_completions(slot);
        self.look_at_clock(slot);
    }

    fn look_for_packets(&mut self, slot: u32) {
        let entry = self.qps.get_mut(slot);
        if !entry.sending && entry.queue_pair.wants_transmit() {
            entry.sending = true;
            self.ready.push_back(slot);
        }
    }

    fn look_for_completions(&mut self, slot: u32) {
        let entry = self.qps.get_mut(slot);
        if !entry.completing && entry.queue_pair.has_completions() {
            entry.completing = true;
            self.completing.push_back(slot);
        }
    }

    fn look_at_clock(&mut self, slot: u32) {
        if let Some(deadline) = self.qps.get(slot).queue_pair.deadline() {
            self.timers.at_latest(slot, deadline);
        }
    }

    /// A queue pair and the limits that it shares.
    fn borrow(&mut self, slot: u32) -> (&mut QueuePair, SharedLimits<'_>) {
        let entry = self.qps.get_mut(slot);
        let window = match &entry.peer {
            Some(peer) => &mut self.paths.get(peer.path).window,
            None => &mut self.nowhere,
        };
        let overflowed = self.overflow.lately;
        (&mut entry.queue_pair, SharedLimits { window, reads: &mut self.reads, overflowed })
    }
}

/// Packets that found the receive buffer full.
#[derive(Default)]
struct Overflow {
    /// How many they were.
    count: u32,
    /// When they had become so many.
    at: Time,
    /// Peers are told of it now.
    lately: bool,
}

impl Overflow {
    fn note(&mut self, now: Time, count: u32) {
        if self.count != count {
            (self.count, self.at) = (count, now);
        }
        self.lately = self.count > 0 && now - self.at < OVERFLOW_TOLD_FOR;
    }
}

/// Packets that a wire may have gathered and not sent. On unwinding it forgets them, since the
/// memory that they point at is not theirs once the section has ended, and the next user of the
/// wire would send them.
struct Unsent<'a, W: Wire>(&'a mut W);

impl<W: Wire> Drop for Unsent<'_, W> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.discard();
        }
    }
}

impl Peer {
    fn sends_from(&self, from: SocketAddr) -> bool {
        self.route.peer.ip() == from.ip()
            && self.route.udp_source.is_none_or(|port| port == from.port())
    }

    /// Whether a packet's identification is one that this peer uses: over IPv4 that makes up for
    /// the bits that the CRC loses where a socket hides it.
    fn accepts(&mut self, datagram: &Datagram<'_>, id: Identification) -> bool {
        if matches!(datagram.ip_id, IpId::Known(_)) || self.route.peer.is_ipv6() {
            return true;
        }
        let small = id.id < SMALL_ID && id.dont_fragment;
        match self.identifications {
            Identifications::Small(seen) if small => {
                self.identifications = Identifications::Small(seen.saturating_add(1));
                true
            }
            Identifications::Small(seen) if seen >= TRUSTED_AFTER => false,
            _ => {
                self.identifications = Identifications::Any;
                true
            }
        }
    }
}

/// Sends a packet, unless the memory of its payload has just been deregistered: then it is as good
/// as lost, and the queue pair will notice when it sends it again.
fn send_packet<W: Wire>(
    now: Time,
    peer: &Peer,
    memory: DomainView<'_>,
    transmit: &Transmit,
    wire: &mut W,
) {
    let mut slices: [&[u8]; SGE_MAX] = [&[]; SGE_MAX];
    let pieces: &[rc::PayloadPiece] = transmit.pieces();
    for (slice, piece) in slices.iter_mut().zip(pieces) {
        match memory::bytes(memory, piece) {
            Ok(bytes) => *slice = bytes,
            Err(_) => return,
        }
    }
    let packet = Outgoing {
        to: &peer.route.peer,
        sender: peer.route.sender,
        destination_qpn: peer.qpn.value(),
        headers: transmit.headers(),
        pieces: &slices[..pieces.len()],
        pad_bytes: u8::try_from(transmit.pad_bytes()).expect("at most three"),
        traffic_class: peer.route.traffic_class,
        continues: transmit.continues_message(),
    };
    // SAFETY: `Engine::send`, from which every call comes, flushes the wire while it still borrows
    // the section in which the pieces are registered, or has it forget them when it unwinds.
    unsafe { wire.send(now, &packet) };
}

#[cfg(test)]
mod tests;
