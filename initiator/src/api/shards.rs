//! Shards: the namespaces that plans read from, by number.

use std::fmt;
use std::sync::Arc;

use crate::api::namespace::Namespace;
use crate::api::namespace_handle::NamespaceInfo;
use crate::engine::shard_routes::{ShardPlace, ShardRoute, ShardRoutes};

/// The namespaces that plans read from, numbered from 0 in the order given.
///
/// Cheap to clone. Made once for a source and used for all of its plans: finding out which
/// connections there are takes time in proportion to the number of shards.
///
/// A shard may have several replicas: namespaces with the same bytes, of several targets. A range
/// is read from the one of the first two connected replicas that has fewer bytes to send; if it
/// fails there through the fault of the target, it is read from another within the plan's deadline,
/// from each at most once. How soon a target counts as gone is up to its
/// [`loss_timeout`](crate::ControllerOptions::loss_timeout), and how long it may be silent to its
/// [`io_timeout`](crate::ControllerOptions::io_timeout) and
/// [`abort_timeout`](crate::ControllerOptions::abort_timeout): with replicas, well below a second.
#[derive(Clone)]
pub struct Shards {
    /// The replicas of each shard, at least one.
    namespaces: Arc<[Vec<Namespace>]>,
    routes: Arc<ShardRoutes>,
    /// A namespace of each connection.
    connections: Arc<[Namespace]>,
}

/// A replica that is not read from, since its bytes are not those of the shard.
#[derive(Clone, Debug)]
pub struct UnlikeReplica {
    /// Number of the shard.
    pub shard: u32,
    /// What it has instead.
    pub namespace: Namespace,
    /// The property that differs from that of the shard's first replica.
    pub difference: &'static str,
}

impl Shards {
    /// The shards with these namespaces. All are to be of the host that plans are submitted to.
    pub fn new(namespaces: impl IntoIterator<Item = Namespace>) -> Self {
        let namespaces = namespaces.into_iter();
        Self::of(namespaces.map(|namespace| vec![namespace]).collect())
    }

    /// Shards with replicas: for each shard its namespaces, those to read from first in front, and
    /// at most 8 of them. The order is the caller's, who may rank them by a hash of the names of
    /// shard and target so that many hosts spread over many targets.
    ///
    /// A replica of another size or UUID than the first of its shard is left out and reported. A
    /// shard without replicas is left out as well, so that the shards after it have lower numbers.
    pub fn replicated(
        shards: impl IntoIterator<Item = Vec<Namespace>>,
    ) -> (Self, Vec<UnlikeReplica>) {
        let mut unlike = Vec::new();
        let shards = shards.into_iter().filter(|replicas| !replicas.is_empty());
        let alike = |(shard, mut replicas): (usize, Vec<Namespace>)| {
            let first = replicas[0].info().clone();
            let others =
                replicas.extract_if(.., |other| difference(&first, other.info()).is_some());
            unlike.extend(others.map(|namespace| UnlikeReplica {
                shard: u32::try_from(shard).unwrap_or(u32::MAX),
                difference: difference(&first, namespace.info()).unwrap_or("nothing"),
                namespace,
            }));
            replicas
        };
        let shards = shards.enumerate().map(alike).collect();
        (Self::of(shards), unlike)
    }

    fn of(namespaces: Arc<[Vec<Namespace>]>) -> Self {
        let (mut routes, mut connections) = (ShardRoutes::default(), Vec::new());
        for replicas in namespaces.iter() {
            let mut of_shard = Vec::with_capacity(replicas.len());
            for namespace in replicas {
                let handle = namespace.handle();
                let (engine, controller) = (handle.engine(), handle.controller_key());
                let place = routes.place(ShardPlace { engine, controller });
                if place == connections.len() {
                    connections.push(namespace.clone());
                }
                of_shard.push(ShardRoute { namespace: handle.number(), place });
            }
            routes.push(of_shard.into_iter());
        }
        Self { namespaces, routes: Arc::new(routes), connections: connections.into() }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.namespaces.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.namespaces.is_empty()
    }

    /// The first namespace of a shard, if there is a shard with this number.
    pub fn get(&self, shard: u32) -> Option<&Namespace> {
        self.replicas(shard).first()
    }

    /// The namespaces of a shard; none if there is no shard with this number.
    pub fn replicas(&self, shard: u32) -> &[Namespace] {
        self.namespaces.get(shard as usize).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn routes(&self) -> &Arc<ShardRoutes> {
        &self.routes
    }

    /// A namespace of each controller that they are reached over.
    pub(crate) fn connections(&self) -> &[Namespace] {
        &self.connections
    }
}

/// The property by which two namespaces cannot have the same bytes. Generations are numbers of each
/// target's own.
fn difference(one: &NamespaceInfo, other: &NamespaceInfo) -> Option<&'static str> {
    let differ = one.uuid.zip(other.uuid).is_some_and(|(one, other)| one != other);
    match one.size_bytes == other.size_bytes {
        false => Some("size"),
        true => differ.then_some("UUID"),
    }
}

impl fmt::Debug for Shards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.namespaces.iter()).finish()
    }
}
