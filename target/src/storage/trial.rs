//! Trials: measure under load whether a device has a higher throughput if calls are held back from
//! it.
//!
//! Time in which the device is busy is divided into pairs of periods. Until the result is clear,
//! each pair has one period with holding back and one without; afterwards only one pair of many
//! does. So a device that holding back makes slower loses next to nothing, and a change of the
//! device is noticed. A device that is never busy has no trial.

use std::time::Duration;

use rdma::Time;

/// Least duration of a period; it also needs [`MIN_ENDS`] ended calls and [`MIN_BUSY_CALLS`] that
/// found the device busy.
const PERIOD: Duration = Duration::from_millis(10);
/// Calls that have to end in a period before it ends.
const MIN_ENDS: u32 = 64;
/// Calls that have to find the device busy in a period before it ends.
const MIN_BUSY_CALLS: u32 = 16;
/// Longest period that counts: in a longer one the device was idle at times, or is so slow that
/// holding back makes no difference.
const PERIOD_MAX: Duration = Duration::from_millis(100);
/// Ratio of throughputs above which a period wins against the other of its pair; a smaller one is
/// noise.
const WIN_RATIO: f64 = 1.03;
/// Pairs won less pairs lost at which the result is clear.
const CLEAR_SCORE: i8 = 6;
/// Interval of trials once the result is clear: one of this many pairs, so the slower mode has one
/// period of 66. Odd, so that the modes are first alternately.
const TRIAL_EVERY: u32 = 33;

/// Trial of one device: compares its throughput with calls held back and without.
#[derive(Debug, Default)]
pub(crate) struct Trial {
    /// Number of pairs won by holding back, less the number won by not holding back.
    score: i8,
    /// Pairs of periods that have ended.
    pairs: u32,
    /// Whether the previous period counted: it lasted less than [`PERIOD_MAX`].
    steady: bool,
    /// Weight per second of the first period of the present pair, once it has ended.
    first: Option<f64>,
    period: Option<TrialPeriod>,
}

#[derive(Debug)]
struct TrialPeriod {
    began: Time,
    ends: u32,
    /// Weight of the calls that ended in the period.
    weight: u64,
    /// Calls that found the device busy.
    busy_calls: u32,
}

impl Trial {
    /// Whether calls are held back at present from a busy device.
    pub(crate) fn holds(&self) -> bool {
        if self.is_on() { self.holds_first() == self.first.is_none() } else { self.score > 0 }
    }

    /// Counts a call that found the device busy.
    pub(crate) fn met_busy_device(&mut self, now: Time) {
        self.period
            .get_or_insert(TrialPeriod { began: now, ends: 0, weight: 0, busy_calls: 0 })
            .busy_calls += 1;
    }

    /// Counts the end of a call of this weight.
    pub(crate) fn ended(&mut self, weight: u64) {
        if let Some(period) = &mut self.period {
            period.ends += 1;
            period.weight += weight;
        }
    }

    /// Ends the present period if it has lasted long enough.
    pub(crate) fn update(&mut self, now: Time) {
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

    /// Counts the throughput of a period that has ended, in weight per second.
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

    /// Whether the first period of the present pair holds calls back. This alternates, so that a
    /// growing or shrinking load favours neither mode.
    fn holds_first(&self) -> bool {
        self.pairs.is_multiple_of(2)
    }

    /// Whether the present pair compares the two modes.
    fn is_on(&self) -> bool {
        self.steady && (self.score.abs() < CLEAR_SCORE || self.pairs.is_multiple_of(TRIAL_EVERY))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs periods of a load with these rates per second, with calls held back and without.
    fn run(trial: &mut Trial, now: &mut Time, periods: u32, held: u64, open: u64) -> u32 {
        let mut spent_holding = 0;
        for _ in 0..periods {
            spent_holding += u32::from(trial.holds());
            let rate = if trial.holds() { held } else { open };
            (0..MIN_BUSY_CALLS).for_each(|_| trial.met_busy_device(*now));
            (0..MIN_ENDS).for_each(|_| trial.ended(rate));
            *now = *now + PERIOD;
            trial.update(*now);
        }
        spent_holding
    }

    #[test]
    fn the_better_way_wins_and_trials_continue() {
        let (mut trial, mut now) = (Trial::default(), Time::ZERO);
        assert!(run(&mut trial, &mut now, 20, 50, 100) >= 6, "it is tried");
        assert!((1..=40).contains(&run(&mut trial, &mut now, 1000, 50, 100)));
        // The worse way becomes the better one.
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
            trial.update(now);
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
            trial.update(now);
        }
        assert_eq!(trial.score, CLEAR_SCORE);
    }
}
