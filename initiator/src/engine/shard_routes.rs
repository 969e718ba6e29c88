//! Where the cores find shards: the namespaces of each, by connection.

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
    /// Number of the core.
    pub(crate) engine: usize,
    /// The controller, as its core numbers it.
    pub(crate) controller: usize,
}

/// The replicas of all shards.
#[derive(Debug, Default)]
pub(crate) struct ShardRoutes {
    /// Of each shard, one behind the other.
    replicas: Vec<ShardRoute>,
    /// For each shard the end of its replicas in that list.
    ends: Vec<u32>,
    places: Vec<ShardPlace>,
    /// The most replicas that a shard has.
    most: usize,
}

impl ShardRoutes {
    /// More replicas of a shard than this are not kept.
    pub(crate) const MAX_REPLICAS: usize = 8;

    /// Adds a shard with the first [`ShardRoutes::MAX_REPLICAS`] of these replicas.
    pub(crate) fn push(&mut self, replicas: impl Iterator<Item = ShardRoute>) {
        let before = self.replicas.len();
        self.replicas.extend(replicas.take(Self::MAX_REPLICAS));
        self.most = self.most.max(self.replicas.len() - before);
        self.ends.push(u32::try_from(self.replicas.len()).unwrap_or(u32::MAX));
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
        let end = |shard: usize| self.ends[shard] as usize;
        let begin = (shard as usize).checked_sub(1).map_or(0, end);
        &self.replicas[begin..end(shard as usize)]
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
        routes.push([route(1)].into_iter());
        assert!(!routes.is_replicated());
        routes.push((2..20).map(route));
        routes.push([route(20), route(21)].into_iter());
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
}
