//! Ranges between the caller and the engine that executes them.

use std::io;
use std::sync::Arc;

use crate::api::namespace_paths::NamespacePaths;
use crate::api::path_set::{ChosenPath, PathSet};
use crate::api::pending::{Completed, OwnRing, Pending};
use crate::driver::host_state::Inner;
use crate::driver::process::Forked;
use crate::driver::{DriverState, system_now};
use crate::engine::completion::RangeCompletion;
use crate::engine::range_op::Submission;
use crate::engine::range_owner::RangeOwner;
use crate::memory::region::{Grant, Keys, RegionSlice};
use crate::types::direction::RangeDirection;
use crate::types::error::{Error, ErrorKind};
use crate::types::options::BatchOptions;

/// Memory of a range, and the result of its transfer.
#[derive(Debug)]
pub struct RangeOutcome {
    /// The slice that was submitted. After a failed read its contents are unspecified. It is empty
    /// in a process that was forked while the range was in progress: the parent uses the memory.
    pub slice: RegionSlice,
    /// `Ok` if all bytes were transferred.
    pub result: Result<(), Error>,
}

/// A batch in progress. Fields are dropped in order: the ring must be closed before paths of its
/// ranges are dropped.
struct BatchInProgress {
    ring: OwnRing,
    /// Paths of the ranges, whose handles keep the connections open.
    #[expect(dead_code, reason = "held")]
    paths: Vec<(NamespacePaths, Option<Arc<PathSet>>)>,
}

/// A range of a batch, whose memory was registered if that was possible.
pub(crate) struct BatchRange {
    paths: NamespacePaths,
    offset: u64,
    memory: SliceKeys,
}

impl BatchRange {
    pub(crate) fn new(paths: &NamespacePaths, offset: u64, slice: RegionSlice) -> Self {
        let memory = SliceKeys::new(paths, slice);
        Self { paths: paths.clone(), offset, memory }
    }
}

/// A slice with its keys, or with the error of its registration.
pub(crate) struct SliceKeys {
    pub(crate) slice: RegionSlice,
    keys: io::Result<Keys>,
}

impl SliceKeys {
    /// Registers the slice, if necessary, for each path of the namespace. Called before the host is
    /// locked, since registration may take long.
    pub(crate) fn new(paths: &NamespacePaths, mut slice: RegionSlice) -> Self {
        let paths = paths.handles();
        let keys = paths.as_slice().iter().map(|path| slice.keys(path.scope()));
        // An error for one path does not matter if there are keys for another.
        let keys = keys.reduce(io::Result::or).expect("a namespace has a path");
        Self { slice, keys }
    }
}

/// Starts a batch of ranges, all of them reads or all of them writes.
pub(crate) fn start(
    host: &Arc<Inner>,
    direction: RangeDirection,
    options: BatchOptions,
    ranges: Vec<BatchRange>,
) -> Pending<Vec<RangeOutcome>> {
    let count = ranges.len();
    let mut paths = Vec::with_capacity(count);
    // All ranges are submitted under one lock, so that their commands are sent together.
    let Ok(mut state) = host.shared.lock() else {
        let result = Err(ErrorKind::Forked.into());
        let outcome =
            |range: BatchRange| RangeOutcome { slice: range.memory.slice, result: result.clone() };
        let outcomes = ranges.into_iter().map(outcome).collect();
        return Pending::new(host, async move { outcomes });
    };
    let ring = OwnRing { host: Arc::clone(host), key: state.host.outbox.open(count) };
    for (token, range) in ranges.into_iter().enumerate() {
        let BatchRange { paths: range_paths, offset, memory } = range;
        let token = token as u64;
        let set =
            submit(&mut state, &ring, &range_paths, direction, options, offset, memory, token);
        paths.push((range_paths, set));
    }
    drop(state);
    let batch = BatchInProgress { ring, paths };
    if host.shared.threaded {
        // The commands are sent now, since the caller may do something else before it waits.
        host.shared.launch(system_now());
    }
    Pending::new(host, async move {
        let mut completions = Vec::with_capacity(count);
        let ring = &batch.ring;
        let completed = Completed { ring, wanted: count, into: &mut completions }.await;
        drop(batch);
        if let Err(Forked) = completed {
            return (0..count).map(|_| lost_to_parent()).collect();
        }
        completions.sort_unstable_by_key(|completion| completion.token);
        completions
            .into_iter()
            .map(|RangeCompletion { slice, result, .. }| RangeOutcome { slice, result })
            .collect()
    })
}

/// Returns the result of a range that was in progress when this process was forked. The parent
/// keeps its memory.
fn lost_to_parent() -> RangeOutcome {
    let slice = RegionSlice::from_vec(Vec::new(), Grant::Persistent);
    RangeOutcome { slice, result: Err(ErrorKind::Forked.into()) }
}

/// Hands a range to its engine. The ring must have room for it, and the returned paths must be kept
/// until the range has ended.
#[expect(clippy::too_many_arguments, reason = "what makes up a submission")]
pub(crate) fn submit(
    state: &mut DriverState,
    ring: &OwnRing,
    paths: &NamespacePaths,
    direction: RangeDirection,
    options: BatchOptions,
    offset: u64,
    memory: SliceKeys,
    token: u64,
) -> Option<Arc<PathSet>> {
    let SliceKeys { slice, keys } = memory;
    state.host.outbox.reserve(ring.key);
    if !Arc::ptr_eq(paths.host(), &ring.host) {
        let result = Err(ErrorKind::Invalid("a namespace of another host").into());
        state.host.outbox.complete_in_ring(ring.key, RangeCompletion { token, slice, result });
        return None;
    }
    let ChosenPath { engine, controller, namespace, paths, set } = paths.choose(state);
    let submission = Submission {
        controller,
        namespace,
        direction,
        offset,
        slice,
        keys,
        owner: RangeOwner::Ring { ring: ring.key, token, paths },
        options,
    };
    state.host.engines[engine].submit_range(submission, &mut state.host.outbox);
    set
}
