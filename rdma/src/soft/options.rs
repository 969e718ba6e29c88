//! Options for opening an endpoint, and the errors of it.

use std::io;
use std::net::{IpAddr, SocketAddr};

use super::faults::{FAULTS_VARIABLE, Faults, UnknownFault};

/// How to open a soft device.
#[derive(Clone, Copy, Debug)]
pub struct SoftOptions {
    /// The local address that it serves; not the wildcard.
    pub address: IpAddr,
    /// The UDP port of its endpoint.
    pub port: PortChoice,
    /// The most groups that will be made; one socket each is opened with the endpoint.
    pub groups: usize,
    /// The receive buffer of each socket, as `SO_RCVBUF` takes it (Linux reserves twice as much,
    /// for its own bookkeeping); `None` asks for as much as helps. The granted size is read back.
    pub receive_buffer_bytes: Option<usize>,
    /// The largest path MTU, in bytes of payload, that connections may use; `None` takes what the
    /// route allows.
    pub max_path_mtu: Option<u32>,
    /// Whether to send and receive trains of packets in one piece (`UDP_SEGMENT`, `UDP_GRO`) where
    /// the kernel can. It is much faster; turn it off to look for a fault in a network device.
    pub trains: bool,
    /// Whether the kernel steers each packet to the socket of its group. Otherwise, and where it
    /// cannot, groups hand each other what is not theirs, which costs a copy.
    pub steering: bool,
    /// The UDP source ports of each group, 1 to 8, where the endpoint has port 4791. The
    /// connections between a group and a peer are spread over them, so that adapters and routers
    /// see several flows. `None` takes 4, and fewer beyond 2 groups, whose ports differ already.
    pub source_ports: Option<usize>,
    /// Whether to spread connections to this machine's own addresses as well. No adapter gains by
    /// that, and it costs system calls.
    pub spread_locally: bool,
    /// Faults to make on purpose in packets that arrive, for experiments; `None` takes what the
    /// environment variable `FEEDRAIL_SOFT_FAULTS` says, which is nothing when it is not set.
    pub faults: Option<Faults>,
}

impl SoftOptions {
    /// The options of an endpoint at `address` with one group.
    pub const fn new(address: IpAddr, port: PortChoice) -> Self {
        Self {
            address,
            port,
            groups: 1,
            receive_buffer_bytes: None,
            max_path_mtu: None,
            trains: true,
            steering: true,
            source_ports: None,
            spread_locally: false,
            faults: None,
        }
    }
}

/// Which UDP port an endpoint takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PortChoice {
    /// The RoCE v2 port 4791, as listeners and foreign peers need it.
    Roce,
    /// 4791 if it is free, else another: for initiators, whose peers of ours answer at any port.
    Any,
    /// Any but 4791: for an initiator that leaves that port to a target on the same address.
    Ephemeral,
}

/// Why an endpoint could not be opened. The text says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// The port is in use.
    #[error(
        "UDP port {port} of {address} is in use by {owner}. One process of each address can use \
         soft: end that one, or use another address of this machine",
        port = .address.port(), address = .address.ip()
    )]
    PortTaken {
        /// The endpoint that was wanted.
        address: SocketAddr,
        /// The owner of the port, as a phrase that says how to get the port back.
        owner: String,
    },
    /// The address belongs to no interface of this machine.
    #[error("{0} is not an address of this machine: `ip address` lists those that are")]
    NotLocal(IpAddr),
    /// The address is the wildcard, `0.0.0.0` or `::`.
    #[error("{0} is not one address: name the one to serve")]
    Wildcard(IpAddr),
    /// More groups than queue pair numbers can tell apart.
    #[error("{0} groups: a device has 1 to 255")]
    Groups(usize),
    /// More source ports than a group can have.
    #[error("{0} source ports: a group has 1 to 8")]
    SourcePorts(usize),
    /// The environment asks for faults that make no sense.
    #[error("{FAULTS_VARIABLE}: {0}")]
    Faults(#[from] UnknownFault),
    /// The system refused something else.
    #[error("{what}: {source}")]
    System {
        /// The step that failed, as a phrase: `cannot bind a UDP socket`.
        what: &'static str,
        /// The error of the system call.
        source: io::Error,
    },
}
