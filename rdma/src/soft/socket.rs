//! The UDP sockets of an endpoint.
#![expect(unsafe_code, reason = "socket options that no crate wraps")]

use std::io;
use std::mem;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};

use roce_proto::wire::Ecn;
use socket2::{Domain, Protocol, Socket, Type};

use super::options::{EndpointError, PortChoice, SoftOptions};
use super::{owner, route};
use crate::roce::{MAX_SENDERS, ROCE_PORT};
use crate::software::random::Random;

const SOL_UDP: i32 = 17;
const UDP_SEGMENT: i32 = 103;
const UDP_GRO: i32 = 104;
const UDP_NO_CHECK6_RX: i32 = 102;
/// Never fragment, and accept packets up to the interface's MTU; ICMP messages are ignored. (The
/// IPv6 constant has the same value.)
const PMTUDISC_PROBE: i32 = libc::IP_PMTUDISC_PROBE;

/// Receive buffer of a socket if the options give none, in bytes.
const RECEIVE_BUFFER_BYTES: usize = 8 << 20;
const SEND_BUFFER_BYTES: usize = 4 << 20;

/// Random ports for endpoints other than 4791, below the flow ports.
const ENDPOINT_PORTS: std::ops::Range<u16> = 1024..0xC000;
/// Source ports of senders, which only serve to distinguish flows.
const FLOW_PORTS: std::ops::RangeInclusive<u16> = 0xC000..=0xFFFF;
/// Source ports of a group. A flush to a peer with as many connections takes up to this many system
/// calls.
const SOURCE_PORTS: usize = 4;
/// Number of source ports of an endpoint beyond which groups get fewer each.
const SOURCE_PORTS_OF_ALL: usize = 8;
/// Number of random ports to try.
const PORT_TRIES: usize = 64;

pub(super) struct Sockets {
    pub(super) receiver: UdpSocket,
    /// The sockets that send; never empty.
    pub(super) senders: Vec<SenderSocket>,
    /// Whether UDP GSO is supported and enabled.
    pub(super) gso: bool,
}

pub(super) struct SenderSocket {
    /// A socket of its own if the endpoint has port 4791, so that source ports distinguish flows;
    /// `None` if the receiver sends.
    pub(super) socket: Option<UdpSocket>,
    /// Source address of its packets.
    pub(super) source: SocketAddr,
    /// Type of service or traffic class of the socket, used for messages without a control message.
    pub(super) traffic_class: u8,
}

impl Sockets {
    /// Sets the sockets' traffic class, so that few messages need a control message. If the system
    /// refuses it, all messages have one.
    fn set_traffic_class(&mut self, class: u8) {
        for sender in &mut self.senders {
            let (level, name) = match sender.source {
                SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
                SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_TOS),
            };
            let socket = sender.socket.as_ref().unwrap_or(&self.receiver);
            if set_flag(socket, level, name, class.into()).is_ok() {
                sender.traffic_class = class;
            }
        }
    }
}

impl SenderSocket {
    fn receiver(endpoint: SocketAddr) -> Self {
        Self { socket: None, source: endpoint, traffic_class: 0 }
    }

    fn with_flow_port(ip: IpAddr, random: &mut Random) -> Result<Self, EndpointError> {
        let socket = bind_one_of(ip, *FLOW_PORTS.start(), *FLOW_PORTS.end(), random)?;
        let source = socket.local_addr().map_err(system("cannot read a socket's address"))?;
        Ok(Self { socket: Some(socket), source, traffic_class: 0 })
    }
}

/// All sockets of an endpoint, by wire index, and the granted buffer size.
pub(super) struct Endpoint {
    pub(super) address: SocketAddr,
    pub(super) sockets: Vec<Sockets>,
    pub(super) receive_buffer_bytes: usize,
}

