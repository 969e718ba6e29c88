//! The simulated network: packets in flight, the sockets of devices, and injected faults.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use roce_proto::Qpn;
use roce_proto::wire::Ecn;
use splitmix64::SplitMix64;

use super::bottleneck::{BottleneckStats, LinkDirection, SimBottleneck};
use super::{LinkConfig, SimConfig};
use crate::roce::owner_of;
use crate::{DeviceEvent, Time};

/// Bytes that a queued packet occupies in a receive buffer beyond its own, as in a kernel.
const PACKET_OVERHEAD: usize = 128;

/// Header bytes of a packet on a link: UDP, IPv4 and Ethernet.
const LINK_OVERHEAD: u64 = 8 + 20 + 14;

/// A network that simulated devices share. Clones refer to the same network.
#[derive(Clone)]
pub struct SimNetwork {
    network: Arc<Mutex<Network>>,
}

/// Counters of a simulated network, in packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SimNetworkStats {
    /// Packets sent by all devices.
    pub sent: u64,
    /// Packets delivered to a socket.
    pub delivered: u64,
    /// Packets lost, at random or by a cut.
    pub lost: u64,
    /// Packets that were delivered twice.
    pub duplicated: u64,
    /// Packets delayed so that later ones may overtake them.
    pub reordered: u64,
    /// Packets with a flipped bit.
    pub corrupted: u64,
    /// Packets dropped because the receive buffer was full.
    pub overflowed: u64,
    /// Packets dropped because the queue of the bottleneck was full.
    pub queue_drops: u64,
    /// Packets marked by the queue of the bottleneck (ECN CE).
    pub marked: u64,
    /// Packets to an address without a device.
    pub unreachable: u64,
    /// Checksum over the outcome of all packets: equal runs have equal values.
    pub trace: u64,
}

pub(super) struct Network {
    pub(super) config: SimConfig,
    random: SplitMix64,
    now: Time,
    sequence: u64,
    in_flight: BinaryHeap<Reverse<DatagramInFlight>>,
    nodes: BTreeMap<IpAddr, Node>,
    cuts: BTreeSet<(IpAddr, IpAddr)>,
    bottleneck: Option<SimBottleneck>,
    stats: SimNetworkStats,
}

struct Node {
    sockets: Vec<SimSocket>,
    /// Time at which its link is free to send again.
    idle_at: Time,
    /// Latest arrival time by receiver: jitter does not reorder packets.
    latest: BTreeMap<IpAddr, Time>,
    /// Asynchronous events that the device has not reported yet.
    events: VecDeque<DeviceEvent>,
    /// True once the device has a [`DeviceEvent::DeviceFatal`].
    failed: bool,
}

#[derive(Default)]
struct SimSocket {
    /// Whether it is open; packets for a closed socket are dropped.
    open: bool,
    queue: VecDeque<SimDatagram>,
    queued_bytes: usize,
    /// Packets dropped because the buffer was full; wraps around.
    overflows: u32,
    unreachable: VecDeque<SocketAddr>,
}

/// A datagram in flight or in a socket's queue.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SimDatagram {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    /// Index of the receiver's socket.
    steer: usize,
    /// Index of the sender's socket, which is notified if the address is unreachable.
    sender: usize,
    /// ECN field: as sent, or CE once a queue has marked it.
    pub(super) ecn: Ecn,
    pub(super) bytes: Vec<u8>,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct DatagramInFlight {
    due: Time,
    sequence: u64,
    hop: Hop,
    packet: SimDatagram,
}

/// The next hop of a packet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Hop {
    Bottleneck(LinkDirection),
    Device,
}

impl SimNetwork {
    /// Creates a network without devices.
    pub fn new(seed: u64, config: SimConfig) -> Self {
        let network = Network {
            config,
            random: SplitMix64::new(seed),
            now: Time::ZERO,
            sequence: 0,
            in_flight: BinaryHeap::new(),
            nodes: BTreeMap::new(),
            cuts: BTreeSet::new(),
            bottleneck: None,
            stats: SimNetworkStats::default(),
        };
        Self { network: Arc::new(Mutex::new(network)) }
    }

    /// The present configuration of the network.
    pub fn config(&self) -> SimConfig {
        self.lock().config
    }

    /// Changes the configuration; packets in flight are not affected.
    pub fn set_config(&self, config: SimConfig) {
        self.lock().config = config;
    }

