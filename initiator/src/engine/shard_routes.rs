//! Routes from shards to the namespaces and controllers of their replicas.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nvme_proto::log::AnaState;

use crate::engine::arena::{ControllerKey, EngineKey, NamespaceKey};
use crate::engine::path_access::PathAccess;
use crate::types::error::Error;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShardRoute {
    pub(crate) namespace: NamespaceKey,
    /// Index of its controller in the list of places.
    pub(crate) place: usize,
}

/// A controller over which shards are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShardPlace {
    pub(crate) engine: EngineKey,
    pub(crate) controller: ControllerKey,
}

/// The selected path to a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PathRoute {
    /// Index of the path.
    pub(crate) replica: usize,
    pub(crate) namespace: NamespaceKey,
    pub(crate) place: ShardPlace,
    pub(crate) load: TargetLoad,
}

/// Load of a controller, by which replicas are selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TargetLoad {
    /// The target was lost, or refuses this host: ranges fail immediately.
    Lost,
    /// The target is not connected, or the ANA state denies access: ranges wait.
    Away,
    /// The target is connected, but its circuit breaker is open: ranges go to others.
    Avoided,
    /// The target is connected, and one range may probe whether its circuit breaker can be closed.
    Probe,
    /// Number of bytes that ranges have requested from the target and not received.
    Serving(u64),
}

impl TargetLoad {
    /// Returns whether no command is sent there now.
    pub(crate) fn is_away(self) -> bool {
        matches!(self, Self::Lost | Self::Away)
    }

    /// Returns the load for a range that must not be a probe.
    pub(crate) fn without_probe(self) -> Self {
        if self == Self::Probe { Self::Avoided } else { self }
    }
}

/// Selection of the replica or path that a range is read from. Candidates are connected, and their
/// circuit breaker permits reads. Those in the ANA Optimized state come before those in the ANA
/// Non-Optimized state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReplicaPolicy {
    /// The one of the first two candidates that has fewer bytes in flight.
    #[default]
    Spread,
    /// Always the first of the candidates.
    First,
    /// The candidate with the fewest bytes in flight.
    QueueDepth,
    /// All candidates in round-robin order.
    RoundRobin,
    /// The first candidate, in order of the distance between its network device and the NUMA node
    /// on which the [`Shards`](crate::Shards) were built.
    Numa,
}

impl ReplicaPolicy {
    fn candidates(self) -> usize {
        match self {
            Self::Spread => 2,
            Self::First | Self::Numa => 1,
            Self::QueueDepth | Self::RoundRobin => ShardRoutes::MAX_REPLICAS,
        }
    }
}

/// A replica that no longer has the bytes of its shard, and is not read from.
#[derive(Clone, Debug)]
pub(crate) struct TakenOut {
    pub(crate) shard: u32,
    /// Index of the replica in the shard.
    pub(crate) replica: usize,
    pub(crate) error: Error,
}

#[derive(Debug, Default)]
pub(crate) struct ShardRoutes {
    replicas: Vec<ShardRoute>,
    /// ANA state of each of those.
    access: Vec<PathAccess>,
    /// End of each shard's replicas in `replicas`.
    ends: Vec<u32>,
    places: Vec<ShardPlace>,
    /// Largest number of replicas of a shard.
    most: usize,
    policy: ReplicaPolicy,
    /// Number of ranges that were assigned in round-robin order.
    turns: AtomicUsize,
    /// Bit mask of the replicas that were taken out, by shard.
    out: Vec<AtomicU8>,
    /// Length of `out_list`, which can be read without a lock.
    out_count: AtomicUsize,
    out_list: Mutex<Vec<TakenOut>>,
}

impl ShardRoutes {
    /// Most replicas of a shard; further ones are ignored.
    pub(crate) const MAX_REPLICAS: usize = 8;

    /// Returns an empty list of shards whose replicas are selected by `policy`.
    pub(crate) fn with_policy(policy: ReplicaPolicy) -> Self {
        Self { policy, ..Self::default() }
    }

    /// Adds a shard with the first [`ShardRoutes::MAX_REPLICAS`] of these replicas.
    pub(crate) fn push(&mut self, replicas: impl Iterator<Item = (ShardRoute, PathAccess)>) {
        let before = self.replicas.len();
        for (route, access) in replicas.take(Self::MAX_REPLICAS) {
            self.replicas.push(route);
            self.access.push(access);
        }
        self.most = self.most.max(self.replicas.len() - before);
        self.ends.push(u32::try_from(self.replicas.len()).unwrap_or(u32::MAX));
        self.out.push(AtomicU8::new(0));
    }

