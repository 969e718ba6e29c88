//! One job: one host, its connections, a fixed number of I/Os in flight.

use core::time::Duration;
use std::time::Instant;

use anyhow::Result;
use nvme_proto::Nsid;

use super::measure::{Measure, Wire};
use super::workload::{Direction, Workload};
use crate::clock::now;
use crate::interrupt::Interrupt;
use crate::lanes::{Done, Lanes};
use crate::session::Session;

/// How much a job does.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) depth: usize,
    pub(crate) block_bytes: usize,
    /// After this time no more I/Os are begun.
    pub(crate) runtime: Option<Duration>,
    /// After this many I/Os no more are begun.
    pub(crate) ios: Option<u64>,
}

/// A job that is connected and has its memory.
pub(crate) struct Job {
    session: Session,
    lanes: Lanes<Begun>,
    workload: Workload,
    limits: Limits,
    left: u64,
}

/// What an I/O in flight is, and when it began.
type Begun = (Direction, Instant);

impl Job {
    /// Prepares; `workload` is given the size of the namespace.
    pub(crate) fn new(
        session: Session,
        nsid: Nsid,
        limits: Limits,
        workload: impl FnOnce(u64) -> Result<Workload>,
    ) -> Result<Self> {
        let namespaces = session.namespaces(nsid)?;
        let workload = workload(namespaces[0].info().size_bytes)?;
        let lanes = Lanes::new(session.host(), namespaces, limits.depth, limits.block_bytes)?;
        let left = limits.ios.unwrap_or(u64::MAX);
        Ok(Self { session, lanes, workload, limits, left })
    }

    pub(crate) fn provider(&self) -> String {
        self.session.provider()
    }

    pub(crate) fn run(mut self, interrupt: &Interrupt) -> Result<Measure> {
        let mut measure = Measure::default();
        let before = Wire::of(self.session.host());
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
            while let Some(done) = self.lanes.next_done() {
                self.finish(done, &mut measure)?;
            }
        }
        measure.wire = Wire::of(self.session.host()).since(&before);
        measure.count(&self.session.host().counters());
        Ok(measure)
    }

    fn begin_all(&mut self) {
        while self.left > 0
            && let Some(lane) = self.lanes.claim()
        {
            self.left -= 1;
            let io = self.workload.next();
            let (begun, bytes) = ((io.direction, now()), self.limits.block_bytes);
            match io.direction {
                Direction::Read => self.lanes.read(lane, io.offset_bytes, bytes, begun),
                Direction::Write => self.lanes.write(lane, io.offset_bytes, bytes, begun),
            }
        }
    }

    fn finish(&mut self, done: Done<Begun>, measure: &mut Measure) -> Result<()> {
        done.result.clone()?;
        let (direction, began) = done.tag;
        measure.record(direction, done.bytes.len() as u64, began.elapsed());
        self.lanes.release(done);
        Ok(())
    }
}
