//! Tests that need real sockets and threads.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rdma::soft::{
    EndpointError, Faults, PortChoice, Soft, SoftDevice, SoftOptions, local_address_for,
};
use rdma::{
    ConnOptions, ConnectFailure, ConnectionManager, Device, Group, GroupConfig, GroupStats, Op,
    RecvWr, SendFlags, SendWr, Sge, Wc, WcOpcode, WcStatus,
};
use roce_proto::{PathMtu, Psn, Qpn, cm, wire};

use super::benches::{SoftBench, address, wait_for_any};
use super::buffer::{Buffer, everything, pattern};
use super::transfers;
use super::world::{Bench, End, Host, QP, World, params};

type SoftGroup = <Soft as rdma::Provider>::Group;

/// A host that a thread of its own turns.
struct Running {
    stop: Arc<AtomicBool>,
    thread: thread::JoinHandle<Host<Soft>>,
}

impl Running {
    /// Starts turning a host; each completion goes to `handle`.
    fn start(
        mut host: Host<Soft>,
        start: SoftBench,
        mut handle: impl FnMut(&mut Host<Soft>, Wc) + Send + 'static,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let now = start.now();
                let busy = host.turn(now);
                while let Some(wc) = host.wcs.pop_front() {
                    handle(&mut host, wc);
                }
                host.group.flush(now);
                if !busy {
                    let timeout = host.deadline().map(|deadline| deadline - start.now());
                    let limit = Duration::from_millis(5);
                    wait_for_any(&[&host], Some(timeout.map_or(limit, |t| t.min(limit))));
                }
            }
            host
        });
        Self { stop, thread }
    }

    fn stop(self) -> Host<Soft> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().expect("the host's thread")
    }
}

fn push(group: &mut SoftGroup, end: End, wr_id: u64, op: Op, sges: &[Sge]) {
    let wr = SendWr { wr_id, op, flags: SendFlags::SIGNALED, sges };
    // SAFETY: the tests keep their buffers until the end.
    unsafe { group.push_send(end.qp, &wr) }.expect("push_send");
}

fn push_recv(group: &mut SoftGroup, end: End, wr_id: u64, sges: &[Sge]) {
    // SAFETY: the tests keep their buffers until the end.
    unsafe { group.push_recv(end.qp, &RecvWr { wr_id, sges }) }.expect("push_recv");
}

/// A target in miniature on its own thread: each request is answered with data and a response.
#[test]
fn two_threads_request_and_respond() {
    const SLOTS: u64 = 16;
    const LENGTH: usize = 20_000;
    let mut world = World::new(SoftBench::new());
    let (left, right) = world.connect();
    let ours = world.buffer(0, SLOTS as usize * (LENGTH + 64));
    let mut theirs = world.buffer(1, LENGTH + SLOTS as usize * 64);
    theirs.fill(9);
    let (addr, rkey) = (ours.addr(), ours.rkey());
    for slot in 0..SLOTS {
        world.recv(right, slot, &[theirs.sge(LENGTH + slot as usize * 64, 64)]);
    }
    let host = world.hosts.pop().expect("host 1");
    let responder = Running::start(host, world.bench.again(), move |host, wc| {
        assert!(wc.is_success(), "{wc:?}");
        if wc.opcode != WcOpcode::RECV {
            return;
        }
        let slot = wc.wr_id;
        push_recv(&mut host.group, right, slot, &[theirs.sge(LENGTH + slot as usize * 64, 64)]);
        let request = theirs.read(LENGTH + slot as usize * 64, 8);
        let asked = u64::from_ne_bytes(request.try_into().expect("eight bytes"));
        let remote_addr = addr + asked * (LENGTH as u64 + 64);
        push(
            &mut host.group,
            right,
            100,
            Op::RdmaWrite { remote_addr, rkey },
            &[theirs.sge(0, LENGTH)],
        );
        push(&mut host.group, right, 101, Op::Send, &[theirs.sge(0, 16)]);
    });
    let mut ours = ours;
    let expected = pattern(9, LENGTH);
    for _ in 0..200 {
        for slot in 0..SLOTS {
            let at = slot as usize * (LENGTH + 64);
            ours.write(at, &vec![0; LENGTH]);
            ours.write(at + LENGTH, &slot.to_ne_bytes());
            world.recv(left, slot, &[ours.sge(at + LENGTH + 8, 16)]);
            world.send(left, 50, Op::Send, SendFlags::NONE, &[ours.sge(at + LENGTH, 8)]);
        }
        world.flush(left);
        for _ in 0..2 * SLOTS {
            assert!(world.completion(0).is_success());
        }
        for slot in 0..SLOTS as usize {
            assert!(ours.read(slot * (LENGTH + 64), LENGTH) == expected, "the response came first");
        }
    }
    responder.stop();
}

