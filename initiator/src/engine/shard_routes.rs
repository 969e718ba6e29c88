//! Where the engines find shards: the namespaces of each, by connection.

use std::ops::Range;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nvme_proto::log::AnaState;

use crate::engine::path_access::PathAccess;
use crate::types::error::Error;

/// A replica of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShardRoute {
    /// The namespace, as its controller numbers it.
    pub(crate) namespace: usize,
    /// Number of its controller among those of the shards.
    pub(crate) place: usize,
}

/// A controller that shards are read over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShardPlace {
    /// Number of the engine.
    pub(crate) engine: usize,
    /// The controller, as its engine numbers it.
    pub(crate) controller: usize,
}

/// The path of a namespace that was found best.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PathRoute {
    /// Number of the path.
    pub(crate) replica: usize,
    /// The namespace, as the controller numbers it.
    pub(crate) namespace: usize,
    pub(crate) place: ShardPlace,
    pub(crate) load: TargetLoad,
}

/// The load of a controller, as the choice between replicas sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TargetLoad {
    /// The target was lost, or refuses this host: ranges fail there immediately.
    Lost,
    /// The target is not connected, or cannot reach the namespace: ranges have to wait for it.
    Away,
    /// The target is connected, and its breaker is open: ranges go to others.
    Avoided,
    /// The target is connected, and one range is to find out whether its breaker can be closed.
    Probe,
    /// The target has been asked for so many bytes that it has not sent.
    Serving(u64),
}

impl TargetLoad {
    /// Whether nothing is sent there now.
    pub(crate) fn is_away(self) -> bool {
        matches!(self, Self::Lost | Self::Away)
    }

    /// The load for a range that is not to be a probe.
    pub(crate) fn without_probe(self) -> Self {
        if self == Self::Probe { Self::Avoided } else { self }
    }
}

/// Which of the replicas of a shard are read from. Those that their targets reach well (ANA state
/// optimized) come before all others (non-optimized).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReplicaPolicy {
    /// The first two that serve, each range from the one with fewer bytes to send.
    #[default]
    Spread,
    /// The first that serves.
    First,
    /// All that serve, each range from the one with the fewest bytes to send.
    QueueDepth,
    /// All that serve, in turn.
    RoundRobin,
    /// The first that serves, after those whose network devices are nearest to the processor on
    /// which [`Shards`](crate::Shards) were made came to the front.
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

/// A replica that has other bytes than its shard, and is no longer read from.
#[derive(Clone, Debug)]
pub(crate) struct TakenOut {
    pub(crate) shard: u32,
    /// Place of the replica among those of the shard.
    pub(crate) replica: usize,
    pub(crate) error: Error,
}

/// The replicas of all shards.
#[derive(Debug, Default)]
pub(crate) struct ShardRoutes {
    /// Replicas of each shard, one shard behind the other.
    replicas: Vec<ShardRoute>,
    /// How each of those can be reached.
    access: Vec<PathAccess>,
    /// End of each shard's replicas in that list.
    ends: Vec<u32>,
    places: Vec<ShardPlace>,
    /// The most replicas that a shard has.
    most: usize,
    policy: ReplicaPolicy,
    /// Ranges that were given to replicas in turn.
    turns: AtomicUsize,
    /// A bit for each replica that is no longer read from, by shard.
    out: Vec<AtomicU8>,
    /// How many those are, and why.
    out_count: AtomicUsize,
    out_list: Mutex<Vec<TakenOut>>,
}

impl ShardRoutes {
    /// More replicas of a shard than this are not kept.
    pub(crate) const MAX_REPLICAS: usize = 8;

    /// An empty list of shards, whose replicas are to be chosen by a policy.
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

    /// The number of a controller, which is new or was used by an earlier shard.
    pub(crate) fn place(&mut self, place: ShardPlace) -> usize {
        let known = self.places.iter().position(|&known| known == place);
        known.unwrap_or_else(|| {
            self.places.push(place);
            self.places.len() - 1
        })
    }

    /// The replicas of a shard.
    pub(crate) fn of(&self, shard: u32) -> &[ShardRoute] {
        &self.replicas[self.places_of(shard)]
    }

    /// Where the replicas of a shard are in the lists.
    fn places_of(&self, shard: u32) -> Range<usize> {
        let end = |shard: usize| self.ends[shard] as usize;
        let begin = (shard as usize).checked_sub(1).map_or(0, end);
        begin..end(shard as usize)
    }

    /// Whether ranges of a shard that are to be read from a replica have to wait.
    pub(crate) fn is_away(
        &self,
        shard: u32,
        replica: usize,
        load: impl Fn(usize) -> TargetLoad,
    ) -> bool {
        self.load_at(self.places_of(shard).start + replica, load).is_away()
    }

    /// The best replica of the first shard beside those whose bits are set in `skipped`, be it
    /// connected or not. `load` tells of controllers.
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

    /// The load of a replica by its place in the lists, as ranges of its shard see it.
    fn load_at(&self, place: usize, load: impl Fn(usize) -> TargetLoad) -> TargetLoad {
        match load(self.replicas[place].place) {
            TargetLoad::Lost => TargetLoad::Lost,
            load if self.access[place].is_usable() => load,
            _ => TargetLoad::Away,
        }
    }

    /// The best replica of a shard beside those whose bits are set in `skipped`, be it connected or
    /// not. `load` tells of controllers by their numbers here.
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
                // A probe comes before any load.
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

    /// Chooses one of the replicas that serve, each with its load; 0 is that of a probe.
    fn choose(&self, serving: impl Iterator<Item = (u64, usize)> + Clone) -> Option<usize> {
        let lightest = serving.clone().take(self.policy.candidates()).min_by_key(|&(load, _)| load);
        let (load, replica) = lightest?;
        if self.policy == ReplicaPolicy::RoundRobin && load > 0 {
            let turn = self.turns.fetch_add(1, Ordering::Relaxed);
            return serving.clone().nth(turn % serving.count()).map(|(_, replica)| replica);
        }
        Some(replica)
    }

    /// A bit for each replica of a shard that is no longer read from.
    pub(crate) fn out(&self, shard: u32) -> u8 {
        self.out.get(shard as usize).map_or(0, |out| out.load(Ordering::Relaxed))
    }

    /// A replica turned out to have other bytes: it is not read from again.
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

    /// Replicas that were taken out so far. Takes no lock.
    pub(crate) fn out_count(&self) -> usize {
        self.out_count.load(Ordering::Acquire)
    }

    pub(crate) fn out_list(&self) -> MutexGuard<'_, Vec<TakenOut>> {
        self.out_list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn places(&self) -> &[ShardPlace] {
        &self.places
    }

    /// Whether a shard has more than one replica.
    pub(crate) fn is_replicated(&self) -> bool {
        self.most > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_keep_their_replicas_apart() {
        let mut routes = ShardRoutes::default();
        let route = |namespace| ShardRoute { namespace, place: 0 };
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
        let place = |controller| ShardPlace { engine: 0, controller };
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
        let route = |place| ShardRoute { namespace: 0, place };
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
