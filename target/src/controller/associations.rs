//! Live controllers of a target, and state about hosts that outlives an association.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crossbeam::channel;
use nvme_proto::log::AnaState;
use nvme_proto::{Cntlid, HostId, Nqn, Nsid};

use super::command_trace::CommandTrace;
use super::event::CloseReason;
use super::kind::ControllerKind;
use super::state::{Controller, NewController};
use crate::config::Config;
use crate::inventory::Registry;
use crate::inventory::allowed_host::HostsChange;
use crate::inventory::ana::{AnaGroupId, AnaStates};
use crate::inventory::change::{Closed, NamespaceResize, NewNamespace, VisibilityChange};
use crate::inventory::error::ChangeError;
use crate::inventory::export::OpenPurpose;
use crate::inventory::exports::NamespaceChange;
use crate::inventory::namespace::Namespace;
use crate::inventory::persist::protection::ProtectionError;
use crate::inventory::port::Port;
use crate::inventory::referral::Referral;
use crate::inventory::refresh::WatchedFiles;
use crate::inventory::reload::{ReloadError, ReloadReport, Reloaded};
use crate::inventory::subsystem::Subsystem;
use crate::limits::connection_quota::{Admissions, ConnectionPermit, Full};
use crate::limits::displacing_set::{DisplacingLimits, DisplacingSet};
use crate::limits::log_rate::LogRateLimit;
use crate::limits::peer::Party;
use crate::limits::{ADOPTION_TIMEOUT, CLOSE_TIMEOUT, CntlidRange, MAX_ASSOCIATIONS};
use crate::metrics::peer_errors::PeerErrorTable;

/// All live associations of a target, and its state about hosts: their errors, their connection
/// permits, and the rate of log messages about them.
#[derive(Debug)]
pub struct Associations {
    pub(super) registry: Arc<Registry>,
    live: Mutex<LiveControllers>,
    stopping: AtomicBool,
    peer_errors: PeerErrorTable,
    keep_alive_losses: AtomicU64,
    /// Generation Counter (GENCTR) of the discovery logs: changes that may concern some host.
    discovery_changes: AtomicU64,
    admissions: Arc<Admissions>,
    log_rate: LogRateLimit,
    pub(super) storage_log_rate: LogRateLimit,
    pub(super) slow_log_rate: LogRateLimit,
    trace: CommandTrace,
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
    /// Creates the state, without associations, for the subsystems of `registry`.
    pub fn new(registry: Arc<Registry>) -> Arc<Self> {
        let limits = registry.limits();
        let live = LiveControllers {
            hosts: Controllers::new(limits.cntlids),
            discovery: Controllers::new(CntlidRange::ALL),
            discovery_by_age: DisplacingSet::new(DisplacingLimits {
                all: limits.discovery_controllers(),
                of_party: limits.discovery_controllers_per_address(),
            }),
        };
        Arc::new(Self {
            registry,
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
        })
    }

    /// Subsystems, namespaces and ports that the target exports.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Trace of I/O commands, which runs only at an operator's request.
    pub(crate) fn trace(&self) -> &CommandTrace {
        &self.trace
    }

    /// Live controllers of a subsystem.
    pub(crate) fn controllers_of(&self, subsystem: &Arc<Subsystem>) -> Vec<Arc<Controller>> {
        let mut controllers = self.controllers();
        controllers.retain(|one| one.subsystem().is_some_and(|of| Arc::ptr_eq(of, subsystem)));
        controllers
    }

    /// Live controllers of the subsystem that a namespace belongs to.
    pub(super) fn controllers_with(&self, namespace: &Namespace) -> Vec<Arc<Controller>> {
        let subsystem = self.registry.subsystem_of(namespace);
        subsystem.map(|subsystem| self.controllers_of(&subsystem)).unwrap_or_default()
    }

    /// Adds a namespace at run time and notifies connected hosts, once all cores have adopted it.
    pub(crate) fn add_namespace(
        &self,
        nqn: &Nqn,
        new: NewNamespace,
    ) -> Result<Arc<Namespace>, ChangeError> {
        let added = self.registry.add_namespace(nqn, new)?;
        self.announce(&[&added]);
        Ok(added.namespace)
    }

