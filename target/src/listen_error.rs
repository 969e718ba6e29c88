//! Reasons that a target cannot listen.

use std::io;
use std::net::{IpAddr, SocketAddr};

use rdma::CmError;
use rdma::soft::EndpointError;
use rdma::verbs::VerbsError;

use crate::limits::{MAX_DEVICES, MAX_PORTS};

/// Reason that an address cannot be listened on: one line with the remedy.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// No provider serves it.
    #[error(transparent)]
    Provider(#[from] rdma::SelectError),
    /// The soft provider cannot serve it.
    #[error(transparent)]
    Soft(EndpointError),
    /// The soft provider's port is in use, perhaps by the RDMA device that was not chosen.
    #[error("{error} (the provider soft was chosen because: {reason})")]
    PortTaken {
        /// Reason that soft was chosen.
        reason: String,
        /// Reason that it cannot listen there.
        error: EndpointError,
    },
    /// The shared-memory provider cannot serve it.
    #[error("memory cannot be shared with hosts: {0}")]
    Shm(io::Error),
    /// The verbs provider cannot serve it.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// A port cannot be listened on, or a device refuses resources.
    #[error(transparent)]
    Add(#[from] AddError),
    /// The system refuses the address.
    #[error("cannot listen at {address}: {error}")]
    System {
        /// Address of the configuration.
        address: IpAddr,
        /// Error of the system call.
        error: io::Error,
    },
    /// The address is a wildcard or of no interface.
    #[error(
        "{0} is not the address of an interface; a [[port]] of the configuration can have a wildcard address"
    )]
    NoInterface(SocketAddr),
    /// The target listens on the largest number of ports already.
    #[error("more than {MAX_PORTS} addresses with ports to listen on")]
    TooMany,
}

/// Reason that a device cannot be added.
#[derive(Debug, thiserror::Error)]
pub enum AddError {
    /// No port can be listened on.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Memory, a group or the connection manager is refused.
    #[error("the device at {address} refuses resources: {error}")]
    Device {
        /// Local address of the device.
        address: IpAddr,
        /// Error of the device or of the system.
        error: io::Error,
    },
    /// There are more devices than a poll group serves.
    #[error("more than {MAX_DEVICES} devices")]
    TooMany,
    /// The target is about to end.
    #[error("the target is stopping")]
    Stopping,
}

/// Reason that a port cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {error}")]
pub struct ListenError {
    /// Port ID of the configuration.
    pub port_id: u16,
    /// Address that it was to listen on.
    pub address: SocketAddr,
    /// Error of the connection manager.
    pub error: CmError,
}
