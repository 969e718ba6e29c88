//! Rings: ranges in flight, up to a fixed number.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use slab::Slab;

use crate::api::namespace::Namespace;
use crate::api::path_set::PathSet;
use crate::api::pending::{Completed, OwnRing};
use crate::api::submit::{SliceKeys, submit};
use crate::driver::host_state::Inner;
use crate::driver::process::Forked;
use crate::driver::system_now;
use crate::engine::arena::RingKey;
use crate::engine::completion::RangeCompletion;
use crate::memory::region::RegionSlice;
use crate::types::direction::RangeDirection;
use crate::types::error::ErrorKind;
use crate::types::options::BatchOptions;

/// Ranges in flight, up to a fixed number, for callers that submit ranges and take results one by
/// one. No memory is allocated for a range once the ring has been full.
///
/// Ranges are sent in groups of 16, when the ring is full, and by [`Ring::submit`], [`Ring::reap`]
/// and [`Ring::wait`]; on a [polled](crate::Host::polled) host at its next turn. The ring keeps the
/// connections of its ranges until their results are taken.
///
/// A range is in flight until [`Ring::reap`] or [`Ring::wait`] has returned its result, and the
/// ring is full when [`Ring::depth`] ranges are: a loop that runs until [`Ring::in_flight`] is 0
/// has seen all results.
pub struct Ring {
    // Dropped before `places`: the ring must be closed before paths of its ranges are dropped.
    own: OwnRing,
    depth: usize,
    options: BatchOptions,
    /// Ranges whose results were not taken, by the token that the engine uses for them.
    places: Slab<Taken>,
    /// Ranges that were not handed to their engines yet.
    staged: Vec<Staged>,
    /// Results of ranges that were submitted in a forked child, where no range is sent.
    refused: Vec<RangeCompletion>,
}

/// A range in a ring, as its caller identifies it.
struct Taken {
    namespace: Namespace,
    /// The set of paths at the time when the range was handed to its engine.
    paths: Option<Arc<PathSet>>,
    token: u64,
}

/// A range that was not handed to its engine yet.
struct Staged {
    place: usize,
    direction: RangeDirection,
    offset: u64,
    memory: SliceKeys,
}

/// A range that was submitted to a full ring; its memory is returned.
#[derive(Debug)]
#[must_use = "the ring did not take the range: take results, and submit it again"]
pub struct RingFull(pub RegionSlice);

impl Ring {
    /// The most ranges of a ring. For twice as many, the room for results would take 8 MiB more.
    pub const MAX_DEPTH: usize = 1 << 16;

    /// Number of staged ranges at which they are sent without a call of [`Ring::submit`].
    const TOGETHER: usize = 16;

    pub(crate) fn new(host: &Arc<Inner>, depth: usize, options: BatchOptions) -> Self {
        let depth = depth.clamp(1, Self::MAX_DEPTH);
        // In a forked child the key is not used.
        let key =
            host.shared.lock().map_or(RingKey::NONE, |mut state| state.host.outbox.open(depth));
        Self {
            own: OwnRing { host: Arc::clone(host), key },
            depth,
            options,
            places: Slab::with_capacity(depth),
            staged: Vec::with_capacity(depth.min(Self::TOGETHER)),
            refused: Vec::new(),
        }
    }

    /// Reads as many bytes as `into` holds, from byte `offset` of the namespace. The result has
    /// `token`.
    ///
    /// # Errors
    /// The ring is full: call [`Ring::reap`] first.
    #[must_use = "a full ring does not take the range"]
    pub fn read(
        &mut self,
        namespace: &Namespace,
        offset: u64,
        into: RegionSlice,
        token: u64,
    ) -> Result<(), RingFull> {
        self.stage(namespace, RangeDirection::Read, offset, into, token)
    }

    /// Writes the bytes of `from` to byte `offset` of the namespace and those after it. The result
    /// has `token`. Writes of parts of blocks are safe only from other writes of this host:
    /// [several writers](Namespace#several-writers).
    ///
    /// # Errors
    /// The ring is full: call [`Ring::reap`] first.
    #[must_use = "a full ring does not take the range"]
    pub fn write(
        &mut self,
        namespace: &Namespace,
        offset: u64,
        from: RegionSlice,
        token: u64,
    ) -> Result<(), RingFull> {
        self.stage(namespace, RangeDirection::Write { fua: false }, offset, from, token)
    }