/// One thread drops the memory that another's group receives into: from then on it does not change.
#[test]
fn memory_is_quiet_once_its_region_was_dropped() {
    const CONNECTIONS: usize = 24;
    let mut world = World::new(SoftBench::new());
    let to = world.listen(1);
    let mut ends = Vec::new();
    for _ in 0..CONNECTIONS {
        let left = world.ask(0, to, &ConnOptions::default(), &QP, &params());
        let (conn, _) = world.requested(1);
        let right = world.accept(1, conn, &QP, &params());
        world.established(left);
        world.established(right);
        ends.push(left);
    }
    let device = world.hosts[1].device.clone();
    let mut source = world.buffer(0, 1 << 20);
    source.write(0, &vec![0xFF; 1 << 20]);
    let running =
        Running::start(world.hosts.pop().expect("host 1"), world.bench.again(), |_, _| {});
    for left in ends {
        let mut sink = Buffer::<Soft>::new(&device, 1 << 20, everything());
        let op = Op::RdmaWrite { remote_addr: sink.addr(), rkey: sink.rkey() };
        for _ in 0..8 {
            world.send(left, 1, op, SendFlags::NONE, &[source.sge(0, 1 << 20)]);
        }
        world.flush(left);
        world.until("the first bytes", |_| (sink.read(0, 1) == [0xFF]).then_some(()));
        sink.deregister();
        sink.write(0, &vec![0; 1 << 20]);
        let statuses: Vec<_> = (0..8).map(|_| world.completion(0).status).collect();
        assert!(statuses.contains(&WcStatus::REMOTE_ACCESS_ERROR), "{statuses:?}");
        assert!(sink.all() == vec![0; 1 << 20], "written after the drop");
    }
    running.stop();
}

/// A stock receive buffer, and 64 queue pairs that all write concurrently.
#[test]
fn many_senders_share_a_small_receive_buffer() {
    const SENDERS: usize = 64;
    let mut bench = SoftBench::new();
    bench.receive_buffer_bytes = Some(212_992);
    let mut world = World::new(bench);
    let to = world.listen(1);
    let mut ends = Vec::new();
    for _ in 0..SENDERS {
        let left = world.ask(0, to, &ConnOptions::default(), &QP, &params());
        let (conn, _) = world.requested(1);
        let right = world.accept(1, conn, &QP, &params());
        world.established(left);
        world.established(right);
        ends.push(left);
    }
    let mut source = world.buffer(0, 1 << 17);
    source.fill(1);
    let sink = world.buffer(1, SENDERS << 17);
    let running =
        Running::start(world.hosts.pop().expect("host 1"), world.bench.again(), |_, _| {});
    for _ in 0..10 {
        for (index, &left) in ends.iter().enumerate() {
            let remote_addr = sink.addr() + (index << 17) as u64;
            let op = Op::RdmaWrite { remote_addr, rkey: sink.rkey() };
            world.send(left, 1, op, SendFlags::NONE, &[source.sge(0, 1 << 17)]);
        }
        world.flush(ends[0]);
        for _ in 0..SENDERS {
            world.expect(0, 1, WcStatus::SUCCESS);
        }
    }
    let stats = world.hosts[0].group.stats();
    let receiver = running.stop();
    let expected = source.all();
    for index in 0..SENDERS {
        assert!(sink.read(index << 17, 1 << 17) == expected);
    }
    assert!(
        stats.packets_retransmitted * 100 < stats.packets_sent,
        "{} of {} packets were sent again; the receiver: {:?}",
        stats.packets_retransmitted,
        stats.packets_sent,
        receiver.group.stats()
    );
}

