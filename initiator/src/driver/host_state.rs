//! State shared by the handles of a host: its identity, its engines and the devices that it opened.

use std::collections::BTreeMap;
use std::fmt;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use rdma::verbs::VerbsOptions;

use crate::driver::provider::{self, OpenedDevice};
use crate::driver::random::fill_random;
use crate::driver::shared::SharedEngines;
use crate::engine::arena::{ArenaKey, EngineKey};
use crate::engine::same_machine::{NearTarget, PathChoice};
use crate::engine::{HostEngine, HostIdentity};
use crate::types::error::Error;
use crate::types::options::ControllerOptions;
use crate::types::provider::RdmaProvider;

/// State shared by the handles of a host. Dropped with the last of them.
pub(crate) struct Inner {
    pub(crate) shared: Arc<SharedEngines>,
    pub(crate) identity: HostIdentity,
    pub(crate) provider: RdmaProvider,
    pub(crate) verbs: VerbsOptions,
    pub(crate) source: Option<IpAddr>,
    pub(crate) controller: ControllerOptions,
    pub(crate) fixed_device: bool,
    pub(crate) devices: Mutex<OpenDevices>,
    pub(crate) thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
pub(crate) struct OpenDevices {
    by_source: BTreeMap<IpAddr, EngineKey>,
    /// Engines of targets on this machine, whose provider is selected for each connection, so that
    /// each has its own. An engine without controllers is reused for the next target.
    by_target: BTreeMap<SocketAddr, EngineKey>,
}

impl Inner {
    pub(crate) fn start_thread(&self) -> Result<(), Error> {
        let shared = Arc::clone(&self.shared);
        let thread = thread::Builder::new().name("feedrail-host".to_owned());
        let handle = thread.spawn(move || shared.live())?;
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(handle);
        Ok(())
    }

    /// Returns whether waiting is possible: a simulated device makes no progress in real time.
    pub(crate) fn can_wait(&self) -> bool {
        // In a forked child there is nothing to wait for.
        self.shared
            .lock()
            .is_ok_and(|state| state.host.engines.values().all(|engine| engine.has_fds()))
    }

    /// Returns the local address from which an address is reached.
    pub(crate) fn source_for(&self, to: IpAddr) -> std::io::Result<IpAddr> {
        self.source.map_or_else(|| rdma::soft::local_address_for(to), Ok)
    }

    /// Returns the engine for an address, after opening its device if necessary. The engine serves
    /// that address until the lock is released, and then as long as it has a controller.
    pub(crate) fn engine_for(
        &self,
        to: SocketAddr,
    ) -> Result<(EngineKey, MutexGuard<'_, OpenDevices>), Error> {
        drop(self.shared.lock()?);
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        if self.fixed_device {
            return Ok((EngineKey::at(0), devices));
        }
        let source = self.source_for(to.ip())?;
        let is_near = self.provider == RdmaProvider::Auto && rdma::auto_shares_memory(to.ip());
        let engine = match is_near {
            true => self.engine_for_near(
                &mut devices,
                NearTarget { address: to, source, verbs: self.verbs },
            )?,
            false => match devices.by_source.get(&source) {
                Some(&engine) => engine,
                None => {
                    let opened = provider::open(self.provider, source, self.verbs)?;
                    let engine = self.add(source, opened, None)?;
                    devices.by_source.insert(source, engine);
                    engine
                }
            },
        };
        Ok((engine, devices))
    }

    fn engine_for_near(
        &self,
        devices: &mut OpenDevices,
        target: NearTarget,
    ) -> Result<EngineKey, Error> {
        if let Some(&engine) = devices.by_target.get(&target.address) {
            return Ok(engine);
        }
        let engines = devices.by_target.values().copied();
        let engine = match self.shared.retarget(engines, target) {
            Some(engine) => {
                devices.by_target.retain(|_, other| *other != engine);
                engine
            }
            None => {
                let opened = provider::open_path(&target, target.path())?;
                self.add(target.source, opened, Some(PathChoice::new(target)))?
            }
        };
        devices.by_target.insert(target.address, engine);
        Ok(engine)
    }

    fn add(
        &self,
        source: IpAddr,
        opened: OpenedDevice,
        choice: Option<PathChoice>,
    ) -> Result<EngineKey, Error> {
        let OpenedDevice { wire, reason } = opened;
        let engine = HostEngine::new(wire, self.identity, choice, fill_random);
        tracing::info!(%source, %reason, "opened an RDMA device");
        Ok(self.shared.add(engine, reason)?)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if self.shared.is_forked() {
            // Nothing of the host may be used: the parent shares its sockets and queue pairs, its
            // locks may be held by threads that do not exist here, and the identifier of its thread
            // may have been reused.
            mem::forget((thread, Arc::clone(&self.shared)));
            return;
        }
        match thread {
            Some(thread) => {
                self.shared.close();
                // The host's thread itself drops the last handle if it wakes a task that held it.
                if thread.thread().id() != thread::current().id() {
                    let _ = thread.join();
                }
            }
            None if self.can_wait() => self.shared.close_gracefully(),
            None => self.shared.drop_engines(),
        }
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("nqn", &self.identity.nqn).finish_non_exhaustive()
    }
}
