//! Shards: the namespaces that plans read from, by number.

use std::fmt;
use std::sync::Arc;

use crate::api::namespace::Namespace;
use crate::api::path::NamespaceInfo;
use crate::api::path_set;
use crate::driver::host_state::Inner;
use crate::engine::shard_routes::{ReplicaPolicy, ShardRoutes};
use crate::types::error::Error;

/// The namespaces that plans read from, numbered from 0 in the order given. The paths of a
/// namespace that has several are replicas of its shard.
///
/// Cheap to clone. Build it once and use it for many plans: finding the connections of the shards
/// takes time in proportion to their number.
///
/// The replicas of a shard are namespaces with the same bytes, possibly on several targets. A range
/// is read from that one of the first two connected replicas which has fewer bytes in flight, or
/// always from the first ([`ReplicaPolicy`]). If it fails there because of the target, it is read
/// from another replica within the plan's deadline, from each at most once. If the connection is
/// lost, it is read immediately from a connected replica, or waits if all are disconnected.
/// [`silence_timeout`](crate::ControllerOptions::silence_timeout) says when a connection counts as
/// lost: with replicas it should be below a second.
///
/// Each target has a circuit breaker. It opens when the connection is lost, or when five
/// consecutive ranges fail or time out: for 500 ms no range that has another replica is read from
/// the target. Then a single range tests the target. If it fails, the breaker stays open for twice
/// the time, up to 30 s.
///
/// A replica whose namespace has changed is no longer read from: [`Shards::changed`].
#[derive(Clone)]
pub struct Shards {
    /// Replicas of each shard, at least one.
    namespaces: Arc<[Vec<Namespace>]>,
    routes: Arc<ShardRoutes>,
    /// One namespace of each connection, by the place of the connection in `routes`.
    connections: Arc<[Namespace]>,
}

/// A replica that was excluded when the shards were built, since its bytes cannot be those of the
/// shard.
#[derive(Clone, Debug)]
pub struct UnlikeReplica {
    /// Number of the shard.
    pub shard: u32,
    /// Namespace of the excluded replica.
    pub namespace: Namespace,
    /// Property that differs from that of the shard's first replica: `size` or `UUID`.
    pub difference: &'static str,
}

/// A replica that is no longer read from, since its namespace changed after it was opened.
#[derive(Clone, Debug)]
pub struct ChangedReplica {
    /// Number of the shard.
    pub shard: u32,
    /// Namespace of the replica, with the properties that it had when it was opened.
    pub namespace: Namespace,
    /// Change of the namespace, an error of kind [`ErrorKind::Changed`](crate::ErrorKind::Changed).
    pub error: Error,
}

impl Shards {
    /// Returns shards with one namespace each. Only the host of the namespaces accepts plans for
    /// them.
    ///
    /// # Errors
    /// Two namespaces are of different hosts: the error names the first that is not of the host of
    /// the first namespace.
    pub fn new(namespaces: impl IntoIterator<Item = Namespace>) -> Result<Self, Error> {
        let shards = namespaces.into_iter().map(|namespace| vec![namespace]);
        let shards = of_one_host(shards)?.into_iter().map(|replicas| paths_of(&replicas));
        Ok(Self::of(shards.collect(), ReplicaPolicy::default()))
    }

    /// Returns shards with replicas like [`Shards::replicated`], but whatever their UUIDs are: the
    /// caller knows, for example from a checksum, that the namespaces of a shard have the same
    /// bytes. Replicas of another size than the first of their shard are omitted.
    ///
    /// # Errors
    /// The same as those of [`Shards::new`].
    pub fn with_replicas(
        policy: ReplicaPolicy,
        shards: impl IntoIterator<Item = Vec<Namespace>>,
    ) -> Result<Self, Error> {
        let shards = of_one_host(shards)?.into_iter();
        let mut distances = path_set::distances(policy);
        let alike = |replicas: Vec<Namespace>| {
            let paths = replicas.iter().flat_map(|replica| replica.handles().as_slice().to_vec());
            let mut paths: Vec<_> = paths.collect();
            path_set::arrange(&mut paths, distances.as_mut());
            paths.into_iter().map(Namespace::over_one).collect()
        };
        Ok(Self::of(shards.map(alike).collect(), policy))
    }

