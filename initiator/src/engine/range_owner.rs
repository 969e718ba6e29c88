//! Owner of a range: what gets its result, and where else it may continue.

use std::sync::Arc;

use crate::engine::arena::{PlanKey, RingKey};
use crate::engine::live_routes::LiveRoutes;
use crate::engine::shard_routes::{PathRoute, ShardPlace, ShardRoutes, TargetLoad};

#[derive(Clone, Debug)]
pub(crate) enum RangeOwner {
    /// The result is added with `token` to those of a ring, which has a place for it. `paths` are
    /// those that the range may be moved to; `None` if the namespace is open over one controller.
    Ring { ring: RingKey, token: u64, paths: Option<RangePaths> },
    /// The result becomes the outcome of the plan's range with this index, which may be read from
    /// another replica of its shard.
    Plan { plan: PlanKey, index: u32 },
    /// The result becomes that of `count` ranges of the plan from index `first` on, which are one
    /// range while their command is in flight.
    PlanRanges { plan: PlanKey, first: u32, count: u32 },
}

impl RangeOwner {
    pub(crate) fn is_ring(&self, key: RingKey) -> bool {
        matches!(self, Self::Ring { ring, .. } if *ring == key)
    }

    pub(crate) fn is_plan(&self, key: PlanKey) -> bool {
        match self {
            Self::Ring { .. } => false,
            Self::Plan { plan, .. } | Self::PlanRanges { plan, .. } => *plan == key,
        }
    }

    /// Returns the number of ranges that get a result.
    pub(crate) fn ranges(&self) -> u64 {
        match self {
            Self::Ring { .. } | Self::Plan { .. } => 1,
            Self::PlanRanges { count, .. } => u64::from(*count),
        }
    }

    /// Returns the paths of a range of a ring that may be moved.
    pub(crate) fn paths(&self) -> Option<&RangePaths> {
        match self {
            Self::Ring { paths, .. } => paths.as_ref(),
            Self::Plan { .. } | Self::PlanRanges { .. } => None,
        }
    }

    pub(crate) fn paths_mut(&mut self) -> Option<&mut RangePaths> {
        match self {
            Self::Ring { paths, .. } => paths.as_mut(),
            Self::Plan { .. } | Self::PlanRanges { .. } => None,
        }
    }

    /// Excludes all other paths of a range of a ring.
    pub(crate) fn forget_paths(&mut self) {
        if let Self::Ring { paths, .. } = self {
            *paths = None;
        }
    }
}

/// The paths to the namespace of a range, with its place among them.
#[derive(Clone, Debug)]
pub(crate) struct RangePaths {
    /// Current routes to the namespace.
    live: Arc<LiveRoutes>,
    /// Routes at the time when the range came to its path.
    routes: Arc<ShardRoutes>,
    /// Index of its path in `routes`.
    replica: usize,
    /// Bit mask of the paths in `routes` on which it failed although they were connected.
    failed: u8,
}

impl RangePaths {
    /// Returns the paths of a range that starts on the path with this index.
    pub(crate) fn new(live: Arc<LiveRoutes>, routes: Arc<ShardRoutes>, replica: usize) -> Self {
        Self { live, routes, replica, failed: 0 }
    }

    /// Records that the range failed on its path, which is connected.
    pub(crate) fn note_failure(&mut self) {
        self.failed |= 1 << self.replica;
    }

    /// Returns the best current path, connected or not, other than those on which the range failed.
    pub(crate) fn best(&self, load: impl Fn(ShardPlace) -> TargetLoad) -> Option<PathRoute> {
        match self.live.other_than(&self.routes) {
            Some(routes) => routes.best_path(0, load),
            None => self.routes.best_path(self.failed, load),
        }
    }

    /// Records that the range is moved to one of the current paths.
    pub(crate) fn move_to(&mut self, route: &PathRoute) {
        if let Some(routes) = self.live.other_than(&self.routes) {
            (self.routes, self.failed) = (routes, 0);
        }
        self.replica = route.replica;
    }
}
