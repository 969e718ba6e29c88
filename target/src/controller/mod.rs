//! Controllers: what NVMe is, apart from how bytes move.
//!
//! A [`Queue`] is one connection's view, owned by its core. [`Controller`] is what the queues of
//! one association share. The data path reads atomics of it; everything else is behind one lock.
//! Nothing here waits, reads a clock or does I/O.
//!
//! Not offered: authentication, static controllers, PRPs, fused operations, metadata, reservations,
//! ANA, namespace management, NVM subsystem reset.

mod admin;
mod association;
mod associations;
mod async_event;
mod command;
mod discovery;
mod error_log;
mod fabrics;
mod feature;
mod hold;
mod identify;
mod io;
mod jobs;
mod life;
mod link;
mod log;
mod queue;
mod support;

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use nvme_proto::Cntlid;
use nvme_proto::registers::{Cc, Csts};
use rdma::Time;

pub use self::associations::Associations;
pub use self::command::{
    AbortRequest, CloseReason, CommandOutcome, CommandTransfer, CommandWork, ControlWork,
    Execution, IoKind, IoWork, ParsedCommand, QueueEvent, TransferDirection,
};
pub use self::hold::CommandHold;
pub use self::jobs::{FlushJob, Settle};
pub use self::link::Lost;
pub use self::queue::{Accepted, Queue};

use self::association::Members;
use self::async_event::AsyncEvents;
use self::error_log::ErrorLog;
use self::feature::Features;
use self::jobs::Jobs;
use self::support::{Opcodes, Support};
use crate::inventory::allowed_host::NamedHost;
use crate::inventory::port::Port;
use crate::inventory::subsystem::Subsystem;
use crate::limits::{
    ANONYMOUS_TRANSFER_BYTES, DISCOVERY_KEEP_ALIVE, KEEP_ALIVE_GRANULARITY, Limits,
};

/// A controller: one host's association with one subsystem, or with the discovery service.
#[derive(Debug)]
pub struct Controller {
    /// Its id.
    pub cntlid: Cntlid,
    /// What it offers.
    pub kind: ControllerKind,
    /// Who connected.
    pub host: NamedHost,
    /// Where.
    pub port: Arc<Port>,
    /// From which address.
    pub peer: SocketAddr,
    /// When.
    pub connected_at: Time,
    associations: Weak<Associations>,
    /// Whether the log speaks of it.
    announced: bool,
    limits: Limits,
    support: Support,
    io_opcodes: Opcodes,
    /// [`life::RegisterPhase`] and [`Epoch`](life::Epoch).
    stage: AtomicU64,
    keep_alive_ms: AtomicU32,
    shared: Mutex<SharedState>,
}

/// What a controller offers.
#[derive(Clone, Debug)]
pub enum ControllerKind {
    /// The namespaces of a subsystem.
    Nvm(Arc<Subsystem>),
    /// The discovery log.
    Discovery,
}

/// What the queues of an association share, behind the lock.
#[derive(Debug)]
struct SharedState {
    cc: Cc,
    csts: Csts,
    members: Members,
    jobs: Jobs,
    async_events: AsyncEvents,
    errors: ErrorLog,
    features: Features,
}

/// An association is connected, ends, and is disconnected.
const LIFE_MESSAGES: u32 = 3;

impl Controller {
    fn new(associations: &Arc<Associations>, cntlid: Cntlid, new: NewController) -> Self {
        let errors = match &new.kind {
            ControllerKind::Nvm(subsystem) => Arc::clone(&subsystem.errors),
            ControllerKind::Discovery => Arc::default(),
        };
        let support = Support::of(&new.kind);
        let io_queues = associations.registry().limits().io_queues;
        let mut limits = associations.registry().limits().clone();
        if let ControllerKind::Discovery = new.kind {
            limits.max_transfer_bytes = limits.max_transfer_bytes.min(ANONYMOUS_TRANSFER_BYTES);
        }
        Self {
            cntlid,
            kind: new.kind,
            host: new.host,
            port: new.port,
            peer: new.peer,
            connected_at: new.now,
            support,
            io_opcodes: support.io_opcodes(),
            associations: Arc::downgrade(associations),
            announced: associations.chatter().allows_all(new.now, LIFE_MESSAGES),
            limits,
            stage: AtomicU64::new(0),
            keep_alive_ms: AtomicU32::new(new.keep_alive_ms),
            shared: Mutex::new(SharedState {
                cc: Cc::new(),
                csts: Csts::new(),
                members: Members::default(),
                jobs: Jobs::default(),
                async_events: AsyncEvents::default(),
                errors: ErrorLog::new(errors),
                features: Features::new(io_queues),
            }),
        }
    }

    /// The subsystem, unless it is the discovery service.
    pub fn subsystem(&self) -> Option<&Arc<Subsystem>> {
        match &self.kind {
            ControllerKind::Nvm(subsystem) => Some(subsystem),
            ControllerKind::Discovery => None,
        }
    }

    pub(crate) fn is_discovery(&self) -> bool {
        matches!(self.kind, ControllerKind::Discovery)
    }

    /// The keep-alive interval; `None` when the host asked for none.
    fn keep_alive(&self) -> Option<Duration> {
        match (self.keep_alive_ms.load(Ordering::Relaxed), &self.kind) {
            (0, ControllerKind::Nvm(_)) => None,
            (0, ControllerKind::Discovery) => Some(DISCOVERY_KEEP_ALIVE),
            (ms, _) => Some(round_up(Duration::from_millis(ms.into()))),
        }
    }

    fn shared(&self) -> MutexGuard<'_, SharedState> {
        // Nothing that holds the lock leaves the state half changed.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a Connect command says about the controller to make.
#[derive(Debug)]
pub(crate) struct NewController {
    pub(crate) kind: ControllerKind,
    pub(crate) host: NamedHost,
    pub(crate) port: Arc<Port>,
    pub(crate) peer: SocketAddr,
    pub(crate) keep_alive_ms: u32,
    pub(crate) now: Time,
}

/// To the granularity that controllers report (KAS).
fn round_up(interval: Duration) -> Duration {
    let unit = KEEP_ALIVE_GRANULARITY.as_millis();
    let units = interval.as_millis().div_ceil(unit);
    Duration::from_millis(u64::try_from(units * unit).unwrap_or(u64::MAX))
}
