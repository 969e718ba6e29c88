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
/// Cheap to clone. Made once for a source and used for all of its plans: finding out which
/// connections there are takes time in proportion to the number of shards.
///
/// A shard may have several replicas: namespaces with the same bytes, of several targets. A range
/// is read from the one of the first two connected replicas that has fewer bytes to send, or from
/// the first ([`ReplicaPolicy`]). If it fails there through the fault of the target, it is read
/// from another within the plan's deadline, from each at most once; if the connection is lost it is
/// read immediately from a replica that is connected, and waits only where none is. How soon a
/// connection counts as lost is up to its
/// [`silence_timeout`](crate::ControllerOptions::silence_timeout): with replicas, below a second.
///
/// Each target has a circuit breaker. It opens when the connection is lost, or when five ranges in
/// a row fail or time out: no range is read from the target that has a choice, for 500 ms at first.
/// Then one range finds out whether it serves, and the next pause is twice as long, up to 30 s, if
/// it does not.
///
/// A replica whose namespace turns out to be changed is not read from again: [`Shards::changed`].
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
    /// The namespace that differs.
    pub namespace: Namespace,
    /// The property that differs from that of the shard's first replica.
    pub difference: &'static str,
}

/// A replica that is no longer read from, since its namespace changed after it was opened.
#[derive(Clone, Debug)]
pub struct ChangedReplica {
    /// Number of the shard.
    pub shard: u32,
    /// The replica, as it was.
    pub namespace: Namespace,
    /// The change, as an error; its kind is [`ErrorKind::Changed`](crate::ErrorKind::Changed).
    pub error: Error,
}

impl Shards {
    /// The shards with these namespaces, all of one host. It is the only one that takes plans for
    /// them.
    ///
    /// # Errors
    /// Two namespaces are of different hosts: the error names the first that differs.
    pub fn new(namespaces: impl IntoIterator<Item = Namespace>) -> Result<Self, Error> {
        let shards = namespaces.into_iter().map(|namespace| vec![namespace]);
        let shards = of_one_host(shards)?.into_iter().map(|replicas| paths_of(&replicas));
        Ok(Self::of(shards.collect(), ReplicaPolicy::default()))
    }

    /// Shards with replicas, as [`Shards::replicated`]; but the caller knows that the namespaces of
    /// one shard have the same bytes, whatever their UUIDs are: of a checksum, for example. Those
    /// of another size than the first of their shard are left out.
    ///
    /// # Errors
    /// The same errors as [`Shards::new`] has.
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

    /// Shards with replicas: for each shard its namespaces, those to read from first in front, and
    /// at most 8 of them. The order is the caller's, who may rank them by a hash of the names of
    /// shard and target so that many hosts spread over many targets.
    ///
    /// A replica of another size or UUID than the first of its shard is left out and reported. A
    /// shard without replicas is left out as well, so that the shards after it have lower numbers.
    ///
    /// # Errors
    /// The same errors as [`Shards::new`] has.
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

    /// The host of their namespaces; `None` without namespaces.
    pub(crate) fn host(&self) -> Option<&Arc<Inner>> {
        self.connections.first().map(Namespace::host)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.namespaces.len()
    }

    /// Whether the list is empty.
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

    /// How many replicas are no longer read from, since their namespaces changed. Takes no lock: it
    /// may be asked after each plan.
    pub fn changed_count(&self) -> usize {
        self.routes.out_count()
    }

    /// The replicas that are no longer read from, since their namespaces changed, in the order in
    /// which that was found out. It is found out when a range is to be read from them.
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

    /// A namespace of each controller that they are reached over.
    pub(crate) fn connections(&self) -> &[Namespace] {
        &self.connections
    }
}

/// The shards that have replicas, whose namespaces are all of one host: each host numbers its
/// controllers and namespaces itself, so that a number means other bytes to another host.
///
/// # Errors
/// Names the first namespace of another host than the first of all.
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

/// Namespaces over each of the paths of these.
fn paths_of(namespaces: &[Namespace]) -> Vec<Namespace> {
    namespaces.iter().flat_map(Namespace::paths).collect()
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

impl Default for Shards {
    /// An empty list of shards, which each host takes.
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
