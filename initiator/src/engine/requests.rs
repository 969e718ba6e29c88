//! Requests of a host's handles to an engine.

use std::sync::Arc;

use nvme_proto::log::AnaState;
use rdma::Time;

use crate::engine::HostEngine;
use crate::engine::arena::{ArenaKey, ControllerKey, NamespaceKey, PlanKey};
use crate::engine::auth_exchange;
use crate::engine::change_count::ChangeKind;
use crate::engine::controller::{Attached, ControllerState};
use crate::engine::limits::ControllerLimits;
use crate::engine::namespace_identity::NamespaceIdentity;
use crate::engine::path_access::PathAccess;
use crate::engine::plan_run::PlanRun;
use crate::engine::raw::Raw;
use crate::engine::reconnect_delay::Retries;
use crate::engine::reply::Promise;
use crate::engine::results::Outbox;
use crate::engine::session::{ControllerPhase, Session};
use crate::engine::shard_routes::TargetLoad;
use crate::memory::region::{CurrentScope, ErasedScope};
use crate::types::error::{Error, ErrorKind, SubsystemAddress};
use crate::types::options::ControllerOptions;

/// Result of [`HostEngine::connect`]: a controller whose connection is not established yet.
pub(crate) struct Connecting {
    pub(crate) controller: ControllerKey,
    /// Scope in which memory is registered that the target may access.
    pub(crate) scope: Arc<CurrentScope>,
}

/// A namespace that was registered with a controller.
pub(crate) struct Attachment {
    pub(crate) number: NamespaceKey,
    /// State of the access to it over this controller.
    pub(crate) access: PathAccess,
}

impl HostEngine {
    /// Adds a controller, which is connected from the next turn on. `opened` is resolved when the
    /// controller is usable, or with the error for which it is not.
    pub(crate) fn connect(
        &mut self,
        target: Arc<SubsystemAddress>,
        options: ControllerOptions,
        opened: Promise<ControllerLimits>,
    ) -> Result<Connecting, Error> {
        if self.connections.is_empty() {
            self.reopen_path();
        }
        let domain = self.wire.domain()?;
        let retries = Retries::new(&self.host.id, self.controllers.next_key().index());
        let session = Session::new(retries, opened);
        let credentials = auth_exchange::setup(&options, self.host.nqn, target.nqn, self.entropy);
        let state = ControllerState::new(target, options, session, credentials, domain);
        let scope = Arc::clone(&state.current_scope);
        let controller = self.controllers.insert(state);
        self.ready_list.mark_ready(controller);
        Ok(Connecting { controller, scope })
    }

    /// Removes a controller after an orderly shutdown, which starts at the next turn.
    pub(crate) fn close(&mut self, controller: ControllerKey) {
        self.fresh.closings.push(controller);
    }

    /// Returns whether there are no controllers and no connections.
    pub(crate) fn is_quiet(&self) -> bool {
        self.connections.is_empty() && self.controllers.is_empty()
    }

    /// Queues a command, which is sent at the next turn.
    pub(crate) fn raw(&mut self, controller: ControllerKey, raw: Raw) {
        self.fresh.raws.push((controller, raw));
    }

    /// Authenticates all queues of a controller again, from the next turn on.
    pub(crate) fn reauthenticate(&mut self, controller: ControllerKey, promise: Promise<()>) {
        self.fresh.authentications.push((controller, promise));
    }

    /// Returns the count of changes if it differs from `seen`; else `None`, and `promise` is
    /// resolved at the next change.
    pub(crate) fn await_change(
        &mut self,
        controller: ControllerKey,
        kind: ChangeKind,
        seen: u64,
        promise: Promise<u64>,
    ) -> Result<Option<u64>, Error> {
        let controller = self.controllers.get_mut(controller).ok_or(ErrorKind::Closed)?;
        match (kind, controller.session.refusal(), &controller.session.phase) {
            (ChangeKind::DiscoveryLog, Some(error), _) => Err(error.clone()),
            (ChangeKind::DiscoveryLog, None, _) => {
                Ok(controller.checks.log_changes.wait(seen, promise))
            }
            (ChangeKind::Namespaces, _, ControllerPhase::Dead(error)) => Err(error.clone()),
            (ChangeKind::Namespaces, ..) => {
                Ok(controller.checks.namespace_changes.wait(seen, promise))
            }
        }
    }

    /// Returns the error of all commands to a namespace that is no longer the one that was opened.
    pub(crate) fn namespace_change(
        &self,
        controller: ControllerKey,
        namespace: NamespaceKey,
    ) -> Option<Error> {
        self.controllers.get(controller)?.namespaces.get(namespace)?.gone.clone()
    }

    /// Returns the name of a namespace that the target reported last, if it has one.
    pub(crate) fn namespace_name(
        &self,
        controller: ControllerKey,
        namespace: NamespaceKey,
    ) -> Option<String> {
        self.controllers.get(controller)?.namespaces.get(namespace)?.identity.name.clone()
    }

