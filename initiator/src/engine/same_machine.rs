//! A target on this machine: for each connection the host selects shared memory or the network.

use std::collections::BTreeMap;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use rdma::shm::{self, Shm, ShmDevice};
use rdma::soft::{Soft, SoftDevice};
use rdma::verbs::{Verbs, VerbsDevice, VerbsOptions};
use rdma::{Device, Provider, Time};

use crate::engine::arena::ControllerKey;
use crate::engine::controller::{ControllerPhase, ControllerState};
use crate::engine::results::Outbox;
use crate::engine::{ErasedEngine, HostEngine};
use crate::memory::bounce::BouncePool;
use crate::memory::region::{Grant, RegistrationScope};
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

/// An opened device of one of the providers.
pub(crate) enum AnyDevice {
    Verbs(VerbsDevice),
    Soft(SoftDevice),
    Shm(ShmDevice),
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

impl<P: Provider> HostEngine<P> {
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
        choice.avoids_shm =
            P::SHARES_MEMORY && was_attempt && is_alone && is_ours && !has_no_network;
        choice.avoids_shm
    }

    /// Returns whether a target that was just reached over the network offers shared memory, which
    /// it did not when the attempt to connect started.
    pub(crate) fn should_share_memory(&self, key: ControllerKey) -> bool {
        let Some(choice) = &self.path else { return false };
        !P::SHARES_MEMORY
            && !choice.avoids_shm
            && !self.is_any_connected(Some(key))
            && choice.target.path() == LocalPath::SharedMemory
    }

    /// Returns whether a controller other than that with this key is connected or connecting.
    fn is_any_connected(&self, beside: Option<ControllerKey>) -> bool {
        let others = self.controllers.iter().filter(|&(key, _)| Some(key) != beside);
        let mut phases = others.map(|(_, controller)| &controller.phase);
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
        if is_connected || (to == LocalPath::SharedMemory) == P::SHARES_MEMORY {
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
            if let ControllerPhase::Resting(time) = &mut controller.phase
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
        choice.avoids_shm = !P::SHARES_MEMORY;
        choice.has_no_network = P::SHARES_MEMORY;
    }

    /// Moves the engine, which has no connections, to another device. Waiting operations keep their
    /// keys.
    pub(crate) fn moved_to(&mut self, device: AnyDevice) -> Result<Box<dyn ErasedEngine>, Error> {
        Ok(match device {
            AnyDevice::Verbs(device) => Box::new(self.moved::<Verbs>(device)?),
            AnyDevice::Soft(device) => Box::new(self.moved::<Soft>(device)?),
            AnyDevice::Shm(device) => Box::new(self.moved::<Shm>(device)?),
        })
    }

    fn moved<Q: Provider>(&mut self, device: Q::Device) -> Result<HostEngine<Q>, Error> {
        let mut new = HostEngine::<Q>::new(device, self.host)?;
        // Steps that can fail come first, so that this engine is unchanged after an error.
        let mut homes = BTreeMap::new();
        for key in self.controllers.keys() {
            let scope = Arc::new(RegistrationScope::<Q>::new(&new.device)?);
            let bounce = BouncePool::new(scope.device(), ControllerState::<Q>::CHUNKS)?;
            homes.insert(key, (scope, bounce));
        }
        let has_windows = new.device.caps().memory_windows;
        let mut keys = Vec::with_capacity(self.ops.len());
        for (op_key, op) in self.ops.iter_mut() {
            if op.slice.grant() == Grant::PerCommand && !has_windows {
                return Err(ErrorKind::Unsupported("the RDMA device has no memory windows").into());
            }
            if let Some((scope, _)) = homes.get(&op.controller) {
                keys.push((op_key, op.slice.keys(&**scope)?));
            }
        }
        for (op_key, keys) in keys {
            self.ops[op_key].keys = keys;
        }
        new.controllers = mem::take(&mut self.controllers).filter_map(|key, controller| {
            let (scope, bounce) = homes.remove(&key)?;
            Some(controller.moved(scope, bounce))
        });
        new.ready_list = mem::take(&mut self.ready_list);
        new.fences = mem::take(&mut self.fences);
        new.fences.iter_mut().for_each(|fence| fence.forget_connections());
        new.ops = mem::take(&mut self.ops);
        new.runs = mem::take(&mut self.runs);
        new.counters = self.counters;
        new.clock = self.clock;
        new.fresh = mem::take(&mut self.fresh);
        new.next_expiry = self.next_expiry;
        new.path = self.path.take();
        if let Some(choice) = &mut new.path {
            choice.state = PathState::Chosen;
        }
        Ok(new)
    }
}
