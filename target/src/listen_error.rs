//! Errors of listening on an address.

use std::io;
use std::net::{IpAddr, SocketAddr};

use rdma::CmError;
use rdma::soft::EndpointError;
use rdma::verbs::VerbsError;

use crate::limits::{MAX_DEVICES, MAX_PORTS};

/// Reason that an address cannot be listened on; its message is one line with the remedy.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// No RDMA provider can serve the address.
    #[error(transparent)]
    Provider(#[from] rdma::SelectError),
    /// The soft provider (RoCE v2 in software) cannot serve the address.
    #[error(transparent)]
    Soft(EndpointError),
    /// The UDP port of the soft provider is in use, perhaps by an RDMA device that was not
    /// selected.
    #[error("{error} (the provider soft was chosen because: {reason})")]
    PortTaken {
        /// Reason that the soft provider was selected.
        reason: String,
        /// Error of binding the port.
        error: EndpointError,
    },
    /// The shared-memory provider cannot serve the address.
    #[error("memory cannot be shared with hosts: {0}")]
    Shm(io::Error),
    /// The verbs provider (RDMA hardware) cannot serve the address.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// No port of the device can be listened on, or the device refuses resources.
    #[error(transparent)]
    Add(#[from] AddError),
    /// Binding a UDP socket to the address failed.
    #[error("cannot listen at {address}: {error}")]
    System {
        /// Local address to bind.
        address: IpAddr,
        /// Error of the system call.
        error: io::Error,
    },
    /// An address to add at run time is a wildcard or multicast address, or its port number is 0.
    #[error(
        "{0} is not the address of an interface; a [[port]] of the configuration can have a wildcard address"
    )]
    NoInterface(SocketAddr),
    /// The target has `MAX_PORTS` ports already, or no port ID is free.
    #[error("more than {MAX_PORTS} addresses with ports to listen on")]
    TooMany,
}

/// Reason that a device cannot be added to the running target.
#[derive(Debug, thiserror::Error)]
pub enum AddError {
    /// No port of the device can be listened on.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The device refuses a memory registration, a group of queue pairs or the connection manager.
    #[error("the device at {address} refuses resources: {error}")]
    Device {
        /// Local address of the device.
        address: IpAddr,
        /// Error of the device or of the system.
        error: io::Error,
    },
    /// There are `MAX_DEVICES` devices already, the most that a poll group serves.
    #[error("more than {MAX_DEVICES} devices")]
    TooMany,
    /// The target is stopping.
    #[error("the target is stopping")]
    Stopping,
}

/// Failure to listen on one port of a device.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {error}")]
pub struct ListenError {
    /// Port ID (PORTID) of the port.
    pub port_id: u16,
    /// Address of the port.
    pub address: SocketAddr,
    /// Error of the connection manager.
    pub error: CmError,
}
