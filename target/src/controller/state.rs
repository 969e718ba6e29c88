//! State of a controller, which the queues of one association share.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use nvme_proto::log::ErrorLogEntry;
use nvme_proto::registers::{Cc, Csts};
use nvme_proto::{Cntlid, Nqn, Nsid, Status};
use rdma::Time;

use super::associations::Associations;
use super::async_event::AsyncEvents;
use super::auth_state::ProofDemand;
use super::error_log::ErrorLog;
use super::features::Features;
use super::jobs::Jobs;
use super::kind::ControllerKind;
use super::members::Members;
use super::stage::{Epoch, Stage};
use super::support::{Opcodes, Support};
use crate::inventory::Inventory;
use crate::inventory::ana::AnaStates;
use crate::inventory::host_keys::TransactionTerms;
use crate::inventory::index::NamespaceIndex;
use crate::inventory::named_host::NamedHost;
use crate::inventory::namespace::Namespace;
use crate::inventory::port::Port;
use crate::inventory::subsystem::Subsystem;
use crate::limits::peer::RemotePeer;
use crate::limits::{
    ANONYMOUS_TRANSFER_BYTES, DISCOVERY_KEEP_ALIVE, KEEP_ALIVE_GRANULARITY, Limits,
};
use crate::qos::Quota;

/// An NVMe controller: the association of one host with a subsystem or the discovery service.
#[derive(Debug)]
pub struct Controller {
    /// Controller ID, unique among the live I/O controllers or the live discovery controllers.
    pub cntlid: Cntlid,
    pub(crate) kind: ControllerKind,
    /// Host that connected the admin queue.
    pub(crate) host: NamedHost,
    /// Port that the host connected to.
    pub(crate) port: Arc<Port>,
    /// ANA states of the subsystem at this port.
    pub(crate) ana: Arc<AnaStates>,
    /// IP address and UDP port of the host.
    pub peer: SocketAddr,
    /// Time of the Connect command of the admin queue.
    pub connected_at: Time,
    pub(super) associations: Weak<Associations>,
    /// Whether the host has to authenticate on each queue.
    pub(crate) authenticates: bool,
    pub(super) proof: ProofDemand,
    /// Quota of the host in the subsystem; `None` for a discovery controller.
    pub(crate) quota: Option<Arc<Quota>>,
    /// Whether the start of the association was logged, so that its end is logged as well.
    pub(super) start_logged: bool,
    pub(super) limits: Limits,
    pub(super) support: Support,
    pub(super) io_opcodes: Opcodes,
    pub(super) stage: Stage,
    /// First serial number of namespaces that are added after the association began.
    later_serial: u32,
    /// Keep Alive Timeout in milliseconds; 0 if the host requested none.
    pub(super) keep_alive_ms: AtomicU32,
    shared: Mutex<SharedState>,
}

/// State that the queues of an association share, behind a lock.
#[derive(Debug)]
pub(super) struct SharedState {
    pub(super) cc: Cc,
    pub(super) csts: Csts,
    pub(super) members: Members,
    pub(super) jobs: Jobs,
    pub(super) async_events: AsyncEvents,
    pub(super) errors: ErrorLog,
    /// Namespaces with a reused NSID that the host has identified since they were added.
    identified: BTreeSet<NamespaceIndex>,
    pub(super) features: Features,
}

/// Log messages about an association: connected, ending, disconnected.
const LIFE_MESSAGES: u32 = 3;

impl Controller {
    pub(super) fn new(
        associations: &Arc<Associations>,
        cntlid: Cntlid,
        new: NewController,
    ) -> Self {
        let errors = match &new.kind {
            ControllerKind::Nvm(subsystem) => Arc::clone(&subsystem.errors),
            ControllerKind::Discovery(_) => Arc::default(),
        };
        let support = Support::of(&new.kind);
        let io_queues = associations.inventory().limits().io_queues;
        let mut limits = associations.inventory().limits().clone();
        if let ControllerKind::Discovery(_) = new.kind {
            limits.max_transfer_bytes = limits.max_transfer_bytes.min(ANONYMOUS_TRANSFER_BYTES);
        }
        Self {
            cntlid,
            authenticates: new.kind.demands_authentication(associations.inventory(), &new.host),
            proof: ProofDemand::default(),
            quota: new.kind.quota_of(&new.host),
            kind: new.kind,
            host: new.host,
            port: new.port,
            ana: new.ana,
            peer: new.peer.address,
            connected_at: new.now,
            support,
            io_opcodes: support.io_opcodes(),
            associations: Arc::downgrade(associations),
            start_logged: associations.log_rate().allows_all(new.now, LIFE_MESSAGES),
            limits,
            stage: Stage::new(),
            later_serial: associations.inventory().exports().next_serial(),
            keep_alive_ms: AtomicU32::new(new.keep_alive_ms),
            shared: Mutex::new(SharedState {
                cc: Cc::new(),
                csts: Csts::new(),
                members: Members::default(),
                jobs: Jobs::default(),
                async_events: AsyncEvents::default(),
                errors: ErrorLog::new(errors),
                identified: BTreeSet::new(),
                features: Features::new(io_queues),
            }),
        }
    }

