//! A target without threads or a clock: its caller drives it. For simulators and tests.

use std::sync::Arc;

use rdma::Time;

use crate::controller::Associations;
use crate::core_context::events::BufferEvent;
use crate::driver::assembly::Assembly;
use crate::inventory::Registry;
use crate::poll_group::{PollGroup, PollGroupStats, StopRequest, Turn};
use crate::storage::Engine;
use crate::transport::{Reception, Stop};

/// A target that its caller drives.
pub struct Stepped {
    associations: Arc<Associations>,
    orders: Arc<StopRequest>,
    groups: Vec<PollGroup>,
    receptions: Vec<Box<dyn Reception>>,
    /// Until then a group gets no turn.
    stalled: Vec<Time>,
}

impl Stepped {
    /// The target of these parts, with an engine for each core.
    pub fn new(assembly: Assembly, mut engine: impl FnMut() -> Box<dyn Engine>) -> Self {
        let Assembly { associations, seeds, receptions, orders, .. } = assembly;
        let groups: Vec<_> = seeds.into_iter().map(|seed| seed.build(engine())).collect();
        let stalled = vec![Time::ZERO; groups.len()];
        Self { associations, orders, groups, receptions, stalled }
    }

    /// Does all that is ready at `now`.
    pub fn turn(&mut self, now: Time) -> Turn {
        let mut busy = false;
        let mut next: Option<Time> = None;
        for reception in &mut self.receptions {
            busy |= reception.turn(now);
        }
        for (group, &until) in self.groups.iter_mut().zip(&self.stalled) {
            if until > now {
                next = next.into_iter().chain([until]).min();
                continue;
            }
            match group.turn(now) {
                Turn::Busy => busy = true,
                Turn::SleepUntil(at) => next = next.into_iter().chain(at).min(),
            }
        }
        // A message that groups just sent is not left for the next step.
        busy |= self.receptions.iter().any(|reception| !reception.may_sleep());
        let receptions = self.receptions.iter().filter_map(|reception| reception.deadline());
        let next = receptions.chain(next).min();
        if busy { Turn::Busy } else { Turn::SleepUntil(next) }
    }

    /// Gives the group of a core no turn before a time, as a core that others keep busy. Nothing
    /// without that core.
    pub fn stall(&mut self, core: usize, until: Time) {
        if let Some(stalled) = self.stalled.get_mut(core) {
            *stalled = until;
        }
    }

    /// The ports, subsystems and namespaces that it exports.
    pub fn registry(&self) -> &Arc<Registry> {
        self.associations.registry()
    }

    /// The live controllers of the target.
    pub fn associations(&self) -> &Arc<Associations> {
        &self.associations
    }

    /// Takes no more connections and ends those that there are.
    pub fn stop(&mut self, how: Stop) {
        self.receptions.iter_mut().for_each(|reception| reception.close());
        if how == Stop::Now {
            self.associations.stop();
        }
        self.orders.set(how);
    }

    /// Whether it was stopped and every connection has ended.
    pub fn is_over(&self) -> bool {
        self.groups_are_over() && self.receptions.iter().all(|reception| reception.is_empty())
    }

    /// Whether it was stopped and every poll group has ended its connections, or waits for storage
    /// no longer.
    pub fn groups_are_over(&self) -> bool {
        self.groups.iter().all(PollGroup::is_over)
    }

    /// Number of connections, those that are disconnecting included.
    pub fn connections(&self) -> u64 {
        self.receptions.iter().map(|reception| reception.stats().connections).sum()
    }

    /// The events since the last call of the buffers of hosts and of those of anonymous
    /// connections, for each poll group. A caller that wants all events calls it before the first
    /// turn.
    pub fn buffer_events(&mut self) -> impl Iterator<Item = [Vec<BufferEvent>; 2]> {
        self.groups.iter_mut().map(PollGroup::buffer_events)
    }

    /// Counters of each poll group.
    pub fn stats(&mut self) -> Vec<PollGroupStats> {
        self.groups.iter_mut().map(PollGroup::stats).collect()
    }
}
