//! Causes for which a target cannot listen.

use std::io;
use std::net::{IpAddr, SocketAddr};

use rdma::CmError;
use rdma::soft::EndpointError;
use rdma::verbs::VerbsError;

use crate::limits::{MAX_DEVICES, MAX_PORTS};

/// Why an address can not be listened on; one line with the remedy.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// No provider serves it.
    #[error(transparent)]
    Provider(#[from] rdma::SelectError),
    /// The soft provider can not serve it.
    #[error(transparent)]
    Soft(EndpointError),
    /// The soft provider's port is taken, perhaps by the RDMA device that was not chosen.
    #[error("{error} (it is to be soft, because of this: {reason})")]
    PortTaken {
        /// Why soft was chosen.
        reason: String,
        /// The cause for which it can not listen there.
        error: EndpointError,
    },
    /// The shared-memory provider can not serve it.
    #[error("no shared memory with peers: {0}")]
    Shm(io::Error),
    /// The verbs provider can not serve it.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// A port can not be listened on, or a device refuses resources.
    #[error(transparent)]
    Add(#[from] AddError),
    /// The system refuses it.
    #[error("cannot listen at {address}: {error}")]
    System {
        /// The address of the configuration.
        address: IpAddr,
        /// The error of the system call.
        error: io::Error,
    },
    /// It stands for many, or for none.
    #[error(
        "{0} is not the address of an interface; a [[port]] of the configuration can have a wildcard address"
    )]
    NoInterface(SocketAddr),
    /// The target listens in many places already.
    #[error("more than {MAX_PORTS} addresses with ports to listen on")]
    TooMany,
}

/// Why a device can not be added.
#[derive(Debug, thiserror::Error)]
pub enum AddError {
    /// No port can be listened on.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Memory, a group or the connection manager is refused.
    #[error("the device at {address} refuses resources: {error}")]
    Device {
        /// The local address of the device.
        address: IpAddr,
        /// The error of the device or of the system.
        error: io::Error,
    },
    /// More devices than a poll group serves.
    #[error("more than {MAX_DEVICES} devices")]
    TooMany,
    /// The target is about to end.
    #[error("the target is stopping")]
    Stopping,
}

/// A port can not be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {error}")]
pub struct ListenError {
    /// Port id of the configuration.
    pub port_id: u16,
    /// The address that it was to listen on.
    pub address: SocketAddr,
    /// The error of the connection manager.
    pub error: CmError,
}
