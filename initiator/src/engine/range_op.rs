//! A range in progress: its parameters and its progress.

use std::io;
use std::ops::Range;
use std::time::Duration;

use rdma::{Access, Time};

use crate::engine::arena::{ControllerKey, NamespaceKey, PlanKey, RunKey};
use crate::engine::completion::RangeService;
use crate::engine::range_owner::RangeOwner;
use crate::engine::shard_routes::{PathRoute, ShardPlace, TargetLoad};
use crate::engine::wire::Data;
use crate::engine::write_table::WriteKey;
use crate::memory::region::{Grant, Keys, RegionSlice};
use crate::types::direction::RangeDirection;
use crate::types::error::{Error, ErrorKind};
use crate::types::options::BatchOptions;

/// A range that is submitted to an engine. Its ring has a place for it.
pub(crate) struct Submission {
    pub(crate) controller: ControllerKey,
    pub(crate) namespace: NamespaceKey,
    pub(crate) direction: RangeDirection,
    /// First byte in the namespace.
    pub(crate) offset: u64,
    /// Memory of the range; its length is the number of bytes.
    pub(crate) slice: RegionSlice,
    /// Keys of the slice in the protection domain of the controller. It was registered before,
    /// since the host is locked now.
    pub(crate) keys: io::Result<Keys>,
    pub(crate) owner: RangeOwner,
    pub(crate) options: BatchOptions,
}

/// A range that its engine could not transfer and that may continue elsewhere: on another path of
/// its namespace, or on another replica of its shard.
pub(crate) struct DisplacedRange {
    pub(crate) range: Displaced,
    /// Result of the range if there is no other path or replica.
    pub(crate) error: Error,
}

/// Rest of a displaced range, by its owner.
pub(crate) enum Displaced {
    /// A range of a ring, which is moved as it is.
    OfRing(Box<RangeOp>),
    /// Index of a plan's range, which starts again.
    OfPlan { plan: PlanKey, index: u32, service: RangeService },
}

