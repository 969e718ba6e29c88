//! The live controllers, and the state of hosts over all associations.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crossbeam::channel;
use nvme_proto::log::AnaState;
use nvme_proto::{Cntlid, HostId, Nqn, Nsid};
use rdma::Time;

use super::command::{IoKind, IoWork};
use super::command_times::{CommandStages, CommandTimes};
use super::command_trace::CommandTrace;
use super::event::CloseReason;
use super::kind::ControllerKind;
use super::state::{Controller, NewController};
use crate::backend::{BackendError, FileChange};
use crate::config::Config;
use crate::inventory::Registry;
use crate::inventory::allowed_host::HostsChange;
use crate::inventory::ana::{AnaGroupId, AnaStates};
use crate::inventory::change::{Closed, NamespaceResize, NewNamespace, VisibilityChange};
use crate::inventory::error::ChangeError;
use crate::inventory::export::OpenPurpose;
use crate::inventory::exports::NamespaceChange;
use crate::inventory::index::NamespaceIndex;
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
use crate::limits::{ADOPTION_PATIENCE, CLOSE_PATIENCE, CntlidRange, MAX_ASSOCIATIONS};
use crate::metrics::peer_errors::PeerErrorTable;

/// The associations of a target with its hosts, and its state about hosts: their errors, their
/// places, and the rate of messages about them.
#[derive(Debug)]
pub struct Associations {
    registry: Arc<Registry>,
    live: Mutex<LiveControllers>,
    stopping: AtomicBool,
    peer_errors: PeerErrorTable,
    keep_alive_losses: AtomicU64,
    /// How often the discovery log of any host may have changed (GENCTR).
    discovery_changes: AtomicU64,
    admissions: Arc<Admissions>,
    log_rate: LogRateLimit,
    storage_log_rate: LogRateLimit,
    slow_log_rate: LogRateLimit,
    trace: CommandTrace,
}

/// The live controllers. Only the control path takes the lock.
#[derive(Debug)]
struct LiveControllers {
    /// Controllers with a subsystem of the configuration.
    hosts: Controllers,
    /// With the discovery service, a subsystem of its own, so that its controllers take no ids from
    /// others.
    discovery: Controllers,
    /// The discovery controllers that were not displaced yet, oldest first.
    discovery_by_age: DisplacingSet<Cntlid>,
}

/// Live controllers by id.
#[derive(Debug)]
struct Controllers {
    live: BTreeMap<u16, Arc<Controller>>,
    ids: CntlidRange,
    next: u16,
}

impl Associations {
    /// No associations yet with the exports of `registry`.
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

    /// The inventory that the target exports.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// The trace of commands.
    pub(crate) fn trace(&self) -> &CommandTrace {
        &self.trace
    }

    /// The live controllers of a subsystem.
    pub(crate) fn controllers_of(&self, subsystem: &Arc<Subsystem>) -> Vec<Arc<Controller>> {
        let mut controllers = self.controllers();
        controllers.retain(|one| one.subsystem().is_some_and(|of| Arc::ptr_eq(of, subsystem)));
        controllers
    }

    /// The live controllers of the subsystem that has a namespace.
    fn controllers_with(&self, namespace: &Namespace) -> Vec<Arc<Controller>> {
        let subsystem = self.registry.subsystem_of(namespace);
        subsystem.map(|subsystem| self.controllers_of(&subsystem)).unwrap_or_default()
    }

    /// Adds a namespace while hosts work, and tells those that are connected. Commands for it are
    /// taken when this returns.
    pub(crate) fn add_namespace(
        &self,
        nqn: &Nqn,
        new: NewNamespace,
    ) -> Result<Arc<Namespace>, ChangeError> {
        let added = self.registry.add_namespace(nqn, new)?;
        self.announce(&[&added]);
        Ok(added.namespace)
    }

    /// Removes a namespace while hosts work, tells those that are connected, and closes it.
    /// Commands that have begun end as they would have; no other one begins.
    pub(crate) fn remove_namespace(&self, nqn: &Nqn, nsid: Nsid) -> Result<Closed, ChangeError> {
        self.registry.close_idle();
        let removed = self.registry.remove_namespace(nqn, nsid)?;
        self.announce(&[&removed]);
        Ok(self.registry.close(removed, CLOSE_PATIENCE))
    }

