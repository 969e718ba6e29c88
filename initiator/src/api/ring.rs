//! Rings: a fixed number of ranges in flight.

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
use crate::engine::range_op::RangeDirection;
use crate::engine::results::{RangeCompletion, RingKey};
use crate::memory::region::RegionSlice;
use crate::types::error::ErrorKind;
use crate::types::options::BatchOptions;

/// A fixed number of ranges in flight, for callers that submit and reap one by one. Nothing is
/// allocated for a range once the ring was filled for the first time.
///
/// Ranges go out sixteen at a time, or when the ring is full, and with [`Ring::submit`],
/// [`Ring::reap`] and [`Ring::wait`]; on a [polled](crate::Host::polled) host with its next turn.
/// The ring keeps the connections of its ranges until their results are taken.
///
/// A range is in flight until [`Ring::reap`] or [`Ring::wait`] has handed out its result, and the
/// ring is full when [`Ring::depth`] are: a loop that continues until [`Ring::in_flight`] is 0 has
/// seen each result.
pub struct Ring {
    // Dropped before the namespaces: it must be gone when the paths of its ranges may go.
    own: OwnRing,
    depth: usize,
    options: BatchOptions,
    /// Ranges without a result that was taken, by their numbers.
    places: Slab<Taken>,
    /// Ranges that have not been sent yet.
    staged: Vec<Staged>,
    /// Results of a process that was forked from the ring's own: nothing goes out there.
    refused: Vec<RangeCompletion>,
}

/// A range in a ring.
struct Taken {
    namespace: Namespace,
    /// The paths that the namespace had when the range went out.
    paths: Option<Arc<PathSet>>,
    token: u64,
}

/// A range that did not go out yet.
struct Staged {
    place: usize,
    direction: RangeDirection,
    offset: u64,
    memory: SliceKeys,
}

/// A range that a full ring did not take: its memory is given back.
#[derive(Debug)]
#[must_use = "the ring did not take the range: take results, and submit it again"]
pub struct RingFull(pub RegionSlice);

impl Ring {
    /// The most ranges that a ring takes. Doubled, the room for the results of one takes 8 MiB
    /// more.
    pub const MAX_DEPTH: usize = 1 << 16;

    /// Ranges that go out together, if no one says that they are to go before.
    const TOGETHER: usize = 16;

    pub(crate) fn new(host: &Arc<Inner>, depth: usize, options: BatchOptions) -> Self {
        let depth = depth.clamp(1, Self::MAX_DEPTH);
        // In a child nothing goes by the number.
        let key = host.shared.lock().map_or(RingKey::NONE, |mut state| state.outbox.open(depth));
        Self {
            own: OwnRing { host: Arc::clone(host), key },
            depth,
            options,
            places: Slab::with_capacity(depth),
            staged: Vec::with_capacity(depth.min(Self::TOGETHER)),
            refused: Vec::new(),
        }
    }

    /// Reads as many bytes as `into` has, from `offset` on. `token` comes back with the result.
    ///
    /// # Errors
    /// The ring is full: reap first.
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

    /// Writes the bytes of `from` to `offset` on. `token` comes back with the result. Parts of
    /// blocks are safe from other writes of this host only:
    /// [several writers](Namespace#several-writers).
    ///
    /// # Errors
    /// The ring is full: reap first.
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

    /// Writes as [`Ring::write`], and the bytes are durable when it has ended well (Force Unit
    /// Access).
    ///
    /// # Errors
    /// The ring is full: reap first.
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

    /// Sends the ranges that have not been sent yet: before doing something else than waiting for
    /// them.
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

    /// Hands the ranges that did not go out to their engines.
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

    /// How many ranges may be in flight.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Ranges whose results were not handed out. In a process that was forked since, those that
    /// were submitted there: the others are the parent's.
    pub fn in_flight(&self) -> usize {
        match self.own.host.shared.is_forked() {
            true => self.refused.len() + self.staged.len(),
            false => self.places.len(),
        }
    }

    /// Does what is ready and adds the results there are to `out`, without waiting. Returns how
    /// many.
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

    /// Waits until at least `wanted` results are there, or all that can come, or until `timeout`
    /// has passed; adds the results to `out`. Returns how many.
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

    /// Adds the results that are there to `out`.
    fn take_ready(&mut self, out: &mut Vec<RangeCompletion>) {
        let before = out.len();
        match self.own.host.shared.lock() {
            Ok(mut state) => out.extend(state.outbox.ready(self.own.key).drain(..)),
            Err(Forked) => out.append(&mut self.refused),
        }
        self.name(&mut out[before..]);
    }

    /// Gives results the callers' tokens, and their places to others. Not under the host's lock: a
    /// namespace may go.
    fn name(&mut self, completions: &mut [RangeCompletion]) {
        for completion in completions {
            // Made of a place.
            let Taken { token, .. } = self.places.remove(completion.token as usize);
            completion.token = token;
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // The results of reads would be lost.
        self.staged.retain(|staged| staged.direction != RangeDirection::Read);
        self.submit();
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("in_flight", &self.in_flight()).finish_non_exhaustive()
    }
}