/// Reads are bounded by the reader's own buffer.
#[test]
fn many_reads_into_a_small_receive_buffer() {
    let mut bench = SoftBench::new();
    bench.receive_buffer_bytes = Some(212_992);
    let mut world = World::new(bench);
    let (left, _right) = world.connect();
    let sink = world.buffer(0, 8 << 20);
    let mut source = world.buffer(1, 8 << 20);
    source.fill(2);
    let running =
        Running::start(world.hosts.pop().expect("host 1"), world.bench.again(), |_, _| {});
    for part in 0..8 {
        let at = part << 20;
        let op = Op::RdmaRead { remote_addr: source.addr() + at as u64, rkey: source.rkey() };
        world.send(left, part as u64, op, SendFlags::NONE, &[sink.sge(at, 1 << 20)]);
    }
    world.flush(left);
    for part in 0..8 {
        world.expect(0, part, WcStatus::SUCCESS);
    }
    assert!(sink.all() == source.all());
    let responder = running.stop().group.stats();
    assert!(
        responder.packets_retransmitted * 100 < responder.packets_sent,
        "{} of {} response packets were sent again",
        responder.packets_retransmitted,
        responder.packets_sent
    );
}

/// A peer without a time-out that never answers a READ. What it was asked for would be all that may
/// be on its way.
#[test]
fn a_silent_peer_does_not_block_other_reads() {
    let mut bench = SoftBench::new();
    bench.receive_buffer_bytes = Some(212_992);
    let mut world = World::new(bench);
    let patient = ConnOptions { ack_timeout_exponent: Some(0), ..ConnOptions::default() };
    let (asking, silent) = world.connect_with(&patient, &QP, &params());
    let (left, _right) = world.connect();
    let sink = world.buffer(0, 1 << 20);
    let mut source = world.buffer(1, 1 << 20);
    source.fill(3);
    world.hosts[1].group.fail(silent.qp);
    let op = Op::RdmaRead { remote_addr: source.addr(), rkey: source.rkey() };
    world.post(asking, 1, op, &[sink.sge(0, 1 << 20)]);
    world.post(left, 2, op, &[sink.sge(0, 1 << 20)]);
    world.expect(0, 2, WcStatus::SUCCESS);
    assert!(sink.all() == source.all());
}

/// Trains: far fewer system calls than packets, both ways.
#[test]
fn packets_travel_in_trains() {
    let mut world = World::new(SoftBench::new());
    let (left, _right) = world.connect();
    let source = world.buffer(0, 1 << 20);
    let sink = world.buffer(1, 1 << 20);
    let op = Op::RdmaWrite { remote_addr: sink.addr(), rkey: sink.rkey() };
    let before: Vec<GroupStats> = world.hosts.iter().map(|host| host.group.stats()).collect();
    for _ in 0..10 {
        world.post(left, 1, op, &[source.sge(0, 1 << 20)]);
        world.expect(0, 1, WcStatus::SUCCESS);
    }
    let after: Vec<GroupStats> = world.hosts.iter().map(|host| host.group.stats()).collect();
    let sent = after[0].packets_sent - before[0].packets_sent;
    let calls = after[0].send_calls - before[0].send_calls;
    assert!(sent >= 8 * calls, "{sent} packets in {calls} calls");
    let received = after[1].packets_received - before[1].packets_received;
    let calls = after[1].receive_calls - before[1].receive_calls;
    assert!(received >= 4 * calls, "{received} packets in {calls} calls");
}

/// The packets of each group's queue pairs find it, whichever socket they come to.
#[test]
fn queue_pairs_live_in_groups_of_their_own() {
    four_groups(true);
}

/// Where the kernel does not steer, most packets come to the wrong socket.
#[test]
fn groups_hand_over_packets_of_other_groups() {
    four_groups(false);
}

fn four_groups(steering: bool) {
    const GROUPS: usize = 4;
    let mut world = World::new(SoftBench::new());
    world.hosts[1] = many_groups(&world.bench, GROUPS, steering);
    let to = world.listen(1);
    let buffers = [world.buffer(0, 65_536), world.buffer(1, 65_536 * GROUPS)];
    let mut lefts = Vec::new();
    for index in 0..GROUPS {
        let left = world.ask(0, to, &ConnOptions::default(), &QP, &params());
        let (conn, _) = world.requested(1);
        let Host { group: first, others, cm, device, .. } = &mut world.hosts[1];
        let group = index.checked_sub(1).map_or(first, |other| &mut others[other]);
        let qp = cm.create_qp(conn, &group.handle(), device, &QP).expect("create_qp");
        let right = End { host: 1, qp: group.adopt(qp), conn };
        push_recv(group, right, index as u64, &[buffers[1].sge(index * 65_536, 65_536)]);
        let now = world.now();
        world.hosts[1].cm.accept(now, conn, &params()).expect("accept");
        world.established(left);
        world.established(right);
        lefts.push(left);
    }
    for &left in &lefts {
        world.send(left, 7, Op::Send, SendFlags::NONE, &[buffers[0].sge(0, 65_536)]);
    }
    world.flush(lefts[0]);
    let mut received = BTreeSet::new();
    for _ in 0..GROUPS {
        world.expect(0, 7, WcStatus::SUCCESS);
        let wc = world.completion(1);
        assert!(wc.is_success(), "{wc:?}");
        received.insert(wc.wr_id);
    }
    assert_eq!(received.len(), GROUPS);
}

