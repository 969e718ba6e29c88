//! The queue pairs of one group: dispatch of received packets, and scheduling of transmission.
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
use super::icrc;
use super::memory;
use super::new_qp::NewQp;
use super::numbers::{QpNumber, owner_of};
use super::paths::{PathKey, Paths};
use super::qp_table::QpTable;
use super::receive_watermark::ReceiveWatermark;
use super::regions::{DomainId, DomainView, RegionsView};
use super::wire::{Datagram, IpId, Outgoing, SenderIndex, Wire};
use crate::deliberate_bugs::{self, Bug};
use crate::{Deadlines, GroupStats, QpConfig, Time, Wc};

/// Bytes that one queue pair sends before the next one's turn: about one UDP GSO batch.
const TURN_BYTES: usize = 60_000;
/// Maximum number of packets sent before the engine receives again.
const PACKETS_PER_ROUND: usize = 512;
/// IPv4 identifications below this are those that Linux gives to packets of our kind of sender: 0,
/// or the index in a UDP GSO batch.
const SMALL_ID: u16 = 128;
/// How long peers are notified of a receive-buffer overflow. A peer without a round-trip time
/// estimate probes 20 ms after the last packet of a burst.
const OVERFLOW_TOLD_FOR: Duration = Duration::from_millis(50);
/// Number of packets after which a peer is expected to use only small IPv4 identifications. A peer
/// that increments its identification also passes through small ones, but cannot have sent this
/// many of them in a row, even with duplicates.
const TRUSTED_AFTER: u16 = 2 * SMALL_ID;

/// The state of a group except its wire.
pub(super) struct GroupEngine {
    qps: QpTable<QueuePairEntry>,
    paths: Paths,
    reads: ReadBudget,
    receive_watermark: ReceiveWatermark,
    /// The send window of queue pairs that are not connected; nothing is charged to it.
    nowhere: SendWindow,
    deadlines: Deadlines,
    /// Queue pairs that have something to send, in round-robin order.
    ready: VecDeque<u32>,
    /// Queue pairs that have something to send but wait for a shared limit.
    blocked: VecDeque<u32>,
    /// Queue pairs that have completions.
    completing: VecDeque<u32>,
    /// True if blocked queue pairs must be retried, since a limit may have room.
    unblock: bool,
    overflow: Overflow,
    transmit: Transmit,
    /// Counters of released queue pairs, and those counted by the engine itself.
    stats: GroupStats,
}

/// A queue pair and the group's data about it.
struct QueuePairEntry {
    queue_pair: Box<QueuePair>,
    number: QpNumber,
    granted: QpConfig,
    domain: DomainId,
    peer: Option<Peer>,
    sending: bool,
    completing: bool,
}

/// The remote end of a connected queue pair.
struct Peer {
    route: ConnectionRoute,
    path: PathKey,
    qpn: Qpn,
    /// True until the first packet, which is reported to the connection manager.
    announce: bool,
    identifications: Identifications,
}

/// Addresses of the packets of a connection, in both directions.
#[derive(Clone, Copy)]
pub(super) struct ConnectionRoute {
    /// The peer's endpoint, to which packets are sent.
    pub(super) peer: SocketAddr,
    /// The sender of the group's wire that sends all our packets.
    pub(super) sender: SenderIndex,
    /// The UDP source port of the peer's packets; `None` for peers that are not Feedrail, which may
    /// use any.
    pub(super) udp_source: Option<u16>,
    /// The traffic class of our packets, ECN field included.
    pub(super) traffic_class: u8,
}

/// The IPv4 identifications that a peer has used; they determine how strictly its ICRCs can be
/// checked.
#[derive(Clone, Copy)]
enum Identifications {
    /// The number of packets so far, all with small identifications.
    Small(u16),
    /// A packet with a large identification came early: all identifications are accepted.
    Any,
}

/// Remaining work on a datagram, for the caller of the engine.
pub(super) enum Handled {
    /// Nothing: it was processed or dropped.
    Done,
    /// Report the first packet of this queue pair to the connection manager.
    PeerIsReady(u32),
    /// Forward it to the group or connection manager that owns this queue pair.
    Foreign(Qpn),
}

impl GroupEngine {
    pub(super) fn new(queue_pairs: usize, receive_buffer_bytes: usize) -> Self {
        let mut deadlines = Deadlines::default();
        deadlines.reserve(queue_pairs);
        Self {
            qps: QpTable::new(queue_pairs),
            paths: Paths::default(),
            reads: ReadBudget::new(receive_buffer_bytes as u64),
            receive_watermark: ReceiveWatermark::new(receive_buffer_bytes as u64),
            nowhere: SendWindow::new(),
            deadlines,
            ready: VecDeque::with_capacity(queue_pairs),
            blocked: VecDeque::with_capacity(queue_pairs),
            completing: VecDeque::with_capacity(queue_pairs),
            unblock: false,
            overflow: Overflow::default(),
            transmit: Transmit::new(),
            stats: GroupStats::default(),
        }
    }