    /// Gives a namespace the size of its medium, or this size, while hosts work, and tells those
    /// that are connected.
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
        // What was written is the new one's, too, which hosts can flush.
        let _ = self.registry.close(old, CLOSE_PATIENCE);
        Ok(())
    }

    /// Changes which hosts may use a subsystem, and ends the associations of those that may not any
    /// more.
    pub(crate) fn change_hosts(&self, nqn: &Nqn, change: HostsChange) -> Result<(), ChangeError> {
        let subsystem = self.registry.find_subsystem(nqn)?;
        subsystem.change_hosts(change)?;
        self.end_refused();
        self.announce_discovery();
        Ok(())
    }

    /// Removes a subsystem with its namespaces, and ends its associations. The result has a line
    /// for each namespace that did not end well.
    pub(crate) fn remove_subsystem(&self, nqn: &Nqn) -> Result<Vec<String>, ChangeError> {
        self.registry.close_idle();
        let namespaces = self.registry.remove_subsystem(nqn)?;
        self.end_refused();
        self.announce_discovery();
        Ok(self.close(namespaces))
    }

    /// Tells hosts of the discovery service of another.
    pub(crate) fn add_referral(&self, referral: Referral) -> Result<(), ChangeError> {
        let address = referral.address;
        self.registry.referrals().add(referral)?;
        tracing::info!(%address, "referral added");
        self.announce_discovery();
        Ok(())
    }

    /// Tells hosts no more of the discovery service of another.
    pub(crate) fn remove_referral(&self, address: SocketAddr) -> Result<(), ChangeError> {
        self.registry.referrals().remove(address)?;
        tracing::info!(%address, "referral removed");
        self.announce_discovery();
        Ok(())
    }

    /// Serves a subsystem at another address of the target.
    pub(crate) fn add_listener(&self, nqn: &Nqn, address: SocketAddr) -> Result<(), ChangeError> {
        self.registry.add_listener(nqn, address)?;
        self.announce_discovery();
        Ok(())
    }

    /// Does not serve a subsystem at an address any more, and ends the associations there.
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

    /// Shows a namespace to a host, or hides it, and tells the host.
    pub(crate) fn change_visibility(
        &self,
        nqn: &Nqn,
        nsid: Nsid,
        change: VisibilityChange,
    ) -> Result<(), ChangeError> {
        let changed = self.registry.change_visibility(nqn, nsid, change)?;
        self.registry.publication().wait_adopted(changed.generation, ADOPTION_PATIENCE);
        let (VisibilityChange::Show(host) | VisibilityChange::Hide(host)) = change;
        let mut concerned = self.controllers_of(&changed.subsystem);
        concerned.retain(|controller| controller.host.nqn.0 == host);
        concerned.iter().for_each(|controller| controller.namespace_changed(nsid));
        Ok(())
    }

    /// Gives a namespace another name, and tells hosts that see it.
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

    /// Keeps hosts from writing a namespace, or lets them again, in later runs, too. Writes that
    /// have begun end as they would have.
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
        // Writes are refused before the protection is kept, and taken only when its end is.
        let mut changed = protected && namespace.protect(true);
        let (sender, kept) = channel::bounded(1);
        let keep = move |result| _ = sender.send(result);
        if self.registry.keep_protection(&subsystem, &namespace, protected, keep) {
            let kept = kept.recv().unwrap_or(Err(ProtectionError::KeeperEnded));
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

    /// Changes how the namespaces of groups can be reached at an address, and tells those that are
    /// connected there. All groups are meant where none is named.
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

    /// A second has passed: transitions end that have lasted for as long as hosts were told.
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

    /// Ends the associations that could not be made any more.
    fn end_refused(&self) {
        self.end_where(CloseReason::HostRemoved, |controller| {
            controller.subsystem().is_some_and(|subsystem| !subsystem.allows(&controller.host))
        });
        // A subsystem that is gone is served nowhere.
        self.end_where(CloseReason::ListenerRemoved, |controller| !controller.is_served());
    }

    fn end_where(&self, reason: CloseReason, is_meant: impl Fn(&Controller) -> bool) {
        for controller in self.controllers().iter().filter(|controller| is_meant(controller)) {
            controller.end(reason);
        }
    }

    /// Ends the associations with the discovery service at a port that is not listened on any more.
    pub(crate) fn end_discovery_at(&self, port: &Arc<Port>) {
        self.end_where(CloseReason::ListenerRemoved, |controller| {
            controller.is_discovery() && Arc::ptr_eq(&controller.port, port)
        });
    }

    /// How often the discovery log may have changed since the target started.
    pub(crate) fn discovery_changes(&self) -> u64 {
        self.discovery_changes.load(Ordering::Relaxed)
    }

    /// Tells hosts that ask where subsystems are that there may be others.
    pub(crate) fn announce_discovery(&self) {
        self.discovery_changes.fetch_add(1, Ordering::Relaxed);
        let controllers = self.controllers();
        let discovery = controllers.iter().filter(|controller| controller.is_discovery());
        discovery.for_each(|controller| controller.discovery_log_changed());
    }

    /// Exports what a configuration says while hosts work, and tells those that are connected. With
    /// [`OpenPurpose::Check`] nothing changes.
    ///
    /// # Errors
    /// See [`ReloadError`]. Nothing changes then.
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

    /// Exports the files that watched directories hold now, and tells hosts. Those that operators
    /// have removed stay so.
    ///
    /// # Errors
    /// See [`ReloadError`]. Nothing changes then.
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

    /// Closes namespaces that were removed. The result has a line for each that did not end well.
    fn close(&self, removed: Vec<NamespaceChange>) -> Vec<String> {
        let mut warnings = Vec::new();
        let mut patience = CLOSE_PATIENCE;
        for one in removed {
            let name = format!("namespace {} ({})", one.namespace.nsid, one.namespace.name());
            match self.registry.close(one, patience) {
                Closed::Flushed(Ok(())) => {}
                Closed::Flushed(Err(error)) => {
                    warnings.push(format!("{name}: what was written last may be lost: {error}"));
                }
                Closed::Busy => {
                    // The others have had that time, too.
                    patience = Duration::ZERO;
                    warnings.push(format!(
                        "{name}: storage still works on it; it is closed when that ends"
                    ));
                }
            }
        }
        warnings
    }

    /// Tells hosts that namespaces of their subsystems came or went, when all cores know it.
    pub(crate) fn announce(&self, changes: &[&NamespaceChange]) {
        let Some(generation) = changes.iter().map(|change| change.generation).max() else { return };
        // A core that is stuck does not keep hosts from hearing of it.
        self.registry.publication().wait_adopted(generation, ADOPTION_PATIENCE);
        for controller in self.controllers() {
            let Some(subsystem) = controller.subsystem() else { continue };
            for change in changes.iter().filter(|one| Arc::ptr_eq(&one.subsystem, subsystem)) {
                if change.namespace.is_visible_to(&controller.host) {
                    controller.namespace_changed(change.namespace.nsid);
                }
            }
        }
    }

    /// Counts an error of a namespace's medium and logs it. `what` names the operation and its
    /// range.
    pub(crate) fn storage_failed(
        &self,
        now: Time,
        namespace: NamespaceIndex,
        kind: IoKind,
        what: &dyn fmt::Display,
        error: BackendError,
    ) {
        let Some(namespace) = self.registry.namespace(namespace) else {
            tracing::error!("{what} failed on a namespace that was removed: {error}");
            return;
        };
        let namespace = &*namespace;
        match kind {
            IoKind::Read { .. } | IoKind::ReadZeros | IoKind::Compare { .. } => {
                namespace.storage_errors.count_read();
            }
            IoKind::Write { .. }
            | IoKind::WriteZeroes { .. }
            | IoKind::Flush
            | IoKind::Deallocate => namespace.storage_errors.count_write(),
        }
        self.announce_health(namespace);
        if self.storage_log_rate.admit(now) {
            let nqn =
                self.registry.subsystem_of(namespace).map(|subsystem| subsystem.nqn.to_string());
            tracing::error!(
                nqn, nsid = %namespace.nsid, name = namespace.name(), path = ?namespace.path(),
                "{what} failed: {error}"
            );
        }
    }

    /// Logs a command that took long, and what took it. `what` names the operation and its range.
    pub(crate) fn log_slow(
        &self,
        now: Time,
        work: &IoWork,
        what: &dyn fmt::Display,
        times: &CommandTimes,
    ) {
        if !self.slow_log_rate.admit(now) {
            return;
        }
        let namespace = self.registry.namespace(work.namespace);
        let subsystem = namespace.as_ref().and_then(|one| self.registry.subsystem_of(one));
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let CommandStages { buffer, fetch, storage } = times.stages(now);
        tracing::warn!(
            nqn = subsystem.map(|subsystem| subsystem.nqn.to_string()), nsid = %work.nsid,
            total_ms = millis(buffer + fetch + storage), buffer_ms = millis(buffer),
            fetch_ms = millis(fetch), storage_ms = millis(storage),
            "slow command: {what}"
        );
    }

    /// Looks whether others changed the file of a namespace, and tells the hosts that are
    /// connected.
    pub(crate) fn look_at_file(&self, namespace: &Namespace, log: &mut dyn FnMut() -> bool) {
        let change = namespace.look_at_file();
        self.announce_health(namespace);
        if change.is_none() || (change == Some(FileChange::Replaced) && !log()) {
            return;
        }
        let (nsid, name, path) = (namespace.nsid, namespace.name(), namespace.path());
        if change == Some(FileChange::Replaced) {
            tracing::warn!(
                %nsid, name, ?path,
                "another file has this path, or none: the old one is served until the target is \
                 started again"
            );
            return;
        }
        if log() {
            tracing::warn!(%nsid, name, ?path, "the file was changed while it is served");
        }
        let controllers = self.controllers_with(namespace);
        controllers.iter().for_each(|controller| controller.namespace_changed(nsid));
    }

    /// Tells the hosts that are connected that a namespace's medium is degraded, the first time
    /// that it is.
    pub(crate) fn announce_health(&self, namespace: &Namespace) {
        if namespace.health().announce() {
            let controllers = self.controllers_with(namespace);
            controllers.iter().for_each(|controller| controller.reliability_degraded());
        }
    }

    /// Associations that ended because their host was silent for longer than its keep alive
    /// timeout.
    pub fn keep_alive_losses(&self) -> u64 {
        self.keep_alive_losses.load(Ordering::Relaxed)
    }

    pub(crate) fn count_keep_alive_loss(&self) {
        self.keep_alive_losses.fetch_add(1, Ordering::Relaxed);
    }

    /// Makes a controller; `None` when there are too many, the target is stopping, or the host may
    /// not use the subsystem any more. An id is not
    /// used again while its controller lives, and as late as possible after. A discovery controller
    /// may end an older one.
    pub(crate) fn associate(self: &Arc<Self>, new: NewController) -> Option<Arc<Controller>> {
        let mut live = self.live();
        if self.is_stopping() {
            return None;
        }
        // With the lock: who changes hosts, listeners and subsystems after this finds the
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

    /// The live controller of a subsystem with an id.
    pub fn controller(&self, cntlid: Cntlid) -> Option<Arc<Controller>> {
        self.live().hosts.get(cntlid)
    }

    /// All live controllers, those of the discovery service last.
    pub fn controllers(&self) -> Vec<Arc<Controller>> {
        let live = self.live();
        let all = [&live.hosts, &live.discovery];
        all.iter().flat_map(|controllers| controllers.live.values().cloned()).collect()
    }

    /// A place for one more queue of a party, on any device and of any association with a
    /// subsystem, unless there are too many.
    pub(crate) fn admit(&self, party: Party) -> Result<ConnectionPermit, Full> {
        self.admissions.admit(party, self.registry.limits())
    }

    /// Whether [`Associations::admit`] would have a place now.
    pub(crate) fn may_admit(&self, party: Party) -> Result<(), Full> {
        self.admissions.check(party, self.registry.limits())
    }

    pub(crate) fn forget(&self, controller: &Controller) {
        let mut live = self.live();
        live.of(controller.is_discovery()).live.remove(&controller.cntlid.0);
        if controller.is_discovery() {
            live.discovery_by_age.remove(&controller.cntlid);
        }
    }

    /// Whether commands of a host for a subsystem, over connections that have ended, may still
    /// change the medium. They could undo the host's next writes, so its next association has to
    /// wait.
    pub(crate) fn has_unfinished(&self, host: HostId, subsystem: &Arc<Subsystem>) -> bool {
        self.controllers().iter().any(|controller| {
            let same = controller.subsystem().is_some_and(|other| Arc::ptr_eq(other, subsystem));
            same && controller.host.id == host && controller.has_unfinished_writes()
        })
    }

    /// Ends every association and admits no new one.
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

    /// Protocol errors and failed commands by peer.
    pub fn peer_errors(&self) -> &PeerErrorTable {
        &self.peer_errors
    }

    /// Asked before a message that peers can cause.
    pub(crate) fn log_rate(&self) -> &LogRateLimit {
        &self.log_rate
    }

    fn live(&self) -> MutexGuard<'_, LiveControllers> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LiveControllers {
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

    /// Adds one, unless there are too many.
    fn add(&mut self, make: impl FnOnce(Cntlid) -> Controller) -> Option<Arc<Controller>> {
        if self.live.len() >= MAX_ASSOCIATIONS.min(self.ids.count()) {
            return None;
        }
        let id = self.free_id();
        let controller = Arc::new(make(Cntlid(id)));
        self.live.insert(id, Arc::clone(&controller));
        Some(controller)
    }

    /// The next id in turn that no live controller has. Fewer controllers live than there are ids.
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
