//! Transports: how capsules and data travel between hosts and a poll group.

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

/// One way to reach hosts, on one core. A poll group calls it; one virtual call per turn and event.
pub(crate) trait Transport: Send {
    /// Handles arrived capsules, completions and messages of other threads; true if there were any.
    fn turn(&mut self, core: &mut CoreContext) -> bool;

    /// A request's operation ended.
    fn operation_ended(
        &mut self,
        core: &mut CoreContext,
        whose: RequestKey,
        result: Result<(), BackendError>,
    );

    /// A request's operation was to be cancelled and can not be.
    fn operation_not_cancelled(&mut self, core: &mut CoreContext, whose: RequestKey);

    /// A request that stood in line gets its buffer.
    fn buffer_granted(&mut self, core: &mut CoreContext, whose: RequestKey, buffer: Buffer);

    /// Hands everything to the device that the turn produced.
    fn flush(&mut self, core: &mut CoreContext);

    /// When [`Transport::turn`] must run again though nothing arrives.
    fn deadline(&self) -> Option<Time>;

    /// Asks for a wake-up on [`Transport::watched`]. Returns whether one more turn is due before
    /// sleeping.
    fn arm(&mut self, what: WakeFor) -> bool;

    /// Takes the events of [`Transport::watched`], which was readable.
    fn woken(&mut self);

    /// The descriptor to sleep on; nothing where a simulator drives.
    fn watched(&self) -> Option<RawFd>;

    /// Ends every connection: now, or as soon as it has no command under way.
    fn stop(&mut self, how: Stop);

    /// Whether no connection is left.
    fn is_empty(&self) -> bool;

    /// Whether its device is gone, and so are its connections: it can be dropped.
    fn is_over(&self) -> bool;

    /// Counters of its device group.
    fn stats(&self) -> GroupStats;
}

/// Where hosts knock: takes connections in and places them on cores. One per device.
pub(crate) trait Reception: Send {
    /// The address of its device.
    fn local_ip(&self) -> IpAddr;

    /// Listens for a port; returns the address, whose port number was chosen if it was 0.
    ///
    /// # Errors
    /// The error of the connection manager.
    fn listen(&mut self, port: Arc<Port>) -> Result<SocketAddr, CmError>;

    /// Handles events of the connection manager and messages of groups; true if there were any.
    fn turn(&mut self, now: Time) -> bool;

    /// When [`Reception::turn`] must run again though nothing arrives.
    fn deadline(&self) -> Option<Time>;

    /// The descriptors to sleep on.
    fn watched(&self) -> [Option<RawFd>; 3];

    /// Before a sleep: false if another thread has something for it.
    fn may_sleep(&self) -> bool;

    /// Takes no more connections.
    fn close(&mut self);

    /// Takes no more connections for a port.
    fn close_port(&mut self, port: &Arc<Port>);

    /// Whether its device is gone: it takes no connections any more.
    fn has_failed(&self) -> bool;

    /// Whether every connection has ended and its disconnection was confirmed or given up.
    fn is_empty(&self) -> bool;

    /// Whether its device is gone, and so are its connections: it can be dropped.
    fn is_over(&self) -> bool {
        self.has_failed() && self.is_empty()
    }

    /// Counters of this reception since the start.
    fn stats(&self) -> ReceptionStats;
}

::rdma::counters! {
    /// Counters of a reception.
    pub(crate) struct ReceptionStats {
        /// Connections that exist now.
        connections,
        /// Connections accepted since the start.
        accepted,
        /// Connection requests rejected since the start.
        rejected,
    }
}

/// Whether a device is gone.
#[derive(Debug, Default)]
pub(crate) struct DeviceFailure(AtomicBool);

impl DeviceFailure {
    /// Notes that it is; false if that is known.
    pub(crate) fn note(&self) -> bool {
        !self.0.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn is_noted(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// How connections end when the target does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stop {
    /// Each when its commands are answered.
    Drain,
    /// At once, without a response to commands under way.
    Now,
}
