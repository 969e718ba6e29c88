//! The [`Wire`] of a group or connection manager over UDP sockets.
#![expect(unsafe_code, reason = "packets are gathered where their payload lies")]

use core::time::Duration;
use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use super::faults::Filter;
use super::receive::{self, Inbox, QueuedError, ReceiveOutcome};
use super::socket::{SenderSocket, Sockets};
use super::trains::GsoSupport;
use super::transmit::{Backlog, Outlet, SendBatch, Shortage};
use crate::Time;
use crate::roce::wire::{Arrived, Datagram, Outgoing, SenderIndex, SenderSet, Wire, WireCounters};

/// Maximum number of recorded unreachable peers; further ones are dropped.
const MAX_UNREACHABLE: usize = 256;
/// Maximum number of entries read from an error queue in one go; more than it can hold.
const MAX_ERRORS: usize = 1 << 16;

/// Interval for retrying packets that the system did not accept when no writability event announces
/// the end of the shortage.
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(1);

/// A sending socket with injected faults.
struct Filtered<'a> {
    socket: &'a UdpSocket,
    filter: Option<&'a mut Filter>,
}

impl Outlet for Filtered<'_> {
    fn send_messages(&mut self, headers: &mut [libc::mmsghdr]) -> io::Result<usize> {
        let Some(filter) = &mut self.filter else { return self.socket.send_messages(headers) };
        if filter.is_busy() {
            return Err(io::Error::from_raw_os_error(libc::EAGAIN));
        }
        let count = filter.taken_at_once(headers.len());
        self.socket.send_messages(&mut headers[..count])
    }
}

/// A [`Wire`] over UDP sockets.
pub struct SoftWire {
    receiver: UdpSocket,
    /// Address and port of the receiver.
    endpoint: SocketAddr,
    inbox: Inbox,
    filter: Option<Box<Filter>>,
    /// One for each sender; never empty.
    transmitters: Box<[Transmitter]>,
    /// Senders with packets in their batch.
    gathering: SenderSet,
    /// Senders with packets in their backlog.
    blocked: SenderSet,
    cuts: GsoSupport,
    unreachable: VecDeque<SocketAddr>,
    counters: WireCounters,
}

/// A sender with its batch and backlog. Each sender has its own, since a train and a system call
/// use one socket, and the order per sender must be kept.
struct Transmitter {
    /// Socket of the sender; `None` if it sends through the receiver.
    socket: Option<UdpSocket>,
    /// Source address of its packets.
    source: SocketAddr,
    batch: SendBatch,
    backlog: Backlog,
    /// The reason for the backlog, and the time of the next attempt.
    shortage: Option<(Shortage, Time)>,
}

impl Transmitter {
    fn new(sender: SenderSocket) -> Self {
        Self {
            socket: sender.socket,
            source: sender.source,
            batch: SendBatch::new(sender.traffic_class),
            backlog: Backlog::default(),
            shortage: None,
        }
    }
}

impl SoftWire {
    pub(super) fn new(sockets: Sockets, endpoint: SocketAddr, filter: Option<Filter>) -> Self {
        Self {
            receiver: sockets.receiver,
            endpoint,
            inbox: Inbox::new(),
            filter: filter.map(Box::new),
            transmitters: sockets.senders.into_iter().map(Transmitter::new).collect(),
            gathering: SenderSet::default(),
            blocked: SenderSet::default(),
            cuts: GsoSupport::new(sockets.gso),
            unreachable: VecDeque::with_capacity(MAX_UNREACHABLE),
            counters: WireCounters::default(),
        }
    }

    fn send_batch(&mut self, now: Time, sender: SenderIndex) {
        let Self { receiver, transmitters, filter, cuts, counters, .. } = self;
        let Transmitter { socket, source, batch, backlog, shortage } =
            &mut transmitters[sender.get()];
        let socket = socket.as_ref().unwrap_or(receiver);
        let mut outlet = Filtered { socket, filter: filter.as_deref_mut() };
        let mut outcome = backlog.send(&mut outlet, cuts, counters);
        if !batch.is_empty() {
            let more = batch.send(*source, &mut outlet, cuts, backlog, counters);
            outcome.shortage = outcome.shortage.or(more.shortage);
            outcome.error_queued |= more.error_queued;
        }
        *shortage = outcome.shortage.map(|shortage| (shortage, now + TRY_AGAIN_AFTER));
        if outcome.error_queued {
            drain_errors(socket, &mut self.unreachable);
        }
        self.gathering.remove(sender);
        self.blocked.remove(sender);
        if shortage.is_some() {
            self.blocked.insert(sender);
        }
    }

