//! Transports, which move capsules and data, and acceptors of connections.

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

    /// Responds to the Abort of a request whose storage operation cannot be cancelled.
    fn operation_not_cancelled(&mut self, core: &mut CoreContext, whose: RequestKey);

    /// Continues a request that waited for a buffer.
    fn buffer_granted(&mut self, core: &mut CoreContext, whose: RequestKey, buffer: Buffer);

    /// Sends the responses of the turn and submits all work requests to the device.
    fn flush(&mut self, core: &mut CoreContext);

    /// Time at which [`Transport::turn`] must run even if nothing arrives.
    fn deadline(&self) -> Option<Time>;

    /// Arms the device, so that the next completion that `what` covers makes [`Transport::watched`]
    /// readable. Returns whether one more turn is needed before sleeping.
    fn arm(&mut self, what: WakeFor) -> bool;

    /// Acknowledges the events that made [`Transport::watched`] readable.
    fn woken(&mut self);

    /// Descriptor of the device to sleep on; `None` under a simulator.
    fn watched(&self) -> Option<RawFd>;

    /// Starts to end every connection, as `how` says.
    fn stop(&mut self, how: Stop);

    /// Whether no connection is left.
    fn is_empty(&self) -> bool;

    /// Whether its device has failed and all its connections have ended, so that it can be dropped.
    fn is_over(&self) -> bool;

    /// Counters of its group of the RDMA provider.
    fn stats(&self) -> GroupStats;
}

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
    /// Counters of an acceptor.
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