fn many_groups(bench: &SoftBench, groups: usize, steering: bool) -> Host<Soft> {
    let mut options = bench.options(groups);
    options.steering = steering;
    let device = SoftDevice::open(&options).expect("open");
    let host = Host::with_groups(device.clone(), groups);
    let config = GroupConfig { completions: 64, queue_pairs: 4, completion_vector: 0 };
    assert!(device.group(&config).is_err(), "no more groups than it was opened for");
    host
}

/// Each sender's packets all come to one socket, and with that many senders each socket gets some.
#[test]
fn any_socket_passes_on_connection_manager_packets() {
    const SENDERS: u64 = 64;
    let mut world = World::new(SoftBench::new());
    world.hosts[1] = many_groups(&world.bench, 4, false);
    let endpoint = SocketAddr::new(world.hosts[1].device.local_ip(), 4791);
    let ip = address();
    // Well-formed, for queue pair 1, and no message that it knows: so it is counted there, and
    // nothing else.
    let mut packet = [0; 280];
    packet[..8].copy_from_slice(&[0x04, 0x40, 0xFF, 0xFF, 0, 0, 0, 1]);
    for _ in 0..SENDERS {
        let sender = std::net::UdpSocket::bind(SocketAddr::new(ip, 0)).expect("bind");
        sender.send_to(&packet, endpoint).expect("send");
    }
    let counted = |world: &World<SoftBench>| world.hosts[1].device.stats().mads_dropped;
    for _ in 0..1000 {
        world.settle_for(Duration::from_millis(10));
        if counted(&world) == SENDERS {
            break;
        }
    }
    assert_eq!(counted(&world), SENDERS);
}

#[test]
fn an_initiator_shares_the_address_of_a_target() {
    let mut world = World::new(SoftBench::new());
    let ip = world.hosts[1].device.local_ip();
    let device = SoftDevice::open(&SoftOptions::new(ip, PortChoice::Any)).expect("another port");
    let port = device.endpoint().port();
    assert!((1024..0xC000).contains(&port) && port != 4791, "port {port}");
    world.hosts[0] = Host::new(device);
    let silence: Vec<_> = world.hosts.iter().map(|host| host.cm.cause_of_silence()).collect();
    assert_eq!(silence, [ConnectFailure::PortTaken(ip), ConnectFailure::Unreachable]);
    let owner = format!("process {} ", std::process::id());
    assert!(silence[0].to_string().contains(&owner), "{}", silence[0]);
    let (left, right) = world.connect();
    let mut buffers = [world.buffer(0, 100_000), world.buffer(1, 100_000)];
    buffers[0].fill(1);
    world.recv(right, 1, &[buffers[1].sge(0, 100_000)]);
    world.post(left, 2, Op::Send, &[buffers[0].sge(0, 100_000)]);
    world.expect(1, 1, WcStatus::SUCCESS);
    world.expect(0, 2, WcStatus::SUCCESS);
    assert!(buffers[1].all() == buffers[0].all());
}

/// The word that a host is unreachable may come to any socket of an endpoint that sends from the
/// bound port.
#[test]
fn an_ephemeral_endpoint_learns_of_unreachable_peers() {
    for _ in 0..8 {
        let mut bench = SoftBench::new();
        bench.port = PortChoice::Ephemeral;
        super::connections::no_host_at_the_address(bench);
    }
}

struct Ipv6Bench(SoftBench);

impl Bench for Ipv6Bench {
    type Provider = Soft;

    fn device(&mut self, groups: usize) -> SoftDevice {
        // There is one loopback address; the second device finds a port of its own, and the first
        // is any.
        let mut options = SoftOptions::new(Ipv6Addr::LOCALHOST.into(), PortChoice::Any);
        options.groups = groups;
        SoftDevice::open(&options).expect("open over IPv6")
    }

