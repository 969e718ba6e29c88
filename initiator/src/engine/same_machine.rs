//! A target on this machine: for each connection the host selects shared memory or the network.

use std::collections::BTreeMap;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rdma::Time;
use rdma::shm;
use rdma::verbs::VerbsOptions;

use crate::engine::HostEngine;
use crate::engine::arena::ControllerKey;
use crate::engine::connections::Connections;
use crate::engine::fence::Fence;
use crate::engine::results::Outbox;
use crate::engine::session::ControllerPhase;
use crate::engine::wire::Wire;
use crate::memory::region::Grant;
use crate::types::error::{Error, ErrorFamily, ErrorKind};

/// Time for connections to end before the provider is changed. With twice as much, a host
/// reconnects 0.1 s later, over another provider, to a target that was killed.
const GRACEFUL_CLOSE_TIMEOUT: Duration = Duration::from_millis(100);
/// Pause between checks whether they have ended.
const GRACEFUL_CLOSE_LOOK: Duration = Duration::from_millis(5);

/// A target on this machine, with the local address of connections to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NearTarget {
    pub(crate) address: SocketAddr,
    pub(crate) source: IpAddr,
    pub(crate) verbs: VerbsOptions,
}

/// Transport to a target on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LocalPath {
    SharedMemory,
    Network,
}

impl NearTarget {
    /// Returns the transport that the target offers now.
    pub(crate) fn path(&self) -> LocalPath {
        match shm::probe(self.address) {
            Ok(()) => LocalPath::SharedMemory,
            Err(_) => LocalPath::Network,
        }
    }
}

/// Selection of the provider of an engine.
pub(crate) struct PathChoice {
    target: NearTarget,
    state: PathState,
    /// Whether the next attempt must not use shared memory, since the last one failed.
    avoids_shm: bool,
    /// Whether a change to the network failed.
    has_no_network: bool,
    /// Time until which the ends of connections are awaited.
    close_until: Option<Time>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PathState {
    /// No attempt is in progress: the next one requests the provider.
    Open,
    /// An attempt to connect waits for the selection.
    Asked,
    /// The next attempt uses the current provider.
    Chosen,
}

impl PathChoice {
    pub(crate) fn new(target: NearTarget) -> Self {
        let state = PathState::Open;
        Self { target, state, avoids_shm: false, has_no_network: false, close_until: None }
    }
}

/// Change of the provider that an engine requests.
pub(crate) struct PathChange {
    pub(crate) target: NearTarget,
    pub(crate) to: LocalPath,
}

impl HostEngine {
    /// Returns whether an attempt to connect must wait for the selection of its provider.
    pub(crate) fn waits_for_path(&mut self, outbox: &mut Outbox) -> bool {
        let Some(choice) = &mut self.path else { return false };
        if choice.state == PathState::Chosen {
            return false;
        }
        choice.state = PathState::Asked;
        outbox.ask_for_path();
        true
    }

    /// Assigns an engine without controllers to another target that is reached from the same
    /// address.
    pub(crate) fn retarget(&mut self, target: NearTarget) -> bool {
        let is_left = self.controllers.is_empty();
        let choice = self.path.as_mut().filter(|choice| choice.target.source == target.source);
        match choice.filter(|_| is_left) {
            Some(choice) => {
                *choice = PathChoice::new(target);
                true
            }
            None => false,
        }
    }

    /// Makes the next attempt to connect request its provider.
    pub(crate) fn reopen_path(&mut self) {
        if let Some(choice) = &mut self.path {
            choice.state = PathState::Open;
        }
    }

    /// Called when an association has ended. Returns whether it was a failed attempt to use shared
    /// memory, so that the network should be tried.
    pub(crate) fn falls_back(
        &mut self,
        key: ControllerKey,
        was_attempt: bool,
        cause: &Error,
    ) -> bool {
        let is_alone = !self.is_any_connected(Some(key));
        let Some(choice) = &mut self.path else { return false };
        choice.state = PathState::Open;
        let has_no_network = mem::take(&mut choice.has_no_network);
        let is_ours = cause.kind().family() == ErrorFamily::Local;
        choice.avoids_shm = self.wire.facts().shares_memory
            && was_attempt
            && is_alone
            && is_ours
            && !has_no_network;
        choice.avoids_shm
    }

