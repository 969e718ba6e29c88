//! Options to open a soft device, and the errors of opening it.

use std::io;
use std::net::{IpAddr, SocketAddr};

use super::faults::{FAULTS_VARIABLE, Faults, UnknownFault};

/// Options to open a soft device.
#[derive(Clone, Copy, Debug)]
pub struct SoftOptions {
    /// The local IP address; must not be the wildcard.
    pub address: IpAddr,
    /// The UDP port of its endpoint.
    pub port: PortChoice,
    /// Maximum number of groups; one socket for each is opened with the device.
    pub groups: usize,
    /// Receive buffer of each socket in bytes, as for `SO_RCVBUF` (Linux reserves twice as much,
    /// for its overhead); `None` for 8 MiB. The kernel may grant less.
    pub receive_buffer_bytes: Option<usize>,
    /// The largest path MTU in bytes of payload; `None` for what the route allows.
    pub max_path_mtu: Option<u32>,
    /// Whether to use UDP GSO and GRO (`UDP_SEGMENT`, `UDP_GRO`) if the kernel supports them. This
    /// is much faster; turn it off to find a fault in a network device.
    pub trains: bool,
    /// Whether the kernel selects the socket of the destination's group for each packet. If not, or
    /// if it cannot, groups forward packets to each other, which costs a copy.
    pub steering: bool,
    /// Number of UDP source ports of each group, 1 to 8, if the endpoint has port 4791. Connections
    /// between a group and a peer are spread over them, so that adapters and routers see several
    /// flows. `None` for 4, and fewer with more than 2 groups, whose ports differ anyway.
    pub source_ports: Option<usize>,
    /// Whether to use several source ports for connections to this machine's own addresses too. No
    /// adapter gains by that, and it costs system calls.
    pub spread_locally: bool,
    /// Injected faults; `None` for those in the environment variable `FEEDRAIL_SOFT_FAULTS`, if it
    /// is set.
    pub faults: Option<Faults>,
}

impl SoftOptions {
    /// The options of a device at `address` with one group.
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

/// The UDP port of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PortChoice {
    /// Port 4791, needed by listeners and for peers that are not Feedrail.
    Roce,
    /// Port 4791 if it is free, else a random port, at which only Feedrail peers answer: for
    /// initiators.
    Any,
    /// A port other than 4791: for an initiator that leaves 4791 to a target at the same address.
    Ephemeral,
}

/// Error of opening a soft device. The text has the fix.
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
        /// The endpoint that was requested.
        address: SocketAddr,
        /// The owner of the port, as a phrase that includes how to free the port.
        owner: String,
    },
    /// The address belongs to no interface of this machine.
    #[error("{0} is not an address of this machine: `ip address` lists those that are")]
    NotLocal(IpAddr),
    /// The address is the wildcard, `0.0.0.0` or `::`.
    #[error("{0} is not one address: name the one to serve")]
    Wildcard(IpAddr),
    /// The number of groups is 0 or greater than queue pair numbers can distinguish.
    #[error("{0} groups: a device has 1 to 255")]
    Groups(usize),
    /// The number of source ports is 0 or greater than a group can have.
    #[error("{0} source ports: a group has 1 to 8")]
    SourcePorts(usize),
    /// The environment variable has invalid faults.
    #[error("{FAULTS_VARIABLE}: {0}")]
    Faults(#[from] UnknownFault),
    /// Another system call failed.
    #[error("{what}: {source}")]
    System {
        /// The step that failed, as a phrase such as `cannot bind a UDP socket`.
        what: &'static str,
        /// The error of the system call.
        source: io::Error,
    },
}
