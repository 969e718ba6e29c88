//! Figures of a turn, sums over several turns, and the rates derived from them.

use core::time::Duration;

use super::page_cache::Residency;
use crate::latency::Latency;

/// Figures of the loop of one rank in one turn. The first step counts only for `first_batch` and
/// `all_bytes`, as DLIO leaves it out.
#[derive(Clone, Debug, Default)]
pub(super) struct RankFigures {
    /// Number of measured steps.
    pub(super) steps: u64,
    /// Time from the end of the first step to the end of the last.
    pub(super) elapsed: Duration,
    /// Bytes of the batches of the measured steps.
    pub(super) bytes: u64,
    /// Time from the start of the loop until the first batch has arrived.
    pub(super) first_batch: Option<Duration>,
    /// Time that the loop waited for each batch: with batches read ahead, its stall.
    pub(super) waits: Latency,
    pub(super) stalled: Duration,
    /// Time from the end of a step to the end of the next: waiting, computing, and the barrier.
    pub(super) step_times: Latency,
    /// Bytes of all batches, those of the first step included.
    pub(super) all_bytes: u64,
    /// Bytes requested from files or targets: more than `all_bytes` if whole blocks are read.
    pub(super) asked_bytes: u64,
    /// Batches that were compared with the local files.
    pub(super) verified: u64,
}

/// Sum of the figures of all ranks over all turns of one way to read.
#[derive(Clone, Debug, Default)]
pub(super) struct LoaderFigures {
    pub(super) turns: u64,
    /// Measured steps of all ranks.
    pub(super) batches: u64,
    /// Sum over the turns of the slowest rank's time.
    pub(super) elapsed: Duration,
    /// Sum over the turns of every rank's time, which includes computing.
    pub(super) rank_time: Duration,
    pub(super) bytes: u64,
    /// The longest time to a first batch of all turns.
    pub(super) first_batch: Option<Duration>,
    pub(super) waits: Latency,
    pub(super) stalled: Duration,
    pub(super) step_times: Latency,
    pub(super) all_bytes: u64,
    pub(super) asked_bytes: u64,
    pub(super) verified: u64,
    /// CPU time of this process during the turns, their first steps included.
    pub(super) client_cpu: Duration,
    pub(super) target_cpu: Option<Duration>,
    /// Residency before the turn at which it deviated most from the requested cache state.
    pub(super) residency: Option<Residency>,
}

impl LoaderFigures {
    pub(super) fn add_turn(&mut self, ranks: &[RankFigures]) {
        self.turns += 1;
        self.elapsed += ranks.iter().map(|rank| rank.elapsed).max().unwrap_or_default();
        for rank in ranks {
            self.batches += rank.steps;
            self.rank_time += rank.elapsed;
            self.bytes += rank.bytes;
            self.first_batch = self.first_batch.max(rank.first_batch);
            self.waits.add(&rank.waits);
            self.stalled += rank.stalled;
            self.step_times.add(&rank.step_times);
            self.all_bytes += rank.all_bytes;
            self.asked_bytes += rank.asked_bytes;
            self.verified += rank.verified;
        }
    }

    /// Accelerator utilisation as DLIO defines it: computing time of the measured steps divided by
    /// their elapsed time. `None` without computing, or before a step was measured.
    pub(super) fn au(&self, compute: Duration) -> Option<f64> {
        let computed = compute.as_secs_f64() * self.batches as f64;
        let passed = self.rank_time.as_secs_f64();
        (computed > 0.0 && passed > 0.0).then(|| computed / passed)
    }

    pub(super) fn samples_per_second(&self, batch_samples: u32) -> Option<f64> {
        self.rate(self.batches as f64 * f64::from(batch_samples))
    }

    pub(super) fn bytes_per_second(&self) -> Option<f64> {
        self.rate(self.bytes as f64)
    }

    fn rate(&self, amount: f64) -> Option<f64> {
        (!self.elapsed.is_zero()).then(|| amount / self.elapsed.as_secs_f64())
    }