/// A range that an engine reads or writes, from its submission to its result.
pub(crate) struct RangeOp {
    pub(super) controller: ControllerKey,
    pub(super) namespace: NamespaceKey,
    pub(super) direction: RangeDirection,
    pub(super) offset: u64,
    pub(super) slice: RegionSlice,
    pub(super) keys: Keys,
    pub(super) owner: RangeOwner,
    /// First byte that is not covered by a command yet.
    pub(super) position: u64,
    /// Commands in flight, and partial writes between their read and their write.
    pub(super) outstanding: u32,
    /// Failure or retry that takes effect when nothing is outstanding.
    pub(super) trouble: Option<RangeFailure>,
    pub(super) options: BatchOptions,
    /// Deadline of the caller.
    pub(super) due: Time,
    /// Time at which it has made no progress for too long, or [`NEVER`] while that does not count.
    pub(super) deadline: Time,
    /// Time at which its first engine took it.
    pub(super) submitted: Time,
    /// Time at which its first command was sent.
    pub(super) began: Option<Time>,
    /// Bits of [`Outcome::path`](crate::Outcome::path) so far.
    pub(super) path: u8,
    /// Bytes transferred in this attempt, and the most in any attempt.
    pub(super) done: u64,
    pub(super) best: u64,
    pub(super) attempts: u32,
    /// Key in the table of writes, once the write was started.
    pub(super) write: Option<WriteKey>,
    pub(super) place: RangeList,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RangeList {
    /// Ranges that were queued since the last turn.
    Fresh,
    /// No list: all of its commands were sent.
    None,
    /// A list of its controller's waiting ranges.
    Queued,
    /// No list: its commands are sent by this run of a plan.
    Run(RunKey),
}

pub(crate) const NEVER: Time = Time::from_nanos(u64::MAX);

/// Failure of a range that takes effect when none of its commands is in flight.
pub(super) enum RangeFailure {
    Failed(Error),
    /// The range is issued again, not before this time.
    Again(Time),
    /// The range expired. Abort was sent for its commands, and at this time the association is
    /// ended.
    Expired(Error, Time),
}

impl RangeOp {
    /// Returns a range before its first command is sent.
    pub(crate) fn new(submission: Submission, keys: Keys) -> Self {
        let Submission { controller, namespace, direction, offset, slice, owner, options, .. } =
            submission;
        Self {
            controller,
            namespace,
            direction,
            offset,
            slice,
            keys,
            owner,
            position: offset,
            outstanding: 0,
            trouble: None,
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

    /// Assigns the range to a run of a plan, which sends its commands.
    pub(crate) fn in_run(mut self, run: RunKey, began: Time, due: Time) -> Self {
        (self.place, self.submitted, self.due) = (RangeList::Run(run), began, due);
        self
    }

    /// Returns the best path for it, connected or not, other than those on which it failed.
    pub(crate) fn best_path(&self, load: impl Fn(ShardPlace) -> TargetLoad) -> Option<PathRoute> {
        self.owner.paths()?.best(load)
    }

    /// Moves the range to another path, on which it starts again. It keeps its deadlines, and its
    /// key in the table of writes.
    pub(crate) fn moved_to(mut self, route: &PathRoute) -> Self {
        if let Some(paths) = self.owner.paths_mut() {
            paths.move_to(route);
        }
        (self.controller, self.namespace) = (route.place.controller, route.namespace);
        (self.position, self.done) = (self.offset, 0);
        self.attempts += u32::from(self.began.is_some());
        (self.trouble, self.place) = (None, RangeList::Fresh);
        self
    }

    /// Returns a range of a list as a range of its own, before its first command.
    pub(crate) fn single(&self, offset: u64, slice: RegionSlice, owner: RangeOwner) -> Self {
        Self {
            slice,
            owner,
            offset,
            position: offset,
            outstanding: 0,
            trouble: None,
            done: 0,
            best: 0,
            write: None,
            place: RangeList::Queued,
            ..*self
        }
    }

    /// Returns bytes of the caller's memory as data of a command.
    pub(crate) fn memory_of(&self, start: u64, length: u32, access: Access) -> Data<'_> {
        let address = self.address_of(start);
        match self.slice.grant() {
            Grant::Persistent => Data::Keyed { address, length, rkey: self.keys.rkey },
            Grant::PerCommand => Data::Window { slice: &self.slice, address, length, access },
        }
    }

    /// Returns the number of bytes for which no command was sent.
    pub(super) fn unissued(&self) -> u64 {
        self.end() - self.position
    }

    /// Returns whether all of its commands were sent.
    pub(crate) fn is_issued(&self) -> bool {
        self.position == self.end()
    }

    /// Returns its path bits, attempts and latency until now.
    pub(super) fn service(&self, now: Time) -> RangeService {
        let Some(began) = self.began else { return RangeService::default() };
        let latency_us = u32::try_from((now - began).as_micros()).unwrap_or(u32::MAX);
        RangeService { path: self.path, attempts: self.attempts + 1, latency_us }
    }

    pub(super) fn end(&self) -> u64 {
        self.offset + self.slice.len() as u64
    }

    /// Returns the part of the slice that holds these bytes.
    pub(super) fn part(&self, start: u64, length: u64) -> Range<usize> {
        // Within the slice, whose length is a `usize`.
        let from = (start - self.offset) as usize;
        from..from + length as usize
    }

    pub(super) fn address_of(&self, start: u64) -> u64 {
        self.slice.address() + (start - self.offset)
    }

    pub(crate) fn is_on(&self, controller: ControllerKey, namespace: NamespaceKey) -> bool {
        self.controller == controller && self.namespace == namespace
    }

    pub(crate) fn is_write(&self) -> bool {
        matches!(self.direction, RangeDirection::Write { .. })
    }

    /// Returns when the engine must check its deadlines.
    pub(super) fn expiry(&self) -> Time {
        match self.trouble {
            Some(RangeFailure::Expired(_, time)) => time,
            _ => self.deadline.min(self.due),
        }
    }

    /// Stops sending commands of it; true if none is in flight.
    pub(super) fn give_up(&mut self, why: ErrorKind) -> bool {
        if matches!(self.trouble, None | Some(RangeFailure::Again(_))) {
            self.trouble = Some(RangeFailure::Failed(why.into()));
        }
        self.outstanding == 0
    }

    /// Starts the time-out, unless it is running.
    pub(super) fn start_clock(&mut self, now: Time, io_timeout: Duration) {
        if self.deadline == NEVER {
            self.deadline = now + io_timeout;
        }
    }

    /// Records that bytes were transferred. Only more bytes than in any earlier attempt are
    /// progress.
    pub(super) fn progress(&mut self, now: Time, bytes: u64, io_timeout: Duration) {
        self.done += bytes;
        if self.done > self.best {
            self.best = self.done;
            // With no other command in flight, it only waits for room.
            self.deadline = match self.outstanding {
                1 => NEVER,
                _ => now + io_timeout,
            };
        }
    }
}