    fn now(&self) -> rdma::Time {
        self.0.now()
    }

    fn wait(&mut self, hosts: &[&Host<Soft>], deadline: Option<rdma::Time>) {
        self.0.wait(hosts, deadline);
    }

    fn nobody(&mut self) -> IpAddr {
        self.0.nobody()
    }
}

#[test]
fn ipv6_works() {
    let listener = SoftOptions::new(Ipv6Addr::LOCALHOST.into(), PortChoice::Roce);
    let device = match SoftDevice::open(&listener) {
        Ok(device) => device,
        Err(error) => return eprintln!("skipped: {error}"),
    };
    let mut bench = Ipv6Bench(SoftBench::new());
    let active = bench.device(1);
    let hosts = vec![Host::new(active), Host::new(device)];
    transfers::writes_in(World { hosts, bench });
}

#[test]
fn an_open_error_names_its_cause() {
    let ip = address();
    let first = SoftDevice::open(&SoftOptions::new(ip, PortChoice::Roce)).expect("the first");
    let taken = SoftDevice::open(&SoftOptions::new(ip, PortChoice::Roce)).err().expect("taken");
    let text = taken.to_string();
    assert!(text.contains("4791") && text.contains(&std::process::id().to_string()), "{text}");
    drop(first);
    SoftDevice::open(&SoftOptions::new(ip, PortChoice::Roce)).expect("free again");
    let foreign: IpAddr = "192.0.2.1".parse().unwrap();
    let error = SoftDevice::open(&SoftOptions::new(foreign, PortChoice::Any)).err();
    assert!(matches!(error, Some(EndpointError::NotLocal(address)) if address == foreign));
    let wildcard: IpAddr = "0.0.0.0".parse().unwrap();
    let error = SoftDevice::open(&SoftOptions::new(wildcard, PortChoice::Any)).err();
    assert!(matches!(error, Some(EndpointError::Wildcard(_))));
    let mut none = SoftOptions::new(ip, PortChoice::Any);
    none.groups = 0;
    assert!(matches!(SoftDevice::open(&none).err(), Some(EndpointError::Groups(0))));
}

#[test]
fn a_route_names_its_local_address() {
    assert_eq!(local_address_for("127.9.8.7".parse().unwrap()).unwrap().to_string(), "127.0.0.1");
}

/// Packets of strangers are dropped and counted, and change no connection.
#[test]
fn strangers_are_ignored() {
    let mut world = World::new(SoftBench::new());
    let (left, right) = world.connect();
    let qpn = world.hosts[1].group.qpn(right.qp);
    let endpoint = SocketAddr::new(world.hosts[1].device.local_ip(), 4791);
    let stranger = std::net::UdpSocket::bind(SocketAddr::new(address(), 0)).unwrap();
    for length in [0, 1, 11, 12, 16, 64, 1500, 60_000] {
        let mut bytes = pattern(length as u64, length);
        stranger.send_to(&bytes, endpoint).unwrap();
        if length >= 12 {
            // As if it were for the queue pair, then for the connection manager, then for an
            // unknown queue pair.
            for qpn in [qpn, 1, 0xFF_FF01] {
                bytes[..2].copy_from_slice(&[0x04, 0x40]);
                bytes[4..8].copy_from_slice(&qpn.to_be_bytes());
                stranger.send_to(&bytes, endpoint).unwrap();
            }
        }
    }
    let sink = world.buffer(1, 64);
    world.recv(right, 1, &[sink.sge(0, 64)]);
    world.post(left, 2, Op::Send, &[]);
    world.expect(1, 1, WcStatus::SUCCESS);
    world.expect(0, 2, WcStatus::SUCCESS);
    assert!(world.hosts[1].group.stats().packets_dropped > 0);
    assert!(world.hosts[1].device.stats().mads_dropped > 0);
    assert_eq!(sink.all(), vec![0; 64]);
}

