//! Watches a running guest.
#![expect(
    clippy::disallowed_methods,
    reason = "waiting for a process, with a limit, is what this file does"
)]

use std::path::Path;
use std::process::{Child, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::report;
use super::scenario::Run;

/// Time that booting, cleaning up after a scenario and powering off may take in addition to the
/// limit of the scenario.
const GRACE: Duration = Duration::from_secs(150);
const INTERVAL: Duration = Duration::from_millis(200);

/// Prints results as they appear, and detects a guest that hangs.
pub(super) struct GuestWatch<'a> {
    job: &'a Path,
    runs: &'a [Run],
    ended: usize,
    /// When the last run ended, or when the guest was started.
    since: Instant,
}

impl<'a> GuestWatch<'a> {
    pub(super) fn new(job: &'a Path, runs: &'a [Run]) -> Self {
        Self { job, runs, ended: 0, since: Instant::now() }
    }

    /// Waits until the guest has ended. Kills it if it hangs, and then returns no status.
    pub(super) fn until_end(mut self, qemu: &mut Child) -> Result<Option<ExitStatus>> {
        loop {
            let status = qemu.try_wait()?;
            self.say_progress();
            if status.is_some() {
                return Ok(status);
            }
            if self.since.elapsed() > self.limit() {
                qemu.kill()?;
                qemu.wait()?;
                return Ok(None);
            }
            thread::sleep(INTERVAL);
        }
    }

    fn say_progress(&mut self) {
        let results = report::results(self.job);
        for run in &self.runs[self.ended..] {
            let Some(line) = report::progress(&results, self.job, run) else { return };
            eprintln!("{line}");
            self.ended += 1;
            self.since = Instant::now();
        }
    }

    fn limit(&self) -> Duration {
        let run = self.runs.get(self.ended);
        GRACE + Duration::from_secs(run.map_or(0, |run| run.limit_seconds))
    }
}
