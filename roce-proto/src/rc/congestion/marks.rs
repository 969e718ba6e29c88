//! The average share of ECN-marked packets: `alpha` of DCTCP (RFC 8257).

use core::time::Duration;

use crate::Time;

/// Maximum number of round trips without a mark that are averaged; more change nothing.
const MOST_ROUNDS: u64 = 256;

/// The share of packets that are marked, averaged over round trips, in parts of
/// [`MarkedShare::WHOLE`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct MarkedShare {
    average: u64,
    /// Counts since the window was last reduced; `None` before the first mark.
    latest: Option<MarkedRounds>,
}

/// Counts of marked and of all amounts since `began`.
#[derive(Clone, Copy, Debug)]
struct MarkedRounds {
    began: Time,
    marked: u64,
    total: u64,
}

impl MarkedShare {
    /// The share that means that all packets are marked.
    pub(crate) const WHOLE: u64 = 1 << 20;
    /// RFC 8257, 4.2: weight of the latest round trip, one sixteenth.
    const GAIN: u64 = 16;

    /// The initial share is the whole, so that the first mark counts in full.
    pub(crate) const fn new() -> Self {
        Self { average: Self::WHOLE, latest: None }
    }

    /// Counts an amount, marked or not. A sender that only sees whether there were marks does not
    /// call it: then a mark stands for a whole round trip.
    pub(crate) const fn count(&mut self, amount: u64) {
        if let Some(latest) = &mut self.latest {
            latest.total += amount;
        }
    }

    /// Counts a marked amount. Returns the average share if the window must be reduced, that is
    /// unless it was already within the last round trip.
    pub(crate) fn mark(&mut self, now: Time, amount: u64, round_trip: Duration) -> Option<u64> {
        if let Some(latest) = &mut self.latest {
            let rounds = (now - latest.began).as_nanos() / round_trip.as_nanos().max(1);
            if rounds == 0 {
                latest.marked += amount;
                return None;
            }
            let rounds = u64::try_from(rounds).unwrap_or(u64::MAX);
            let share = (latest.marked * Self::WHOLE)
                .checked_div(latest.total)
                .map_or(Self::WHOLE / rounds, |share| share.min(Self::WHOLE));
            for _ in 0..rounds.min(MOST_ROUNDS) {
                self.average = self.average - self.average / Self::GAIN + share / Self::GAIN;
            }
        }
        self.latest = Some(MarkedRounds { began: now, marked: amount, total: 0 });
        Some(self.average)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND_TRIP: Duration = Duration::from_millis(1);

    /// Average in thousandths, after marks for a hundred round trips of ten units.
    fn average(marked_in: impl Fn(u64) -> u64, counts: bool) -> u64 {
        let mut share = MarkedShare::new();
        let (mut average, mut now) = (0, Time::from_nanos(1));
        for round in 0..100 {
            for unit in 0..10 {
                if unit < marked_in(round)
                    && let Some(latest) = share.mark(now, 1, ROUND_TRIP)
                {
                    average = latest;
                }
                if counts {
                    share.count(1);
                }
                now = now + ROUND_TRIP / 10;
            }
        }
        average * 1000 / MarkedShare::WHOLE
    }

    #[test]
    fn the_average_follows_what_is_marked() {
        assert_eq!(average(|_| 10, true), 1000);
        for (marked, expected) in [(5, 500), (2, 200), (1, 100)] {
            let average = average(|_| marked, true);
            assert!((expected..expected + 20).contains(&average), "{average} for {expected}");
        }
    }

    #[test]
    fn without_counts_a_mark_stands_for_its_round_trip() {
        assert_eq!(average(|_| 1, false), 1000);
        let average = average(|round| u64::from(round % 4 == 0), false);
        assert!((230..280).contains(&average), "{average}");
    }

    #[test]
    fn a_round_trip_has_one_reduction() {
        let mut share = MarkedShare::new();
        let start = Time::from_nanos(1);
        assert_eq!(share.mark(start, 1, ROUND_TRIP), Some(MarkedShare::WHOLE));
        for part in 1..10 {
            assert_eq!(share.mark(start + ROUND_TRIP * part / 10, 1, ROUND_TRIP), None);
        }
        assert!(share.mark(start + ROUND_TRIP, 1, ROUND_TRIP).is_some());
        // A year of silence, and no round-trip time at all.
        let later = start + Duration::from_secs(31_536_000);
        assert!(share.mark(later, u64::MAX >> 24, Duration::ZERO).is_some_and(|share| share < 99));
        assert!(share.mark(later, 1, Duration::ZERO).is_none());
    }
}