    /// Returns shards with replicas: for each shard at most 8 namespaces, in descending order of
    /// preference. To spread many hosts over many targets, the caller can order them by a hash of
    /// the names of shard and target.
    ///
    /// A replica of another size or UUID than the first of its shard is omitted and reported. A
    /// shard without replicas is omitted as well, so that the shards after it have lower numbers.
    ///
    /// # Errors
    /// The same as those of [`Shards::new`].
    pub fn replicated(
        shards: impl IntoIterator<Item = Vec<Namespace>>,
    ) -> Result<(Self, Vec<UnlikeReplica>), Error> {
        let mut unlike = Vec::new();
        let shards = of_one_host(shards)?.into_iter();
        let alike = |(shard, replicas): (usize, Vec<Namespace>)| {
            let mut replicas = paths_of(&replicas);
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
        Ok((Self::of(shards, ReplicaPolicy::default()), unlike))
    }

    fn of(namespaces: Arc<[Vec<Namespace>]>, policy: ReplicaPolicy) -> Self {
        let (mut routes, mut connections) = (ShardRoutes::with_policy(policy), Vec::new());
        for replicas in namespaces.iter() {
            let mut of_shard = Vec::with_capacity(replicas.len());
            for namespace in replicas {
                let (route, access) = namespace.first_path().route(&mut routes);
                if route.place == connections.len() {
                    connections.push(namespace.clone());
                }
                of_shard.push((route, access));
            }
            routes.push(of_shard.into_iter());
        }
        Self { namespaces, routes: Arc::new(routes), connections: connections.into() }
    }

    /// Returns the host of the namespaces; `None` if there are no shards.
    pub(crate) fn host(&self) -> Option<&Arc<Inner>> {
        self.connections.first().map(Namespace::host)
    }

    /// Returns the number of shards.
    pub fn len(&self) -> usize {
        self.namespaces.len()
    }

    /// Returns whether there are no shards.
    pub fn is_empty(&self) -> bool {
        self.namespaces.is_empty()
    }

    /// Returns the namespace of a shard's first replica; `None` if no shard has this number.
    pub fn get(&self, shard: u32) -> Option<&Namespace> {
        self.replicas(shard).first()
    }

    /// Returns the namespaces of a shard; empty if no shard has this number.
    pub fn replicas(&self, shard: u32) -> &[Namespace] {
        self.namespaces.get(shard as usize).map_or(&[], Vec::as_slice)
    }

    /// Returns how many replicas are no longer read from, since their namespaces changed. Takes no
    /// lock, so that it can be called after each plan.
    pub fn changed_count(&self) -> usize {
        self.routes.out_count()
    }

    /// Returns the replicas that are no longer read from, since their namespaces changed, in the
    /// order of detection. A change is detected when a range is to be read from the replica.
    pub fn changed(&self) -> Vec<ChangedReplica> {
        let list = self.routes.out_list();
        let changed = list.iter().filter_map(|out| {
            let namespace = self.replicas(out.shard).get(out.replica)?.clone();
            Some(ChangedReplica { shard: out.shard, namespace, error: out.error.clone() })
        });
        changed.collect()
    }

    pub(crate) fn routes(&self) -> &Arc<ShardRoutes> {
        &self.routes
    }

    /// Returns one namespace of each connection, by its place in the routes.
    pub(crate) fn connections(&self) -> &[Namespace] {
        &self.connections
    }
}

/// Returns the shards that have replicas, after checking that all are of one host: keys of
/// controllers and namespaces are valid only in their host.
///
/// # Errors
/// The error names the first namespace that is not of the host of the first.
fn of_one_host(
    shards: impl IntoIterator<Item = Vec<Namespace>>,
) -> Result<Vec<Vec<Namespace>>, Error> {
    let shards = shards.into_iter().filter(|replicas| !replicas.is_empty());
    let shards = Vec::from_iter(shards);
    let mut all = shards.iter().flatten();
    let first = all.next().map(Namespace::host);
    match all.find(|other| first.is_some_and(|first| !Arc::ptr_eq(other.host(), first))) {
        Some(other) => Err(other.is_of_another_host()),
        None => Ok(shards),
    }
}

fn paths_of(namespaces: &[Namespace]) -> Vec<Namespace> {
    namespaces.iter().flat_map(Namespace::paths).collect()
}

/// Returns the property by which two namespaces cannot have the same bytes. Generations are not
/// compared, since each target has its own.
fn difference(one: &NamespaceInfo, other: &NamespaceInfo) -> Option<&'static str> {
    let differ = one.uuid.zip(other.uuid).is_some_and(|(one, other)| one != other);
    match one.size_bytes == other.size_bytes {
        false => Some("size"),
        true => differ.then_some("UUID"),
    }
}

impl Default for Shards {
    /// Returns an empty list of shards, which every host accepts.
    fn default() -> Self {
        Self {
            namespaces: Arc::default(),
            routes: Arc::new(ShardRoutes::with_policy(ReplicaPolicy::default())),
            connections: Arc::default(),
        }
    }
}

impl fmt::Debug for Shards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.namespaces.iter()).finish()
    }
}