    fn shortage_of(&self, sender: SenderIndex) -> Option<(Shortage, Time)> {
        self.transmitters[sender.get()].shortage
    }
}

/// Empties a socket's error queue, and records unreachable peers.
fn drain_errors(socket: &UdpSocket, unreachable: &mut VecDeque<SocketAddr>) {
    for _ in 0..MAX_ERRORS {
        match receive::next_error(socket) {
            Some(QueuedError::Unreachable(peer)) if unreachable.len() < MAX_UNREACHABLE => {
                unreachable.push_back(peer);
            }
            Some(_) => {}
            None => return,
        }
    }
}

impl Wire for SoftWire {
    fn receive(&mut self, now: Time, mut handle: impl FnMut(Datagram<'_>)) -> Arrived {
        let (count, more) = match self.inbox.fetch(&self.receiver, &mut self.counters) {
            ReceiveOutcome::All(count) => (count, false),
            ReceiveOutcome::Full(count) => (count, true),
            ReceiveOutcome::Error => {
                drain_errors(&self.receiver, &mut self.unreachable);
                (0, true)
            }
        };
        let datagrams = match &mut self.filter {
            None => self.inbox.for_each(count, self.endpoint, &mut handle),
            Some(filter) => {
                filter.release(now, &mut handle);
                let mut pass = |datagram: Datagram<'_>| filter.pass(now, datagram, &mut handle);
                self.inbox.for_each(count, self.endpoint, &mut pass)
            }
        };
        Arrived { datagrams, more }
    }

    unsafe fn send(&mut self, now: Time, packet: &Outgoing<'_>) {
        let sender = packet.sender;
        if !self.transmitters[sender.get()].batch.has_room(packet) {
            self.send_batch(now, sender);
        }
        let damaged = self.filter.as_mut().is_some_and(|filter| filter.damages_sent());
        let cuts = self.cuts.are_for(packet.to);
        self.transmitters[sender.get()].batch.push(packet, cuts, damaged);
        self.gathering.insert(sender);
    }

    fn flush(&mut self, now: Time) {
        for sender in self.gathering.or(self.blocked).iter() {
            self.send_batch(now, sender);
        }
    }

    fn is_blocked(&self) -> bool {
        !self.blocked.is_empty()
    }

    fn awaiting_room(&self) -> SenderSet {
        let mut awaiting = self.blocked;
        for sender in self.blocked.iter() {
            if !matches!(self.shortage_of(sender), Some((Shortage::Buffer, _))) {
                awaiting.remove(sender);
            }
        }
        awaiting
    }

    fn discard(&mut self) {
        for sender in std::mem::take(&mut self.gathering).iter() {
            self.transmitters[sender.get()].batch.clear();
        }
    }

    fn deadline(&self) -> Option<Time> {
        let held_back = self.filter.as_ref().and_then(|filter| filter.deadline());
        let shortages = self.blocked.iter().filter_map(|sender| self.shortage_of(sender));
        held_back.into_iter().chain(shortages.map(|(_, again)| again)).min()
    }

    fn next_unreachable(&mut self) -> Option<SocketAddr> {
        self.unreachable.pop_front()
    }

    fn check_sender(&mut self) {
        for socket in self.transmitters.iter().filter_map(|own| own.socket.as_ref()) {
            drain_errors(socket, &mut self.unreachable);
        }
    }

    fn receiver(&self) -> Option<BorrowedFd<'_>> {
        Some(self.receiver.as_fd())
    }

