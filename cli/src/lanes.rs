//! A fixed number of reads and writes in flight, each with registered memory of its own.

use core::time::Duration;

use anyhow::Result;
use feedrail_initiator::{Error, Grant, Host, Namespace, RangeCompletion, RegionSlice, Ring};

/// Longest wait before the caller can check for other events, such as Ctrl-C.
pub(crate) const LOOK_UP_AFTER: Duration = Duration::from_millis(100);

/// Submission ring over one or more namespaces, with a piece of registered memory for each place.
/// It allocates nothing after the start.
pub(crate) struct Lanes<T> {
    /// Namespaces that the lanes are distributed over, by token.
    namespaces: Vec<Namespace>,
    ring: Ring,
    ended: Vec<RangeCompletion>,
    idle: Vec<Lane>,
    /// Operations in flight, by token.
    busy: Vec<Option<Busy<T>>>,
}

/// Free place in the ring, with its memory.
pub(crate) struct Lane {
    token: u64,
    pub(crate) memory: RegionSlice,
}

impl Lane {
    /// Returns the lane with the first `length` bytes of its memory set to zero.
    pub(crate) fn cleared(self, length: usize) -> Self {
        let Self { token, memory } = self;
        let (mut bytes, rest) = split(memory, length);
        bytes.fill(0);
        Self { token, memory: join(bytes, rest) }
    }
}

/// Splits a lane's memory into its first `length` bytes and the rest.
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
    /// Part of the lane's memory that the operation does not use.
    rest: Option<RegionSlice>,
}

/// Operation that has ended.
pub(crate) struct Done<T> {
    /// Tag that the caller gave the operation.
    pub(crate) tag: T,
    pub(crate) result: Result<(), Error>,
    /// Memory of the bytes that were read or written.
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

    /// Takes a free lane; `None` if all are in use.
    pub(crate) fn claim(&mut self) -> Option<Lane> {
        self.idle.pop()
    }

    /// Returns a lane that was claimed and not used.
    pub(crate) fn put_back(&mut self, lane: Lane) {
        self.idle.push(lane);
    }

    /// Starts to read into the first `length` bytes of a lane.
    pub(crate) fn read(&mut self, lane: Lane, offset_bytes: u64, length: usize, tag: T) {
        let (token, memory) = self.occupy(lane, length, tag);
        let namespace = &self.namespaces[token as usize % self.namespaces.len()];
        let begun = self.ring.read(namespace, offset_bytes, memory, token);
        begun.expect("the ring has a place for each lane");
    }

    /// Starts to write the first `length` bytes of a lane.
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

    /// Waits until an operation has ended, at most [`LOOK_UP_AFTER`].
    pub(crate) fn wait(&mut self) {
        self.ring.wait(1, Some(LOOK_UP_AFTER), &mut self.ended);
    }

    /// Returns an operation that has ended. Its lane stays in use until [`Lanes::release`].
    pub(crate) fn next_done(&mut self) -> Option<Done<T>> {
        let completion = self.ended.pop()?;
        let busy = self.busy[completion.token as usize].take();
        let Busy { tag, rest } = busy.expect("only what was submitted completes");
        let (result, bytes) = (completion.result, completion.slice);
        Some(Done { tag, result, bytes, token: completion.token, rest })
    }

    /// Frees the lane of an operation that has ended.
    pub(crate) fn release(&mut self, done: Done<T>) {
        let Done { token, bytes, rest, .. } = done;
        self.idle.push(Lane { token, memory: join(bytes, rest) });
    }
}
