//! Shards: the namespaces that plans read from, by number.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::api::namespace::Namespace;
use crate::engine::plan_state::ShardRoute;

/// The namespaces that plans read from, numbered from 0 in the order given.
///
/// Cheap to clone. Made once for a source and used for all of its plans: finding out which
/// connections there are takes time in proportion to the number of shards.
#[derive(Clone)]
pub struct Shards {
    namespaces: Arc<[Namespace]>,
    routes: Arc<[ShardRoute]>,
    /// The shard that each connection is taken from.
    connections: Arc<[usize]>,
}

impl Shards {
    /// The shards with these namespaces. All are to be of the host that plans are submitted to.
    pub fn new(namespaces: impl IntoIterator<Item = Namespace>) -> Self {
        let namespaces: Arc<[Namespace]> = namespaces.into_iter().collect();
        let mut places = BTreeMap::new();
        let mut connections = Vec::new();
        let routes = namespaces.iter().enumerate().map(|(shard, namespace)| {
            let handle = namespace.handle();
            let (engine, controller) = (handle.engine(), handle.controller_key());
            let host = Arc::as_ptr(handle.host()).addr();
            let place = *places.entry((host, engine, controller)).or_insert_with(|| {
                connections.push(shard);
                connections.len() - 1
            });
            let (namespace, size_bytes) = (handle.number(), handle.info.size_bytes);
            ShardRoute { namespace, size_bytes, place }
        });
        let routes = routes.collect();
        Self { namespaces, routes, connections: connections.into() }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.namespaces.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.namespaces.is_empty()
    }

    /// The namespace of a shard, if there is one with this number.
    pub fn get(&self, shard: u32) -> Option<&Namespace> {
        self.namespaces.get(shard as usize)
    }

    pub(crate) fn routes(&self) -> &Arc<[ShardRoute]> {
        &self.routes
    }

    /// How many controllers they are reached over.
    pub(crate) fn connections(&self) -> usize {
        self.connections.len()
    }

    /// A namespace that is reached over one of these controllers.
    pub(crate) fn connection(&self, place: usize) -> &Namespace {
        &self.namespaces[self.connections[place]]
    }
}

impl fmt::Debug for Shards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.namespaces.iter()).finish()
    }
}