/// Opens the connection manager's socket and one per group, and attaches the steering program.
pub(super) fn open(options: &SoftOptions, random: &mut Random) -> Result<Endpoint, EndpointError> {
    check(options)?;
    let first = bind_first(options, random)?;
    let address = first.local_addr().map_err(system("cannot read a socket's address"))?;
    let mut receivers = vec![first];
    // The first socket was bound without SO_REUSEPORT, so that no other process has the port; the
    // others join it.
    set_flag(&receivers[0], libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)
        .map_err(system("cannot share the port among cores"))?;
    for _ in 0..options.groups {
        let socket = plain(address.ip())?;
        set_flag(&socket, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)
            .map_err(system("cannot share the port among cores"))?;
        socket.bind(&address.into()).map_err(system("cannot bind a core's socket"))?;
        receivers.push(socket.into());
    }
    if options.steering
        && let Err(error) = steer(&receivers[0], options.groups)
    {
        tracing::warn!(%error, "the kernel does not steer packets to cores; cores pass them on");
    }
    let mut receive_buffer_bytes = usize::MAX;
    let mut sockets = Vec::new();
    for (index, receiver) in receivers.into_iter().enumerate() {
        receive_buffer_bytes = receive_buffer_bytes.min(grow_receive_buffer(&receiver, options));
        let count = if index == 0 { 1 } else { source_ports(options) };
        let senders = senders(address, count, random)?;
        let mut sockets_of_wire = wire_sockets(receiver, senders, options.trains);
        // Connection management does not react to ECN marks, connections do.
        if index > 0 {
            sockets_of_wire.set_traffic_class(Ecn::Ect0.within(0));
        }
        sockets.push(sockets_of_wire);
    }
    Ok(Endpoint { address, sockets, receive_buffer_bytes })
}

fn check(options: &SoftOptions) -> Result<(), EndpointError> {
    if options.address.is_unspecified() {
        return Err(EndpointError::Wildcard(options.address));
    }
    let groups_fit = (1..=crate::roce::MAX_GROUPS).contains(&options.groups);
    groups_fit.then_some(()).ok_or(EndpointError::Groups(options.groups))?;
    match options.source_ports {
        Some(count) if !(1..=MAX_SENDERS).contains(&count) => {
            Err(EndpointError::SourcePorts(count))
        }
        _ => Ok(()),
    }
}

/// Number of source ports of each group.
fn source_ports(options: &SoftOptions) -> usize {
    let enough = (SOURCE_PORTS_OF_ALL / options.groups).clamp(1, SOURCE_PORTS);
    options.source_ports.unwrap_or(enough)
}

/// The senders of a wire: `count` with their own ports if the endpoint has port 4791, else the
/// receiver.
fn senders(
    address: SocketAddr,
    count: usize,
    random: &mut Random,
) -> Result<Vec<SenderSocket>, EndpointError> {
    match address.port() {
        ROCE_PORT => {
            (0..count).map(|_| SenderSocket::with_flow_port(address.ip(), random)).collect()
        }
        _ => Ok(vec![SenderSocket::receiver(address)]),
    }
}

fn wire_sockets(receiver: UdpSocket, senders: Vec<SenderSocket>, trains: bool) -> Sockets {
    // Without it, drops by a full receive buffer look like losses in the network.
    let _ = set_flag(&receiver, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1);
    // Kernels without GRO deliver one packet per message.
    let _ = set_flag(&receiver, SOL_UDP, UDP_GRO, i32::from(trains));
    let cuts = |sender: &SenderSocket| {
        let socket = sender.socket.as_ref().unwrap_or(&receiver);
        set_flag(socket, SOL_UDP, UDP_SEGMENT, 0).is_ok()
    };
    let gso = trains && senders.iter().all(cuts);
    Sockets { receiver, senders, gso }
}

