//! A range in progress: what is asked for, and how far it is.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use rdma::Time;

use crate::engine::live_routes::LiveRoutes;
use crate::engine::results::{Outbox, RangeCompletion, RangeService, ResultSink, RingKey};
use crate::engine::shard_routes::{PathRoute, ShardPlace, ShardRoutes, TargetLoad};
use crate::engine::write_table::WriteKey;
use crate::memory::region::{Keys, RegionSlice};
use crate::types::error::{Error, ErrorKind};
use crate::types::options::BatchOptions;

/// Which way a range goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RangeDirection {
    Read,
    Write { fua: bool },
}

/// A range on its way into an engine. It has a place in its ring.
pub(crate) struct Submission {
    pub(crate) controller: usize,
    pub(crate) namespace: usize,
    pub(crate) direction: RangeDirection,
    /// First byte, counted from the beginning of the namespace.
    pub(crate) offset: u64,
    /// Memory of the range, whose length is the number of bytes.
    pub(crate) slice: RegionSlice,
    /// Keys of the slice, in the controller's protection domain. Nothing is registered in here,
    /// where the host is locked.
    pub(crate) keys: io::Result<Keys>,
    pub(crate) ring: RingKey,
    pub(crate) token: u64,
    pub(crate) options: BatchOptions,
    /// Paths that the range may be moved to, if its namespace has others.
    pub(crate) paths: Option<RangePaths>,
}

/// The paths of the namespace of a range.
#[derive(Clone, Debug)]
pub(crate) struct RangePaths {
    /// The routes of the namespace at present.
    live: Arc<LiveRoutes>,
    /// The routes when the range came to its path.
    routes: Arc<ShardRoutes>,
    /// Number of its path among those routes.
    replica: usize,
    /// A bit for each of those on which it failed, though that is connected.
    failed: u8,
}

impl RangePaths {
    /// Paths of a range that begins on the path of this number.
    pub(crate) fn new(live: Arc<LiveRoutes>, routes: Arc<ShardRoutes>, replica: usize) -> Self {
        Self { live, routes, replica, failed: 0 }
    }

    /// The range failed on its path, though that is connected.
    pub(super) fn note_failure(&mut self) {
        self.failed |= 1 << self.replica;
    }

    /// The best present path, be it connected or not, beside those on which it failed.
    fn best(&self, load: impl Fn(ShardPlace) -> TargetLoad) -> Option<PathRoute> {
        match self.live.other_than(&self.routes) {
            Some(routes) => routes.best_path(0, load),
            None => self.routes.best_path(self.failed, load),
        }
    }

    /// Moves the range to one of the present paths.
    fn move_to(&mut self, route: &PathRoute) {
        if let Some(routes) = self.live.other_than(&self.routes) {
            (self.routes, self.failed) = (routes, 0);
        }
        self.replica = route.replica;
    }
}

/// A range of a ring that its path cannot serve.
pub(crate) struct DisplacedRange {
    pub(crate) op: RangeOp,
    /// Why, should there be no other path.
    pub(crate) error: Error,
}

/// A range in progress.
pub(crate) struct RangeOp {
    pub(super) controller: usize,
    pub(super) namespace: usize,
    pub(super) direction: RangeDirection,
    pub(super) offset: u64,
    pub(super) slice: RegionSlice,
    pub(super) keys: Keys,
    pub(super) sink: ResultSink,
    pub(super) token: u64,
    /// First byte that no command covers yet.
    pub(super) position: u64,
    /// Commands in flight, and partial blocks between their two commands.
    pub(super) outstanding: u32,
    /// Why it will fail, or must be tried again, when nothing is outstanding.
    pub(super) trouble: Option<RangeFailure>,
    pub(super) paths: Option<RangePaths>,
    pub(super) options: BatchOptions,
    /// When the caller's own deadline passes.
    pub(super) due: Time,
    /// When it has been without progress for too long, while that counts.
    pub(super) deadline: Time,
    /// When it came to its first engine.
    pub(super) submitted: Time,
    /// When its first command was issued.
    pub(super) began: Option<Time>,
    /// The bits of [`Outcome::path`](crate::Outcome::path) so far.
    pub(super) path: u8,
    /// Bytes that were transferred in this attempt, and in the best one.
    pub(super) done: u64,
    pub(super) best: u64,
    pub(super) attempts: u32,
    /// Key of the range among the writes of its namespace, once it was begun.
    pub(super) write: Option<WriteKey>,
    pub(super) place: RangeList,
}

/// Which list a range is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RangeList {
    /// The range came in since the last turn.
    Fresh,
    /// None: all its commands are issued.
    None,
    /// One of its controller's lists of waiting ranges.
    Queued,
    /// None: this run of a plan issues its commands.
    Run(usize),
}

/// A clock that does not run.
pub(crate) const NEVER: Time = Time::from_nanos(u64::MAX);