    /// Returns whether a target that was just reached over the network offers shared memory, which
    /// it did not when the attempt to connect started.
    pub(crate) fn should_share_memory(&self, key: ControllerKey) -> bool {
        let Some(choice) = &self.path else { return false };
        !self.wire.facts().shares_memory
            && !choice.avoids_shm
            && !self.is_any_connected(Some(key))
            && choice.target.path() == LocalPath::SharedMemory
    }

    /// Returns whether a controller other than that with this key is connected or connecting.
    fn is_any_connected(&self, beside: Option<ControllerKey>) -> bool {
        let others = self.controllers.iter().filter(|&(key, _)| Some(key) != beside);
        let mut phases = others.map(|(_, controller)| &controller.session.phase);
        phases.any(|phase| match phase {
            ControllerPhase::Opening(_)
            | ControllerPhase::Live(_)
            | ControllerPhase::Closing(_) => true,
            ControllerPhase::Resting(_) | ControllerPhase::Fenced | ControllerPhase::Dead(_) => {
                false
            }
        })
    }

    /// Returns the change of provider that attempts to connect wait for. Without a change they
    /// continue, possibly after old connections have ended.
    pub(crate) fn path_change(&mut self, now: Time) -> Option<PathChange> {
        let is_connected = self.is_any_connected(None);
        let choice = self.path.as_mut().filter(|choice| choice.state == PathState::Asked)?;
        let to = match choice.avoids_shm {
            true => LocalPath::Network,
            false => choice.target.path(),
        };
        if is_connected || (to == LocalPath::SharedMemory) == self.wire.facts().shares_memory {
            (choice.state, choice.close_until) = (PathState::Chosen, None);
            return None;
        }
        let until = *choice.close_until.get_or_insert(now + GRACEFUL_CLOSE_TIMEOUT);
        if !self.connections.is_empty() && now < until {
            self.postpone_attempts(now);
            return None;
        }
        choice.close_until = None;
        Some(PathChange { target: choice.target, to })
    }

    fn postpone_attempts(&mut self, now: Time) {
        for (key, controller) in self.controllers.iter_mut() {
            if let ControllerPhase::Resting(time) = &mut controller.session.phase
                && *time <= now
            {
                *time = now + GRACEFUL_CLOSE_LOOK;
                self.ready_list.mark_ready(key);
            }
        }
    }

    /// Keeps the current provider, since the requested change failed.
    pub(crate) fn keep_path(&mut self) {
        let Some(choice) = &mut self.path else { return };
        choice.state = PathState::Chosen;
        choice.avoids_shm = !self.wire.facts().shares_memory;
        choice.has_no_network = self.wire.facts().shares_memory;
    }

    /// Replaces the device of the engine, which has no connections, and returns the old one.
    /// Waiting operations keep their keys. After an error the engine is unchanged.
    pub(crate) fn change_wire(&mut self, wire: Box<dyn Wire>) -> Result<Box<dyn Wire>, Error> {
        let mut domains = BTreeMap::new();
        for key in self.controllers.keys() {
            domains.insert(key, wire.domain()?);
        }
        let mut keys = Vec::with_capacity(self.ops.len());
        for (op_key, op) in self.ops.iter_mut() {
            if op.slice.grant() == Grant::PerCommand && !wire.facts().caps.memory_windows {
                return Err(ErrorKind::Unsupported("the RDMA device has no memory windows").into());
            }
            if let Some(domain) = domains.get(&op.controller) {
                keys.push((op_key, op.slice.keys(&*domain.scope)?));
            }
        }
        for (op_key, keys) in keys {
            self.ops[op_key].keys = keys;
        }
        for (key, domain) in domains {
            self.controllers[key].enter(domain);
        }
        self.fences.iter_mut().for_each(Fence::forget_connections);
        (self.connections, self.pushed) = (Connections::default(), false);
        if let Some(choice) = &mut self.path {
            choice.state = PathState::Chosen;
        }
        Ok(mem::replace(&mut self.wire, wire))
    }
}
