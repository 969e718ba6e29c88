//! Acceptors of connections, and the transport of capsules and data over RDMA.

pub(crate) mod rdma;

use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ::rdma::{CmError, Time};

use crate::inventory::port::Port;

/// Acceptor, which accepts connections at one device and assigns them to cores.
pub(crate) trait Acceptor: Send {
    /// IP address of its device.
    fn local_ip(&self) -> IpAddr;

    /// Listens on a port; returns the address, with the chosen port number if it was 0.
    ///
    /// # Errors
    /// The error of the RDMA connection manager.
    fn listen(&mut self, port: Arc<Port>) -> Result<SocketAddr, CmError>;

    /// Handles connection manager events and messages of poll groups; true if there were any.
    fn turn(&mut self, now: Time) -> bool;

    /// Time at which [`Acceptor::turn`] must run even if nothing arrives.
    fn deadline(&self) -> Option<Time>;

    /// File descriptors to sleep on: connection manager, device events, doorbell.
    fn watched(&self) -> [Option<RawFd>; 3];

    /// Whether the thread may sleep: false if another thread has sent work.
    fn may_sleep(&self) -> bool;

    /// Stops listening, so that later connection requests are rejected.
    fn close(&mut self);

    /// Stops listening on one port.
    fn close_port(&mut self, port: &Arc<Port>);

    /// Whether its device was removed or has failed; no connections are accepted then.
    fn has_failed(&self) -> bool;

    /// Whether every connection has ended, and its disconnect was confirmed or timed out.
    fn is_empty(&self) -> bool;

    /// Whether its device has failed and all its connections have ended, so that it can be dropped.
    fn is_over(&self) -> bool {
        self.has_failed() && self.is_empty()
    }

    /// Counters since the start.
    fn stats(&self) -> AcceptorStats;
}

::rdma::counters! {
    pub(crate) struct AcceptorStats {
        /// Connections (queue pairs) that exist now, disconnecting ones included.
        connections,
        /// Connections accepted since the start.
        accepted,
        /// Connection requests rejected since the start.
        rejected,
    }
}

/// Flag that a device was removed or has failed.
#[derive(Debug, Default)]
pub(crate) struct DeviceFailure(AtomicBool);

impl DeviceFailure {
    /// Sets the flag; false if it was set before.
    pub(crate) fn note(&self) -> bool {
        !self.0.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn is_noted(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// How connections end when the target stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// Each connection ends once its running commands have a response; no new command is started.
    Drain,
    /// Immediately, without a response to running commands.
    Now,
}