fn bind_first(options: &SoftOptions, random: &mut Random) -> Result<UdpSocket, EndpointError> {
    let roce = SocketAddr::new(options.address, ROCE_PORT);
    match options.port {
        PortChoice::Roce => bind(roce),
        PortChoice::Any => match bind(roce) {
            Err(error @ EndpointError::PortTaken { .. }) => {
                tracing::warn!("{error}; on another port, only targets of Feedrail can answer");
                bind_endpoint_port(options.address, random)
            }
            other => other,
        },
        PortChoice::Ephemeral => bind_endpoint_port(options.address, random),
    }
}

fn bind_endpoint_port(ip: IpAddr, random: &mut Random) -> Result<UdpSocket, EndpointError> {
    bind_one_of(ip, ENDPOINT_PORTS.start, ENDPOINT_PORTS.end - 1, random)
}

fn bind_one_of(
    ip: IpAddr,
    first: u16,
    last: u16,
    random: &mut Random,
) -> Result<UdpSocket, EndpointError> {
    let count = u64::from(last - first) + 1;
    let mut tries = PORT_TRIES;
    loop {
        let offset = u16::try_from(random.below(count)).expect("fewer ports than 65,536");
        let port = first + offset;
        tries = tries.saturating_sub(1);
        match bind(SocketAddr::new(ip, port)) {
            Err(EndpointError::PortTaken { .. }) if tries > 0 => {}
            _ if port == ROCE_PORT => {}
            other => return other,
        }
    }
}

fn bind(address: SocketAddr) -> Result<UdpSocket, EndpointError> {
    let socket = plain(address.ip())?;
    match socket.bind(&address.into()) {
        Ok(()) => Ok(socket.into()),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            Err(EndpointError::PortTaken { address, owner: owner::of(address) })
        }
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
            Err(EndpointError::NotLocal(address.ip()))
        }
        Err(source) => Err(EndpointError::System { what: "cannot bind a UDP socket", source }),
    }
}

/// Creates a socket with the options that all need: no fragmentation, so that the IPv4
/// identification is predictable, and reports of ICMP errors.
fn plain(ip: IpAddr) -> Result<Socket, EndpointError> {
    let domain = Domain::for_address(SocketAddr::new(ip, 0));
    let socket = Socket::new(domain, Type::DGRAM.nonblocking().cloexec(), Some(Protocol::UDP))
        .map_err(system("cannot make a UDP socket"))?;
    let options = if ip.is_ipv4() {
        vec![
            (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, PMTUDISC_PROBE),
            (libc::IPPROTO_IP, libc::IP_RECVERR, 1),
            (libc::IPPROTO_IP, libc::IP_RECVTOS, 1),
        ]
    } else {
        vec![
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1),
            (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, PMTUDISC_PROBE),
            (libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1),
            (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1),
            (SOL_UDP, UDP_NO_CHECK6_RX, 1),
        ]
    };
    for (level, name, value) in options {
        set_flag(&socket, level, name, value).map_err(system("cannot set a socket option"))?;
    }
    // A smaller send buffer only costs speed.
    let _ = socket.set_send_buffer_size(SEND_BUFFER_BYTES);
    Ok(socket)
}

/// Requests a large receive buffer; returns the granted size, as the kernel accounts it.
fn grow_receive_buffer(socket: &UdpSocket, options: &SoftOptions) -> usize {
    let socket = socket2::SockRef::from(socket);
    let wanted = options.receive_buffer_bytes.unwrap_or(RECEIVE_BUFFER_BYTES);
    let asked = i32::try_from(wanted).unwrap_or(i32::MAX);
    // Requires CAP_NET_ADMIN; else `net.core.rmem_max` limits the size.
    if set_flag(&*socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, asked).is_err() {
        let _ = socket.set_recv_buffer_size(wanted);
    }
    socket.recv_buffer_size().unwrap_or(0)
}

