//! Reads ranges over the fabric and compares each one with the file.

use core::time::Duration;
use std::time::Instant;

use anyhow::Result;
use nvme_proto::Nsid;

use super::file::DemoFile;
use super::plan::{DemoRange, RANGE_MAX_BYTES};
use crate::clock::now;
use crate::interrupt::Interrupt;
use crate::lanes::Lanes;
use crate::latency::Latency;
use crate::options::ProviderArg;
use crate::progress::Progress;
use crate::session::Session;
use crate::target_child::{ListeningLine, TargetChild};

/// Parameters of the comparison.
pub(crate) struct Verify<'a> {
    pub(crate) sample: &'a DemoFile,
    pub(crate) interrupt: &'a Interrupt,
    /// Number of ranges that are read at the same time.
    pub(crate) depth: usize,
}

/// Result of a comparison without differences.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) provider: String,
    pub(crate) tally: VerifyTally,
    pub(crate) elapsed: Duration,
    pub(crate) direct_bytes: u64,
    pub(crate) bounced_bytes: u64,
}

/// Number of ranges compared, how many of them were unaligned, and the latency of their reads.
#[derive(Debug, Default)]
pub(crate) struct VerifyTally {
    pub(crate) ranges: u64,
    pub(crate) unaligned: u64,
    pub(crate) latency: Latency,
}

/// Range of a read in flight, and when the read was started.
type StartedRead = (DemoRange, Instant);

impl Verify<'_> {
    /// Connects, reads and compares all ranges, disconnects and ends the target.
    pub(crate) fn run(
        &self,
        mut target: TargetChild,
        ranges: impl Iterator<Item = DemoRange>,
        provider: ProviderArg,
    ) -> Result<Checked> {
        match self.read_from(&target.listening()[0], ranges, provider) {
            Ok(checked) => {
                target.stop()?;
                Ok(checked)
            }
            Err(error) => {
                self.interrupt.check()?;
                // If the target has ended, its exit explains the error better than the lost
                // connection does.
                target.check()?;
                Err(error)
            }
        }
    }

    fn read_from(
        &self,
        target: &ListeningLine,
        ranges: impl Iterator<Item = DemoRange>,
        provider: ProviderArg,
    ) -> Result<Checked> {
        let session = Session::nearby(target.address, target.nqn, provider)?;
        let namespace = session.namespace(Nsid(1))?;
        let mut lanes =
            Lanes::new(session.host(), vec![namespace], self.depth, RANGE_MAX_BYTES as usize)?;
        let start = now();
        let tally = self.read_all(&mut lanes, ranges)?;
        let elapsed = start.elapsed();
        let counters = session.host().counters();
        Ok(Checked {
            provider: session.provider(),
            tally,
            elapsed,
            direct_bytes: counters.direct_bytes,
            bounced_bytes: counters.bounced_bytes,
        })
    }

    fn read_all(
        &self,
        lanes: &mut Lanes<StartedRead>,
        mut waiting: impl Iterator<Item = DemoRange>,
    ) -> Result<VerifyTally> {
        let mut tally = VerifyTally::default();
        let mut progress = Progress::checked(self.sample.size_bytes());
        let mut scratch = Vec::new();
        loop {
            self.interrupt.check()?;
            begin_all(lanes, &mut waiting);
            if lanes.in_flight() == 0 {
                return Ok(tally);
            }
            lanes.wait();
            while let Some(done) = lanes.next_done() {
                done.result.clone()?;
                let (range, began) = done.tag;
                tally.add(range, began.elapsed());
                self.sample.check(range, &done.bytes.bytes(), &mut scratch)?;
                progress.add(range.length_bytes);
                lanes.release(done);
            }
        }
    }
}

impl VerifyTally {
    fn add(&mut self, range: DemoRange, latency: Duration) {
        self.ranges += 1;
        self.unaligned += u64::from(range.is_unaligned());
        self.latency.record(latency);
    }
}

fn begin_all(lanes: &mut Lanes<StartedRead>, waiting: &mut impl Iterator<Item = DemoRange>) {
    while let Some(lane) = lanes.claim() {
        let Some(range) = waiting.next() else {
            lanes.put_back(lane);
            break;
        };
        let length = range.length_bytes as usize;
        // Clears the buffer, so that bytes of an earlier read cannot pass for the result of this
        // one.
        let lane = lane.cleared(length);
        lanes.read(lane, range.offset_bytes, length, (range, now()));
    }
}
