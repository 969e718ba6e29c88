//! A namespace over several paths, which can change.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::api::controller_handle::ControllerHandle;
use crate::api::path::{NamespaceInfo, NamespacePath};
use crate::api::path_set::{ChosenPath, PathSet};
use crate::driver::DriverState;
use crate::driver::host_state::Inner;
use crate::engine::live_routes::LiveRoutes;
use crate::engine::range_owner::RangePaths;
use crate::engine::shard_routes::ReplicaPolicy;
use crate::types::error::{Error, SubsystemAddress};

/// A namespace over several paths, shared by all of its handles.
pub(crate) struct Multipath {
    host: Arc<Inner>,
    policy: ReplicaPolicy,
    /// Properties of the namespace that its first path had when it was opened.
    info: NamespaceInfo,
    /// The subsystem at the address of that first path.
    target: Arc<SubsystemAddress>,
    set: Mutex<Arc<PathSet>>,
    /// Routes of the current set, which ranges in progress look up for a failover.
    routes: Arc<LiveRoutes>,
}

/// The path of a command, with the record of the paths on which it was attempted.
pub(crate) struct CommandPath {
    set: Arc<PathSet>,
    replica: usize,
    /// Bit mask of the attempted paths, by index in the set; this one is included.
    tried: u8,
}

impl CommandPath {
    pub(crate) fn handle(&self) -> &Arc<NamespacePath> {
        &self.set.handles[self.replica]
    }
}

impl Multipath {
    /// Returns a namespace over these paths.
    ///
    /// # Errors
    /// There is no path, or the paths are of different hosts.
    pub(crate) fn new(
        policy: ReplicaPolicy,
        paths: Vec<Arc<NamespacePath>>,
    ) -> Result<Self, Error> {
        let set = PathSet::new(policy, paths)?;
        let first = &set.handles[0];
        let (info, target) = (first.info.clone(), Arc::clone(&first.controller.target));
        let host = Arc::clone(first.host());
        let routes = Arc::new(LiveRoutes::new(Arc::clone(&set.routes)));
        Ok(Self { host, policy, info, target, set: Mutex::new(Arc::new(set)), routes })
    }

    pub(crate) fn host(&self) -> &Arc<Inner> {
        &self.host
    }

    pub(crate) fn info(&self) -> &NamespaceInfo {
        &self.info
    }

    pub(crate) fn target(&self) -> &Arc<SubsystemAddress> {
        &self.target
    }

    /// Returns the set of paths that new operations use.
    pub(crate) fn set(&self) -> Arc<PathSet> {
        Arc::clone(&self.lock_set())
    }

    fn lock_set(&self) -> MutexGuard<'_, Arc<PathSet>> {
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Chooses the path of the next range, by the policy.
    pub(crate) fn choose(&self, state: &mut DriverState) -> ChosenPath {
        let set = self.set();
        let replica = state.host.choose_path(&set.routes);
        let paths = RangePaths::new(Arc::clone(&self.routes), Arc::clone(&set.routes), replica);
        let only = ChosenPath::only(&set.handles[replica]);
        ChosenPath { paths: Some(paths), set: Some(set), ..only }
    }

    /// Chooses the path of a command. After it failed on `before`, chooses one that was not
    /// attempted; `None` if all were.
    pub(crate) fn command_path(&self, before: Option<&CommandPath>) -> Option<CommandPath> {
        let set = self.set();
        let same = before.filter(|before| Arc::ptr_eq(&before.set, &set));
        let tried = same.map_or(0, |before| before.tried);
        if usize::try_from(tried.count_ones()).is_ok_and(|tried| tried >= set.handles.len()) {
            return None;
        }
        let state = self.host.shared.lock();
        let load =
            |state: &DriverState| set.routes.best_path(tried, |it| state.host.load(it, None));
        let best = state.as_deref().ok().and_then(load);
        drop(state);
        let replica = best.map_or(0, |path| path.replica);
        Some(CommandPath { set, replica, tried: tried | 1 << replica })
    }

    /// Replaces the paths by those over these controllers. Returns the errors of the controllers
    /// over which the namespace cannot be reached.
    pub(crate) async fn change_to(
        &self,
        controllers: &[Arc<ControllerHandle>],
    ) -> Result<Vec<Error>, Error> {
        let before = self.set();
        let (mut paths, mut left_out) = (Vec::new(), Vec::new());
        for controller in controllers {
            let opened = match before.over(controller) {
                Some(path) => Ok(Arc::clone(path)),
                None => NamespacePath::open(Arc::clone(controller), self.info.nsid).await,
            };
            match opened {
                Ok(path) if self.info.is_of_another(&path.info) => {
                    left_out.push(path.is_different());
                }
                Ok(path) => paths.push(path),
                Err(error) => left_out.push(error),
            }
        }
        let set = match PathSet::new(self.policy, paths) {
            Ok(set) => Arc::new(set),
            Err(error) => return Err(left_out.pop().unwrap_or(error)),
        };
        self.replace(set)?;
        Ok(left_out)
    }

    fn replace(&self, set: Arc<PathSet>) -> Result<(), Error> {
        let before = {
            // No range can choose a path while the host is locked.
            let mut state = self.host.shared.lock()?;
            self.routes.replace(Arc::clone(&set.routes));
            state.host.note_changed_paths();
            let before = mem::replace(&mut *self.lock_set(), Arc::clone(&set));
            // The set has no successor yet, since each set is replaced once.
            let _ = before.next.set(set);
            before
        };
        // Dropping it may close connections, which takes the host's lock.
        drop(before);
        if self.host.shared.threaded {
            self.host.shared.kick();
        }
        Ok(())
    }
}
