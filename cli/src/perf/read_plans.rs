//! Reads in flight, submitted as plans like those of a data loader.

use core::net::SocketAddr;
use core::time::Duration;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow};
use feedrail_initiator::{Entry, Grant, Host, Region, Shards, Submit, Ticket};

use super::workload::PerfIo;
use crate::lanes::LOOK_UP_AFTER;

/// Maximum number of reads in a plan. The memory of all of them is in use until the last one has
/// ended.
const TOGETHER: usize = 16;

/// Alignment in bytes of the buffers of reads, the page size.
const LANE_ALIGNMENT: usize = 4096;

/// Reads in flight, each into a lane of one region. The lanes of a plan are freed only when all of
/// its reads have ended, so there are more lanes than reads in flight.
pub(super) struct ReadPlans {
    host: Host,
    /// Shards of the plans: only shard 0 is read.
    shards: Shards,
    region: Region,
    lane_bytes: usize,
    depth: usize,
    in_flight: usize,
    idle: Vec<usize>,
    plans: Vec<ReadPlan>,
    /// Entries of the next plan, and lists kept for reuse.
    entries: Vec<Entry>,
    spare: Vec<Vec<PlannedRead>>,
}

/// Plan in flight, with the reads that were submitted in it.
pub(super) struct ReadPlan {
    ticket: Ticket,
    reads: Vec<PlannedRead>,
    began: Instant,
    ended: usize,
}

pub(super) struct EndedRead<'a> {
    pub(super) io: &'a PerfIo,
    pub(super) latency: Duration,
    /// Address of the target that returned the data.
    pub(super) path: SocketAddr,
    /// Number of times that the read was started, over any path.
    pub(super) attempts: u8,
}

struct PlannedRead {
    io: PerfIo,
    lane: usize,
    is_ended: bool,
}

impl ReadPlans {
    /// Allocates memory for `depth` reads of the first shard, of at most `longest_bytes` each.
    pub(super) fn new(
        host: &Host,
        shards: Shards,
        depth: usize,
        longest_bytes: usize,
    ) -> Result<Self> {
        u32::try_from(longest_bytes).context("a read has less than 4 GiB: lower --bs")?;
        let lane_bytes = longest_bytes.next_multiple_of(LANE_ALIGNMENT);
        let lanes = depth + TOGETHER.min(depth);
        let bytes = lanes.checked_mul(lane_bytes).context("too many bytes in flight")?;
        let region = Region::allocate(bytes, Grant::Persistent)
            .with_context(|| format!("no memory for {bytes} bytes in flight"))?;
        Ok(Self {
            host: host.clone(),
            shards,
            region,
            lane_bytes,
            depth,
            in_flight: 0,
            idle: (0..lanes).rev().collect(),
            plans: Vec::with_capacity(depth),
            entries: Vec::with_capacity(TOGETHER),
            spare: Vec::new(),
        })
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Starts reads until the depth is reached or `next` is exhausted.
    pub(super) fn begin(
        &mut self,
        began: Instant,
        mut next: impl FnMut() -> Option<PerfIo>,
    ) -> Result<()> {
        loop {
            let room = (self.depth - self.in_flight).min(self.idle.len()).min(TOGETHER);
            let mut reads = self.spare.pop().unwrap_or_default();
            reads.extend((0..room).map_while(|_| next()).map(|io| {
                let lane = self.idle.pop().expect("there is room");
                PlannedRead { io, lane, is_ended: false }
            }));
            if reads.is_empty() {
                self.spare.push(reads);
                return Ok(());
            }
            self.submit(reads, began)?;
        }
    }

    fn submit(&mut self, reads: Vec<PlannedRead>, began: Instant) -> Result<()> {
        self.entries.clear();
        self.entries.extend(reads.iter().map(|&PlannedRead { io, lane, .. }| Entry {
            shard: 0,
            // At most the length of a lane, which is less than 4 GiB.
            length: io.length_bytes as u32,
            offset: io.offset_bytes,
            dst: (lane * self.lane_bytes) as u64,
        }));
        let ticket =
            self.host.submit(&self.shards, &self.entries, &self.region, Submit::default())?;
        self.in_flight += reads.len();
        self.plans.push(ReadPlan { ticket, reads, began, ended: 0 });
        Ok(())
    }

    /// Waits until a read has ended, at most [`LOOK_UP_AFTER`].
    pub(super) fn wait(&self) {
        let one_more = |plan: &ReadPlan| plan.ended + 1;
        match &self.plans[..] {
            [plan] => _ = plan.ticket.wait(one_more(plan), Some(LOOK_UP_AFTER)),
            plans => {
                let plans: Vec<_> =
                    plans.iter().map(|plan| (&plan.ticket, one_more(plan))).collect();
                self.host.wait_any(&plans, Some(LOOK_UP_AFTER));
            }
        }
    }

    /// Calls `ended` for each read that has ended since the previous call, with its latency until
    /// `now`.
    ///
    /// # Errors
    /// The error of the first read that failed.
    pub(super) fn reap(
        &mut self,
        now: Instant,
        mut ended: impl FnMut(EndedRead<'_>),
    ) -> Result<()> {
        for plan in &mut self.plans {
            let done = plan.ticket.progress().done;
            if done == plan.ended {
                continue;
            }
            self.in_flight -= done - plan.ended;
            plan.reap(done, now, &mut ended)?;
        }
        Ok(())
    }

    /// Returns a plan whose reads have all ended and been reaped. Its lanes stay in use until
    /// [`ReadPlans::release`].
    pub(super) fn next_ended(&mut self) -> Option<ReadPlan> {
        let place = self.plans.iter().position(|plan| plan.ended == plan.reads.len())?;
        Some(self.plans.remove(place))
    }

    /// Calls `each` with each read of an ended plan, the region, and the offset of its data there.
    pub(super) fn each_read(
        &self,
        plan: &ReadPlan,
        mut each: impl FnMut(&PerfIo, &Region, usize) -> Result<()>,
    ) -> Result<()> {
        let mut reads = plan.reads.iter();
        reads.try_for_each(|read| each(&read.io, &self.region, read.lane * self.lane_bytes))
    }

    /// Frees the lanes of an ended plan.
    pub(super) fn release(&mut self, plan: ReadPlan) {
        let ReadPlan { mut reads, .. } = plan;
        self.idle.extend(reads.drain(..).map(|read| read.lane));
        self.spare.push(reads);
    }
}

impl ReadPlan {
    /// Reports the reads among the first `done` that have ended since the previous call.
    fn reap(
        &mut self,
        done: usize,
        now: Instant,
        ended: &mut impl FnMut(EndedRead<'_>),
    ) -> Result<()> {
        let Self { ticket, reads, began, .. } = self;
        let pending = reads.iter_mut().enumerate().filter(|(_, read)| !read.is_ended);
        for (number, read) in pending {
            if self.ended == done {
                break;
            }
            let outcome = ticket.outcome(number);
            if outcome.is_pending() {
                continue;
            }
            if !outcome.is_ok() {
                let error = ticket.error(number);
                return Err(error.map_or_else(|| anyhow!("a read failed"), anyhow::Error::new));
            }
            read.is_ended = true;
            self.ended += 1;
            let path = ticket.namespace(number).target().address;
            let (latency, attempts) = (now - *began, outcome.attempts);
            ended(EndedRead { io: &read.io, latency, path, attempts });
        }
        Ok(())
    }
}