/// Another process at the peer's address is not the peer.
#[test]
fn another_port_of_the_peer_is_a_stranger() {
    let mut world = World::new(SoftBench::new());
    let (_left, right) = world.connect();
    let qpn = world.hosts[1].group.qpn(right.qp);
    let endpoint = SocketAddr::new(world.hosts[1].device.local_ip(), 4791);
    let peer = world.hosts[0].device.local_ip();
    let stranger = std::net::UdpSocket::bind(SocketAddr::new(peer, 0)).unwrap();
    let before = world.hosts[1].group.stats();
    let mut bytes = [0; 64];
    bytes[..2].copy_from_slice(&[0x04, 0x40]);
    bytes[4..8].copy_from_slice(&qpn.to_be_bytes());
    stranger.send_to(&bytes, endpoint).unwrap();
    let after = world.until("the packet", |world| {
        let stats = world.hosts[1].group.stats();
        let seen = stats.packets_dropped + stats.icrc_failures;
        (seen > before.packets_dropped + before.icrc_failures).then_some(stats)
    });
    assert_eq!(after.icrc_failures, before.icrc_failures, "it was not taken for the peer's");
}

/// A management datagram as a foreign adapter sends it.
pub fn foreign_packet(from: SocketAddr, to: SocketAddr, mad: &cm::Mad) -> Vec<u8> {
    let deth = wire::Deth { qkey: cm::GSI_Q_KEY, source_qpn: Qpn::GSI };
    let bth = wire::Bth::new(Qpn::GSI, Psn::new(0));
    let headers = wire::Headers::new(&bth, &wire::Message::UdSendOnly(deth));
    let flow = wire::Flow::new(from, to).expect("one family");
    let length = headers.as_slice().len() + mad.len() + 4;
    let identification = wire::Identification::ZERO;
    let mut icrc = wire::Icrc::new(&flow, identification, length, headers.as_slice());
    icrc.update(mad);
    [headers.as_slice(), mad, &icrc.finish()].concat()
}

/// Asks for a connection to a listener, as a foreign adapter does whose packets have this traffic
/// class.
fn ask_as_foreigner(
    world: &World<SoftBench>,
    sender: &std::net::UdpSocket,
    to: SocketAddr,
    traffic_class: u8,
) {
    let endpoint = SocketAddr::new(to.ip(), 4791);
    let from = sender.local_addr().expect("bound");
    let mut foreign = cm::Manager::new(cm::ManagerConfig::new(1, 2));
    let connect = cm::ConnectParams {
        peer: endpoint,
        source: SocketAddr::new(from.ip(), 40_000),
        service_id: cm::ServiceId::tcp(to.port()),
        traffic_class,
        qpn: Qpn::new(77),
        starting_psn: Psn::new(0),
        responder_resources: 1,
        initiator_depth: 1,
        retry_count: 7,
        rnr_retry_count: 7,
        ack_timeout: cm::TimeoutExponent::saturating(17),
        path_mtu: PathMtu::Bytes1024,
        udp_source: None,
        private_data: &[],
    };
    foreign.connect(world.now(), &connect).expect("connect");
    let request = foreign.poll_transmit().expect("a request");
    sender.send_to(&foreign_packet(from, endpoint, &request.mad), endpoint).expect("send");
}

/// The opcode of the next packet that came, and the type of service of its IP header.
fn receive_with_tos(socket: &std::net::UdpSocket) -> Option<(u8, u8)> {
    let (mut bytes, mut control) = ([0_u8; 2048], [0_u64; 8]);
    let mut piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: all zeros is a header without anything.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut piece, 1);
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = std::mem::size_of_val(&control);
    // SAFETY: the header points at locals that outlive the call, with their true lengths.
    let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, libc::MSG_DONTWAIT) };
    assert_ne!(length, 0, "a packet is not empty");
    if length < 0 {
        return None;
    }
    // SAFETY: the kernel filled the control buffer, whose only message has a byte of data.
    let (kind, tos) = unsafe {
        let message = libc::CMSG_FIRSTHDR(&raw const header);
        assert!(!message.is_null(), "IP_RECVTOS");
        (((*message).cmsg_level, (*message).cmsg_type), *libc::CMSG_DATA(message))
    };
    assert_eq!(kind, (libc::IPPROTO_IP, libc::IP_TOS));
    Some((bytes[0], tos))
}