    /// Returns the number of attempts to connect the controller so far, which identifies the
    /// connection: what was read over one connection may not hold for another.
    pub(crate) fn epoch(&self, controller: ControllerKey) -> Result<u64, Error> {
        Ok(self.controllers.get(controller).ok_or(ErrorKind::Closed)?.session.epoch)
    }

    /// Registers an identified namespace; `None` if it was identified over another connection.
    pub(crate) fn attach(
        &mut self,
        key: ControllerKey,
        epoch: u64,
        identity: NamespaceIdentity,
        outbox: &mut Outbox,
    ) -> Result<Option<Attachment>, Error> {
        let controller = self.controllers.get_mut(key).ok_or(ErrorKind::Closed)?;
        if controller.session.epoch != epoch {
            return Ok(None);
        }
        let known = controller
            .namespaces
            .iter_mut()
            .find(|(_, attached)| attached.nsid == identity.nsid && attached.gone.is_none());
        if let Some((number, attached)) = known
            && attached.identity.difference(&identity).is_none()
        {
            attached.holders += 1;
            return Ok(Some(Attachment { number, access: attached.access.clone() }));
        }
        let geometry = identity.geometry(controller.session.limits.max_transfer_bytes)?;
        let nsid = identity.nsid;
        let ana = controller.checks.ana.as_ref();
        let state = ana.map_or(AnaState::OPTIMIZED, |ana| ana.state(identity.ana_group));
        let access = PathAccess::new(state);
        let attached = Attached {
            nsid,
            access: access.clone(),
            identity,
            geometry,
            holders: 1,
            gone: None,
            check: Default::default(),
            waiting: Default::default(),
            lists: Default::default(),
            written: outbox.writes.open(controller.target.nqn, nsid),
        };
        let number = controller.namespaces.insert(attached);
        // The log page shows the state that ranges wait for.
        controller.checks.reads_ana |= access.obstacle().is_some();
        self.ready_list.mark_ready(key);
        Ok(Some(Attachment { number, access }))
    }

    /// Releases one handle of a namespace.
    pub(crate) fn detach(
        &mut self,
        controller: ControllerKey,
        namespace: NamespaceKey,
        outbox: &mut Outbox,
    ) {
        let Some(known) = self.controllers.get_mut(controller) else { return };
        if let Some(attached) = known.namespaces.get_mut(namespace) {
            attached.holders -= 1;
        }
        self.sweep_namespaces(controller, outbox);
    }

    /// Retries the writes and commands that waited for other writes of this host.
    pub(crate) fn resume_writes(&mut self) {
        for (key, controller) in self.controllers.iter_mut() {
            if controller.resume_writes(&self.ops) {
                self.ready_list.mark_ready(key);
            }
        }
    }

    /// Queues the ranges of a plan until the next turn.
    pub(crate) fn submit_run(&mut self, run: PlanRun) {
        let run = self.runs.insert(run);
        self.fresh.runs.push(run);
    }

    /// Returns the load of a controller, by which replicas and paths are selected, at `now` or at
    /// the last turn.
    pub(crate) fn load(&self, controller: ControllerKey, now: Option<Time>) -> TargetLoad {
        let now = now.unwrap_or(self.clock);
        self.controllers.get(controller).map_or(TargetLoad::Away, |known| known.load(now))
    }

    pub(crate) fn loads(&self, now: Time) -> Vec<(ControllerKey, TargetLoad)> {
        self.controllers.iter().map(|(key, controller)| (key, controller.load(now))).collect()
    }

    /// Records that a range tests a controller whose circuit breaker is open.
    pub(crate) fn begin_probe(&mut self, controller: ControllerKey, now: Option<Time>) {
        if let Some(controller) = self.controllers.get_mut(controller) {
            controller.health.breaker.begin_probe(now.unwrap_or(self.clock));
        }
    }

    /// Removes and returns the ranges of plans that wait for controllers without a connection and
    /// for which `elsewhere` finds another replica. Its last argument is whether the range had been
    /// started.
    pub(crate) fn give_away(
        &mut self,
        elsewhere: &mut dyn FnMut(PlanKey, u32, bool) -> bool,
    ) -> Vec<(PlanKey, u32)> {
        let mut given = self.give_away_ops(elsewhere);
        self.give_away_runs(elsewhere, &mut given);
        given
    }

    /// Cancels the ranges of a plan, which send no further command; returns how many have ended by
    /// that.
    pub(crate) fn cancel_plan(&mut self, plan: PlanKey, outbox: &mut Outbox) -> usize {
        self.cancel_runs(plan, outbox) + self.abandon_plan(plan, outbox)
    }

    /// Returns the registration scopes of all controllers.
    pub(crate) fn scopes(&self) -> Vec<Arc<dyn ErasedScope>> {
        let controllers = self.controllers.iter();
        controllers.map(|(_, controller)| Arc::clone(&controller.scope)).collect()
    }

    /// Returns the limits of a controller on its current connection.
    pub(crate) fn limits(&self, controller: ControllerKey) -> Result<ControllerLimits, Error> {
        let controller = self.controllers.get(controller).ok_or(ErrorKind::Closed)?;
        match controller.session.refusal() {
            Some(error) => Err(error.clone()),
            None => Ok(controller.session.limits),
        }
    }
}
