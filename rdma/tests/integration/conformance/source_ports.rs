//! Connections of `soft` are spread over UDP source ports.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, UdpSocket};

use rdma::soft::{ROCE_PORT, SoftDevice};
use rdma::{ConnOptions, Group, Op, SendFlags, Time, WcStatus};
use roce_proto::{PathMtu, Psn, Qpn, cm, wire};

use super::benches::{SoftBench, address};
use super::buffer::pattern;
use super::sockets::foreign_packet;
use super::world::{Host, QP, World, params};

/// The source ports of a group by default.
const PORTS: usize = 4;

/// Two hosts whose devices spread connections within this machine too.
fn spreading_world(source_ports: Option<usize>) -> World<SoftBench> {
    let bench = SoftBench::new();
    let hosts = [0, 1].map(|_| {
        let mut options = bench.options(1);
        (options.source_ports, options.spread_locally) = (source_ports, true);
        Host::new(SoftDevice::open(&options).expect("open"))
    });
    World { hosts: hosts.into(), bench }
}

/// A peer that has connections and watches where packets come from.
struct Observer {
    socket: UdpSocket,
    manager: cm::Manager,
    next_qpn: u32,
    /// The ports that it was told, by connection.
    told: BTreeMap<cm::ConnectionId, Option<u16>>,
    /// The ports that packets came from, by the queue pair that they were for.
    seen: BTreeMap<u32, BTreeSet<u16>>,
}

impl Observer {
    fn new(sender: cm::Sender) -> Self {
        let socket = UdpSocket::bind(SocketAddr::new(address(), ROCE_PORT)).expect("bind");
        socket.set_nonblocking(true).expect("nonblocking");
        let config = cm::ManagerConfig { sender, ..cm::ManagerConfig::new(1, 2) };
        let (manager, next_qpn) = (cm::Manager::new(config), 0x4001);
        Self { socket, manager, next_qpn, told: BTreeMap::new(), seen: BTreeMap::new() }
    }

    fn address(&self) -> SocketAddr {
        self.socket.local_addr().expect("bound")
    }

    fn qpn(&mut self) -> Qpn {
        self.next_qpn += 0x100;
        Qpn::new(self.next_qpn)
    }

    fn ask(&mut self, now: Time, to: SocketAddr) {
        let request = cm::ConnectParams {
            peer: SocketAddr::new(to.ip(), ROCE_PORT),
            source: SocketAddr::new(self.address().ip(), 40_000),
            service_id: cm::ServiceId::tcp(to.port()),
            traffic_class: 0,
            qpn: self.qpn(),
            starting_psn: Psn::new(0),
            responder_resources: 1,
            initiator_depth: 1,
            retry_count: 7,
            rnr_retry_count: 7,
            ack_timeout: cm::TimeoutExponent::saturating(17),
            path_mtu: PathMtu::Bytes1024,
            udp_source: Some(ROCE_PORT),
            private_data: &[],
        };
        self.manager.connect(now, &request).expect("connect");
        self.turn(now);
    }

    /// Accepts requests, and takes what came.
    fn turn(&mut self, now: Time) {
        let mut bytes = [0; 2048];
        while let Ok((length, from)) = self.socket.recv_from(&mut bytes) {
            let packet = wire::Packet::parse(&bytes[..length]).expect("a packet");
            let qpn = packet.bth.dest_qpn;
            if qpn == Qpn::GSI {
                let endpoint = SocketAddr::new(from.ip(), ROCE_PORT);
                let mad = packet.payload.try_into().expect("a management datagram");
                self.manager.handle_datagram(now, endpoint, mad, |_| None);
            } else {
                self.seen.entry(qpn.value()).or_default().insert(from.port());
            }
        }
        while let Some(event) = self.manager.poll_event() {
            self.handle(now, event);
        }
        while let Some(mad) = self.manager.poll_transmit() {
            let packet = foreign_packet(self.address(), mad.peer, &mad.mad);
            self.socket.send_to(&packet, mad.peer).expect("send");
        }
    }

