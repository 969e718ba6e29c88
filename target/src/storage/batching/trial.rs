//! Trials: whether a device ends more when calls are held back from it, measured while it works.
//!
//! Time in which the device is busy is cut into pairs of periods. As long as the result is not
//! clear, one period of each pair is spent with and one without holding back; when it is clear, so
//! is one pair of many. A device for which holding back is wrong loses next to nothing by that, and
//! a change of the device is noticed. A device that is never busy is not tried.

use std::time::Duration;

use rdma::Time;

/// Least duration of a period; it also needs [`MIN_ENDS`] calls that ended and [`MIN_BUSY_CALLS`]
/// that met a busy device. Doubled, a verdict takes twice as long; not measured.
const PERIOD: Duration = Duration::from_millis(10);
/// Calls that have to end in a period. Doubled, slow devices are judged half as often; not
/// measured.
const MIN_ENDS: u32 = 64;
/// Calls of a period that have to meet a busy device. Doubled, lightly loaded devices are not
/// judged; not measured.
const MIN_BUSY_CALLS: u32 = 16;
/// A longer period does not count: the device was idle at times, or it is so slow that a turn of
/// the target does not matter. Doubled, pauses count as slowness more often; not measured.
const PERIOD_MAX: Duration = Duration::from_millis(100);
/// Ratio of throughputs from which on a period is better than the other of its pair; a smaller one
/// is chance. Closer to 1, chance decides more pairs; not measured.
const WIN_RATIO: f64 = 1.03;
/// Pairs won, less those lost, with which the case is clear. Doubled, a device works the worse way
/// in half of twelve pairs instead of six before that; not measured.
const CLEAR_SCORE: i8 = 6;
/// When the case is clear, one of this many pairs is a trial: the worse way has one period of 66.
/// Odd, so that either way is the first in turn. Doubled, a trial costs half as much, and a change
/// of the device is noticed half as soon; not measured.
const TRIAL_EVERY: u32 = 33;

/// The trial of one device.
#[derive(Debug, Default)]
pub(crate) struct Trial {
    /// Pairs in which the device ended more with calls held back, less those in which it ended
    /// less.
    score: i8,
    /// Pairs of periods that ended.
    pairs: u32,
    /// The period before the present one said something.
    steady: bool,
    /// Weight per second of the first period of the present pair.
    first: Option<f64>,
    period: Option<TrialPeriod>,
}

#[derive(Debug)]
struct TrialPeriod {
    began: Time,
    ends: u32,
    /// Of the calls that ended.
    weight: u64,
    /// Calls that met a device with enough to do.
    busy_calls: u32,
}

impl Trial {
    /// Whether calls are to be held back now from a device that has enough to do.
    pub(crate) fn holds(&self) -> bool {
        if self.is_on() { self.holds_first() == self.first.is_none() } else { self.score > 0 }
    }

    /// A call met a device that has enough to do.
    pub(crate) fn met_busy_device(&mut self, now: Time) {
        self.period
            .get_or_insert(TrialPeriod { began: now, ends: 0, weight: 0, busy_calls: 0 })
            .busy_calls += 1;
    }

    /// A call of this weight ended.
    pub(crate) fn ended(&mut self, weight: u64) {
        if let Some(period) = &mut self.period {
            period.ends += 1;
            period.weight += weight;
        }
    }

    /// Looks at the clock.
    pub(crate) fn settle(&mut self, now: Time) {
        let Some(period) = &self.period else { return };
        let lasted = now - period.began;
        if lasted >= PERIOD_MAX {
            (self.period, self.first, self.steady) = (None, None, false);
        } else if lasted >= PERIOD && period.ends >= MIN_ENDS && period.busy_calls >= MIN_BUSY_CALLS
        {
            let rate = period.weight as f64 / lasted.as_secs_f64();
            self.period = None;
            if std::mem::replace(&mut self.steady, true) {
                self.count(rate);
            }
        }
    }

    /// A period of a pair came to this.
    fn count(&mut self, rate: f64) {
        let Some(first) = self.first.take() else {
            self.first = Some(rate);
            return;
        };
        if self.is_on() {
            let (held, open) = if self.holds_first() { (first, rate) } else { (rate, first) };
            if held > open * WIN_RATIO {
                self.score = (self.score + 1).min(CLEAR_SCORE);
            } else if open > held * WIN_RATIO {
                self.score = (self.score - 1).max(-CLEAR_SCORE);
            }
        }
        self.pairs = self.pairs.wrapping_add(1);
    }

    /// Which way comes first in the present pair. It alternates, so that a load that grows or
    /// shrinks favours neither.
    fn holds_first(&self) -> bool {
        self.pairs.is_multiple_of(2)
    }

    /// Whether the present pair is spent either way.
    fn is_on(&self) -> bool {
        self.steady && (self.score.abs() < CLEAR_SCORE || self.pairs.is_multiple_of(TRIAL_EVERY))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Periods of a load under which a device ends so much a second with calls held back, and
    /// without.
    fn run(trial: &mut Trial, now: &mut Time, periods: u32, held: u64, open: u64) -> u32 {
        let mut spent_holding = 0;
        for _ in 0..periods {
            spent_holding += u32::from(trial.holds());
            let rate = if trial.holds() { held } else { open };
            (0..MIN_BUSY_CALLS).for_each(|_| trial.met_busy_device(*now));
            (0..MIN_ENDS).for_each(|_| trial.ended(rate));
            *now = *now + PERIOD;
            trial.settle(*now);
        }
        spent_holding
    }

    #[test]
    fn the_better_way_wins_and_trials_continue() {
        let (mut trial, mut now) = (Trial::default(), Time::ZERO);
        assert!(run(&mut trial, &mut now, 20, 50, 100) >= 6, "it is tried");
        assert!((1..=40).contains(&run(&mut trial, &mut now, 1000, 50, 100)));
        // The worse way gets better.
        run(&mut trial, &mut now, 1000, 100, 50);
        assert!((960..1000).contains(&run(&mut trial, &mut now, 1000, 100, 50)));
    }

    #[test]
    fn a_hair_s_breadth_decides_nothing() {
        let (mut trial, mut now) = (Trial::default(), Time::ZERO);
        run(&mut trial, &mut now, 1000, 100, 102);
        assert_eq!(trial.score, 0);
    }

    #[test]
    fn a_lightly_loaded_device_gets_calls_at_once() {
        let (mut trial, mut now) = (Trial::default(), Time::ZERO);
        for _ in 0..1000 {
            trial.met_busy_device(now);
            trial.ended(1);
            now = now + Duration::from_millis(2);
            trial.settle(now);
            assert!(!trial.holds());
        }
    }

    #[test]
    fn a_pause_does_not_count_as_slowness() {
        let (mut trial, mut now) = (Trial::default(), Time::ZERO);
        run(&mut trial, &mut now, 100, 100, 50);
        assert_eq!(trial.score, CLEAR_SCORE);
        for _ in 0..10 {
            run(&mut trial, &mut now, 66, 100, 50);
            (0..MIN_BUSY_CALLS).for_each(|_| trial.met_busy_device(now));
            (0..MIN_ENDS).for_each(|_| trial.ended(100));
            now = now + Duration::from_secs(5);
            trial.settle(now);
        }
        assert_eq!(trial.score, CLEAR_SCORE);
    }
}
