//! Plans between the caller and the engines: all entries are checked before any is started.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::api::shards::Shards;
use crate::api::ticket::Ticket;
use crate::driver::host_state::Inner;
use crate::engine::arena::{EngineKey, PlanKey};
use crate::engine::plan_run::{PlanRun, RangeNumbers};
use crate::engine::plan_state::PlanState;
use crate::engine::shard_routes::ShardPlace;
use crate::memory::interval_set::{IntervalSet, Overlapping};
use crate::memory::plan_region::{ClaimKind, ClaimedMemory, Region};
use crate::memory::region::Keys;
use crate::types::direction::RangeDirection;
use crate::types::error::{Error, ErrorKind};
use crate::types::plan::{Entry, PlanError, Submit};

pub(crate) fn submit(
    host: &Arc<Inner>,
    direction: RangeDirection,
    shards: &Shards,
    entries: &[Entry],
    region: &Region,
    options: Submit,
) -> Result<Ticket, PlanError> {
    // Checked before any lock is taken: in a forked child a lock may be held forever.
    region.check_process()?;
    if host.shared.is_forked() {
        return Err(Error::from(ErrorKind::Forked).into());
    }
    if shards.host().is_some_and(|other| !Arc::ptr_eq(other, host)) {
        let error = ErrorKind::Invalid("the shards are namespaces of another host");
        return Err(Error::from(error).into());
    }
    let used = check_entries(direction, shards, entries, region)?;
    let keys = keys(shards, &used, region)?;
    let memory = claim(direction, entries, region)?;
    let routes = Arc::clone(shards.routes());
    let options = options.batch_options();
    let state = Arc::new(PlanState::new(direction, entries, routes, keys, options));
    let runs = |plan| runs(plan, &state, &used);
    let key = host.shared.submit_plan(Arc::clone(&state), memory, runs).map_err(Error::from)?;
    Ok(Ticket::new(host, shards, state, key))
}

/// Claims the bytes of a plan. Only sources may overlap.
fn claim(
    direction: RangeDirection,
    entries: &[Entry],
    region: &Region,
) -> Result<ClaimedMemory, PlanError> {
    let places = entries.iter().map(Entry::place);
    match direction {
        RangeDirection::Read => {
            let places = IntervalSet::new(places).map_err(|Overlapping| overlap(entries))?;
            region.claim(places, ClaimKind::Destination)
        }
        RangeDirection::Write { .. } => region.claim(IntervalSet::union(places), ClaimKind::Source),
    }
}

/// Checks that all entries lie within their shards and the region, and can be transferred in this
/// direction. Returns which controllers they use, by place.
fn check_entries(
    direction: RangeDirection,
    shards: &Shards,
    entries: &[Entry],
    region: &Region,
) -> Result<Vec<bool>, PlanError> {
    if direction == RangeDirection::Read && region.is_read_only() {
        return Err(PlanError::ReadOnlyRegion);
    }
    if u32::try_from(entries.len()).is_err() {
        return Err(PlanError::TooLong { entries: entries.len() });
    }
    let mut used = vec![false; shards.connections().len()];
    for (number, entry) in entries.iter().enumerate() {
        check_entry(shards, number, entry, region.len())?;
        let (shard, routes) = (entry.shard, shards.routes().of(entry.shard));
        if direction != RangeDirection::Read && routes.len() > 1 {
            return Err(PlanError::Replicated { entry: number, shard });
        }
        routes.iter().for_each(|route| used[route.place] = true);
    }
    Ok(used)
}

fn check_entry(
    shards: &Shards,
    number: usize,
    entry: &Entry,
    region_bytes: usize,
) -> Result<(), PlanError> {
    let Entry { shard, length, offset, dst } = *entry;
    let is_within =
        |start: u64, size: u64| start.checked_add(length.into()).is_some_and(|end| end <= size);
    let Some(namespace) = shards.get(shard) else {
        return Err(PlanError::NoShard { entry: number, shard, shards: shards.len() });
    };
    let size_bytes = namespace.size_bytes();
    if !is_within(offset, size_bytes) {
        return Err(PlanError::BeyondShard { entry: number, offset, length, size_bytes });
    }
    if !is_within(dst, region_bytes as u64) {
        return Err(PlanError::BeyondRegion { entry: number, dst, length, region_bytes });
    }
    Ok(())
}

/// Returns the keys of a region for each controller in use, registering the region where necessary.
fn keys(shards: &Shards, used: &[bool], region: &Region) -> Result<Box<[Option<Keys>]>, PlanError> {
    let mut keys = vec![None; used.len()].into_boxed_slice();
    for (place, is_used) in used.iter().enumerate() {
        if *is_used {
            let namespace = &shards.connections()[place];
            keys[place] = Some(region.keys(namespace.first_path().scope()).map_err(Error::from)?);
        }
    }
    Ok(keys)
}

/// Returns the error for two overlapping entries of a plan that has such a pair.
fn overlap(entries: &[Entry]) -> PlanError {
    let mut order: Vec<usize> = (0..entries.len()).filter(|&i| entries[i].length > 0).collect();
    order.sort_unstable_by_key(|&i| entries[i].place());
    let pair =
        order.windows(2).find(|pair| entries[pair[0]].place().1 > entries[pair[1]].place().0);
    let (a, b) = pair.map_or((0, 0), |pair| (pair[0], pair[1]));
    PlanError::Overlap { first: a.min(b), second: a.max(b) }
}

/// Returns the ranges of each controller, with the key of its engine.
fn runs(plan: PlanKey, state: &Arc<PlanState>, used: &[bool]) -> Vec<(EngineKey, PlanRun)> {
    let run = |place: usize, ranges| {
        let ShardPlace { engine, controller } = state.places()[place];
        let run = PlanRun::new(plan, Arc::clone(state), controller, ranges, state.options());
        (engine, run)
    };
    let mut places = (0..used.len()).filter(|&place| used[place]);
    match (places.next(), places.next()) {
        (None, _) => Vec::new(),
        (Some(place), None) => vec![run(place, RangeNumbers::All(0..state.ranges()))],
        _ => {
            let ranges = ranges_by_place(state);
            ranges.into_iter().map(|(place, ranges)| run(place, ranges.into())).collect()
        }
    }
}

fn ranges_by_place(state: &PlanState) -> BTreeMap<usize, Vec<u32>> {
    let mut ranges = BTreeMap::<_, Vec<_>>::new();
    for number in 0..state.ranges() {
        ranges.entry(state.entry(number).1.place).or_default().push(number);
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(dst: u64, length: u32) -> Entry {
        Entry { shard: 0, length, offset: 0, dst }
    }

    #[test]
    fn entries_that_overlap_are_named() {
        let plan = [entry(50, 10), entry(0, 10), entry(5, 0), entry(59, 1), entry(9, 2)];
        assert!(matches!(overlap(&plan), PlanError::Overlap { first: 1, second: 4 }));
        assert!(matches!(overlap(&plan[..4]), PlanError::Overlap { first: 0, second: 3 }));
    }
}
