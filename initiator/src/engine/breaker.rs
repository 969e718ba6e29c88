//! Circuit breakers, which direct reads to other replicas while a target fails.

use std::num::NonZeroU32;
use std::time::Duration;

use rdma::Time;

/// Thresholds and pauses of a circuit breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BreakerOptions {
    /// Number of consecutive failures that opens the breaker. A lost connection opens it
    /// immediately.
    pub(crate) failures: NonZeroU32,
    /// Time for which the target is avoided after the breaker has opened.
    pub(crate) pause: Duration,
    /// Upper limit of the pause, which doubles with each failed probe.
    pub(crate) pause_max: Duration,
}

impl Default for BreakerOptions {
    /// Returns five failures, and pauses from 500 ms to 30 s.
    fn default() -> Self {
        Self {
            failures: NonZeroU32::MIN.saturating_add(4),
            pause: Duration::from_millis(500),
            pause_max: Duration::from_secs(30),
        }
    }
}

/// Circuit breaker of a target. It is closed while the target works, and opens after consecutive
/// failures or the loss of the connection. After a pause it is half open: one read probes the
/// target. If that succeeds the breaker closes, else it opens for twice the pause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CircuitBreaker {
    options: BreakerOptions,
    state: BreakerState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BreakerState {
    /// Reads are permitted; this many have failed since the last success.
    Closed { failures: u32 },
    /// Reads are not permitted before `until`; `pause` is the length of the present pause.
    Open { until: Time, pause: Duration },
    /// A probe is in progress. If it has not ended at `until`, another probe is permitted.
    HalfOpen { until: Time, pause: Duration },
}

impl Default for BreakerState {
    fn default() -> Self {
        Self::Closed { failures: 0 }
    }
}

/// Whether a read from a target is permitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Permitted, since the breaker is closed.
    Yes,
    /// Permitted for a single read, which probes the target.
    Probe,
    /// Not permitted; the read should go to another replica.
    No,
}

impl CircuitBreaker {
    /// Returns whether a read is permitted now. If a read follows [`Admission::Probe`], call
    /// [`begin_probe`](Self::begin_probe).
    pub(crate) fn admission(&self, now: Time) -> Admission {
        match self.state {
            BreakerState::Closed { .. } => Admission::Yes,
            BreakerState::Open { until, .. } | BreakerState::HalfOpen { until, .. } => {
                if now < until { Admission::No } else { Admission::Probe }
            }
        }
    }

    /// Records the start of a probe. The next one is permitted after its failure and a pause, or
    /// when the present pause has passed without a result.
    pub(crate) fn begin_probe(&mut self, now: Time) {
        if let BreakerState::Open { pause, .. } | BreakerState::HalfOpen { pause, .. } = self.state
        {
            self.state = BreakerState::HalfOpen { until: now + pause, pause };
        }
    }

    /// Records a successful read. While the breaker is open it is ignored: such a read was started
    /// before the failures.
    pub(crate) fn succeeded(&mut self) {
        if !matches!(self.state, BreakerState::Open { .. }) {
            self.state = BreakerState::default();
        }
    }

    /// Records a read that failed because of the target, with an error or a time-out. Ignored while
    /// the breaker is open.
    pub(crate) fn failed(&mut self, now: Time) {
        match self.state {
            BreakerState::Closed { failures } if failures + 1 < self.options.failures.get() => {
                self.state = BreakerState::Closed { failures: failures + 1 };
            }
            _ => self.lost(now),
        }
    }

