//! Live controllers of a target, and state about hosts that outlives an association.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nvme_proto::{Cntlid, HostId, Nqn};

use super::authenticator::{Authenticator, system_random};
use super::command_trace::CommandTrace;
use super::event::CloseReason;
use super::kind::ControllerKind;
use super::state::{Controller, NewController};
use crate::inventory::Inventory;
use crate::inventory::namespace::Namespace;
use crate::inventory::subsystem::Subsystem;
use crate::limits::connection_quota::{Admissions, ConnectionPermit, Full};
use crate::limits::displacing_set::{DisplacingLimits, DisplacingSet};
use crate::limits::log_rate::LogRateLimit;
use crate::limits::peer::Party;
use crate::limits::{CntlidRange, MAX_ASSOCIATIONS};
use crate::metrics::peer_errors::PeerErrorTable;

/// All live associations of a target, and its state about hosts: their errors, their connection
/// permits, and the rate of log messages about them.
#[derive(Debug)]
pub struct Associations {
    pub(super) inventory: Arc<Inventory>,
    live: Mutex<LiveControllers>,
    stopping: AtomicBool,
    peer_errors: PeerErrorTable,
    keep_alive_losses: AtomicU64,
    /// Generation Counter (GENCTR) of the discovery logs: changes that may concern some host.
    pub(super) discovery_changes: AtomicU64,
    admissions: Arc<Admissions>,
    log_rate: LogRateLimit,
    pub(super) storage_log_rate: LogRateLimit,
    pub(super) slow_log_rate: LogRateLimit,
    trace: CommandTrace,
    authenticator: Arc<Authenticator>,
}

/// Live controllers. Only the control path takes their lock.
#[derive(Debug)]
struct LiveControllers {
    /// I/O controllers of configured subsystems.
    hosts: Controllers,
    /// Controllers of the discovery service, with a separate range of CNTLIDs.
    discovery: Controllers,
    /// Discovery controllers, oldest first; above the limit a new one ends an older one.
    discovery_by_age: DisplacingSet<Cntlid>,
}

/// Live controllers by CNTLID, and the CNTLID to try next.
#[derive(Debug)]
struct Controllers {
    live: BTreeMap<u16, Arc<Controller>>,
    ids: CntlidRange,
    next: u16,
}

impl Associations {
    /// Creates the state, without associations, for the subsystems of `inventory`.
    pub fn new(inventory: Arc<Inventory>) -> Arc<Self> {
        let limits = inventory.limits();
        let live = LiveControllers {
            hosts: Controllers::new(limits.cntlids),
            discovery: Controllers::new(CntlidRange::ALL),
            discovery_by_age: DisplacingSet::new(DisplacingLimits {
                all: limits.discovery_controllers(),
                of_party: limits.discovery_controllers_per_address(),
            }),
        };
        Arc::new(Self {
            inventory,
            live: Mutex::new(live),
            stopping: AtomicBool::new(false),
            peer_errors: PeerErrorTable::default(),
            keep_alive_losses: AtomicU64::new(0),
            discovery_changes: AtomicU64::new(0),
            admissions: Arc::default(),
            log_rate: LogRateLimit::about("hosts"),
            storage_log_rate: LogRateLimit::about("storage errors"),
            slow_log_rate: LogRateLimit::about("slow commands"),
            trace: CommandTrace::default(),
            authenticator: Arc::new(Authenticator::new(system_random)),
        })
    }

    /// Subsystems, namespaces and ports that the target exports.
    pub fn inventory(&self) -> &Arc<Inventory> {
        &self.inventory
    }

    /// Trace of I/O commands, which runs only at an operator's request.
    pub(crate) fn trace(&self) -> &CommandTrace {
        &self.trace
    }

    /// State that all queues share that authenticate.
    pub(crate) fn authenticator(&self) -> &Arc<Authenticator> {
        &self.authenticator
    }

    pub(crate) fn controllers_of(&self, subsystem: &Arc<Subsystem>) -> Vec<Arc<Controller>> {
        let mut controllers = self.controllers();
        controllers.retain(|one| one.subsystem().is_some_and(|of| Arc::ptr_eq(of, subsystem)));
        controllers
    }

    /// Live controllers of the subsystem that a namespace belongs to.
    pub(super) fn controllers_with(&self, namespace: &Namespace) -> Vec<Arc<Controller>> {
        let subsystem = self.inventory.subsystem_of(namespace);
        subsystem.map(|subsystem| self.controllers_of(&subsystem)).unwrap_or_default()
    }

    /// Number of associations that ended because of a Keep Alive Timeout.
    pub fn keep_alive_losses(&self) -> u64 {
        self.keep_alive_losses.load(Ordering::Relaxed)
    }

    pub(crate) fn count_keep_alive_loss(&self) {
        self.keep_alive_losses.fetch_add(1, Ordering::Relaxed);
    }

