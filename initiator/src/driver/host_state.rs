//! The state that the handles of a host share: its identity, its cores and the devices that it
//! opened.

use std::collections::BTreeMap;
use std::fmt;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use rdma::verbs::VerbsOptions;

use crate::driver::SharedEngines;
use crate::driver::provider::{self, OpenedDevice};
use crate::engine::HostIdentity;
use crate::engine::same_machine::NearTarget;
use crate::types::error::Error;
use crate::types::options::ControllerOptions;
use crate::types::provider::RdmaProvider;

/// The state that the handles of a host share. Dropped with the last of them.
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
    by_source: BTreeMap<IpAddr, usize>,
    /// Each target on this machine has a device of its own where its provider is chosen anew for
    /// each connection.
    by_target: BTreeMap<SocketAddr, usize>,
}

impl Inner {
    pub(crate) fn start_thread(&self) -> Result<(), Error> {
        let shared = Arc::clone(&self.shared);
        let thread = thread::Builder::new().name("feedrail-host".to_owned());
        let handle = thread.spawn(move || shared.live())?;
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(handle);
        Ok(())
    }

    /// Whether real time moves its devices.
    pub(crate) fn can_wait(&self) -> bool {
        // In a child there is nothing to wait for.
        self.shared.lock().is_ok_and(|state| state.engines.iter().all(|engine| engine.has_fds()))
    }

    /// The core that reaches an address, opened if need be.
    pub(crate) fn engine_for(&self, to: SocketAddr) -> Result<usize, Error> {
        drop(self.shared.lock()?);
        if self.fixed_device {
            return Ok(0);
        }
        let source = match self.source {
            Some(source) => source,
            None => rdma::soft::local_address_for(to.ip())?,
        };
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        let is_local = self.provider == RdmaProvider::Auto && rdma::auto_shares_memory(to.ip());
        let known = match is_local {
            true => devices.by_target.get(&to),
            false => devices.by_source.get(&source),
        };
        if let Some(&engine) = known {
            return Ok(engine);
        }
        let opened = match is_local {
            true => {
                let target = NearTarget { address: to, source, verbs: self.verbs };
                provider::open_local(target, self.identity)?
            }
            false => provider::open(self.provider, source, self.identity, self.verbs)?,
        };
        let OpenedDevice { engine, reason } = opened;
        tracing::info!(%source, %reason, "opened an RDMA device");
        let engine = self.shared.add(engine, reason)?;
        match is_local {
            true => devices.by_target.insert(to, engine),
            false => devices.by_source.insert(source, engine),
        };
        Ok(engine)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if self.shared.is_forked() {
            // Nothing of it may be touched: sockets and queue pairs are the parent's as well, its
            // locks may be held by threads that are not here, and the number of its thread may be
            // that of another by now.
            mem::forget((thread, Arc::clone(&self.shared)));
            return;
        }
        match thread {
            Some(thread) => {
                self.shared.close();
                // The thread itself drops the last handle when it wakes a task that held it.
                if thread.thread().id() != thread::current().id() {
                    let _ = thread.join();
                }
            }
            None if self.can_wait() => self.shared.farewell(),
            None => self.shared.drop_engines(),
        }
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("nqn", &self.identity.nqn).finish_non_exhaustive()
    }
}