    /// Records that the connection to the target was lost or could not be established.
    pub(crate) fn lost(&mut self, now: Time) {
        let pause = match self.state {
            BreakerState::Closed { .. } => self.options.pause,
            BreakerState::HalfOpen { pause, .. } => pause.saturating_mul(2),
            BreakerState::Open { .. } => return,
        };
        let pause = pause.min(self.options.pause_max);
        self.state = BreakerState::Open { until: now + pause, pause };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn seconds(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    fn pause(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn breaker(failures: u32) -> CircuitBreaker {
        let options = BreakerOptions {
            failures: NonZeroU32::new(failures).expect("not zero"),
            pause: pause(1),
            pause_max: pause(5),
        };
        CircuitBreaker { options, ..CircuitBreaker::default() }
    }

    fn admit(breaker: &mut CircuitBreaker, now: Time) -> Admission {
        let admission = breaker.admission(now);
        if admission == Admission::Probe {
            breaker.begin_probe(now);
        }
        admission
    }

    fn would_admit(breaker: &CircuitBreaker, now: Time) -> bool {
        breaker.admission(now) != Admission::No
    }

    #[test]
    fn failures_in_a_row_open_a_breaker() {
        let mut breaker = breaker(3);
        breaker.failed(seconds(10));
        breaker.failed(seconds(10));
        breaker.succeeded();
        breaker.failed(seconds(10));
        breaker.failed(seconds(10));
        assert_eq!(admit(&mut breaker, seconds(10)), Admission::Yes);
        breaker.failed(seconds(10));
        assert_eq!(admit(&mut breaker, seconds(10)), Admission::No);
    }

    #[test]
    fn one_loss_opens_a_breaker() {
        let mut breaker = breaker(3);
        breaker.lost(seconds(10));
        assert!(!would_admit(&breaker, seconds(10)));
        breaker.lost(seconds(20));
        breaker.failed(seconds(20));
        breaker.succeeded();
        assert!(!would_admit(&breaker, seconds(10)), "what was in progress changes nothing");
        assert!(would_admit(&breaker, seconds(11)));
    }

    #[test]
    fn one_probe_closes_a_breaker_or_doubles_its_pause() {
        let mut breaker = breaker(3);
        breaker.lost(seconds(0));
        let mut now = 0;
        for seconds_off in [1, 2, 4, 5, 5] {
            now += seconds_off;
            assert!(!would_admit(&breaker, Time::from_nanos(seconds(now).as_nanos() - 1)));
            assert!(would_admit(&breaker, seconds(now)));
            assert_eq!(admit(&mut breaker, seconds(now)), Admission::Probe);
            assert_eq!(admit(&mut breaker, seconds(now)), Admission::No);
            breaker.failed(seconds(now));
        }
        now += 5;
        assert_eq!(admit(&mut breaker, seconds(now)), Admission::Probe);
        breaker.succeeded();
        assert_eq!(admit(&mut breaker, seconds(now)), Admission::Yes);
        breaker.lost(seconds(now));
        assert_eq!(admit(&mut breaker, seconds(now)), Admission::No);
    }

    #[test]
    fn a_probe_that_never_ends_is_replaced() {
        let mut breaker = breaker(1);
        breaker.failed(seconds(0));
        assert_eq!(admit(&mut breaker, seconds(1)), Admission::Probe);
        assert_eq!(admit(&mut breaker, seconds(1)), Admission::No);
        assert_eq!(admit(&mut breaker, seconds(2)), Admission::Probe);
    }

    /// Events of a breaker.
    #[derive(Clone, Copy, Debug)]
    enum Happening {
        Admit,
        Success,
        Failure,
        Loss,
        Later(u64),
    }

    fn happenings() -> impl Strategy<Value = Vec<Happening>> {
        let happening = prop_oneof![
            3 => Just(Happening::Admit),
            1 => Just(Happening::Success),
            2 => Just(Happening::Failure),
            1 => Just(Happening::Loss),
            3 => (0..4_000_000_000_u64).prop_map(Happening::Later),
        ];
        prop::collection::vec(happening, 0..200)
    }

    proptest! {
        #[test]
        fn a_breaker_asks_a_lost_target_once_a_pause(happenings in happenings()) {
            let mut breaker = breaker(3);
            let (mut now, mut is_lost, mut last_probe) = (Time::ZERO, false, None::<Time>);
            for happening in happenings {
                let would_admit = would_admit(&breaker, now);
                match happening {
                    Happening::Later(nanoseconds) => now = now + Duration::from_nanos(nanoseconds),
                    Happening::Failure => breaker.failed(now),
                    Happening::Loss => {
                        breaker.lost(now);
                        is_lost = true;
                    }
                    Happening::Success => {
                        breaker.succeeded();
                        is_lost &= !would_be_closed(&breaker);
                    }
                    Happening::Admit => match admit(&mut breaker, now) {
                        Admission::Yes => {
                            prop_assert!(would_admit && !is_lost);
                            last_probe = None;
                        }
                        Admission::Probe => {
                            prop_assert!(would_admit);
                            let earliest = last_probe.map_or(Time::ZERO, |last| last + pause(1));
                            prop_assert!(now >= earliest, "{last_probe:?} {now:?}");
                            last_probe = Some(now);
                        }
                        Admission::No => {
                            prop_assert!(!would_admit);
                            prop_assert_eq!(breaker.admission(now + pause(5)), Admission::Probe);
                        }
                    },
                }
            }
            // Whatever has happened, a target that serves again is asked again.
            now = now + pause(5);
            prop_assert!(would_admit(&breaker, now));
            admit(&mut breaker, now);
            breaker.succeeded();
            prop_assert_eq!(admit(&mut breaker, now), Admission::Yes);
        }
    }

    fn would_be_closed(breaker: &CircuitBreaker) -> bool {
        would_admit(breaker, Time::ZERO)
    }

    #[test]
    fn times_at_the_end_of_the_clock_do_not_overflow() {
        let mut breaker = breaker(1);
        breaker.lost(Time::from_nanos(u64::MAX));
        assert_eq!(admit(&mut breaker, Time::from_nanos(u64::MAX)), Admission::Probe);
        breaker.failed(Time::from_nanos(u64::MAX));
        assert!(would_admit(&breaker, Time::from_nanos(u64::MAX)));
    }
}