    /// Writes like [`Ring::write`], with Force Unit Access: the bytes are durable if the result is
    /// a success.
    ///
    /// # Errors
    /// The ring is full: call [`Ring::reap`] first.
    #[must_use = "a full ring does not take the range"]
    pub fn write_durable(
        &mut self,
        namespace: &Namespace,
        offset: u64,
        from: RegionSlice,
        token: u64,
    ) -> Result<(), RingFull> {
        self.stage(namespace, RangeDirection::Write { fua: true }, offset, from, token)
    }

    fn stage(
        &mut self,
        namespace: &Namespace,
        direction: RangeDirection,
        offset: u64,
        slice: RegionSlice,
        token: u64,
    ) -> Result<(), RingFull> {
        if self.in_flight() >= self.depth {
            return Err(RingFull(slice));
        }
        let place = self.places.insert(Taken { namespace: namespace.clone(), paths: None, token });
        let memory = SliceKeys::new(namespace.reached_over(), slice);
        self.staged.push(Staged { place, direction, offset, memory });
        let polled = !self.own.host.shared.threaded;
        if polled || self.staged.len() >= Self::TOGETHER || self.places.len() >= self.depth {
            self.submit();
        }
        Ok(())
    }

    /// Sends the staged ranges. For callers that do something else before they wait for them.
    pub fn submit(&mut self) {
        if self.staged.is_empty() {
            return;
        }
        self.hand_over();
        let shared = &self.own.host.shared;
        if shared.threaded {
            shared.launch(system_now());
        }
    }

    /// Hands the staged ranges to their engines, without a turn of the engines.
    fn hand_over(&mut self) {
        let Ok(mut state) = self.own.host.shared.lock() else {
            self.refused.extend(self.staged.drain(..).map(|staged| RangeCompletion {
                token: staged.place as u64,
                slice: staged.memory.slice,
                result: Err(ErrorKind::Forked.into()),
            }));
            return;
        };
        for Staged { place, direction, offset, memory } in self.staged.drain(..) {
            let taken = &mut self.places[place];
            let token = place as u64;
            taken.paths = submit(
                &mut state,
                &self.own,
                taken.namespace.reached_over(),
                direction,
                self.options,
                offset,
                memory,
                token,
            );
        }
    }

    /// Returns how many ranges may be in flight.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Returns the number of ranges whose results were not returned. In a process that was forked
    /// since, those that were submitted in it: the others belong to the parent.
    pub fn in_flight(&self) -> usize {
        match self.own.host.shared.is_forked() {
            true => self.refused.len() + self.staged.len(),
            false => self.places.len(),
        }
    }

    /// Does the work that is ready, appends the available results to `out` without waiting, and
    /// returns how many.
    pub fn reap(&mut self, out: &mut Vec<RangeCompletion>) -> usize {
        self.hand_over();
        let shared = &self.own.host.shared;
        if shared.threaded {
            shared.turn(system_now());
        }
        let before = out.len();
        self.take_ready(out);
        out.len() - before
    }

    /// Waits until at least `wanted` results are available, or those of all ranges in flight, or
    /// until `timeout` has passed. Appends the results to `out` and returns how many.
    pub fn wait(
        &mut self,
        wanted: usize,
        timeout: Option<Duration>,
        out: &mut Vec<RangeCompletion>,
    ) -> usize {
        self.hand_over();
        let before = out.len();
        let shared = Arc::clone(&self.own.host.shared);
        let deadline = timeout.map(|timeout| system_now() + timeout);
        let completed = Completed { ring: &self.own, wanted, into: out };
        let _ = shared.block_on_until(std::pin::pin!(completed), deadline);
        self.name(&mut out[before..]);
        self.take_ready(out);
        out.len() - before
    }

    /// Appends the available results to `out`.
    fn take_ready(&mut self, out: &mut Vec<RangeCompletion>) {
        let before = out.len();
        match self.own.host.shared.lock() {
            Ok(mut state) => out.extend(state.host.outbox.ready(self.own.key).drain(..)),
            Err(Forked) => out.append(&mut self.refused),
        }
        self.name(&mut out[before..]);
    }

    /// Replaces the engine's tokens by those of the callers, and frees the places. Not under the
    /// host's lock, since the last handle of a namespace may be dropped.
    fn name(&mut self, completions: &mut [RangeCompletion]) {
        for completion in completions {
            // The engine's token is a place.
            let Taken { token, .. } = self.places.remove(completion.token as usize);
            completion.token = token;
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // The caller could no longer see the bytes that a read returns.
        self.staged.retain(|staged| staged.direction != RangeDirection::Read);
        self.submit();
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("in_flight", &self.in_flight()).finish_non_exhaustive()
    }
}
