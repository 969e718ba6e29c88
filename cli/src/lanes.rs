//! A fixed number of reads and writes in flight, each with memory of its own.

use core::time::Duration;

use anyhow::Result;
use feedrail_initiator::{Error, Grant, Host, Namespace, RangeCompletion, RegionSlice, Ring};

/// How long a wait may last before the caller looks at what else there is, such as Ctrl-C.
pub(crate) const LOOK_UP_AFTER: Duration = Duration::from_millis(100);

/// A ring of some namespaces, and as many pieces of registered memory as it has places. Nothing is
/// allocated after the start.
pub(crate) struct Lanes<T> {
    /// Lanes are spread over these, by token.
    namespaces: Vec<Namespace>,
    ring: Ring,
    ended: Vec<RangeCompletion>,
    idle: Vec<Lane>,
    /// Operation in flight by token.
    busy: Vec<Option<Busy<T>>>,
}

/// A place in the ring that is free, and its memory.
pub(crate) struct Lane {
    token: u64,
    pub(crate) memory: RegionSlice,
}

impl Lane {
    /// The lane with its first `length` bytes set to zero.
    pub(crate) fn cleared(self, length: usize) -> Self {
        let Self { token, memory } = self;
        let (mut bytes, rest) = split(memory, length);
        bytes.fill(0);
        Self { token, memory: join(bytes, rest) }
    }
}

/// The first `length` bytes of a lane's memory, and the rest of it.
fn split(mut memory: RegionSlice, length: usize) -> (RegionSlice, Option<RegionSlice>) {
    let rest = (length < memory.len()).then(|| memory.split_off(length));
    (memory, rest)
}

fn join(bytes: RegionSlice, rest: Option<RegionSlice>) -> RegionSlice {
    match rest {
        Some(rest) => bytes.join(rest).expect("the two parts of one lane's memory"),
        None => bytes,
    }
}

struct Busy<T> {
    tag: T,
    /// The part of the lane's memory that the operation does not use.
    rest: Option<RegionSlice>,
}

/// An operation that ended.
pub(crate) struct Done<T> {
    /// The caller's name for it.
    pub(crate) tag: T,
    pub(crate) result: Result<(), Error>,
    /// The bytes that were read or written.
    pub(crate) bytes: RegionSlice,
    token: u64,
    rest: Option<RegionSlice>,
}

impl<T> Lanes<T> {
    /// Allocates `depth` lanes of `lane_bytes` each, spread evenly over the namespaces (at least
    /// one).
    pub(crate) fn new(
        host: &Host,
        namespaces: Vec<Namespace>,
        depth: usize,
        lane_bytes: usize,
    ) -> Result<Self> {
        let lane = |token| {
            let memory = RegionSlice::allocate(lane_bytes, Grant::Persistent)?;
            Ok(Lane { token, memory })
        };
        Ok(Self {
            ring: host.ring(depth),
            namespaces,
            ended: Vec::with_capacity(depth),
            idle: (0..depth as u64).map(lane).collect::<Result<_>>()?,
            busy: (0..depth).map(|_| None).collect(),
        })
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.busy.len() - self.idle.len()
    }

    /// A lane that is free, if there is one.
    pub(crate) fn claim(&mut self) -> Option<Lane> {
        self.idle.pop()
    }

    /// Takes a claimed lane back unused.
    pub(crate) fn put_back(&mut self, lane: Lane) {
        self.idle.push(lane);
    }

    /// Reads into the first `length` bytes of a lane.
    pub(crate) fn read(&mut self, lane: Lane, offset_bytes: u64, length: usize, tag: T) {
        let (token, memory) = self.occupy(lane, length, tag);
        let namespace = &self.namespaces[token as usize % self.namespaces.len()];
        let begun = self.ring.read(namespace, offset_bytes, memory, token);
        begun.expect("the ring has a place for each lane");
    }

    /// Writes the first `length` bytes of a lane.
    pub(crate) fn write(&mut self, lane: Lane, offset_bytes: u64, length: usize, tag: T) {
        let (token, memory) = self.occupy(lane, length, tag);
        let namespace = &self.namespaces[token as usize % self.namespaces.len()];
        let begun = self.ring.write(namespace, offset_bytes, memory, token);
        begun.expect("the ring has a place for each lane");
    }

    fn occupy(&mut self, lane: Lane, length: usize, tag: T) -> (u64, RegionSlice) {
        let Lane { token, memory } = lane;
        let (bytes, rest) = split(memory, length);
        self.busy[token as usize] = Some(Busy { tag, rest });
        (token, bytes)
    }

    /// Waits until an operation has ended, or for a short while.
    pub(crate) fn wait(&mut self) {
        self.ring.wait(1, Some(LOOK_UP_AFTER), &mut self.ended);
    }

    /// An operation that has ended; its lane stays taken until [`Lanes::release`].
    pub(crate) fn next_done(&mut self) -> Option<Done<T>> {
        let completion = self.ended.pop()?;
        let busy = self.busy[completion.token as usize].take();
        let Busy { tag, rest } = busy.expect("only what was submitted completes");
        let (result, bytes) = (completion.result, completion.slice);
        Some(Done { tag, result, bytes, token: completion.token, rest })
    }

    /// Makes the lane of an operation that ended free.
    pub(crate) fn release(&mut self, done: Done<T>) {
        let Done { token, bytes, rest, .. } = done;
        self.idle.push(Lane { token, memory: join(bytes, rest) });
    }
}
