//! The paths of a namespace at one time.

use std::sync::{Arc, OnceLock};

use crate::api::controller_handle::ControllerHandle;
use crate::api::path::NamespacePath;
use crate::driver::numa::PathDistances;
use crate::engine::arena::{ControllerKey, EngineKey, NamespaceKey};
use crate::engine::range_owner::RangePaths;
use crate::engine::shard_routes::{ReplicaPolicy, ShardRoutes};
use crate::types::error::{Error, ErrorKind};

/// The paths of a namespace at one time, at least one. It must not be dropped while the host's lock
/// is held, since that may close connections, which takes the lock.
pub(crate) struct PathSet {
    pub(crate) handles: Vec<Arc<NamespacePath>>,
    /// Routes of a single shard, whose replicas are these paths.
    pub(crate) routes: Arc<ShardRoutes>,
    /// The set that replaced this one, kept since a range of this set may have been moved to its
    /// paths.
    pub(crate) next: OnceLock<Arc<PathSet>>,
}

impl PathSet {
    /// Returns a set of the first [`ShardRoutes::MAX_REPLICAS`] of these paths, in the order of the
    /// policy.
    ///
    /// # Errors
    /// There is no path, or the paths are of different hosts.
    pub(crate) fn new(
        policy: ReplicaPolicy,
        mut paths: Vec<Arc<NamespacePath>>,
    ) -> Result<Self, Error> {
        let Some(first) = paths.first() else {
            return Err(ErrorKind::Invalid("no path is given").into());
        };
        if let Some(other) = paths.iter().find(|path| !Arc::ptr_eq(path.host(), first.host())) {
            return Err(other.is_of_another_host());
        }
        arrange(&mut paths, distances(policy).as_mut());
        let mut routes = ShardRoutes::with_policy(policy);
        let of_shard: Vec<_> = paths.iter().map(|path| path.route(&mut routes)).collect();
        routes.push(of_shard.into_iter());
        paths.truncate(ShardRoutes::MAX_REPLICAS);
        Ok(Self { handles: paths, routes: Arc::new(routes), next: OnceLock::new() })
    }

    pub(crate) fn handles(&self) -> &[Arc<NamespacePath>] {
        &self.handles
    }

    pub(crate) fn over(&self, controller: &Arc<ControllerHandle>) -> Option<&Arc<NamespacePath>> {
        self.handles.iter().find(|path| Arc::ptr_eq(&path.controller, controller))
    }
}

impl Drop for PathSet {
    /// Drops the successors in a loop: recursion through a long list could overflow the stack.
    fn drop(&mut self) {
        let mut next = self.next.take();
        while let Some(set) = next {
            next = Arc::into_inner(set).and_then(|mut last| last.next.take());
        }
    }
}

/// Returns the distances by which [`ReplicaPolicy::Numa`] ranks paths; `None` for other policies.
pub(crate) fn distances(policy: ReplicaPolicy) -> Option<PathDistances> {
    (policy == ReplicaPolicy::Numa).then(PathDistances::from_here)
}

/// Removes the paths to namespaces of another size than that of the first path, and sorts the
/// others by distance if `distances` are given.
pub(crate) fn arrange(paths: &mut Vec<Arc<NamespacePath>>, distances: Option<&mut PathDistances>) {
    let Some(first) = paths.first() else { return };
    let size_bytes = first.info.size_bytes;
    paths.retain(|path| path.info.size_bytes == size_bytes);
    if let Some(distances) = distances {
        paths.sort_by_cached_key(|path| {
            let target = path.controller.target.address.ip();
            distances.to(target, || path.host().source_for(target))
        });
    }
}

/// The path on which a range starts.
pub(crate) struct ChosenPath {
    pub(crate) engine: EngineKey,
    pub(crate) controller: ControllerKey,
    pub(crate) namespace: NamespaceKey,
    /// Paths that the range may be moved to; `None` if the namespace is open over one controller.
    pub(crate) paths: Option<RangePaths>,
    /// Set of these paths, which must be kept until the range has ended.
    pub(crate) set: Option<Arc<PathSet>>,
}

impl ChosenPath {
    /// Returns the path of a namespace that is open over one controller.
    pub(crate) fn only(handle: &NamespacePath) -> Self {
        Self {
            engine: handle.engine(),
            controller: handle.controller_key(),
            namespace: handle.number(),
            paths: None,
            set: None,
        }
    }
}
