//! Whether a target is asked.

use std::num::NonZeroU32;
use std::time::Duration;

/// When a breaker opens, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerOptions {
    /// So many failures without a success between them open the breaker. A lost connection opens it
    /// at once.
    pub failures: NonZeroU32,
    /// How long the target is not asked after the breaker has opened.
    pub pause: Duration,
    /// The pause doubles with each probe that fails, up to this.
    pub pause_max: Duration,
}

impl Default for BreakerOptions {
    /// Five failures, and pauses from 500 ms to 30 s.
    fn default() -> Self {
        Self {
            failures: NonZeroU32::MIN.saturating_add(4),
            pause: Duration::from_millis(500),
            pause_max: Duration::from_secs(30),
        }
    }
}

/// A circuit breaker of one target. It is closed while the target serves; it opens after failures
/// in a row or a loss; after a pause it is half open, that is one read probes the target, whose
/// success closes the breaker and whose failure opens it for twice the pause.
///
/// Times are those since some moment that the caller chooses, the same for all calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CircuitBreaker {
    options: BreakerOptions,
    state: BreakerState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BreakerState {
    /// So many reads have failed since the last success.
    Closed { failures: u32 },
    /// Nothing is asked before that time.
    Open { until: Duration, pause: Duration },
    /// A probe is under way. If nothing is heard of it until that time there is another.
    HalfOpen { until: Duration, pause: Duration },
}

impl Default for BreakerState {
    fn default() -> Self {
        Self::Closed { failures: 0 }
    }
}

/// Whether a target may be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// The target serves, as far as is known.
    Yes,
    /// This one read may be made, and its end should be reported: others wait for it.
    Probe,
    /// Not now. There may be a probe at that time.
    No {
        /// Since the moment that the caller chose.
        until: Duration,
    },
}

impl CircuitBreaker {
    /// A closed breaker, as that of a target of which nothing bad is known.
    pub fn new(options: BreakerOptions) -> Self {
        Self { options, state: BreakerState::default() }
    }

    /// Whether [`admit`](Self::admit) would let a read pass, be it as a probe.
    pub fn would_admit(&self, now: Duration) -> bool {
        match self.state {
            BreakerState::Closed { .. } => true,
            BreakerState::Open { until, .. } | BreakerState::HalfOpen { until, .. } => now >= until,
        }
    }

    /// Asks whether a read may be made now. [`Admission::Probe`] is given to one read only, until
    /// its end is reported or as long a pause as before has passed.
    pub fn admit(&mut self, now: Duration) -> Admission {
        match self.state {
            BreakerState::Closed { .. } => Admission::Yes,
            BreakerState::Open { until, pause } | BreakerState::HalfOpen { until, pause } => {
                if now < until {
                    return Admission::No { until };
                }
                self.state = BreakerState::HalfOpen { until: now.saturating_add(pause), pause };
                Admission::Probe
            }
        }
    }

    /// A read has succeeded. Successes of reads that were made before the breaker opened say
    /// nothing of the target as it is now, and do not close it.
    pub fn succeeded(&mut self) {
        if !matches!(self.state, BreakerState::Open { .. }) {
            self.state = BreakerState::default();
        }
    }

    /// A read has failed through the fault of the target: an error, or a time-out. While the
    /// breaker is open that changes nothing.
    pub fn failed(&mut self, now: Duration) {
        match self.state {
            BreakerState::Closed { failures } if failures + 1 < self.options.failures.get() => {
                self.state = BreakerState::Closed { failures: failures + 1 };
            }
            _ => self.lost(now),
        }
    }

    /// The connection to the target was lost, or could not be made.
    pub fn lost(&mut self, now: Duration) {
        let pause = match self.state {
            BreakerState::Closed { .. } => self.options.pause,
            BreakerState::HalfOpen { pause, .. } => pause.saturating_mul(2),
            BreakerState::Open { .. } => return,
        };
        let pause = pause.min(self.options.pause_max);
        self.state = BreakerState::Open { until: now.saturating_add(pause), pause };
    }
}
