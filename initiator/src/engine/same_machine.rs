//! A target on this machine: whether the host shares memory with it or uses the network is chosen
//! for each connection.

use std::collections::BTreeMap;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use rdma::shm::{self, Shm, ShmDevice};
use rdma::soft::{Soft, SoftDevice};
use rdma::verbs::{Verbs, VerbsDevice, VerbsOptions};
use rdma::{Device, Provider, Time};

use crate::engine::controller::{ControllerPhase, ControllerState};
use crate::engine::results::Outbox;
use crate::engine::{ErasedEngine, HostEngine};
use crate::memory::bounce::BouncePool;
use crate::memory::region::{Grant, RegistrationScope};
use crate::types::error::{Error, ErrorFamily, ErrorKind};

/// How long the ends of connections are waited for before the provider changes. Doubled, a host
/// comes back to a target that was killed 0.1 s later over another provider.
const GRACEFUL_CLOSE_TIMEOUT: Duration = Duration::from_millis(100);
/// How often it is looked whether they have ended.
const GRACEFUL_CLOSE_LOOK: Duration = Duration::from_millis(5);

/// Where a target on this machine is, and from where it is reached.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NearTarget {
    pub(crate) address: SocketAddr,
    pub(crate) source: IpAddr,
    pub(crate) verbs: VerbsOptions,
}

/// The two ways to a target on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LocalPath {
    SharedMemory,
    Network,
}

impl NearTarget {
    /// The way to it now.
    pub(crate) fn path(&self) -> LocalPath {
        match shm::probe(self.address) {
            Ok(()) => LocalPath::SharedMemory,
            Err(_) => LocalPath::Network,
        }
    }
}

/// A device of any provider.
pub(crate) enum AnyDevice {
    Verbs(VerbsDevice),
    Soft(SoftDevice),
    Shm(ShmDevice),
}

/// How an engine chooses its provider.
pub(crate) struct PathChoice {
    target: NearTarget,
    state: PathState,
    /// The next attempt does not share memory, since the last one failed.
    avoids_shm: bool,
    /// True if the network is not available.
    has_no_network: bool,
    /// Time until which the ends of connections are waited for.
    close_until: Option<Time>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PathState {
    /// A connection ended, or there was none yet: the next attempt asks for the provider.
    Open,
    /// An attempt to connect waits for the choice.
    Asked,
    /// The present provider is that of the next attempt.
    Chosen,
}

impl PathChoice {
    pub(crate) fn new(target: NearTarget) -> Self {
        let state = PathState::Open;
        Self { target, state, avoids_shm: false, has_no_network: false, close_until: None }
    }
}

/// A change of the provider that an engine asks for.
pub(crate) struct PathChange {
    pub(crate) target: NearTarget,
    pub(crate) to: LocalPath,
}

impl<P: Provider> HostEngine<P> {
    /// Whether an attempt to connect must wait until its provider is chosen.
    pub(crate) fn waits_for_path(&mut self, outbox: &mut Outbox) -> bool {
        let Some(choice) = &mut self.path else { return false };
        if choice.state == PathState::Chosen {
            return false;
        }
        choice.state = PathState::Asked;
        outbox.ask_for_path();
        true
    }

    /// Makes an engine without controllers serve another target from the same address.
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

    /// Makes the next attempt to connect ask for its provider.
    pub(crate) fn reopen_path(&mut self) {
        if let Some(choice) = &mut self.path {
            choice.state = PathState::Open;
        }
    }

    /// An association ended. Returns whether it was an attempt to share memory that failed, where
    /// the network may do.
    pub(crate) fn falls_back(&mut self, key: usize, was_attempt: bool, cause: &Error) -> bool {
        let is_alone = !self.is_any_connected(Some(key));
        let Some(choice) = &mut self.path else { return false };
        choice.state = PathState::Open;
        let has_no_network = mem::take(&mut choice.has_no_network);
        let is_ours = cause.kind().family() == ErrorFamily::Local;
        choice.avoids_shm =
            P::SHARES_MEMORY && was_attempt && is_alone && is_ours && !has_no_network;
        choice.avoids_shm
    }

    /// Whether a target that was just reached over the network shares memory: it had not begun to
    /// when the attempt to connect began.
    pub(crate) fn should_share_memory(&self, key: usize) -> bool {
        let Some(choice) = &self.path else { return false };
        !P::SHARES_MEMORY
            && !choice.avoids_shm
            && !self.is_any_connected(Some(key))
            && choice.target.path() == LocalPath::SharedMemory
    }

    /// Whether a controller has connections, or is about to, beside the one with this key.
    fn is_any_connected(&self, beside: Option<usize>) -> bool {
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

    /// The change of the provider that attempts to connect wait for. Without one they continue,
    /// immediately or when the ends of connections have been waited for.
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
        for (key, controller) in &mut self.controllers {
            if let ControllerPhase::Resting(time) = &mut controller.phase
                && *time <= now
            {
                *time = now + GRACEFUL_CLOSE_LOOK;
                self.ready_list.mark_ready(key);
            }
        }
    }

    /// The provider stays, though another was asked for.
    pub(crate) fn keep_path(&mut self) {
        let Some(choice) = &mut self.path else { return };
        choice.state = PathState::Chosen;
        choice.avoids_shm = !P::SHARES_MEMORY;
        choice.has_no_network = P::SHARES_MEMORY;
    }

    /// Moves the engine to another device: nothing is connected now. All that waits for a
    /// connection waits there, under the same numbers.
    pub(crate) fn moved_to(&mut self, device: AnyDevice) -> Result<Box<dyn ErasedEngine>, Error> {
        Ok(match device {
            AnyDevice::Verbs(device) => Box::new(self.moved::<Verbs>(device)?),
            AnyDevice::Soft(device) => Box::new(self.moved::<Soft>(device)?),
            AnyDevice::Shm(device) => Box::new(self.moved::<Shm>(device)?),
        })
    }

    fn moved<Q: Provider>(&mut self, device: Q::Device) -> Result<HostEngine<Q>, Error> {
        let mut new = HostEngine::<Q>::new(device, self.host)?;
        // What can fail comes first.
        let mut homes = BTreeMap::new();
        for (key, _) in &self.controllers {
            let scope = Arc::new(RegistrationScope::<Q>::new(&new.device)?);
            let bounce = BouncePool::new(scope.device(), ControllerState::<Q>::CHUNKS)?;
            homes.insert(key, (scope, bounce));
        }
        let has_windows = new.device.caps().memory_windows;
        let mut keys = Vec::with_capacity(self.ops.len());
        for (op_key, op) in &mut self.ops {
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
        let controllers = mem::take(&mut self.controllers).into_iter();
        new.controllers = controllers
            .filter_map(|(key, controller)| {
                let (scope, bounce) = homes.remove(&key)?;
                Some((key, controller.moved(scope, bounce)))
            })
            .collect();
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