    /// Takes over a queue pair and returns its key.
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
        self.deadlines.reserve(self.qps.slots());
        for list in [&mut self.ready, &mut self.blocked, &mut self.completing] {
            list.reserve(self.qps.slots() - list.len());
        }
        self.qps.key(slot)
    }

    /// The slot of a key. Panics if the key is stale.
    pub(super) fn slot(&self, key: crate::QpKey) -> u32 {
        self.qps.slot(key)
    }

    pub(super) fn qpn(&self, slot: u32) -> u32 {
        self.qps.get(slot).number.get().value()
    }

    pub(super) fn granted(&self, slot: u32) -> QpConfig {
        self.qps.get(slot).granted
    }

    /// Connects a queue pair, unless it was released or has failed.
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

    /// Moves the queue pair with this number and serial to ERROR, unless it was released.
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

    /// Releases a queue pair.
    pub(super) fn release(&mut self, slot: u32) {
        let (queue_pair, mut limits) = self.borrow(slot);
        queue_pair.fail(&mut limits);
        self.unblock = true;
        for list in [&mut self.ready, &mut self.blocked, &mut self.completing] {
            list.retain(|&other| other != slot);
        }
        self.deadlines.remove(slot);
        let entry = self.qps.remove(slot);
        convert::add_counters(&mut self.stats, &entry.queue_pair.counters());
        if let Some(peer) = entry.peer {
            self.paths.leave(peer.path);
        }
    }

    /// Queues a send request. Its retransmission timer starts when it is sent.
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

    /// Queues a receive request.
    pub(super) fn post_recv(
        &mut self,
        slot: u32,
        request: &rc::RecvRequest<'_>,
    ) -> Result<(), rc::PostError> {
        let posted = self.qps.get_mut(slot).queue_pair.post_recv(request);
        self.look_for_completions(slot);
        posted
    }

    /// Counts a send request in `doorbells`.
    pub(super) fn count_send(&mut self) {
        self.stats.doorbells += 1;
    }

    /// Processes a datagram for the queue pair that it names. A datagram that does not parse, or
    /// whose source is not the queue pair's peer, is dropped and counted.
    pub(super) fn handle(
        &mut self,
        now: Time,
        group: u8,
        memory: &RegionsView<'_>,
        datagram: &Datagram<'_>,
    ) -> Handled {
        // Not copied: loading what was just stored would wait for all earlier stores (see
        // `Message::parse`).
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

    /// Sets the receive buffer's overflow counter; peers are notified of new overflows.
    pub(super) fn note_overflows(&mut self, now: Time, count: u32) {
        self.overflow.note(now, count);
    }

    fn drop_packet(&mut self) -> Handled {
        self.count_drop();
        Handled::Done
    }

    /// Counts a dropped packet.
    pub(super) fn count_drop(&mut self) {
        self.stats.packets_dropped += 1;
    }

    /// Handles expired timers, once per queue pair, after a batch with `bytes` of payload;
    /// `drained` says whether the socket is empty. Timers are compared with the time until which
    /// all arrivals were handled, so that an answer that still waits in the socket is not
    /// considered late.
    pub(super) fn expire(&mut self, now: Time, bytes: u64, drained: bool) {
        let handled = self.receive_watermark.read(now, bytes, drained);
        self.unblock |= self.reads.forget(handled);
        for _ in 0..self.qps.slots() {
            let Some(slot) = self.deadlines.pop_due(handled) else { return };
            // The deadline may have changed since the timer was set.
            if self.qps.get(slot).queue_pair.deadline().is_some_and(|time| time <= handled) {
                let (queue_pair, mut limits) = self.borrow(slot);
                queue_pair.handle_deadline(handled, &mut limits);
                self.unblock = true;
            }
            self.look_at(slot);
        }
    }

    /// Sends packets of all ready queue pairs; returns whether there are more to send now.
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
        // The gathered memory stays registered as long as `memory`, the section, is open.
        unsent.0.flush(now);
        !self.ready.is_empty() && !unsent.0.is_blocked()
    }

    /// Sends up to `TURN_BYTES` for one queue pair; returns the number of packets.
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
            // It stopped before its turn was used up, so a shared limit holds it back.
            (true, true) => self.blocked.push_back(slot),
            (true, false) => self.ready.push_back(slot),
            (false, _) => {}
        }
        self.look_for_completions(slot);
        self.look_at_clock(slot);
        packets
    }

    /// Moves completions to `out` until it is full; returns their number.
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

    /// Whether there is work to do now, including transmission.
    pub(super) fn is_busy(&self) -> bool {
        self.has_completions() || !self.ready.is_empty() || self.unblock && !self.blocked.is_empty()
    }

    /// Whether there are completions.
    pub(super) fn has_completions(&self) -> bool {
        !self.completing.is_empty()
    }

    /// Time by which [`GroupEngine::expire`] must be called.
    pub(super) fn deadline(&self) -> Option<Time> {
        let forgets = if self.blocked.is_empty() { None } else { self.reads.forgets_at() };
        self.deadlines.earliest().into_iter().chain(forgets).min()
    }

    pub(super) fn stats(&self) -> GroupStats {
        let mut stats = self.stats;
        for entry in self.qps.iter() {
            convert::add_counters(&mut stats, &entry.queue_pair.counters());
        }
        stats
    }

    /// Updates the lists and the timer of a queue pair after a change.
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
            self.deadlines.at_latest(slot, deadline);
        }
    }

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

/// Packets lost because the receive buffer was full.
#[derive(Default)]
struct Overflow {
    /// Number of lost packets.
    count: u32,
    /// Time at which `count` changed.
    at: Time,
    /// Whether peers are being notified.
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

/// Guard for packets that are queued in a wire. If the thread panics, it discards them, since they
/// point at memory that is only valid during the section, and a later user of the wire would send
/// them.
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

    /// Whether the IPv4 identification found by the ICRC check is plausible for this peer. Over
    /// IPv4 a socket hides the identification, so the ICRC check accepts any; this check makes up
    /// for it.
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

/// Sends a packet. If the memory of its payload has just been deregistered, the packet is dropped,
/// and the queue pair fails when it retransmits it.
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
