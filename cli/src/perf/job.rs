//! One job of `perf`: a host with its connections and a fixed number of I/Os in flight.

use core::time::Duration;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use feedrail_initiator::{ReplicaPolicy, Shards};
use nvme_proto::Nsid;

use super::measure::{Measure, WireTotals};
use super::read_plans::ReadPlans;
use super::workload::{IoDirection, PerfIo};
use crate::clock::now;
use crate::command_trace::CommandAtHost;
use crate::interrupt::Interrupt;
use crate::lanes::Lanes;
use crate::session::Session;

/// Parameters of a job that bound its work and memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JobLimits {
    pub(crate) depth: usize,
    /// Bytes of the longest I/O, and of the buffer of each I/O in flight.
    pub(crate) longest_bytes: usize,
    /// Whether the workload contains writes.
    pub(crate) writes: bool,
    /// Policy that selects the path of an I/O, of several.
    pub(crate) path_policy: ReplicaPolicy,
    /// Maximum number of commands that are recorded for `--trace`.
    pub(crate) traced: usize,
    /// Time after which no I/O is started.
    pub(crate) runtime: Option<Duration>,
    /// Number of I/Os after which none is started.
    pub(crate) ios: Option<u64>,
}

/// Job with its connections made and its memory allocated.
pub(crate) struct PerfJob {
    session: Session,
    flights: Flights,
    workload: IoIterator,
    expected: Option<ExpectedBytes>,
    limits: JobLimits,
    left: u64,
}

/// Endless sequence of I/Os to perform.
pub(crate) type IoIterator = Box<dyn Iterator<Item = PerfIo> + Send>;

/// I/Os in flight, submitted in one of two ways.
enum Flights {
    /// Reads over one connection, or over all paths, submitted together as read plans.
    Plans(ReadPlans),
    /// I/Os submitted one by one to a ring: plans cannot write. A plan of a single read costs more
    /// than a ring entry (4 KiB from memory, depth 1: 5 % of the IOPS), and one that spreads few
    /// reads over several connections costs as much as a plan for each.
    Ring(Lanes<StartedIo>),
}

/// I/O in flight, and when it was started.
type StartedIo = (PerfIo, Instant);

/// File with the expected contents of the namespace, and buffers for one I/O of the file and of the
/// target.
struct ExpectedBytes {
    file: File,
    expected: Vec<u8>,
    found: Vec<u8>,
}

impl PerfJob {
    /// Allocates memory and creates the workload, with the size of the namespace in bytes. Data
    /// that is read is compared with `expected`.
    pub(crate) fn new(
        session: Session,
        nsid: Nsid,
        limits: JobLimits,
        expected: Option<File>,
        workload: impl FnOnce(u64) -> Result<IoIterator>,
    ) -> Result<Self> {
        let namespaces = session.namespaces(nsid)?;
        let workload = workload(namespaces[0].info().size_bytes)?;
        let JobLimits { depth, longest_bytes, writes, path_policy, .. } = limits;
        let host = session.host();
        let flights = match &namespaces[..] {
            _ if session.has_paths() && writes => {
                let all = session.multipath_namespace(nsid, path_policy)?;
                Flights::Ring(Lanes::new(host, vec![all], depth, longest_bytes)?)
            }
            _ if session.has_paths() => {
                let shards = Shards::with_replicas(path_policy, [namespaces])?;
                Flights::Plans(ReadPlans::new(host, shards, depth, longest_bytes)?)
            }
            [one] if !writes && depth > 1 => {
                let shards = Shards::new([one.clone()])?;
                Flights::Plans(ReadPlans::new(host, shards, depth, longest_bytes)?)
            }
            _ => Flights::Ring(Lanes::new(host, namespaces, depth, longest_bytes)?),
        };
        let left = limits.ios.unwrap_or(u64::MAX);
        let expected = expected.map(|file| ExpectedBytes::new(file, longest_bytes));
        Ok(Self { session, flights, workload, expected, limits, left })
    }

    pub(crate) fn provider(&self) -> String {
        self.session.provider()
    }