    /// Whether a host that sends the NSID of a namespace can mean this one. False if it replaced,
    /// under the same NSID, a namespace that the host may still expect.
    pub(super) fn knows(&self, namespace: &Namespace) -> bool {
        // Serial numbers increase, and wrap after 2^32.
        let is_later = namespace.index.serial.wrapping_sub(self.later_serial) < u32::MAX / 2;
        !(namespace.takes_over && is_later) || self.shared().identified.contains(&namespace.index)
    }

    /// Returns the NQN of the target's discovery service.
    pub(super) fn discovery_nqn(&self) -> Nqn {
        let associations = self.associations.upgrade();
        associations.map_or(Nqn::DISCOVERY, |associations| associations.inventory().discovery_nqn())
    }

    /// Records that the host has identified a namespace, if its NSID is a reused one.
    pub(super) fn note_identified(&self, namespace: &Namespace) {
        if self.knows(namespace) {
            return;
        }
        let exports = self.associations.upgrade().map(|of| of.inventory().exports());
        let is_there = |index: &NamespaceIndex| {
            exports.as_ref().is_some_and(|exports| exports.namespace(*index).is_some())
        };
        let mut shared = self.shared();
        shared.identified.retain(is_there);
        shared.identified.insert(namespace.index);
    }

    /// Subsystem of an I/O controller; `None` for a discovery controller.
    pub(crate) fn subsystem(&self) -> Option<&Arc<Subsystem>> {
        match &self.kind {
            ControllerKind::Nvm(subsystem) => Some(subsystem),
            ControllerKind::Discovery(_) => None,
        }
    }

    /// NQN of its subsystem or of the discovery service.
    pub(super) fn nqn(&self) -> Nqn {
        match &self.kind {
            ControllerKind::Nvm(subsystem) => subsystem.nqn,
            ControllerKind::Discovery(nqn) => **nqn,
        }
    }

    /// Keys and parameters for the next authentication of the host.
    pub(super) fn transaction_terms(&self, inventory: &Inventory) -> TransactionTerms {
        self.kind.transaction_terms(inventory, &self.host)
    }

    /// Whether its subsystem is still served at the port that the host connected to.
    pub(crate) fn is_served(&self) -> bool {
        self.subsystem().is_none_or(|subsystem| self.port.still_serves(subsystem, &self.ana))
    }

    /// Returns the namespace with the NSID, if the host may see it.
    pub(super) fn namespace(&self, nsid: Nsid) -> Option<Arc<Namespace>> {
        let found = self.subsystem()?.namespace(nsid);
        found.filter(|namespace| namespace.is_visible_to(&self.host))
    }

    pub(crate) fn is_discovery(&self) -> bool {
        matches!(self.kind, ControllerKind::Discovery(_))
    }

    /// Keep Alive Timeout, rounded up to KAS. `None` if the host disabled it, which it cannot do on
    /// a discovery controller.
    pub(super) fn keep_alive(&self) -> Option<Duration> {
        match (self.keep_alive_ms.load(Ordering::Relaxed), &self.kind) {
            (0, ControllerKind::Nvm(_)) => None,
            (0, ControllerKind::Discovery(_)) => Some(DISCOVERY_KEEP_ALIVE),
            (ms, _) => Some(round_up(Duration::from_millis(ms.into()))),
        }
    }

    /// Adds an entry to the Error Information log.
    pub(super) fn log_error(&self, entry: ErrorLogEntry) {
        self.shared().errors.push(entry);
    }

    /// Epoch, if commands other than fabrics commands are allowed now.
    pub(super) fn ready_epoch(&self) -> Option<Epoch> {
        self.stage.ready_epoch()
    }

    /// Whether commands that arrived in this epoch are allowed.
    pub(super) fn is_ready_in(&self, epoch: Epoch) -> bool {
        self.stage.is_ready_in(epoch)
    }

    /// Status for a command that is not allowed now.
    pub(super) fn refusal(&self) -> Status {
        self.stage.refusal()
    }

    /// Whether commands other than fabrics commands are allowed now.
    pub(super) fn is_ready(&self) -> bool {
        self.ready_epoch().is_some()
    }

    pub(super) fn shared(&self) -> MutexGuard<'_, SharedState> {
        // No holder of the lock can panic halfway through a change.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Parameters of a new controller, from the Connect command and its connection.
#[derive(Debug)]
pub(crate) struct NewController {
    pub(crate) kind: ControllerKind,
    pub(crate) host: NamedHost,
    pub(crate) port: Arc<Port>,
    pub(crate) ana: Arc<AnaStates>,
    pub(crate) peer: RemotePeer,
    pub(crate) keep_alive_ms: u32,
    pub(crate) now: Time,
}

/// Rounds up to a multiple of the granularity that controllers report (KAS).
fn round_up(interval: Duration) -> Duration {
    let unit = KEEP_ALIVE_GRANULARITY.as_millis();
    let units = interval.as_millis().div_ceil(unit);
    Duration::from_millis(u64::try_from(units * unit).unwrap_or(u64::MAX))
}
