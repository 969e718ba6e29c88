//! Which responses to RDMA READs are asked for again while the others are on their way.

use core::time::Duration;

use crate::{Psn, Time};

/// How often the time doubles after which an answer is late.
const DOUBLINGS_MAX: u32 = 6;

/// The responses that are missing at the front, `first` being the oldest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadRepair {
    /// None is known to be missing.
    Idle,
    /// Response packets `first..end` of one READ are to be asked for; they were, so often before.
    Due { first: Psn, end: Psn, tries: u32 },
    /// Those from `first` on were asked for, so often. They are asked for again when the answer is
    /// late.
    Over { first: Psn, again_at: Time, tries: u32 },
}

impl ReadRepair {
    /// Responses `first..end` must be lost, as later ones came.
    pub(super) fn found_missing(&mut self, first: Psn, end: Psn, now: Time) {
        match *self {
            Self::Due { first: known, .. } if known == first => {}
            Self::Over { first: known, again_at, .. } if known == first && now < again_at => {}
            Self::Over { first: known, tries, .. } if known == first => {
                *self = Self::Due { first, end, tries };
            }
            Self::Idle | Self::Due { .. } | Self::Over { .. } => {
                *self = Self::Due { first, end, tries: 0 };
            }
        }
    }

    /// A request can be sent now: for these responses, if any. An answer is late after `late`, and
    /// after twice as long each time.
    pub(super) fn take(&mut self, now: Time, late: Duration) -> Option<(Psn, Psn)> {
        match *self {
            Self::Due { first, end, tries } => {
                let again_at = now + late.saturating_mul(1 << tries.min(DOUBLINGS_MAX));
                *self = Self::Over { first, again_at, tries: tries + 1 };
                Some((first, end))
            }
            Self::Idle | Self::Over { .. } => None,
        }
    }

    /// Everything before `oldest` has come.
    pub(super) fn passed(&mut self, oldest: Psn) {
        if let Self::Due { first, .. } = *self
            && first != oldest
        {
            *self = Self::Idle;
        }
    }

    /// All is sent again, or nothing any more.
    pub(super) fn reset(&mut self) {
        *self = Self::Idle;
    }

    /// When an answer is late.
    pub(super) const fn again_at(&self) -> Option<Time> {
        match *self {
            Self::Over { again_at, .. } => Some(again_at),
            Self::Idle | Self::Due { .. } => None,
        }
    }

    /// Whether there is something to ask for.
    pub(super) const fn is_due(&self) -> bool {
        matches!(self, Self::Due { .. })
    }
}

#[cfg(test)]
mod tests {
    use std::format;
    use std::string::String;

    use super::*;

    fn describe(state: &ReadRepair) -> String {
        match state {
            ReadRepair::Idle => "idle".into(),
            ReadRepair::Due { first, end, .. } => format!("due {}..{}", first.value(), end.value()),
            ReadRepair::Over { first, .. } => format!("over {}..", first.value()),
        }
    }

    const LATE: Duration = Duration::from_nanos(10);

    fn found(state: &mut ReadRepair, first: u32, end: u32, after: u64) {
        let (first, end, now) = (Psn::new(first), Psn::new(end), Time::from_nanos(after));
        state.found_missing(first, end, now);
    }

    /// What becomes of each state with each event.
    fn table() -> String {
        let psn = Psn::new;
        let states = [
            ReadRepair::Idle,
            ReadRepair::Due { first: psn(1), end: psn(3), tries: 0 },
            ReadRepair::Over { first: psn(1), again_at: Time::from_nanos(10), tries: 1 },
        ];
        type Event = fn(&mut ReadRepair);
        let events: [(&str, Event); 7] = [
            ("the same found missing", |state| found(state, 1, 2, 9)),
            ("the same found missing late", |state| found(state, 1, 2, 10)),
            ("others found missing", |state| found(state, 5, 7, 9)),
            ("taken", |state| assert_eq!(state.is_due(), state.take(Time::ZERO, LATE).is_some())),
            ("nothing passed", |state| state.passed(Psn::new(1))),
            ("passed", |state| state.passed(Psn::new(2))),
            ("reset", ReadRepair::reset),
        ];
        let mut table = String::new();
        for state in states {
            table += &format!("{}\n", describe(&state));
            for (event, happen) in events {
                let mut after = state;
                happen(&mut after);
                table += &format!("  {event} -> {}\n", describe(&after));
            }
        }
        table
    }

    #[test]
    fn each_state_with_each_event() {
        let expected = "\
idle
  the same found missing -> due 1..2
  the same found missing late -> due 1..2
  others found missing -> due 5..7
  taken -> idle
  nothing passed -> idle
  passed -> idle
  reset -> idle
due 1..3
  the same found missing -> due 1..3
  the same found missing late -> due 1..3
  others found missing -> due 5..7
  taken -> over 1..
  nothing passed -> due 1..3
  passed -> idle
  reset -> idle
over 1..
  the same found missing -> over 1..
  the same found missing late -> due 1..2
  others found missing -> due 5..7
  taken -> over 1..
  nothing passed -> over 1..
  passed -> over 1..
  reset -> idle
";
        assert_eq!(table(), expected);
    }

    #[test]
    fn an_answer_has_twice_as_long_each_time() {
        let (mut state, mut now) = (ReadRepair::Idle, 0);
        for tries in 0..10 {
            found(&mut state, 1, 2, now);
            assert!(state.take(Time::from_nanos(now), LATE).is_some());
            let wait = 10 << tries.min(DOUBLINGS_MAX);
            found(&mut state, 1, 2, now + wait - 1);
            assert!(!state.is_due());
            now += wait;
            assert_eq!(state.again_at(), Some(Time::from_nanos(now)));
        }
    }
}