    /// Removes a namespace at run time, notifies connected hosts, and closes it. Running commands
    /// end normally; later ones are refused.
    pub(crate) fn remove_namespace(&self, nqn: &Nqn, nsid: Nsid) -> Result<Closed, ChangeError> {
        self.registry.close_idle();
        let removed = self.registry.remove_namespace(nqn, nsid)?;
        self.announce(&[&removed]);
        Ok(self.registry.close(removed, CLOSE_TIMEOUT))
    }

    /// Resizes a namespace to the size of its medium, or to `size_bytes`, and notifies connected
    /// hosts.
    pub(crate) fn resize_namespace(
        &self,
        nqn: &Nqn,
        nsid: Nsid,
        size_bytes: Option<u64>,
    ) -> Result<(), ChangeError> {
        self.registry.close_idle();
        let resized = self.registry.resize_namespace(nqn, nsid, size_bytes)?;
        let Some(NamespaceResize { old, new }) = resized else { return Ok(()) };
        self.announce(&[&new]);
        // A failed flush of the old size is not an error: hosts can flush the same writes through
        // the new one.
        let _ = self.registry.close(old, CLOSE_TIMEOUT);
        Ok(())
    }

    /// Changes which hosts may connect to a subsystem, and ends associations of removed hosts.
    pub(crate) fn change_hosts(&self, nqn: &Nqn, change: HostsChange) -> Result<(), ChangeError> {
        let subsystem = self.registry.find_subsystem(nqn)?;
        subsystem.change_hosts(change)?;
        self.end_refused();
        self.announce_discovery();
        Ok(())
    }

    /// Removes a subsystem with its namespaces and ends its associations. Returns a line for each
    /// namespace that could not be flushed or closed.
    pub(crate) fn remove_subsystem(&self, nqn: &Nqn) -> Result<Vec<String>, ChangeError> {
        self.registry.close_idle();
        let namespaces = self.registry.remove_subsystem(nqn)?;
        self.end_refused();
        self.announce_discovery();
        Ok(self.close(namespaces))
    }

    /// Adds a referral to another discovery service and notifies hosts.
    pub(crate) fn add_referral(&self, referral: Referral) -> Result<(), ChangeError> {
        let address = referral.address;
        self.registry.referrals().add(referral)?;
        tracing::info!(%address, "referral added");
        self.announce_discovery();
        Ok(())
    }

    /// Removes a referral to another discovery service and notifies hosts.
    pub(crate) fn remove_referral(&self, address: SocketAddr) -> Result<(), ChangeError> {
        self.registry.referrals().remove(address)?;
        tracing::info!(%address, "referral removed");
        self.announce_discovery();
        Ok(())
    }

    /// Serves a subsystem at a further address of the target.
    pub(crate) fn add_listener(&self, nqn: &Nqn, address: SocketAddr) -> Result<(), ChangeError> {
        self.registry.add_listener(nqn, address)?;
        self.announce_discovery();
        Ok(())
    }

    /// Stops serving a subsystem at an address, and ends the associations there.
    pub(crate) fn remove_listener(
        &self,
        nqn: &Nqn,
        address: SocketAddr,
    ) -> Result<(), ChangeError> {
        self.registry.remove_listener(nqn, address)?;
        self.end_refused();
        self.announce_discovery();
        Ok(())
    }

    /// Makes a namespace visible to a host, or hides it from the host, and notifies the host.
    pub(crate) fn change_visibility(
        &self,
        nqn: &Nqn,
        nsid: Nsid,
        change: VisibilityChange,
    ) -> Result<(), ChangeError> {
        let changed = self.registry.change_visibility(nqn, nsid, change)?;
        self.registry.publication().wait_adopted(changed.generation, ADOPTION_TIMEOUT);
        let (VisibilityChange::Show(host) | VisibilityChange::Hide(host)) = change;
        let mut concerned = self.controllers_of(&changed.subsystem);
        concerned.retain(|controller| controller.host.nqn.0 == host);
        concerned.iter().for_each(|controller| controller.namespace_changed(nsid));
        Ok(())
    }

    /// Renames a namespace, and notifies hosts that see it.
    pub(crate) fn rename_namespace(
        &self,
        nqn: &Nqn,
        nsid: Nsid,
        name: String,
    ) -> Result<(), ChangeError> {
        let changed = self.registry.rename_namespace(nqn, nsid, name)?;
        self.announce(&[&changed]);
        Ok(())
    }

