//! The paths of a namespace at one time.

use std::sync::{Arc, OnceLock};

use crate::api::controller_handle::ControllerHandle;
use crate::api::path::NamespacePath;
use crate::driver::numa::PathDistances;
use crate::engine::range_op::RangePaths;
use crate::engine::shard_routes::{ReplicaPolicy, ShardRoutes};
use crate::types::error::{Error, ErrorKind};

/// The paths of a namespace at one time; at least one. It must not be dropped where the host is
/// locked: connections may end with it.
pub(crate) struct PathSet {
    pub(crate) handles: Vec<Arc<NamespacePath>>,
    /// One shard, whose replicas they are.
    pub(crate) routes: Arc<ShardRoutes>,
    /// The paths that replaced these: a set keeps all paths that a range may have been moved to.
    pub(crate) next: OnceLock<Arc<PathSet>>,
}

impl PathSet {
    /// The first [`ShardRoutes::MAX_REPLICAS`] of these paths.
    ///
    /// # Errors
    /// No path is given, or the paths are of different hosts.
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

    /// The one over a controller.
    pub(crate) fn over(&self, controller: &Arc<ControllerHandle>) -> Option<&Arc<NamespacePath>> {
        self.handles.iter().find(|path| Arc::ptr_eq(&path.controller, controller))
    }
}

impl Drop for PathSet {
    /// One after the other: there may be many, if a range took long.
    fn drop(&mut self) {
        let mut next = self.next.take();
        while let Some(set) = next {
            next = Arc::into_inner(set).and_then(|mut last| last.next.take());
        }
    }
}

/// The distances that a policy ranks paths by, if it does.
pub(crate) fn distances(policy: ReplicaPolicy) -> Option<PathDistances> {
    (policy == ReplicaPolicy::Numa).then(PathDistances::from_here)
}

/// Leaves out the paths to namespaces of another size than that of the first path, and sorts the
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

/// The path that a range begins on.
pub(crate) struct ChosenPath {
    /// Number of the engine.
    pub(crate) engine: usize,
    /// The controller, as its engine numbers it.
    pub(crate) controller: usize,
    /// The namespace, as its controller numbers it.
    pub(crate) namespace: usize,
    /// Paths that the range may be moved to, if the namespace has others.
    pub(crate) paths: Option<RangePaths>,
    /// The set of paths, which is to be kept until the range has ended.
    pub(crate) set: Option<Arc<PathSet>>,
}

impl ChosenPath {
    /// The path of a namespace that has no other.
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
