//! One job: one host, its connections, a fixed number of I/Os in flight.

use core::time::Duration;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use nvme_proto::Nsid;

use super::measure::{Measure, WireTotals};
use super::workload::{IoDirection, PerfIo};
use crate::clock::now;
use crate::interrupt::Interrupt;
use crate::lanes::{Done, Lanes};
use crate::session::Session;

/// How much a job does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JobLimits {
    pub(crate) depth: usize,
    /// Length of the longest I/O: each I/O in flight has a buffer of it.
    pub(crate) longest_bytes: usize,
    /// After this time no more I/Os are begun.
    pub(crate) runtime: Option<Duration>,
    /// After this many I/Os no more are begun.
    pub(crate) ios: Option<u64>,
}

/// A job that is connected and has its memory.
pub(crate) struct PerfJob {
    session: Session,
    lanes: Lanes<StartedIo>,
    workload: IoIterator,
    /// The expected contents of the namespace, and a buffer for one I/O of them.
    expected: Option<(File, Vec<u8>)>,
    limits: JobLimits,
    left: u64,
}

/// An endless sequence of I/Os.
pub(crate) type IoIterator = Box<dyn Iterator<Item = PerfIo> + Send>;

/// An I/O in flight, and the time at which it began.
type StartedIo = (PerfIo, Instant);

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
        let lanes = Lanes::new(session.host(), namespaces, limits.depth, limits.longest_bytes)?;
        let left = limits.ios.unwrap_or(u64::MAX);
        let expected = expected.map(|file| (file, vec![0; limits.longest_bytes]));
        Ok(Self { session, lanes, workload, expected, limits, left })
    }

    pub(crate) fn provider(&self) -> String {
        self.session.provider()
    }

    pub(crate) fn run(mut self, interrupt: &Interrupt) -> Result<Measure> {
        let mut measure = Measure::default();
        let before = WireTotals::of(self.session.host());
        let start = now();
        loop {
            let over = self.limits.runtime.is_some_and(|runtime| start.elapsed() >= runtime);
            if over || interrupt.check().is_err() {
                self.left = 0;
            }
            self.begin_all();
            if self.lanes.in_flight() == 0 {
                break;
            }
            self.lanes.wait();
            let ended = now();
            while let Some(done) = self.lanes.next_done() {
                self.finish(done, ended, &mut measure)?;
            }
        }
        measure.wire = WireTotals::of(self.session.host()).since(&before);
        measure.count(&self.session.host().counters());
        Ok(measure)
    }

    /// I/Os that are begun together leave together, when this job waits next: one look at the clock
    /// does for all of them.
    fn begin_all(&mut self) {
        let began = now();
        while self.left > 0
            && let Some(lane) = self.lanes.claim()
        {
            self.left -= 1;
            let Some(io) = self.workload.next() else { return self.lanes.put_back(lane) };
            let (begun, bytes) = ((io, began), io.length_bytes as usize);
            match io.direction {
                IoDirection::Read => self.lanes.read(lane, io.offset_bytes, bytes, begun),
                IoDirection::Write => self.lanes.write(lane, io.offset_bytes, bytes, begun),
            }
        }
    }

    fn finish(
        &mut self,
        done: Done<StartedIo>,
        ended: Instant,
        measure: &mut Measure,
    ) -> Result<()> {
        done.result.clone()?;
        let (io, began) = done.tag;
        measure.record(io.direction, done.bytes.len() as u64, ended - began);
        if let Some((file, room)) = &mut self.expected
            && io.direction == IoDirection::Read
        {
            let expected = &mut room[..done.bytes.len()];
            file.read_exact_at(expected, io.offset_bytes)
                .context("cannot read the file to verify with")?;
            let same = *done.bytes.bytes() == *expected;
            ensure!(
                same,
                "{} bytes at {} are not what the file has there",
                io.length_bytes,
                io.offset_bytes
            );
        }
        self.lanes.release(done);
        Ok(())
    }
}