    /// Sets or clears write protection of a namespace and stores it, so that it survives a restart.
    /// Running writes end normally.
    pub(crate) fn protect_namespace(
        &self,
        nqn: &Nqn,
        nsid: Nsid,
        protected: bool,
    ) -> Result<(), ChangeError> {
        let subsystem = self.registry.find_subsystem(nqn)?;
        let namespace = subsystem.find_namespace(nsid)?;
        if !namespace.writable {
            let refused = || ChangeError::ReadOnly { nqn: nqn.to_string(), nsid };
            return if protected { Ok(()) } else { Err(refused()) };
        }
        // A protection takes effect before it is stored; its removal takes effect after that.
        let mut changed = protected && namespace.protect(true);
        let (sender, kept) = channel::bounded(1);
        let keep = move |result| _ = sender.send(result);
        if self.registry.keep_protection(&subsystem, &namespace, protected, keep) {
            let kept = kept.recv().unwrap_or(Err(ProtectionError::WriterEnded));
            if let Err(error) = kept {
                if changed {
                    namespace.protect(false);
                }
                return Err(error.into());
            }
        }
        changed |= !protected && namespace.protect(false);
        if changed {
            tracing::info!(%nqn, %nsid, protected, "write protection changed");
            let controllers = self.controllers_of(&subsystem);
            let concerned = controllers.iter().filter(|one| one.namespace(nsid).is_some());
            concerned.for_each(|controller| controller.namespace_changed(nsid));
        }
        Ok(())
    }

    /// Sets the ANA state of a group, or of all groups, at an address, and notifies hosts there.
    pub(crate) fn set_ana_state(
        &self,
        nqn: &Nqn,
        address: SocketAddr,
        group: Option<AnaGroupId>,
        state: AnaState,
    ) -> Result<(), ChangeError> {
        let ana = self.registry.ana(nqn, address)?;
        let is_meant = |one: &AnaGroupId| group.is_none_or(|group| group == *one);
        if ana.set(AnaGroupId::all().filter(is_meant), state) {
            let group = group.map(AnaGroupId::get);
            tracing::info!(%nqn, %address, group, %state, "ANA state changed");
            self.announce_ana(&ana);
        }
        Ok(())
    }

    /// Advances the timers of groups in ANA Change state by one second, and makes those
    /// inaccessible that reach ANATT. Called once a second.
    pub(crate) fn end_ana_transitions(&self) {
        for port in self.registry.ports() {
            for ana in port.ana_of_all().iter().filter(|ana| ana.second_passed()) {
                tracing::warn!(
                    address = %port.address(),
                    "namespaces that were in the ANA state change for too long are inaccessible"
                );
                self.announce_ana(ana);
            }
        }
    }

    pub(super) fn announce_ana(&self, ana: &Arc<AnaStates>) {
        let controllers = self.controllers();
        let concerned = controllers.iter().filter(|one| Arc::ptr_eq(&one.ana, ana));
        concerned.for_each(|controller| controller.ana_changed());
    }

    /// Ends the associations of hosts that are not allowed now, or at ports that are not served
    /// now.
    fn end_refused(&self) {
        self.end_where(CloseReason::HostRemoved, |controller| {
            controller.subsystem().is_some_and(|subsystem| !subsystem.allows(&controller.host))
        });
        // A removed subsystem is served at no port.
        self.end_where(CloseReason::ListenerRemoved, |controller| !controller.is_served());
    }

    fn end_where(&self, reason: CloseReason, is_meant: impl Fn(&Controller) -> bool) {
        for controller in self.controllers().iter().filter(|controller| is_meant(controller)) {
            controller.end(reason);
        }
    }

    /// Ends the discovery controllers at a port that is no longer listened on.
    pub(crate) fn end_discovery_at(&self, port: &Arc<Port>) {
        self.end_where(CloseReason::ListenerRemoved, |controller| {
            controller.is_discovery() && Arc::ptr_eq(&controller.port, port)
        });
    }

