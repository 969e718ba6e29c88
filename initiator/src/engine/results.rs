//! Where cores leave results, and who is waiting for them.

use std::collections::VecDeque;
use std::task::Waker;

use slab::Slab;

use crate::memory::region::RegionSlice;
use crate::types::error::Error;

/// How a range of a ring ended.
#[derive(Debug)]
pub struct RangeCompletion {
    /// As given when it was submitted.
    pub token: u64,
    /// The memory, back from the target.
    pub slice: RegionSlice,
    /// Whether all bytes were transferred; if not, the slice's contents are unspecified.
    pub result: Result<(), Error>,
}

/// Names a ring of an [`Outbox`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingKey(usize);

impl RingKey {
    /// A key that names no ring.
    pub(crate) const NONE: Self = Self(usize::MAX);
}

/// All rings of a host, and the wakers to call once its lock is released.
#[derive(Default)]
pub(crate) struct Outbox {
    rings: Slab<RingState>,
    wakers: Vec<Waker>,
    /// Results of rings that were abandoned. Their memory is freed once the host's lock is
    /// released: that calls what its owner left to be called.
    discarded: Vec<RangeCompletion>,
}

struct RingState {
    ready: VecDeque<RangeCompletion>,
    in_flight: usize,
    depth: usize,
    /// `waker` is called when this many are ready.
    wanted: usize,
    waker: Option<Waker>,
    /// The ring was closed while ranges were in flight: their results are discarded.
    abandoned: bool,
}

impl Outbox {
    /// A ring for at most `depth` ranges, in flight and ready together.
    pub(crate) fn open(&mut self, depth: usize) -> RingKey {
        let ready = VecDeque::with_capacity(depth);
        let ring =
            RingState { ready, in_flight: 0, depth, wanted: 0, waker: None, abandoned: false };
        RingKey(self.rings.insert(ring))
    }

    /// Whether the ring takes another range.
    pub(crate) fn has_room(&self, key: RingKey) -> bool {
        let ring = &self.rings[key.0];
        ring.in_flight + ring.ready.len() < ring.depth
    }

    /// Takes a place in the ring, which has room.
    pub(crate) fn reserve(&mut self, key: RingKey) {
        debug_assert!(self.has_room(key));
        self.rings[key.0].in_flight += 1;
    }

    /// Delivers the result of a range that holds a place.
    pub(crate) fn complete(&mut self, key: RingKey, completion: RangeCompletion) {
        let ring = &mut self.rings[key.0];
        ring.in_flight -= 1;
        if ring.abandoned {
            self.discarded.push(completion);
            if ring.in_flight == 0 {
                self.rings.remove(key.0);
            }
            return;
        }
        ring.ready.push_back(completion);
        if ring.ready.len() >= ring.wanted
            && let Some(waker) = ring.waker.take()
        {
            self.wakers.push(waker);
        }
    }

    /// The results that are ready.
    pub(crate) fn ready(&mut self, key: RingKey) -> &mut VecDeque<RangeCompletion> {
        &mut self.rings[key.0].ready
    }

    /// Ranges without a result yet.
    pub(crate) fn in_flight(&self, key: RingKey) -> usize {
        self.rings[key.0].in_flight
    }

    /// Has `waker` called when `wanted` results are ready.
    pub(crate) fn notify(&mut self, key: RingKey, wanted: usize, waker: &Waker) {
        let ring = &mut self.rings[key.0];
        ring.wanted = wanted;
        ring.waker = Some(waker.clone());
    }

    /// Gives a ring up; the memory of its ranges is freed as they end.
    pub(crate) fn close(&mut self, key: RingKey) {
        let ring = &mut self.rings[key.0];
        ring.abandoned = true;
        ring.waker = None;
        self.discarded.extend(ring.ready.drain(..));
        if ring.in_flight == 0 {
            self.rings.remove(key.0);
        }
    }

    /// Adds a waker to call.
    pub(crate) fn wake(&mut self, waker: Waker) {
        self.wakers.push(waker);
    }

    /// Moves the work for after the release of the host's lock into `errands`.
    pub(crate) fn take_errands(&mut self, errands: &mut Errands) {
        errands.wakers.append(&mut self.wakers);
        errands.discarded.append(&mut self.discarded);
    }

    /// Whether there is any of that.
    pub(crate) fn has_errands(&self) -> bool {
        !self.wakers.is_empty() || !self.discarded.is_empty()
    }
}

/// Work to be done outside the host's lock, since it calls code of others.
#[derive(Default)]
pub(crate) struct Errands {
    wakers: Vec<Waker>,
    discarded: Vec<RangeCompletion>,
}

impl Errands {
    /// Does it; keeps the room of the lists.
    pub(crate) fn run(&mut self) {
        self.discarded.clear();
        for waker in self.wakers.drain(..) {
            waker.wake();
        }
    }
}
