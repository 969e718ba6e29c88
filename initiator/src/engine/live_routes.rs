//! The paths of a namespace that may have others later.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::engine::shard_routes::ShardRoutes;

/// The routes of a namespace's paths, as they are now: one shard, whose replicas they are. Whoever
/// chooses a path has locked the host, as has whoever changes them.
#[derive(Debug)]
pub(crate) struct LiveRoutes(Mutex<Arc<ShardRoutes>>);

impl LiveRoutes {
    pub(crate) fn new(routes: Arc<ShardRoutes>) -> Self {
        Self(Mutex::new(routes))
    }

    /// The present routes, if they differ from these.
    pub(crate) fn other_than(&self, routes: &Arc<ShardRoutes>) -> Option<Arc<ShardRoutes>> {
        let current = self.lock();
        (!Arc::ptr_eq(&current, routes)).then(|| Arc::clone(&current))
    }

    pub(crate) fn replace(&self, routes: Arc<ShardRoutes>) {
        *self.lock() = routes;
    }

    fn lock(&self) -> MutexGuard<'_, Arc<ShardRoutes>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
