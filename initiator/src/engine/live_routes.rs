//! Routes to the paths of a namespace, which can change.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::engine::shard_routes::ShardRoutes;

/// Current routes to a namespace: one shard, whose replicas are the paths. Paths are selected and
/// replaced while the host is locked.
#[derive(Debug)]
pub(crate) struct LiveRoutes(Mutex<Arc<ShardRoutes>>);

impl LiveRoutes {
    pub(crate) fn new(routes: Arc<ShardRoutes>) -> Self {
        Self(Mutex::new(routes))
    }

    /// Returns the current routes if they are not these.
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
