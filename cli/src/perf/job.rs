//! One job: one host, its connections, a fixed number of I/Os in flight.

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

/// How much a job does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JobLimits {
    pub(crate) depth: usize,
    /// Length of the longest I/O: each I/O in flight has a buffer of it.
    pub(crate) longest_bytes: usize,
    /// Whether there are writes among them.
    pub(crate) writes: bool,
    /// Which of several paths an I/O takes.
    pub(crate) path_policy: ReplicaPolicy,
    /// The most commands that are taken down.
    pub(crate) traced: usize,
    /// Time after which no I/O is begun.
    pub(crate) runtime: Option<Duration>,
    /// Number of I/Os after which none is begun.
    pub(crate) ios: Option<u64>,
}

/// A job that is connected and has its memory.
pub(crate) struct PerfJob {
    session: Session,
    flights: Flights,
    workload: IoIterator,
    expected: Option<ExpectedBytes>,
    limits: JobLimits,
    left: u64,
}

/// An endless sequence of I/Os.
pub(crate) type IoIterator = Box<dyn Iterator<Item = PerfIo> + Send>;

/// The I/Os in flight.
enum Flights {
    /// Several reads over one connection, or over all paths, as plans.
    Plans(ReadPlans),
    /// I/Os one by one, in a ring. Plans only read. One of a single read costs more than a place in
    /// a ring (4 KiB from memory, depth 1: 5 % of the IOPS), and one whose few reads each go over
    /// another connection does the work of as many plans.
    Ring(Lanes<StartedIo>),
}

/// An I/O in flight, and the time at which it began.
type StartedIo = (PerfIo, Instant);

/// The expected contents of the namespace, and a buffer for one I/O of them and one of the
/// target's.
struct ExpectedBytes {
    file: File,
    expected: Vec<u8>,
    found: Vec<u8>,
}

impl PerfJob {
    /// Prepares; `workload` is given the size of the namespace. Bytes that are read are compared
    /// with `expected`.
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

    /// I/Os that are begun together leave together: one look at the clock does for all of them.
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

    /// Begins I/Os until the depth is reached or `next` is exhausted.
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

    /// Waits until an I/O has ended, or for a short while.
    fn wait(&mut self) {
        match self {
            Self::Plans(plans) => plans.wait(),
            Self::Ring(lanes) => lanes.wait(),
        }
    }

    /// Records what has ended by `ended`, and compares what was read.
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

    /// A buffer for the bytes that an I/O has read.
    fn room(&mut self, io: &PerfIo) -> &mut [u8] {
        &mut self.found[..io.length_bytes as usize]
    }

    /// Compares them with what the file has there.
    fn compare(&mut self, io: &PerfIo) -> Result<()> {
        let (bytes, offset) = (io.length_bytes as usize, io.offset_bytes);
        let (expected, found) = (&mut self.expected[..bytes], &self.found[..bytes]);
        let read = self.file.read_exact_at(expected, offset);
        read.context("cannot read the file to verify with")?;
        ensure!(*found == *expected, "{bytes} bytes at {offset} are not what the file has there");
        Ok(())
    }
}