/// The DSCP is what was asked for. Packets of connections are ECN-capable, management datagrams are
/// not.
#[test]
fn packets_have_the_type_of_service_asked_for() {
    const MANAGEMENT: u8 = 0x64;
    const SEND_ONLY: u8 = 0x04;
    for (asked, dscp) in [(0, 0), (104, 104), (106, 104)] {
        let mut world = World::new(SoftBench::new());
        let to = world.listen(1);
        let peer = std::net::UdpSocket::bind(SocketAddr::new(address(), 4791)).expect("bind");
        socket2::SockRef::from(&peer).set_recv_tos_v4(true).expect("IP_RECVTOS");
        ask_as_foreigner(&world, &peer, to, asked);
        let (conn, _) = world.requested(1);
        let right = world.accept(1, conn, &QP, &params());
        world.post(right, 1, Op::Send, &[]);
        let mut seen = BTreeSet::new();
        world.until("both packets", |_| {
            seen.extend(receive_with_tos(&peer));
            (seen.len() == 2).then_some(())
        });
        let expected = [(MANAGEMENT, dscp), (SEND_ONLY, dscp | 0b10)];
        assert_eq!(seen, expected.into(), "{asked} was asked for");
    }
}

/// Some adapters send management datagrams from a port below 0xC000, and all listen at 4791.
#[test]
fn foreign_peers_are_answered_at_the_roce_port() {
    let mut world = World::new(SoftBench::new());
    let to = world.listen(1);
    let ip = address();
    let listener = std::net::UdpSocket::bind(SocketAddr::new(ip, 4791)).expect("bind");
    listener.set_nonblocking(true).expect("nonblocking");
    let sender = std::net::UdpSocket::bind(SocketAddr::new(ip, 36_049)).expect("bind");
    ask_as_foreigner(&world, &sender, to, 0);
    let (conn, _) = world.requested(1);
    let now = world.now();
    world.hosts[1].cm.reject(now, conn, b"no").expect("reject");
    let mut answer = [0; 512];
    let length = world.until("the answer", |_| listener.recv(&mut answer).ok());
    assert_eq!(length, 12 + 8 + cm::MAD_BYTES + 4);
}

/// A full send buffer is no loss: nothing is missing at the peer.
#[test]
fn a_full_send_buffer_keeps_packets_in_order() {
    let bench = SoftBench::new();
    let hosts = [0, 1].map(|seed| {
        let mut options = bench.options(1);
        options.faults = Some(Faults { busy_ppm: 300_000, seed, ..Faults::default() });
        Host::new(SoftDevice::open(&options).expect("open"))
    });
    let mut world = World { hosts: hosts.into(), bench };
    let (left, _right) = world.connect();
    let mut source = world.buffer(0, 1 << 20);
    source.fill(1);
    let sink = world.buffer(1, 1 << 20);
    let op = Op::RdmaWrite { remote_addr: sink.addr(), rkey: sink.rkey() };
    for _ in 0..10 {
        world.post(left, 1, op, &[source.sge(0, 1 << 20)]);
        world.expect(0, 1, WcStatus::SUCCESS);
    }
    assert!(sink.all() == source.all());
    let stats = world.hosts[0].group.stats();
    assert_eq!((stats.send_drops, stats.sequence_naks_received), (0, 0));
}

/// Packets of connections are ECN-capable, so that the network may mark them, and marks slow the
/// sender down; nothing is lost.
#[test]
fn marked_packets_bring_notifications() {
    for op_is_read in [false, true] {
        let bench = SoftBench::new();
        let hosts = [0, 1].map(|seed| {
            let mut options = bench.options(1);
            let mark_ppm = if (seed == 0) == op_is_read { 1_000_000 } else { 0 };
            options.faults = Some(Faults { mark_ppm, seed, ..Faults::default() });
            Host::new(SoftDevice::open(&options).expect("open"))
        });
        let mut world = World { hosts: hosts.into(), bench };
        let (left, _right) = world.connect();
        let mut source = world.buffer(usize::from(op_is_read), 1 << 20);
        source.fill(1);
        let sink = world.buffer(usize::from(!op_is_read), 1 << 20);
        let start = world.now();
        for _ in 0..10 {
            if op_is_read {
                let op = Op::RdmaRead { remote_addr: source.addr(), rkey: source.rkey() };
                world.post(left, 1, op, &[sink.sge(0, 1 << 20)]);
            } else {
                let op = Op::RdmaWrite { remote_addr: sink.addr(), rkey: sink.rkey() };
                world.post(left, 1, op, &[source.sge(0, 1 << 20)]);
            }
            world.expect(0, 1, WcStatus::SUCCESS);
        }
        assert!(sink.all() == source.all());
        let intervals = (world.now() - start).as_micros() as u64 / 50;
        let [sender, receiver] = if op_is_read { [1, 0] } else { [0, 1] };
        world.until("the last notification", |world| {
            let handled = world.hosts[sender].group.stats().rp_cnp_handled;
            (handled == world.hosts[receiver].group.stats().np_cnp_sent).then_some(())
        });
        let [sender, receiver] = [sender, receiver].map(|host| world.hosts[host].group.stats());
        assert!(receiver.np_ecn_marked_packets > 1_000, "{receiver:?}");
        assert!((1..=intervals + 2).contains(&receiver.np_cnp_sent), "{intervals}: {receiver:?}");
        assert_eq!((sender.np_ecn_marked_packets, sender.np_cnp_sent), (0, 0));
    }
}