    fn sender(&self, sender: SenderIndex) -> Option<BorrowedFd<'_>> {
        self.transmitters.get(sender.get())?.socket.as_ref().map(AsFd::as_fd)
    }

    fn overflows(&self) -> u32 {
        self.inbox.overflows()
    }

    fn counters(&self) -> WireCounters {
        self.counters
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use super::super::faults::Faults;
    use super::super::options::{PortChoice, SoftOptions};
    use super::super::socket;
    use super::*;
    use crate::roce::{Entropy, SystemEntropy, icrc};

    const HEADERS: usize = 12;

    /// The wire of a group with three source ports, and a socket to which it sends.
    struct Bench {
        wire: SoftWire,
        peer: UdpSocket,
    }

    /// The payload and source of packets that came, by destination queue pair.
    type Received = BTreeMap<u32, Vec<(Vec<u8>, SocketAddr)>>;

    impl Bench {
        fn new(ip: IpAddr, faults: Faults) -> Option<Self> {
            let mut options = SoftOptions::new(ip, PortChoice::Roce);
            options.source_ports = Some(3);
            let mut random = SystemEntropy.stream().unwrap();
            let mut endpoint = socket::open(&options, &mut random).ok()?;
            let filter = Some(Filter::new(faults, 1));
            let sockets = endpoint.sockets.remove(1);
            let wire = SoftWire::new(sockets, endpoint.address, filter);
            let peer = UdpSocket::bind((ip, 0)).unwrap();
            peer.set_nonblocking(true).unwrap();
            Some(Self { wire, peer })
        }

        fn source(&self, sender: SenderIndex) -> SocketAddr {
            self.wire.transmitters[sender.get()].source
        }

        /// Queues a packet, whose payload the caller keeps until it is sent.
        fn push(&mut self, to: SocketAddr, sender: SenderIndex, qpn: u32, payload: &[u8]) {
            let mut headers = [0; HEADERS];
            headers[4..8].copy_from_slice(&qpn.to_be_bytes());
            let packet = Outgoing {
                to: &to,
                sender,
                destination_qpn: qpn,
                headers: &headers,
                pieces: &[payload],
                pad_bytes: 0,
                traffic_class: 2,
                continues: false,
            };
            // SAFETY: the caller keeps the payload until the wire was flushed.
            unsafe { self.wire.send(Time::ZERO, &packet) };
        }

        /// Takes what came; all of it has the CRC of its flow.
        fn receive(&self, received: &mut Received) {
            let mut bytes = [0; 2048];
            let to = self.peer.local_addr().unwrap();
            while let Ok((length, from)) = self.peer.recv_from(&mut bytes) {
                let bytes = &bytes[..length];
                let datagram = Datagram::new(from, to, crate::roce::wire::IpId::UNKNOWN, bytes);
                assert!(icrc::verify(&datagram).is_ok(), "from {from}");
                let qpn = u32::from_be_bytes(*bytes[4..].first_chunk().unwrap());
                let payload = bytes[HEADERS..length - 4].to_vec();
                received.entry(qpn).or_default().push((payload, from));
            }
        }
    }

    /// A loopback address that no other test has.
    fn address(last: u8) -> IpAddr {
        let [.., high, low] = std::process::id().to_be_bytes();
        Ipv4Addr::from([127, high | 1, low, last]).into()
    }

    fn senders() -> impl Iterator<Item = SenderIndex> {
        SenderIndex::all().take(3)
    }

    /// The queue pairs of a group at the peer, two of each sender.
    fn queue_pairs() -> impl Iterator<Item = (u32, SenderIndex)> {
        (0..).map(|upper| upper << 8 | 1).zip(senders().chain(senders()))
    }

    #[test]
    fn packets_of_a_queue_pair_leave_from_one_port() {
        for ip in [address(21), Ipv6Addr::LOCALHOST.into()] {
            let Some(mut bench) = Bench::new(ip, Faults::default()) else { continue };
            let to = bench.peer.local_addr().unwrap();
            // Of different lengths, so that there are trains and single packets.
            let payloads: Vec<_> =
                (1..=20).map(|index| vec![index; 400 - 100 * (usize::from(index) / 7)]).collect();
            for payload in &payloads {
                queue_pairs().for_each(|(qpn, sender)| bench.push(to, sender, qpn, payload));
            }
            bench.wire.flush(Time::ZERO);
            assert_eq!(bench.wire.counters().send_calls, 3, "one call for each sender");
            let mut received = Received::new();
            bench.receive(&mut received);
            for (qpn, sender) in queue_pairs() {
                let source = bench.source(sender);
                let expected: Vec<_> =
                    payloads.iter().map(|bytes| (bytes.clone(), source)).collect();
                assert!(received[&qpn] == expected, "queue pair {qpn:x}");
            }
            let ports: std::collections::BTreeSet<_> =
                senders().map(|sender| bench.source(sender).port()).collect();
            assert!(ports.len() == 3 && ports.iter().all(|&port| port >= 0xC000), "{ports:?}");
        }
    }

    /// Senders that are not in use cost no system call.
    #[test]
    fn one_queue_pair_takes_one_call() {
        let mut bench = Bench::new(address(22), Faults::default()).unwrap();
        let to = bench.peer.local_addr().unwrap();
        for sender in senders() {
            let before = bench.wire.counters().send_calls;
            let payloads = [[1; 64], [2; 64]];
            payloads.iter().for_each(|payload| bench.push(to, sender, 0x101, payload));
            bench.wire.flush(Time::ZERO);
            bench.wire.flush(Time::ZERO);
            assert_eq!(bench.wire.counters().send_calls, before + 1);
        }
    }

    /// While one has no room the others send, and nothing overtakes what it was to send before.
    #[test]
    fn each_sender_keeps_its_order_in_the_backlog() {
        let busy = Faults { busy_ppm: 500_000, ..Faults::default() };
        let mut bench = Bench::new(address(23), busy).unwrap();
        let to = bench.peer.local_addr().unwrap();
        let (mut received, mut partly) = (Received::new(), 0);
        let payloads: Vec<_> = (0..200u32).map(u32::to_be_bytes).collect();
        for payload in &payloads {
            queue_pairs().for_each(|(qpn, sender)| bench.push(to, sender, qpn, payload));
            bench.wire.flush(Time::ZERO);
            let awaiting = bench.wire.awaiting_room();
            assert_eq!(bench.wire.is_blocked(), !awaiting.is_empty());
            assert_eq!(bench.wire.deadline().is_some(), bench.wire.is_blocked());
            partly += usize::from((1..3).contains(&awaiting.iter().count()));
            bench.receive(&mut received);
        }
        while bench.wire.is_blocked() {
            bench.wire.flush(Time::ZERO);
            bench.receive(&mut received);
        }
        assert!(partly > 0, "senders were never blocked apart");
        assert_eq!(bench.wire.counters().send_drops, 0);
        for (qpn, sender) in queue_pairs() {
            let source = bench.source(sender);
            let expected = payloads.iter().map(|bytes| (bytes.to_vec(), source));
            assert!(received[&qpn].iter().cloned().eq(expected), "queue pair {qpn:x}");
        }
    }

    #[test]
    fn every_sender_learns_of_unreachable_peers() {
        let mut bench = Bench::new(address(24), Faults::default()).unwrap();
        let nobody = SocketAddr::new(address(24), 9);
        for sender in senders() {
            bench.push(nobody, sender, 0x101, &[1; 64]);
            bench.wire.flush(Time::ZERO);
            assert_eq!(bench.wire.next_unreachable(), None, "the answer came after the call");
            bench.push(nobody, sender, 0x101, &[2; 64]);
            bench.wire.flush(Time::ZERO);
            assert_eq!(bench.wire.next_unreachable(), Some(nobody));
            // The second packet was refused as well.
            bench.wire.check_sender();
            assert_eq!(bench.wire.next_unreachable(), Some(nobody));
            assert_eq!(bench.wire.next_unreachable(), None);
        }
    }

    #[test]
    fn what_is_discarded_leaves_from_no_sender() {
        let mut bench = Bench::new(address(25), Faults::default()).unwrap();
        let to = bench.peer.local_addr().unwrap();
        queue_pairs().for_each(|(qpn, sender)| bench.push(to, sender, qpn, &[1; 64]));
        bench.wire.discard();
        bench.wire.flush(Time::ZERO);
        assert_eq!(bench.wire.counters().send_calls, 0);
    }
}