    fn handle(&mut self, now: Time, event: cm::ManagerEvent) {
        match event {
            cm::ManagerEvent::Request { connection, .. } => {
                let accept = cm::AcceptParams {
                    qpn: self.qpn(),
                    starting_psn: Psn::new(0),
                    responder_resources: 1,
                    initiator_depth: 1,
                    rnr_retry_count: 7,
                    udp_source: Some(ROCE_PORT),
                    private_data: &[],
                };
                let agreement = self.manager.accept(now, connection, &accept).expect("accept");
                self.told.insert(connection, agreement.peer_udp_source);
            }
            cm::ManagerEvent::Accepted { connection, agreement, .. } => {
                self.manager.confirm(connection).expect("confirm");
                self.told.insert(connection, agreement.peer_udp_source);
            }
            cm::ManagerEvent::Established { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Connects twice as many queue pairs as a group has source ports to an observer, and lets each
/// send.
fn observe(sender: cm::Sender, we_ask: bool) -> Observer {
    let mut world = spreading_world(None);
    let mut observer = Observer::new(sender);
    let to = if we_ask { SocketAddr::new(observer.address().ip(), 4420) } else { world.listen(0) };
    observer.manager.listen(cm::ServiceId::tcp(4420)).expect("listen");
    let mut ends = Vec::new();
    while ends.len() < 2 * PORTS {
        let end = if we_ask {
            world.ask(0, to, &ConnOptions::default(), &QP, &params())
        } else {
            observer.ask(world.now(), to);
            let (conn, _) = world.requested(0);
            world.accept(0, conn, &QP, &params())
        };
        world.until("the connection", |world| {
            observer.turn(world.now());
            (observer.told.len() > ends.len()).then_some(())
        });
        world.established(end);
        ends.push(end);
    }
    for &end in &ends {
        world.post(end, 1, Op::Send, &[]);
    }
    world.until("a packet of each", |world| {
        observer.turn(world.now());
        (observer.seen.len() == ends.len()).then_some(())
    });
    observer
}

/// The ports that packets came from, by queue pair, where each had one.
fn ports_seen(observer: &Observer) -> Vec<u16> {
    let one = |ports: &BTreeSet<u16>| {
        assert_eq!(ports.len(), 1, "a queue pair keeps its port");
        *ports.first().expect("one")
    };
    observer.seen.values().map(one).collect()
}

#[test]
fn peers_of_ours_know_each_queue_pairs_port() {
    for we_ask in [false, true] {
        let observer = observe(cm::Sender::Feedrail, we_ask);
        let seen = ports_seen(&observer);
        let told: Vec<_> = observer.told.values().map(|port| port.expect("told")).collect();
        // Both in the order in which the connections were made.
        assert_eq!(seen, told);
        assert_eq!(seen[..PORTS].iter().collect::<BTreeSet<_>>().len(), PORTS, "{seen:?}");
        assert_eq!(seen[..PORTS], seen[PORTS..], "spread evenly");
    }
}

/// Foreign peers do not read what they are told, and see several flows all the same.
#[test]
fn foreign_peers_see_several_source_ports() {
    for we_ask in [false, true] {
        let observer = observe(cm::Sender::Unmarked, we_ask);
        let seen = ports_seen(&observer);
        assert_eq!(seen[..PORTS].iter().collect::<BTreeSet<_>>().len(), PORTS, "{seen:?}");
        assert_eq!(seen[..PORTS], seen[PORTS..], "spread evenly");
    }
}

/// Data of queue pairs whose packets have different source ports, both ways.
#[test]
fn queue_pairs_of_all_source_ports_carry_data() {
    const QUEUE_PAIRS: usize = 8;
    const LENGTH: usize = 256 << 10;
    for source_ports in [None, Some(1), Some(8)] {
        let mut world = spreading_world(source_ports);
        let ends: Vec<_> = (0..QUEUE_PAIRS).map(|_| world.connect()).collect();
        let mut source = world.buffer(0, QUEUE_PAIRS * LENGTH);
        let back = world.buffer(0, QUEUE_PAIRS * LENGTH);
        let sink = world.buffer(1, QUEUE_PAIRS * LENGTH);
        for seed in 0..4 {
            source.write(0, &pattern(seed, QUEUE_PAIRS * LENGTH));
            for (index, (left, _)) in ends.iter().enumerate() {
                let at = index * LENGTH;
                let remote_addr = sink.addr() + at as u64;
                let op = Op::RdmaWrite { remote_addr, rkey: sink.rkey() };
                world.send(*left, 1, op, SendFlags::NONE, &[source.sge(at, LENGTH)]);
                let op = Op::RdmaRead { remote_addr, rkey: sink.rkey() };
                world.send(*left, 2, op, SendFlags::NONE, &[back.sge(at, LENGTH)]);
            }
            world.flush(ends[0].0);
            for _ in 0..2 * QUEUE_PAIRS {
                assert_eq!(world.completion(0).status, WcStatus::SUCCESS);
            }
            assert!(back.all() == source.all() && sink.all() == source.all());
        }
        for host in &world.hosts {
            let stats = host.group.stats();
            assert_eq!((stats.send_drops, stats.icrc_failures), (0, 0), "{stats:?}");
        }
    }
}