#[test]
fn every_path_mtu_works() {
    for mtu in [256, 512, 1024, 2048, 4096] {
        let bench = SoftBench::new();
        let hosts = [0, 1].map(|_| {
            let mut options = bench.options(1);
            options.max_path_mtu = Some(mtu);
            let device = SoftDevice::open(&options).expect("open");
            assert_eq!(device.caps().max_path_mtu, mtu);
            Host::new(device)
        });
        transfers::writes_in(World { hosts: hosts.into(), bench });
    }
}

/// Kernels and network devices without trains.
#[test]
fn single_packets_work_as_well() {
    let bench = SoftBench::new();
    let open = |bench: &SoftBench, trains| {
        let mut options = bench.options(1);
        options.trains = trains;
        SoftDevice::open(&options).expect("open")
    };
    for (sender, receiver) in [(false, false), (false, true), (true, false)] {
        let hosts = [sender, receiver].map(|trains| Host::new(open(&bench, trains)));
        let world = World { hosts: hosts.into(), bench: bench.again() };
        transfers::writes_in(world);
    }
}

/// 64 devices, which do not know of each other, begin at the same time: together they send more
/// than the buffer holds, even if each sends little. Losses are repaired, at a bounded cost.
#[test]
fn many_hosts_share_a_small_receive_buffer() {
    const SENDERS: usize = 64;
    const LENGTH: usize = 1 << 14;
    let mut bench = SoftBench::new();
    bench.receive_buffer_bytes = Some(212_992);
    let mut world = World::new(bench);
    world.hosts.swap(0, 1);
    for _ in 1..SENDERS {
        let device = world.bench.device(1);
        world.hosts.push(Host::new(device));
    }
    let to = world.listen(0);
    let mut ends = Vec::new();
    for host in 1..=SENDERS {
        let left = world.ask(host, to, &ConnOptions::default(), &QP, &params());
        let (conn, _) = world.requested(0);
        let right = world.accept(0, conn, &QP, &params());
        world.established(left);
        world.established(right);
        ends.push(left);
    }
    let sink = world.buffer(0, SENDERS * LENGTH);
    let sources: Vec<_> = (0..SENDERS)
        .map(|sender| {
            let mut source = world.buffer(1 + sender, LENGTH);
            source.fill(sender as u64);
            source
        })
        .collect();
    let (bench, receiver) = (world.bench.again(), world.hosts.swap_remove(0));
    // The last host took the place of the receiver.
    world.hosts.rotate_left(1);
    let running = Running::start(receiver, bench, |_, _| {});
    for _ in 0..20 {
        for (sender, &left) in ends.iter().enumerate() {
            let remote_addr = sink.addr() + (sender * LENGTH) as u64;
            let op = Op::RdmaWrite { remote_addr, rkey: sink.rkey() };
            let left = End { host: left.host - 1, ..left };
            world.post(left, 1, op, &[sources[sender].sge(0, LENGTH)]);
        }
        for sender in 0..SENDERS {
            world.expect(sender, 1, WcStatus::SUCCESS);
        }
    }
    let sum = |of: fn(&GroupStats) -> u64| {
        world.hosts.iter().map(|host| of(&host.group.stats())).sum::<u64>()
    };
    let (again, sent) = (sum(|stats| stats.packets_retransmitted), sum(|stats| stats.packets_sent));
    let timeouts = sum(|s| s.ack_timeouts);
    running.stop();
    for (sender, source) in sources.iter().enumerate() {
        assert!(sink.read(sender * LENGTH, LENGTH) == source.all());
    }
    assert!(again * 3 < sent, "{again} of {sent} packets were sent again, {timeouts} time-outs");
}