/// The largest IP packet for the route to `peer`, in bytes: from the routing table, or if that
/// fails from a connected socket, which ICMP messages may influence.
pub(super) fn route_mtu(local: IpAddr, peer: IpAddr) -> io::Result<usize> {
    if let Ok(mtu) = route::mtu(local, peer) {
        return Ok(mtu);
    }
    let socket = UdpSocket::bind(SocketAddr::new(local, 0))?;
    socket.connect(SocketAddr::new(peer, ROCE_PORT))?;
    let (level, name) = match local {
        IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU),
        IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
    };
    let mtu = get_int(socket.as_raw_fd(), level, name)?;
    Ok(usize::try_from(mtu).unwrap_or(0))
}

/// The local address that the system uses to send to `peer`.
///
/// # Errors
/// There is no route.
pub fn local_address_for(peer: IpAddr) -> io::Result<IpAddr> {
    let any: IpAddr = match peer {
        IpAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
    socket.connect(SocketAddr::new(peer, ROCE_PORT))?;
    Ok(socket.local_addr()?.ip())
}

/// Attaches a program that selects the socket by the low byte of the destination queue pair number
/// (BTH bytes 5 to 7): queue pair 1 belongs to the connection manager at index 0, other numbers
/// contain their group's index.
fn steer(socket: &UdpSocket, groups: usize) -> io::Result<()> {
    const LOAD_BYTE: u16 = 0x30; // BPF_LD | BPF_B | BPF_ABS
    const JUMP_EQUAL: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K
    const JUMP_GREATER: u16 = 0x25; // BPF_JMP | BPF_JGT | BPF_K
    const RETURN_A: u16 = 0x16; // BPF_RET | BPF_A
    const RETURN: u16 = 0x06; // BPF_RET | BPF_K
    let last = u32::try_from(groups).expect("at most 255 groups");
    let code = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut program = [
        code(LOAD_BYTE, 0, 0, 5),
        code(JUMP_EQUAL, 0, 4, 0),
        code(LOAD_BYTE, 0, 0, 6),
        code(JUMP_EQUAL, 0, 2, 0),
        code(LOAD_BYTE, 0, 0, 7),
        code(JUMP_EQUAL, 3, 0, 1),
        code(LOAD_BYTE, 0, 0, 7),
        code(JUMP_GREATER, 1, 0, last),
        code(RETURN_A, 0, 0, 0),
        code(RETURN, 0, 0, 0),
    ];
    let length = u16::try_from(program.len()).expect("ten instructions");
    let program = libc::sock_fprog { len: length, filter: program.as_mut_ptr() };
    set_option(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF, &program)
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> EndpointError {
    move |source| EndpointError::System { what, source }
}

fn set_flag(socket: &impl AsRawFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    set_option(socket.as_raw_fd(), level, name, &value)
}

fn set_option<T>(fd: RawFd, level: i32, name: i32, value: &T) -> io::Result<()> {
    let length = libc::socklen_t::try_from(mem::size_of::<T>()).expect("a small option");
    // SAFETY: the pointer and the length describe `value`, which lives across the call; the kernel
    // copies it.
    let result = unsafe { libc::setsockopt(fd, level, name, (&raw const *value).cast(), length) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn get_int(fd: RawFd, level: i32, name: i32) -> io::Result<i32> {
    let mut value = 0i32;
    let mut length = libc::socklen_t::try_from(mem::size_of::<i32>()).expect("four");
    // SAFETY: the pointers describe `value` and `length`, which live across the call.
    let result =
        unsafe { libc::getsockopt(fd, level, name, (&raw mut value).cast(), &raw mut length) };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Else a forged ICMP message would shorten what may be sent.
    #[test]
    fn sockets_do_not_believe_icmp() {
        for ip in ["127.0.0.1", "::1"] {
            let ip: IpAddr = ip.parse().unwrap();
            let Ok(socket) = plain(ip) else { continue };
            let (level, name) = match ip {
                IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
                IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
            };
            assert_eq!(get_int(socket.as_raw_fd(), level, name).unwrap(), PMTUDISC_PROBE);
        }
        assert_eq!(PMTUDISC_PROBE, libc::IPV6_PMTUDISC_PROBE);
    }
}
