//! Jobs: calls of the initiator that are waited for, and the memory that they lent.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use feedrail_initiator::{
    Controller, Entry, Error, Grant, Host, Namespace, Pending, RangeOutcome, ReadRange, Region,
    RegionSlice, Shards, Submit, WriteRange,
};

use super::target::{WRITABLE_BYTES, pattern};

/// Bytes before and after the memory of a batch that belong to no command.
const GUARD_BYTES: usize = 256;
/// Rows of a plan.
const ROWS: u64 = 9;
/// The byte that memory is filled with before it is lent.
const FILL: u8 = 0xC3;

/// Something that is asked of the initiator.
pub(super) enum InitiatorJob {
    Connect(Pending<Result<Controller, Error>>),
    Open(Pending<Result<Namespace, Error>>),
    Batch(RangeBatch),
    /// Anything whose result does not matter.
    Other(Pin<Box<dyn Future<Output = ()>>>),
}

/// The outcome of a job.
pub(super) enum JobOutcome {
    Connected(Result<Controller, Error>),
    Opened(Result<Namespace, Error>),
    Transferred(Box<FinishedJob>),
    Nothing,
}

/// Ranges that are read or written together.
pub(super) struct RangeBatch {
    pending: Pending<Vec<RangeOutcome>>,
    plan: BatchPlan,
    guards: [RegionSlice; 2],
}

/// Which ranges, and how.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchPlan {
    pub(super) writes: bool,
    pub(super) grant: Grant,
    pub(super) count: usize,
    pub(super) length: usize,
    pub(super) offset: u64,
    /// Distance from the begin of one range to that of the next.
    pub(super) stride: u64,
}

/// Memory that came back.
pub(super) struct FinishedJob {
    plan: BatchPlan,
    slices: Vec<RegionSlice>,
    guards: [RegionSlice; 2],
    /// The content of each slice before it was lent.
    snapshots: Vec<Vec<u8>>,
    /// Whether each range succeeded, by its index.
    done: Vec<bool>,
}

impl InitiatorJob {
    /// Polls the job; ready when it has ended.
    pub(super) fn poll(&mut self) -> Poll<JobOutcome> {
        let mut context = Context::from_waker(Waker::noop());
        match self {
            Self::Connect(pending) => {
                Pin::new(pending).poll(&mut context).map(JobOutcome::Connected)
            }
            Self::Open(pending) => Pin::new(pending).poll(&mut context).map(JobOutcome::Opened),
            Self::Other(pending) => {
                pending.as_mut().poll(&mut context).map(|()| JobOutcome::Nothing)
            }
            Self::Batch(batch) => Pin::new(&mut batch.pending)
                .poll(&mut context)
                .map(|outcomes| JobOutcome::Transferred(Box::new(batch.finish(outcomes)))),
        }
    }
}

/// Reads rows of a plan, which the host may have in one command.
pub(super) fn read_rows(
    host: &Host,
    namespace: &Namespace,
    offset: u64,
    length: u32,
) -> impl Future<Output = ()> + use<> {
    let row =
        |at: u64| Entry { shard: 0, length, offset: offset + at, dst: at * u64::from(length) };
    let plan: Vec<Entry> = (0..ROWS).map(row).collect();
    let submitted = Region::allocate(ROWS as usize * length as usize, Grant::Persistent)
        .ok()
        .zip(Shards::new([namespace.clone()]).ok())
        .and_then(|(region, shards)| {
            let ticket = host.submit(&shards, &plan, &region, Submit::default()).ok()?;
            Some((region, shards, ticket))
        });
    async {
        if let Some((_region, _shards, ticket)) = submitted {
            assert!(ticket.finished(ticket.len()).await.is_done());
        }
    }
}

impl RangeBatch {
    /// Begins it. The memory between the guards is lent.
    pub(super) fn start(host: &Host, namespace: &Namespace, plan: BatchPlan) -> Self {
        let length = plan.count * plan.length;
        let bytes = vec![FILL; length + 2 * GUARD_BYTES];
        let mut before = RegionSlice::from_vec(bytes, plan.grant);
        let mut lent = before.split_off(GUARD_BYTES);
        let after = lent.split_off(length);
        let slices = lent.chunks(plan.length).enumerate();
        let places = slices.map(|(index, slice)| {
            (namespace.clone(), plan.offset + index as u64 * plan.stride, slice)
        });
        let pending = match plan.writes {
            true => host.write_many(places.map(|(namespace, offset, from)| WriteRange {
                namespace,
                offset,
                from,
            })),
            false => host.read_many(places.map(|(namespace, offset, into)| ReadRange {
                namespace,
                offset,
                into,
            })),
        };
        Self { pending, plan, guards: [before, after] }
    }

    fn finish(&mut self, outcomes: Vec<RangeOutcome>) -> FinishedJob {
        let Self { plan, guards, .. } = self;
        assert_eq!(outcomes.len(), plan.count, "a result for each range");
        let nothing = || RegionSlice::from_vec(Vec::new(), plan.grant);
        let guards = guards.each_mut().map(|guard| std::mem::replace(guard, nothing()));
        FinishedJob::new(*plan, outcomes, guards)
    }
}

impl FinishedJob {
    fn new(plan: BatchPlan, outcomes: Vec<RangeOutcome>, guards: [RegionSlice; 2]) -> Self {
        let done = outcomes.iter().map(|outcome| outcome.result.is_ok()).collect();
        let slices: Vec<RegionSlice> = outcomes.into_iter().map(|outcome| outcome.slice).collect();
        assert!(slices.iter().all(|slice| slice.len() == plan.length), "as much as was lent");
        let snapshots = slices.iter().map(|slice| slice.to_vec()).collect();
        Self { plan, slices, guards, snapshots, done }
    }

    /// Whether each range succeeded, in order.
    #[cfg(test)]
    pub(super) fn done(&self) -> impl Iterator<Item = bool> + '_ {
        self.done.iter().copied()
    }

    /// Memory that was open to each command alone: no other byte was touched, none that was only to
    /// be read, and none since the result.
    pub(super) fn check(&self) {
        if self.plan.grant == Grant::Persistent {
            return;
        }
        for guard in &self.guards {
            assert!(guard.bytes().iter().all(|&byte| byte == FILL), "outside of the lent memory");
        }
        for (slice, snapshot) in self.slices.iter().zip(&self.snapshots) {
            assert!(slice.bytes()[..] == snapshot[..], "after it was given back");
            let intact = !self.plan.writes || slice.bytes().iter().all(|&byte| byte == FILL);
            assert!(intact, "memory that was lent for reading only");
        }
    }

    /// Bytes read where no job writes equal those of the disk.
    pub(super) fn check_bytes(&self) {
        let BatchPlan { writes, offset, stride, .. } = self.plan;
        for (index, slice) in self.slices.iter().enumerate() {
            let start = (offset + index as u64 * stride) as usize;
            if writes || !self.done[index] || start < WRITABLE_BYTES {
                continue;
            }
            let right =
                slice.bytes().iter().enumerate().all(|(at, &byte)| byte == pattern(start + at));
            assert!(right, "other bytes than those at {start}");
        }
    }
}