    /// Number of changes since the start of the target after which a discovery log may differ.
    pub(crate) fn discovery_changes(&self) -> u64 {
        self.discovery_changes.load(Ordering::Relaxed)
    }

    /// Notifies hosts that are connected to the discovery service that their log may have changed.
    pub(crate) fn announce_discovery(&self) {
        self.discovery_changes.fetch_add(1, Ordering::Relaxed);
        let controllers = self.controllers();
        let discovery = controllers.iter().filter(|controller| controller.is_discovery());
        discovery.for_each(|controller| controller.discovery_log_changed());
    }

    /// Applies a configuration at run time and notifies connected hosts. With
    /// [`OpenPurpose::Check`] nothing changes.
    ///
    /// # Errors
    /// See [`ReloadError`]. Then nothing has changed.
    pub(crate) fn reload(
        &self,
        config: &Config,
        new_ports: &[Arc<Port>],
        purpose: OpenPurpose,
    ) -> Result<ReloadReport, ReloadError> {
        self.registry.close_idle();
        let Reloaded { changes, removed, added } =
            self.registry.reload(config, new_ports, purpose)?;
        if purpose == OpenPurpose::Serve && !changes.is_empty() {
            self.announce(&added.iter().chain(&removed).collect::<Vec<_>>());
            self.end_refused();
            self.announce_discovery();
        }
        Ok(ReloadReport { changes, warnings: self.close(removed) })
    }

    /// Exports the files that watched directories now contain, and notifies hosts. A namespace that
    /// an operator has removed is not exported again.
    ///
    /// # Errors
    /// See [`ReloadError`]. Then nothing has changed.
    pub(crate) fn refresh_directories(
        &self,
        config: &Config,
        files: &mut WatchedFiles,
    ) -> Result<ReloadReport, ReloadError> {
        self.registry.close_idle();
        let Reloaded { changes, removed, added } =
            self.registry.refresh_directories(config, files)?;
        self.announce(&added.iter().chain(&removed).collect::<Vec<_>>());
        Ok(ReloadReport { changes, warnings: self.close(removed) })
    }

    /// Closes removed namespaces. Returns a line for each that could not be flushed or closed.
    fn close(&self, removed: Vec<NamespaceChange>) -> Vec<String> {
        let mut warnings = Vec::new();
        let mut timeout = CLOSE_TIMEOUT;
        for one in removed {
            let name = format!("namespace {} ({})", one.namespace.nsid, one.namespace.name());
            match self.registry.close(one, timeout) {
                Closed::Flushed(Ok(())) => {}
                Closed::Flushed(Err(error)) => {
                    warnings.push(format!("{name}: what was written last may be lost: {error}"));
                }
                Closed::Busy => {
                    // Storage had that time for the other namespaces as well.
                    timeout = Duration::ZERO;
                    warnings.push(format!(
                        "{name}: storage still works on it; it is closed when that ends"
                    ));
                }
            }
        }
        warnings
    }

    /// Notifies hosts of added and removed namespaces, once all cores have adopted the change or
    /// `ADOPTION_TIMEOUT` has passed.
    pub(crate) fn announce(&self, changes: &[&NamespaceChange]) {
        let Some(generation) = changes.iter().map(|change| change.generation).max() else { return };
        // The timeout keeps a stuck core from delaying the notification for ever.
        self.registry.publication().wait_adopted(generation, ADOPTION_TIMEOUT);
        for controller in self.controllers() {
            let Some(subsystem) = controller.subsystem() else { continue };
            for change in changes.iter().filter(|one| Arc::ptr_eq(&one.subsystem, subsystem)) {
                if change.namespace.is_visible_to(&controller.host) {
                    controller.namespace_changed(change.namespace.nsid);
                }
            }
        }
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
            (matches!(new.kind, ControllerKind::Discovery), new.peer.party());
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

    /// Takes a permit for a connection of a party (an IP address or a local user). The limits hold
    /// for all devices and subsystems together.
    pub(crate) fn admit(&self, party: Party) -> Result<ConnectionPermit, Full> {
        self.admissions.admit(party, self.registry.limits())
    }

    /// Checks whether [`Associations::admit`] would succeed now, without taking a permit.
    pub(crate) fn may_admit(&self, party: Party) -> Result<(), Full> {
        self.admissions.check(party, self.registry.limits())
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