    /// Creates a controller; `None` if the limit is reached, the target is stopping, or the host is
    /// no longer allowed to use the subsystem. The CNTLID of an ended controller is reused as late
    /// as possible. Above the limit of discovery controllers, a new one ends an older one.
    pub(crate) fn associate(self: &Arc<Self>, new: NewController) -> Option<Arc<Controller>> {
        let mut live = self.live();
        if self.is_stopping() {
            return None;
        }
        // Under the lock, so that later changes of hosts, listeners and subsystems find the
        // controller.
        if let ControllerKind::Nvm(subsystem) = &new.kind
            && !(subsystem.allows(&new.host) && new.port.still_serves(subsystem, &new.ana))
        {
            return None;
        }
        let (is_discovery, party) =
            (matches!(new.kind, ControllerKind::Discovery(_)), new.peer.party());
        let controllers = live.of(is_discovery);
        let controller = controllers.add(|cntlid| Controller::new(self, cntlid, new))?;
        if is_discovery {
            let displaced = live.discovery_by_age.add(controller.cntlid, party);
            let displaced = displaced.and_then(|cntlid| live.discovery.get(cntlid));
            drop(live);
            displaced.inspect(|displaced| displaced.end(CloseReason::Displaced));
        }
        Some(controller)
    }

    /// Returns the live I/O controller with the CNTLID.
    pub fn controller(&self, cntlid: Cntlid) -> Option<Arc<Controller>> {
        self.live().hosts.get(cntlid)
    }

    /// Returns all live controllers, discovery controllers last.
    pub fn controllers(&self) -> Vec<Arc<Controller>> {
        let live = self.live();
        live.hosts.all().chain(live.discovery.all()).cloned().collect()
    }

    /// Demands that a host of a subsystem, or all of its hosts, authenticate again within a time.
    /// Returns the number of their controllers.
    pub(crate) fn demand_proof(&self, nqn: &Nqn, host: Option<&Nqn>, within: Duration) -> usize {
        let Some(now) = self.trace().now() else { return 0 };
        let is_meant = |controller: &&Arc<Controller>| {
            let is_of_host = host.is_none_or(|host| controller.host.nqn.0 == *host);
            controller.authenticates && controller.nqn() == *nqn && is_of_host
        };
        let controllers = self.controllers();
        let meant = controllers.iter().filter(is_meant);
        meant.inspect(|controller| controller.demand_proof(now, now + within)).count()
    }

    /// Takes a permit for a connection of a party (an IP address or a local user). The limits hold
    /// for all devices and subsystems together.
    pub(crate) fn admit(&self, party: Party) -> Result<ConnectionPermit, Full> {
        self.admissions.admit(party, self.inventory.limits())
    }

    /// Checks whether [`Associations::admit`] would succeed now, without taking a permit.
    pub(crate) fn may_admit(&self, party: Party) -> Result<(), Full> {
        self.admissions.check(party, self.inventory.limits())
    }

    pub(crate) fn forget(&self, controller: &Controller) {
        let mut live = self.live();
        live.of(controller.is_discovery()).remove(controller.cntlid);
        if controller.is_discovery() {
            live.discovery_by_age.remove(&controller.cntlid);
        }
    }

    /// Whether commands that a host sent to a subsystem over ended connections may still change the
    /// medium. They could overwrite the host's next writes, so its next association has to wait.
    pub(crate) fn has_unfinished(&self, host: HostId, subsystem: &Arc<Subsystem>) -> bool {
        self.controllers().iter().any(|controller| {
            let same = controller.subsystem().is_some_and(|other| Arc::ptr_eq(other, subsystem));
            same && controller.host.id == host && controller.has_unfinished_writes()
        })
    }

    /// Ends every association; later Connects are refused.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        for controller in self.controllers() {
            controller.end(CloseReason::Stopping);
        }
    }

    /// Whether [`Associations::stop`] was called.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Counts of protocol errors and failed commands by IP address of the peer.
    pub fn peer_errors(&self) -> &PeerErrorTable {
        &self.peer_errors
    }

    /// Rate limit of log messages that peers can cause.
    pub(crate) fn log_rate(&self) -> &LogRateLimit {
        &self.log_rate
    }

    fn live(&self) -> MutexGuard<'_, LiveControllers> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LiveControllers {
    /// Returns the discovery controllers (true) or the I/O controllers (false).
    fn of(&mut self, is_discovery: bool) -> &mut Controllers {
        if is_discovery { &mut self.discovery } else { &mut self.hosts }
    }
}

impl Controllers {
    fn new(ids: CntlidRange) -> Self {
        Self { live: BTreeMap::new(), ids, next: ids.first }
    }

    fn get(&self, cntlid: Cntlid) -> Option<Arc<Controller>> {
        self.live.get(&cntlid.0).cloned()
    }

    /// Controllers in the order of their CNTLIDs.
    fn all(&self) -> impl Iterator<Item = &Arc<Controller>> {
        self.live.values()
    }

    /// Removes a controller that has ended.
    fn remove(&mut self, cntlid: Cntlid) {
        self.live.remove(&cntlid.0);
    }

    /// Adds a controller; `None` if the maximum number or the CNTLID range is reached.
    fn add(&mut self, make: impl FnOnce(Cntlid) -> Controller) -> Option<Arc<Controller>> {
        if self.live.len() >= MAX_ASSOCIATIONS.min(self.ids.count()) {
            return None;
        }
        let id = self.free_id();
        let controller = Arc::new(make(Cntlid(id)));
        self.live.insert(id, Arc::clone(&controller));
        Some(controller)
    }

    /// Returns the next unused CNTLID in turn. There is one, since `add` checked the number.
    fn free_id(&mut self) -> u16 {
        loop {
            let id = self.next;
            self.next = self.ids.next(id);
            if !self.live.contains_key(&id) {
                return id;
            }
        }
    }
}