    /// Returns the index of a controller, after adding it if it is new.
    pub(crate) fn place(&mut self, place: ShardPlace) -> usize {
        let known = self.places.iter().position(|&known| known == place);
        known.unwrap_or_else(|| {
            self.places.push(place);
            self.places.len() - 1
        })
    }

    pub(crate) fn of(&self, shard: u32) -> &[ShardRoute] {
        &self.replicas[self.places_of(shard)]
    }

    /// Returns the positions of a shard's replicas in the lists.
    fn places_of(&self, shard: u32) -> Range<usize> {
        let end = |shard: usize| self.ends[shard] as usize;
        let begin = (shard as usize).checked_sub(1).map_or(0, end);
        begin..end(shard as usize)
    }

    /// Returns whether a range that is read from a replica would have to wait.
    pub(crate) fn is_away(
        &self,
        shard: u32,
        replica: usize,
        load: impl Fn(usize) -> TargetLoad,
    ) -> bool {
        self.load_at(self.places_of(shard).start + replica, load).is_away()
    }

    /// Returns the best replica of the first shard, connected or not, other than those in the bit
    /// mask `skipped`. `load` returns the load of a controller.
    pub(crate) fn best_path(
        &self,
        skipped: u8,
        load: impl Fn(ShardPlace) -> TargetLoad,
    ) -> Option<PathRoute> {
        let load = |place: usize| load(self.places[place]);
        let replica = self.best(0, skipped, load)?;
        let ShardRoute { namespace, place } = self.of(0)[replica];
        Some(PathRoute {
            replica,
            namespace,
            place: self.places[place],
            load: self.load_at(replica, load),
        })
    }

    /// Returns the load of the replica at a position in the lists, taking its ANA state into
    /// account.
    fn load_at(&self, place: usize, load: impl Fn(usize) -> TargetLoad) -> TargetLoad {
        match load(self.replicas[place].place) {
            TargetLoad::Lost => TargetLoad::Lost,
            load if self.access[place].is_usable() => load,
            _ => TargetLoad::Away,
        }
    }

    /// Returns the best replica of a shard, connected or not, other than those in the bit mask
    /// `skipped`. `load` returns the load of a controller by its index.
    pub(crate) fn best(
        &self,
        shard: u32,
        skipped: u8,
        load: impl Fn(usize) -> TargetLoad,
    ) -> Option<usize> {
        let skipped = skipped | self.out(shard);
        let left = self.places_of(shard).enumerate();
        let left = left.filter(|(replica, _)| skipped & 1 << replica == 0);
        let left = left.map(|(replica, place)| {
            (replica, self.access[place].state(), self.load_at(place, &load))
        });
        let serving = |wanted: AnaState| {
            let reached = left.clone().filter(move |&(_, state, _)| state == wanted);
            reached.filter_map(|(replica, _, load)| match load {
                TargetLoad::Probe => Some((0, replica)),
                // A probe, which has load 0, comes before all others.
                TargetLoad::Serving(load) => Some((load.saturating_add(1), replica)),
                TargetLoad::Lost | TargetLoad::Away | TargetLoad::Avoided => None,
            })
        };
        let best = self.choose(serving(AnaState::OPTIMIZED));
        let best = best.or_else(|| self.choose(serving(AnaState::NON_OPTIMIZED)));
        let first = |load: TargetLoad| {
            let found = left.clone().find(move |&(_, _, its)| its == load);
            found.map(|(replica, ..)| replica)
        };
        let others = [TargetLoad::Avoided, TargetLoad::Away, TargetLoad::Lost];
        best.or_else(|| others.into_iter().find_map(first))
    }

    /// Chooses one of the connected replicas by their loads; 0 is that of a probe.
    fn choose(&self, serving: impl Iterator<Item = (u64, usize)> + Clone) -> Option<usize> {
        let lightest = serving.clone().take(self.policy.candidates()).min_by_key(|&(load, _)| load);
        let (load, replica) = lightest?;
        if self.policy == ReplicaPolicy::RoundRobin && load > 0 {
            let turn = self.turns.fetch_add(1, Ordering::Relaxed);
            return serving.clone().nth(turn % serving.count()).map(|(_, replica)| replica);
        }
        Some(replica)
    }

    /// Returns the bit mask of a shard's replicas that were taken out.
    pub(crate) fn out(&self, shard: u32) -> u8 {
        self.out.get(shard as usize).map_or(0, |out| out.load(Ordering::Relaxed))
    }

