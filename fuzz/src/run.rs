//! Many executions of a target, each named by a seed and a number.

use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use splitmix64::SplitMix64;

use crate::FuzzTarget;
use crate::mutate::mutate;

/// Executions of a target on mutations of its corpus. No execution depends on another, so any can
/// be repeated alone.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// The fuzz target that is executed.
    pub target: FuzzTarget,
    /// The inputs that are mutated.
    pub corpus: Vec<Vec<u8>>,
    /// Seed of the mutations; the same seed gives the same inputs.
    pub seed: u64,
}

/// An execution that failed.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Number of the execution in the campaign, from 0.
    pub execution: u64,
    /// The bytes that the target was given.
    pub input: Vec<u8>,
    /// The message of its panic.
    pub message: String,
}

impl Campaign {
    /// The input of the execution with this number.
    pub fn input(&self, execution: u64) -> Vec<u8> {
        let mut random = SplitMix64::new(self.seed);
        let mut random = SplitMix64::new(random.next_u64() ^ execution);
        mutate(&self.corpus, self.target.record_bytes, self.target.limit_bytes, &mut random)
    }

    /// Executes the numbers below `executions` on `jobs` threads until one fails. `progress` is
    /// kept up to date: for each thread, how many it has done.
    ///
    /// # Errors
    /// The finding with the smallest number of those that were met.
    pub fn run(&self, executions: u64, progress: &[AtomicU64]) -> Result<(), Finding> {
        let jobs = progress.len() as u64;
        thread::scope(|scope| {
            let threads: Vec<_> = (0..jobs)
                .zip(progress)
                .map(|(job, done)| scope.spawn(move || self.job(job, jobs, executions, done)))
                .collect();
            let results = threads.into_iter().map(|thread| match thread.join() {
                Ok(result) => result,
                Err(payload) => panic::resume_unwind(payload),
            });
            match results.filter_map(Result::err).min_by_key(|finding| finding.execution) {
                Some(finding) => Err(finding),
                None => Ok(()),
            }
        })
    }

    fn job(&self, job: u64, jobs: u64, executions: u64, done: &AtomicU64) -> Result<(), Finding> {
        for execution in (job..executions).step_by(jobs as usize) {
            let input = self.input(execution);
            if let Err(message) = execute(&self.target, &input) {
                return Err(Finding { execution, input, message });
            }
            done.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Runs one input and catches its panic.
///
/// # Errors
/// The message of the panic.
pub fn execute(target: &FuzzTarget, input: &[u8]) -> Result<(), String> {
    panic::catch_unwind(AssertUnwindSafe(|| (target.run)(input))).map_err(|payload| {
        let text = payload.downcast_ref::<String>().cloned();
        let text = text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        text.unwrap_or_else(|| "a panic without words".to_owned())
    })
}
