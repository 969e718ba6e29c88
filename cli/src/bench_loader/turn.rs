//! One turn: all ranks read and compute the batches of a schedule, with one way to read.

use core::time::Duration;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result};

use super::barrier::{GivenUp, StepBarrier};
use super::figures::RankFigures;
use super::reader::BatchReader;
use super::samples::SampleBatch;
use super::schedule::Schedule;
use super::verify::Verifier;
use crate::clock::{now, sleep};
use crate::interrupt::Interrupt;
use crate::progress::Progress;

/// Settings shared by all turns.
#[derive(Clone, Copy)]
pub(super) struct LoopSettings<'a> {
    pub(super) compute: Duration,
    /// Batches that are read ahead of the one in use: a rank has one buffer more than that.
    pub(super) prefetch: usize,
    pub(super) verifier: Option<&'a Verifier>,
    pub(super) interrupt: &'a Interrupt,
}

/// Runs each rank with its reader in a thread of its own. The figures include the steps before an
/// error.
pub(super) fn run(
    readers: Vec<Box<dyn BatchReader>>,
    schedule: &Schedule,
    settings: LoopSettings<'_>,
    progress: &mut Progress,
) -> (Vec<RankFigures>, Result<()>) {
    let (barrier, progress) = (&StepBarrier::new(readers.len()), &Mutex::new(progress));
    thread::scope(|scope| {
        let start = |(reader, batches)| {
            let rank = RankLoop {
                reader,
                batches,
                settings,
                barrier,
                progress,
                begun: 0,
                figures: RankFigures::default(),
            };
            let started = thread::Builder::new().spawn_scoped(scope, move || rank.run());
            started
                .inspect_err(|_| barrier.give_up())
                .context("cannot start a thread for each rank: lower --ranks")
        };
        let started: Vec<_> = readers.into_iter().zip(schedule.ranks()).map(start).collect();
        let (mut ranks, mut result) = (Vec::new(), Ok(()));
        for rank in started {
            let ended = rank.map(|rank| rank.join().expect("a rank does not panic"));
            let ended = ended.and_then(|(figures, ended)| {
                ranks.push(figures);
                ended
            });
            result = result.and(ended);
        }
        (ranks, result)
    })
}

struct RankLoop<'a, 'p> {
    reader: Box<dyn BatchReader>,
    batches: &'a [SampleBatch],
    settings: LoopSettings<'a>,
    barrier: &'a StepBarrier,
    progress: &'a Mutex<&'p mut Progress>,
    /// Number of batches whose read was started.
    begun: usize,
    figures: RankFigures,
}

impl RankLoop<'_, '_> {
    fn run(mut self) -> (RankFigures, Result<()>) {
        let ended = self.steps().inspect_err(|_| self.barrier.give_up());
        self.figures.asked_bytes = self.reader.asked_bytes();
        (self.figures, ended)
    }

    fn steps(&mut self) -> Result<()> {
        let start = now();
        let mut ended = start;
        for step in 0..self.batches.len() {
            self.settings.interrupt.check()?;
            let waits_from = now();
            self.begin_ahead(step)?;
            self.reader.finish(self.slot(step), self.settings.interrupt)?;
            let ready = now();
            self.compute();
            self.verify(step)?;
            if let Err(GivenUp) = self.barrier.wait() {
                return Ok(());
            }
            let times = StepTimes { start, before: ended, waits_from, ready, ended: now() };
            ended = times.ended;
            self.record(step, times);
        }
        Ok(())
    }

    /// Starts to read the batch of this step and those to read ahead of it.
    fn begin_ahead(&mut self, step: usize) -> Result<()> {
        let end = self.batches.len().min(step + self.settings.prefetch + 1);
        while self.begun < end {
            let slot = self.slot(self.begun);
            self.reader.begin(slot, &self.batches[self.begun])?;
            self.begun += 1;
        }
        Ok(())
    }

    fn slot(&self, step: usize) -> usize {
        step % (self.settings.prefetch + 1)
    }

    /// Sleeps for the computing time, as DLIO does. A signal ends the sleep early.
    fn compute(&self) {
        const LONGEST: Duration = Duration::from_millis(100);
        let mut left = self.settings.compute;
        while !left.is_zero() && self.settings.interrupt.check().is_ok() {
            let part = left.min(LONGEST);
            sleep(part);
            left -= part;
        }
    }

    /// Compares the batch of the first step, or of every step with `--verify`. The time of the
    /// first step is not in the figures.
    fn verify(&mut self, step: usize) -> Result<()> {
        if let Some(verifier) = self.settings.verifier
            && (step == 0 || verifier.all)
        {
            verifier.verify(&*self.reader, self.slot(step), &self.batches[step])?;
            self.figures.verified += 1;
        }
        Ok(())
    }

    fn record(&mut self, step: usize, times: StepTimes) {
        let figures = &mut self.figures;
        let bytes = self.batches[step].bytes;
        figures.all_bytes += bytes;
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).add(bytes);
        if step == 0 {
            figures.first_batch = Some(times.ready - times.start);
            return;
        }
        let waited = times.ready - times.waits_from;
        figures.steps += 1;
        figures.bytes += bytes;
        figures.elapsed += times.ended - times.before;
        figures.waits.record(waited);
        figures.stalled += waited;
        figures.step_times.record(times.ended - times.before);
    }
}

/// Times at which the phases of a step began and ended.
#[derive(Clone, Copy, Debug)]
struct StepTimes {
    /// When the loop of the rank began.
    start: Instant,
    /// When the previous step ended.
    before: Instant,
    waits_from: Instant,
    ready: Instant,
    ended: Instant,
}