    pub(crate) fn run(mut self, interrupt: &Interrupt) -> Result<Measure> {
        let mut measure = Measure::default();
        if self.limits.traced > 0 {
            self.session.host().start_trace(self.limits.traced);
        }
        let before = WireTotals::of(self.session.host());
        let start = now();
        loop {
            let over = self.limits.runtime.is_some_and(|runtime| start.elapsed() >= runtime);
            if over || interrupt.check().is_err() {
                self.left = 0;
            }
            self.begin_all()?;
            if self.flights.in_flight() == 0 {
                break;
            }
            self.flights.wait();
            self.flights.finish(now(), self.expected.as_mut(), &mut measure)?;
        }
        measure.wire = WireTotals::of(self.session.host()).since(&before);
        measure.count(&self.session.host().counters());
        measure.trace = CommandAtHost::of_host(self.session.host());
        Ok(measure)
    }

    /// Starts I/Os. All that are started in one call have the same start time, to save reads of the
    /// clock.
    fn begin_all(&mut self) -> Result<()> {
        let Self { flights, workload, left, .. } = self;
        let next = || {
            *left = left.checked_sub(1)?;
            workload.next()
        };
        flights.begin(now(), next)
    }
}

impl Flights {
    fn in_flight(&self) -> usize {
        match self {
            Self::Plans(plans) => plans.in_flight(),
            Self::Ring(lanes) => lanes.in_flight(),
        }
    }

    /// Starts I/Os until the depth is reached or `next` is exhausted.
    fn begin(&mut self, began: Instant, mut next: impl FnMut() -> Option<PerfIo>) -> Result<()> {
        let lanes = match self {
            Self::Plans(plans) => return plans.begin(began, next),
            Self::Ring(lanes) => lanes,
        };
        while let Some(lane) = lanes.claim() {
            let Some(io) = next() else {
                lanes.put_back(lane);
                break;
            };
            let (begun, bytes) = ((io, began), io.length_bytes as usize);
            match io.direction {
                IoDirection::Read => lanes.read(lane, io.offset_bytes, bytes, begun),
                IoDirection::Write => lanes.write(lane, io.offset_bytes, bytes, begun),
            }
        }
        Ok(())
    }

    /// Waits until an I/O has ended, at most [`LOOK_UP_AFTER`](crate::lanes::LOOK_UP_AFTER).
    fn wait(&mut self) {
        match self {
            Self::Plans(plans) => plans.wait(),
            Self::Ring(lanes) => lanes.wait(),
        }
    }

    /// Records the I/Os that have ended by `ended`, and compares the data that they read.
    fn finish(
        &mut self,
        ended: Instant,
        mut expected: Option<&mut ExpectedBytes>,
        measure: &mut Measure,
    ) -> Result<()> {
        match self {
            Self::Plans(plans) => {
                plans.reap(ended, |read| {
                    measure.record(IoDirection::Read, read.io.length_bytes, read.latency);
                    measure.count_path(read.path, read.attempts);
                })?;
                while let Some(plan) = plans.next_ended() {
                    if let Some(expected) = &mut expected {
                        plans.each_read(&plan, |io, region, at| {
                            region.copy_out(at, expected.room(io))?;
                            expected.compare(io)
                        })?;
                    }
                    plans.release(plan);
                }
            }
            Self::Ring(lanes) => {
                while let Some(done) = lanes.next_done() {
                    done.result.clone()?;
                    let (io, began) = done.tag;
                    measure.record(io.direction, io.length_bytes, ended - began);
                    if let Some(expected) = &mut expected
                        && io.direction == IoDirection::Read
                    {
                        done.bytes.copy_out(0, expected.room(&io));
                        expected.compare(&io)?;
                    }
                    lanes.release(done);
                }
            }
        }
        Ok(())
    }
}

impl ExpectedBytes {
    fn new(file: File, longest_bytes: usize) -> Self {
        Self { file, expected: vec![0; longest_bytes], found: vec![0; longest_bytes] }
    }

    /// Returns a buffer for the data that an I/O has read.
    fn room(&mut self, io: &PerfIo) -> &mut [u8] {
        &mut self.found[..io.length_bytes as usize]
    }

    /// Compares the buffer of [`Self::room`] with the file at the I/O's offset.
    fn compare(&mut self, io: &PerfIo) -> Result<()> {
        let (bytes, offset) = (io.length_bytes as usize, io.offset_bytes);
        let (expected, found) = (&mut self.expected[..bytes], &self.found[..bytes]);
        let read = self.file.read_exact_at(expected, offset);
        read.context("cannot read the file to verify with")?;
        ensure!(*found == *expected, "{bytes} bytes at {offset} are not what the file has there");
        Ok(())
    }
}