pub(super) enum RangeFailure {
    Failed(Error),
    /// Issue it again, not before this time.
    Again(Time),
    /// The range expired: its commands were told to abort, and at this time the association is
    /// ended.
    Expired(Error, Time),
}

impl RangeOp {
    /// A range without issued commands.
    pub(crate) fn new(submission: Submission, sink: ResultSink, keys: Keys) -> Self {
        let Submission {
            controller,
            namespace,
            direction,
            offset,
            slice,
            token,
            options,
            paths,
            ..
        } = submission;
        Self {
            controller,
            namespace,
            direction,
            offset,
            slice,
            keys,
            sink,
            token,
            position: offset,
            outstanding: 0,
            trouble: None,
            paths,
            options,
            due: NEVER,
            deadline: NEVER,
            submitted: Time::ZERO,
            began: None,
            path: 0,
            done: 0,
            best: 0,
            attempts: 0,
            write: None,
            place: RangeList::Fresh,
        }
    }

    /// Assigns the range to a run of a plan, which issues its commands.
    pub(crate) fn in_run(mut self, run: usize, began: Time, due: Time) -> Self {
        (self.place, self.submitted, self.due) = (RangeList::Run(run), began, due);
        self
    }

    /// The best path for it, be it connected or not, beside those on which it failed.
    pub(crate) fn best_path(&self, load: impl Fn(ShardPlace) -> TargetLoad) -> Option<PathRoute> {
        self.paths.as_ref()?.best(load)
    }

    /// Moves the range to another path, where it begins again. It keeps its deadlines, and its
    /// place among the writes.
    pub(crate) fn moved_to(mut self, route: &PathRoute) -> Self {
        if let Some(paths) = &mut self.paths {
            paths.move_to(route);
        }
        (self.controller, self.namespace) = (route.place.controller, route.namespace);
        (self.position, self.done) = (self.offset, 0);
        self.attempts += u32::from(self.began.is_some());
        (self.trouble, self.place) = (None, RangeList::Fresh);
        self
    }

    /// Hands it back with an error.
    pub(crate) fn fail(self, error: Error, now: Time, outbox: &mut Outbox) {
        if let Some(write) = self.write {
            outbox.writes.end(write);
        }
        let service = self.service(now);
        let result = Err(error.of_attempts(service.attempts));
        let completion = RangeCompletion { token: self.token, slice: self.slice, result };
        outbox.complete(self.sink, completion, service);
    }

    /// Bytes that no command was issued for.
    pub(super) fn unissued(&self) -> u64 {
        self.end() - self.position
    }

    /// Whether all its commands were issued.
    pub(crate) fn is_issued(&self) -> bool {
        self.position == self.end()
    }

    /// How it was served until now.
    pub(super) fn service(&self, now: Time) -> RangeService {
        let Some(began) = self.began else { return RangeService::default() };
        let latency_us = u32::try_from((now - began).as_micros()).unwrap_or(u32::MAX);
        RangeService { path: self.path, attempts: self.attempts + 1, latency_us }
    }

    pub(super) fn end(&self) -> u64 {
        self.offset + self.slice.len() as u64
    }

    /// The part of the slice that holds these bytes.
    pub(super) fn part(&self, start: u64, length: u64) -> Range<usize> {
        // Within the slice, whose length is a `usize`.
        let from = (start - self.offset) as usize;
        from..from + length as usize
    }

    pub(super) fn address_of(&self, start: u64) -> u64 {
        self.slice.address() + (start - self.offset)
    }

    /// Whether it is on this namespace of this controller.
    pub(crate) fn is_on(&self, controller: usize, namespace: usize) -> bool {
        self.controller == controller && self.namespace == namespace
    }

    pub(crate) fn is_write(&self) -> bool {
        matches!(self.direction, RangeDirection::Write { .. })
    }

    /// When the engine must look at it again, if it does not end before.
    pub(super) fn expiry(&self) -> Time {
        match self.trouble {
            Some(RangeFailure::Expired(_, time)) => time,
            _ => self.deadline.min(self.due),
        }
    }

    /// Nothing more of it is issued; true if nothing of it is in flight.
    pub(super) fn give_up(&mut self, why: ErrorKind) -> bool {
        if matches!(self.trouble, None | Some(RangeFailure::Again(_))) {
            self.trouble = Some(RangeFailure::Failed(why.into()));
        }
        self.outstanding == 0
    }

    /// Starts the clock, if it does not run.
    pub(super) fn start_clock(&mut self, now: Time, io_timeout: Duration) {
        if self.deadline == NEVER {
            self.deadline = now + io_timeout;
        }
    }

    /// Bytes were transferred. Bytes that an earlier attempt had transferred are no progress.
    pub(super) fn progress(&mut self, now: Time, bytes: u64, io_timeout: Duration) {
        self.done += bytes;
        if self.done > self.best {
            self.best = self.done;
            // With nothing else in flight it waits for its turn.
            self.deadline = match self.outstanding {
                1 => NEVER,
                _ => now + io_timeout,
            };
        }
    }
}