    /// Drops all packets between two addresses from now on.
    pub fn cut(&self, a: IpAddr, b: IpAddr) {
        self.lock().cuts.extend([(a, b), (b, a)]);
    }

    /// Drops all packets from one address to another from now on.
    pub fn cut_one_way(&self, from: IpAddr, to: IpAddr) {
        self.lock().cuts.insert((from, to));
    }

    /// Reverts [`SimNetwork::cut`] and [`SimNetwork::cut_one_way`].
    pub fn heal(&self, a: IpAddr, b: IpAddr) {
        let mut network = self.lock();
        network.cuts.remove(&(a, b));
        network.cuts.remove(&(b, a));
    }

    /// Puts a bottleneck between the devices `behind` and all others: `inward` is the link to them,
    /// `outward` the link from them. An existing bottleneck is reconfigured and keeps its queues.
    pub fn set_bottleneck(
        &self,
        behind: impl IntoIterator<Item = IpAddr>,
        inward: LinkConfig,
        outward: LinkConfig,
    ) {
        let behind = behind.into_iter().collect();
        let network = &mut *self.lock();
        let now = network.now;
        match &mut network.bottleneck {
            Some(bottleneck) => bottleneck.set(behind, [inward, outward], now),
            none => {
                let random = &mut network.random;
                *none = Some(SimBottleneck::new(behind, [inward, outward], now, random));
            }
        }
    }

    /// Removes the bottleneck; returns its counters, if there was one. Its queued packets still
    /// arrive.
    pub fn remove_bottleneck(&self) -> Option<BottleneckStats> {
        let network = &mut *self.lock();
        let now = network.now;
        network.bottleneck.take().map(|mut bottleneck| bottleneck.stats(now))
    }

    /// The counters of the bottleneck, if there is one.
    pub fn bottleneck_stats(&self) -> Option<BottleneckStats> {
        let network = &mut *self.lock();
        let now = network.now;
        network.bottleneck.as_mut().map(|bottleneck| bottleneck.stats(now))
    }

    /// Raises an event of the device at an address. After [`DeviceEvent::DeviceFatal`], further
    /// events are ignored.
    pub fn raise(&self, ip: IpAddr, event: DeviceEvent) {
        if let Some(node) = self.lock().nodes.get_mut(&ip)
            && !node.failed
        {
            node.failed = event == DeviceEvent::DeviceFatal;
            node.events.push_back(event);
        }
    }

    /// Time of the next packet arrival, or the present time if a device has something to receive or
    /// report; `None` if there is nothing.
    pub fn next_event(&self) -> Option<Time> {
        let network = self.lock();
        let waiting = network.nodes.values().any(Node::is_ready);
        if waiting {
            return Some(network.now);
        }
        network.in_flight.peek().map(|Reverse(next)| next.due)
    }

    /// Whether the device at an address has packets or events to take.
    pub fn has_mail(&self, ip: IpAddr) -> bool {
        self.lock().nodes.get(&ip).is_some_and(Node::is_ready)
    }

    /// Delivers the packets due by `now`. Polling a device does so too; this is for times when none
    /// is polled.
    pub fn advance(&self, now: Time) {
        self.lock().advance(now);
    }

    /// Arrival time of the next packet in flight; packets in sockets are not counted.
    pub fn next_arrival(&self) -> Option<Time> {
        self.lock().in_flight.peek().map(|Reverse(next)| next.due)
    }