    /// CPU seconds of this process for each 10^9 bytes that it received.
    pub(super) fn client_cpu_per_gb(&self) -> Option<f64> {
        per_gb(self.client_cpu, self.all_bytes)
    }

    /// CPU seconds of the target for each 10^9 bytes that it sent.
    pub(super) fn target_cpu_per_gb(&self) -> Option<f64> {
        per_gb(self.target_cpu?, self.all_bytes)
    }

    /// Bytes requested divided by bytes of the batches. `None` before any were read.
    pub(super) fn amplification(&self) -> Option<f64> {
        (self.all_bytes > 0 && self.asked_bytes > 0)
            .then(|| self.asked_bytes as f64 / self.all_bytes as f64)
    }
}

fn per_gb(time: Duration, bytes: u64) -> Option<f64> {
    (bytes > 0).then(|| time.as_secs_f64() * 1e9 / bytes as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten steps of a rank: 25 ms each, including 5 ms of waiting.
    fn rank() -> RankFigures {
        let mut rank = RankFigures {
            steps: 10,
            elapsed: Duration::from_millis(250),
            bytes: 20_000_000,
            first_batch: Some(Duration::from_millis(9)),
            stalled: Duration::from_millis(50),
            all_bytes: 22_000_000,
            asked_bytes: 33_000_000,
            verified: 1,
            ..RankFigures::default()
        };
        for _ in 0..10 {
            rank.waits.record(Duration::from_millis(5));
            rank.step_times.record(Duration::from_millis(25));
        }
        rank
    }

    #[test]
    fn utilisation_and_rates_by_hand() {
        let mut figures = LoaderFigures::default();
        figures.add_turn(&[rank(), rank()]);
        // 20 batches of 20 ms in 2 x 250 ms.
        let au = figures.au(Duration::from_millis(20)).unwrap();
        assert!((au - 0.8).abs() < 1e-12, "{au}");
        // 20 batches of 7 samples in 250 ms.
        assert_eq!(figures.samples_per_second(7), Some(560.0));
        assert_eq!(figures.bytes_per_second(), Some(160e6));
        assert_eq!(figures.stalled, Duration::from_millis(100));
        assert_eq!(figures.amplification(), Some(1.5));
        figures.client_cpu = Duration::from_millis(11);
        // 11 ms for 44 MB.
        assert_eq!(figures.client_cpu_per_gb(), Some(0.25));
        assert_eq!(figures.target_cpu_per_gb(), None);
    }

    #[test]
    fn turns_follow_each_other() {
        let mut figures = LoaderFigures::default();
        let slow = RankFigures { elapsed: Duration::from_millis(500), ..rank() };
        figures.add_turn(&[rank(), slow]);
        figures.add_turn(&[rank()]);
        assert_eq!((figures.turns, figures.batches), (2, 30));
        // The slower rank of the first turn, and the second turn.
        assert_eq!(figures.elapsed, Duration::from_millis(750));
        // 30 batches of 20 ms in 250 + 500 + 250 ms.
        let au = figures.au(Duration::from_millis(20)).unwrap();
        assert!((au - 0.6).abs() < 1e-12, "{au}");
        assert_eq!(figures.waits.count(), 30);
        let p99 = figures.waits.percentile_us(99.0);
        assert!((4990.0..5010.0).contains(&p99), "{p99}");
    }

    #[test]
    fn nothing_measured_is_no_number() {
        let figures = LoaderFigures::default();
        assert_eq!(figures.au(Duration::from_millis(1)), None);
        assert_eq!(figures.samples_per_second(1), None);
        assert_eq!(figures.client_cpu_per_gb(), None);
        assert_eq!(figures.amplification(), None);
        let mut measured = LoaderFigures::default();
        measured.add_turn(&[rank()]);
        assert_eq!(measured.au(Duration::ZERO), None, "without computing there is no utilisation");
    }
}
