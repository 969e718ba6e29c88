//! Transports: move capsules and data between hosts and a poll group.

pub(crate) mod rdma;

use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ::rdma::{CmError, GroupStats, Time, WakeFor};

use crate::backend::BackendError;
use crate::core_context::pool::Buffer;
use crate::core_context::{CoreContext, RequestKey};
use crate::inventory::port::Port;

/// Transport of one device on one core. A poll group makes one virtual call per turn and event.
pub(crate) trait Transport: Send {
    /// Handles arrived capsules, completions and messages of other threads; true if there were any.
    fn turn(&mut self, core: &mut CoreContext) -> bool;

    /// Continues a request whose storage operation has ended.
    fn operation_ended(
        &mut self,
        core: &mut CoreContext,
        whose: RequestKey,
        result: Result<(), BackendError>,
    );

    /// Continues a request whose storage operation cannot be cancelled.
    fn operation_not_cancelled(&mut self, core: &mut CoreContext, whose: RequestKey);

    /// Gives a waiting request its buffer.
    fn buffer_granted(&mut self, core: &mut CoreContext, whose: RequestKey, buffer: Buffer);

    /// Submits to the device everything that the turn produced.
    fn flush(&mut self, core: &mut CoreContext);

    /// Time at which [`Transport::turn`] must run even if nothing arrives.
    fn deadline(&self) -> Option<Time>;

    /// Arms a wake-up on [`Transport::watched`]. Returns whether one more turn is needed before
    /// sleeping.
    fn arm(&mut self, what: WakeFor) -> bool;

    /// Consumes the events that made [`Transport::watched`] readable.
    fn woken(&mut self);

    /// Descriptor to sleep on; `None` under a simulator.
    fn watched(&self) -> Option<RawFd>;

    /// Ends every connection: immediately, or once its running commands are answered.
    fn stop(&mut self, how: Stop);

    /// Whether no connection is left.
    fn is_empty(&self) -> bool;

    /// Whether its device and connections are gone, so that it can be dropped.
    fn is_over(&self) -> bool;

    /// Counters of its device group.
    fn stats(&self) -> GroupStats;
}

/// Accepts connections of one device and places them on cores.
pub(crate) trait Acceptor: Send {
    /// IP address of its device.
    fn local_ip(&self) -> IpAddr;

    /// Listens for a port; returns the address, with a chosen port number if it was 0.
    ///
    /// # Errors
    /// The error of the connection manager.
    fn listen(&mut self, port: Arc<Port>) -> Result<SocketAddr, CmError>;

    /// Handles events of the connection manager and messages of groups; true if there were any.
    fn turn(&mut self, now: Time) -> bool;

    /// Time at which [`Acceptor::turn`] must run even if nothing arrives.
    fn deadline(&self) -> Option<Time>;

    /// Descriptors to sleep on.
    fn watched(&self) -> [Option<RawFd>; 3];

    /// Checks for work of other threads before a sleep: false if there is some.
    fn may_sleep(&self) -> bool;

    /// Rejects all later connections.
    fn close(&mut self);

    /// Rejects later connections to a port.
    fn close_port(&mut self, port: &Arc<Port>);

    /// Whether its device is gone, so that it accepts no connections.
    fn has_failed(&self) -> bool;

    /// Whether every connection has ended, with its disconnect confirmed or given up.
    fn is_empty(&self) -> bool;

    /// Whether its device and connections are gone, so that it can be dropped.
    fn is_over(&self) -> bool {
        self.has_failed() && self.is_empty()
    }

    /// Counters of this acceptor since the start.
    fn stats(&self) -> AcceptorStats;
}

::rdma::counters! {
    /// Counters of an acceptor.
    pub(crate) struct AcceptorStats {
        /// Connections that exist now.
        connections,
        /// Connections accepted since the start.
        accepted,
        /// Connection requests rejected since the start.
        rejected,
    }
}

/// Flag that a device is gone.
#[derive(Debug, Default)]
pub(crate) struct DeviceFailure(AtomicBool);

impl DeviceFailure {
    /// Sets the flag; false if it was set.
    pub(crate) fn note(&self) -> bool {
        !self.0.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn is_noted(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Way in which connections end when the target stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// Each connection ends once its commands are answered.
    Drain,
    /// Immediately, without a response to running commands.
    Now,
}