    /// Takes out a replica that does not have the bytes of its shard: it is not read from again.
    pub(crate) fn take_out(&self, shard: u32, replica: usize, error: &Error) {
        let Some(out) = self.out.get(shard as usize) else { return };
        let bit = 1 << replica;
        if out.fetch_or(bit, Ordering::Relaxed) & bit != 0 {
            return;
        }
        let mut list = self.out_list();
        list.push(TakenOut { shard, replica, error: error.clone() });
        self.out_count.store(list.len(), Ordering::Release);
    }

    /// Returns the number of replicas that were taken out. Takes no lock.
    pub(crate) fn out_count(&self) -> usize {
        self.out_count.load(Ordering::Acquire)
    }

    pub(crate) fn out_list(&self) -> MutexGuard<'_, Vec<TakenOut>> {
        self.out_list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn places(&self) -> &[ShardPlace] {
        &self.places
    }

    /// Returns whether a shard has more than one replica.
    pub(crate) fn is_replicated(&self) -> bool {
        self.most > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::arena::ArenaKey;

    #[test]
    fn shards_keep_their_replicas_apart() {
        let mut routes = ShardRoutes::default();
        let route = |namespace| ShardRoute { namespace: NamespaceKey::at(namespace), place: 0 };
        let path = |namespace| (route(namespace), PathAccess::new(AnaState::OPTIMIZED));
        routes.push([path(1)].into_iter());
        assert!(!routes.is_replicated());
        routes.push((2..20).map(path));
        routes.push([path(20), path(21)].into_iter());
        assert_eq!(routes.of(0), [route(1)]);
        assert_eq!(routes.of(1), (2..10).map(route).collect::<Vec<_>>());
        assert_eq!(routes.of(2), [route(20), route(21)]);
        assert!(routes.is_replicated());
    }

    #[test]
    fn a_controller_has_one_number() {
        let mut routes = ShardRoutes::default();
        let place = |controller| ShardPlace {
            engine: EngineKey::at(0),
            controller: ControllerKey::at(controller),
        };
        let numbers = [7, 3, 7, 3].map(|controller| routes.place(place(controller)));
        assert_eq!((numbers, routes.places()), ([0, 1, 0, 1], &[place(7), place(3)][..]));
    }

    /// The replicas that so many ranges of a shard are read from, one after the other.
    fn chosen(
        policy: ReplicaPolicy,
        states: &[AnaState],
        loads: &[u64],
        ranges: u64,
    ) -> Vec<usize> {
        let mut routes = ShardRoutes::with_policy(policy);
        let route = |place| ShardRoute { namespace: NamespaceKey::at(0), place };
        let path = |(place, &state)| (route(place), PathAccess::new(state));
        routes.push(states.iter().enumerate().map(path));
        let load = |place: usize| TargetLoad::Serving(loads[place]);
        (0..ranges).filter_map(|_| routes.best(0, 0, load)).collect()
    }

    #[test]
    fn policies_choose_among_the_paths_that_are_reached_best() {
        let (well, worse, no) =
            (AnaState::OPTIMIZED, AnaState::NON_OPTIMIZED, AnaState::INACCESSIBLE);
        let loads = [9, 7, 3, 0];
        let all = [well; 4];
        assert_eq!(chosen(ReplicaPolicy::Spread, &all, &loads, 1), [1]);
        assert_eq!(chosen(ReplicaPolicy::First, &all, &loads, 1), [0]);
        assert_eq!(chosen(ReplicaPolicy::Numa, &all, &loads, 2), [0, 0]);
        assert_eq!(chosen(ReplicaPolicy::QueueDepth, &all, &loads, 1), [3]);
        assert_eq!(chosen(ReplicaPolicy::RoundRobin, &all, &loads, 5), [0, 1, 2, 3, 0]);
        let mixed = [no, well, worse, well];
        assert_eq!(chosen(ReplicaPolicy::First, &mixed, &loads, 1), [1]);
        assert_eq!(chosen(ReplicaPolicy::QueueDepth, &mixed, &loads, 1), [3]);
        assert_eq!(chosen(ReplicaPolicy::RoundRobin, &mixed, &loads, 3), [1, 3, 1]);
        let far = [no, worse, AnaState::CHANGE, worse];
        assert_eq!(chosen(ReplicaPolicy::RoundRobin, &far, &loads, 3), [1, 3, 1]);
        // Ranges wait for the first.
        assert_eq!(chosen(ReplicaPolicy::RoundRobin, &[no; 4], &loads, 2), [0, 0]);
    }
}