    /// The counters since the network was created.
    pub fn stats(&self) -> SimNetworkStats {
        self.lock().stats
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Network> {
        self.network.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Network {
    /// Adds a device with `sockets` sockets; returns false if the address is in use.
    pub(super) fn add(&mut self, ip: IpAddr, sockets: usize) -> bool {
        if self.nodes.contains_key(&ip) {
            return false;
        }
        let sockets = (0..sockets).map(|_| SimSocket::default()).collect();
        let node = Node {
            sockets,
            idle_at: Time::ZERO,
            latest: BTreeMap::new(),
            events: VecDeque::new(),
            failed: false,
        };
        self.nodes.insert(ip, node);
        true
    }

    pub(super) fn remove(&mut self, ip: IpAddr) {
        self.nodes.remove(&ip);
    }

    pub(super) fn random_seed(&mut self) -> u64 {
        self.random.next_u64()
    }

    /// Sends a packet from socket `sender` of a device: loses, corrupts or forwards it.
    pub(super) fn send(
        &mut self,
        now: Time,
        sender: usize,
        packet: (SocketAddr, SocketAddr, Ecn, Vec<u8>),
    ) {
        self.advance(now);
        let (from, to, ecn, bytes) = packet;
        self.stats.sent += 1;
        let departs = self.departure(from.ip(), bytes.len());
        let steer = steer(&bytes);
        let mut packet = SimDatagram { from, to, steer, sender, ecn, bytes };
        let config = self.config;
        if self.random.chance(config.loss_ppm) || self.cuts.contains(&(from.ip(), to.ip())) {
            self.stats.lost += 1;
            self.note(1);
            return;
        }
        if self.random.chance(config.corruption_ppm) {
            self.corrupt(&mut packet.bytes);
        }
        let bottleneck = self.bottleneck.as_ref();
        match bottleneck.and_then(|bottleneck| bottleneck.passage(from.ip(), to.ip())) {
            Some(passage) if departs > self.now => {
                self.launch(departs, Hop::Bottleneck(passage), packet);
            }
            Some(passage) => self.pass(departs, passage, packet),
            None => self.travel(departs, packet),
        }
    }

    /// Puts a packet into the queue of the bottleneck; drops it if the queue is full.
    fn pass(&mut self, now: Time, passage: LinkDirection, mut packet: SimDatagram) {
        let Some(bottleneck) = &mut self.bottleneck else { return self.travel(now, packet) };
        let bytes = packet.bytes.len() as u64 + LINK_OVERHEAD;
        match bottleneck.link(passage).carry(now, bytes, packet.ecn) {
            Some((passed, ecn)) => {
                self.stats.marked += u64::from(ecn == Ecn::Ce && packet.ecn != Ecn::Ce);
                packet.ecn = ecn;
                self.travel(passed, packet);
            }
            None => {
                self.stats.queue_drops += 1;
                self.note(4);
            }
        }
    }

    /// Puts a packet in flight that has left its device, and the bottleneck if it passes one.
    fn travel(&mut self, departs: Time, packet: SimDatagram) {
        let config = self.config;
        let arrives = self.arrival(&packet, departs);
        if self.random.chance(config.duplication_ppm) {
            self.stats.duplicated += 1;
            self.launch(arrives + config.latency, Hop::Device, packet.clone());
        }
        let held_back = self.random.chance(config.reordering_ppm);
        self.stats.reordered += u64::from(held_back);
        let delay = if held_back { config.reordering_delay } else { core::time::Duration::ZERO };
        self.launch(arrives + delay, Hop::Device, packet);
    }

    /// Time at which a packet of this length has left its device.
    fn departure(&mut self, from: IpAddr, length: usize) -> Time {
        let Some(bandwidth) = self.config.bandwidth else { return self.now };
        let takes = (length as u64).saturating_mul(1_000_000_000) / bandwidth.max(1);
        let Some(node) = self.nodes.get_mut(&from) else { return self.now };
        node.idle_at = node.idle_at.max(self.now) + core::time::Duration::from_nanos(takes);
        node.idle_at
    }

    /// Arrival time: latency and jitter after departure, but not before the preceding packet.
    fn arrival(&mut self, packet: &SimDatagram, departs: Time) -> Time {
        let jitter_nanos = u64::try_from(self.config.jitter.as_nanos()).unwrap_or(u64::MAX);
        let jitter = self.random.below(jitter_nanos.saturating_add(1));
        let arrives = departs + self.config.latency + core::time::Duration::from_nanos(jitter);
        let Some(node) = self.nodes.get_mut(&packet.from.ip()) else { return arrives };
        let latest = node.latest.entry(packet.to.ip()).or_default();
        *latest = arrives.max(*latest);
        *latest
    }

    fn corrupt(&mut self, bytes: &mut [u8]) {
        let bit = self.random.below(bytes.len() as u64 * 8);
        let byte = usize::try_from(bit / 8).expect("within the packet");
        bytes[byte] ^= 1 << (bit % 8);
        self.stats.corrupted += 1;
        self.note(2);
    }

    fn launch(&mut self, due: Time, hop: Hop, packet: SimDatagram) {
        self.sequence += 1;
        self.note(due.as_nanos());
        self.note(packet.bytes.len() as u64);
        let sequence = self.sequence;
        self.in_flight.push(Reverse(DatagramInFlight { due, sequence, hop, packet }));
    }

    /// Delivers the packets due by `now`.
    pub(super) fn advance(&mut self, now: Time) {
        self.now = self.now.max(now);
        while self.in_flight.peek().is_some_and(|Reverse(next)| next.due <= self.now) {
            if let Some(Reverse(next)) = self.in_flight.pop() {
                match next.hop {
                    Hop::Bottleneck(passage) => self.pass(next.due, passage, next.packet),
                    Hop::Device => self.deliver(next.packet),
                }
            }
        }
    }

    fn deliver(&mut self, packet: SimDatagram) {
        let limit = self.config.receive_buffer_bytes;
        let Some(node) = self.nodes.get_mut(&packet.to.ip()) else {
            self.stats.unreachable += 1;
            return self.refuse(&packet);
        };
        let cost = packet.bytes.len() + PACKET_OVERHEAD;
        let socket = node.sockets.get_mut(packet.steer);
        let Some(socket) = socket.filter(|socket| socket.open) else { return };
        if socket.queued_bytes + cost > limit {
            self.stats.overflowed += 1;
            socket.overflows = socket.overflows.wrapping_add(1);
            return self.note(3);
        }
        socket.queued_bytes += cost;
        socket.queue.push_back(packet);
        self.stats.delivered += 1;
    }

    /// Notifies the sender that the address is unreachable, as an ICMP error does.
    fn refuse(&mut self, packet: &SimDatagram) {
        let Some(node) = self.nodes.get_mut(&packet.from.ip()) else { return };
        if let Some(socket) = node.sockets.get_mut(packet.sender) {
            socket.unreachable.push_back(packet.to);
        }
    }

    /// Opens a socket; returns false if it is open already or does not exist.
    pub(super) fn open(&mut self, ip: IpAddr, index: usize) -> bool {
        let node = self.nodes.get_mut(&ip);
        match node.and_then(|node| node.sockets.get_mut(index)) {
            Some(socket) if !socket.open => {
                socket.open = true;
                true
            }
            _ => false,
        }
    }

    /// Closes a socket and drops its packets.
    pub(super) fn close(&mut self, ip: IpAddr, index: usize) {
        let node = self.nodes.get_mut(&ip);
        if let Some(socket) = node.and_then(|node| node.sockets.get_mut(index)) {
            *socket = SimSocket::default();
        }
    }

    pub(super) fn next_packet(&mut self, ip: IpAddr, index: usize) -> Option<SimDatagram> {
        let socket = self.nodes.get_mut(&ip)?.sockets.get_mut(index)?;
        let packet = socket.queue.pop_front()?;
        socket.queued_bytes -= packet.bytes.len() + PACKET_OVERHEAD;
        Some(packet)
    }

    pub(super) fn overflows(&self, ip: IpAddr, index: usize) -> u32 {
        let socket = self.nodes.get(&ip).and_then(|node| node.sockets.get(index));
        socket.map_or(0, |socket| socket.overflows)
    }

    pub(super) fn next_unreachable(&mut self, ip: IpAddr, index: usize) -> Option<SocketAddr> {
        self.nodes.get_mut(&ip)?.sockets.get_mut(index)?.unreachable.pop_front()
    }

    pub(super) fn next_async(&mut self, ip: IpAddr) -> Option<DeviceEvent> {
        self.nodes.get_mut(&ip)?.events.pop_front()
    }

    fn note(&mut self, what: u64) {
        self.stats.trace = SplitMix64::new(self.stats.trace ^ what).next_u64();
    }
}

impl Node {
    fn is_ready(&self) -> bool {
        !self.events.is_empty() || self.sockets.iter().any(SimSocket::is_ready)
    }
}

impl SimSocket {
    fn is_ready(&self) -> bool {
        !self.queue.is_empty() || !self.unreachable.is_empty()
    }
}

/// Index of the socket for the destination queue pair in the BTH, as a steering program computes
/// it.
fn steer(bytes: &[u8]) -> usize {
    match bytes.get(5..8) {
        Some(&[high, middle, low]) => {
            owner_of(Qpn::new(u32::from_be_bytes([0, high, middle, low]))).into()
        }
        _ => 0,
    }
}
