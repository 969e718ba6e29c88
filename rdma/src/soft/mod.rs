//! The `soft` provider: RoCE v2 in userspace over UDP sockets.
//!
//! An endpoint is an IP address and a UDP port: 4791, or for an initiator any port below the flow
//! ports, at which only Feedrail peers answer. It has one socket for the connection manager and one
//! per group; a classic BPF program selects the socket by destination queue pair. Sockets are not
//! connected, so that the IPv4 identification, which the invariant CRC covers, is predictable.

mod device;
mod faults;
mod options;
pub(crate) mod owner;
mod raw;
mod receive;
mod route;
mod socket;
mod trains;
mod transmit;
mod wire;

pub use device::{Soft, SoftDevice};
pub use faults::{FAULTS_VARIABLE, Faults, UnknownFault};
pub use options::{EndpointError, PortChoice, SoftOptions};
pub use owner::{process_with_socket, roce_port_owner};
pub use socket::local_address_for;
pub use wire::SoftWire;

pub use crate::roce::{MAX_GROUPS, ROCE_PORT};
