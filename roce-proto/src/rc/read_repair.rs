//! Detection of lost RDMA READ responses, which are requested again while others are outstanding.

use core::time::Duration;

use crate::rc::outstanding_reads::{OutstandingRead, OutstandingReads};
use crate::rc::psn_set::PsnSet;
use crate::{Psn, Time};

/// Number of later responses after which a missing one is considered lost; fewer may be reordering.
const LATER_RESPONSES: u32 = 4;

/// Minimum time after a response before a tail probe, if responses are missing.
const TAIL_PROBE_FLOOR: Duration = Duration::from_millis(1);

/// Maximum number of remembered repairs. Packets of older ones are requested again after a
/// timeout.
const REPAIRS: usize = 16;

/// Requests missing responses again as soon as later ones show that they are lost, including those
/// of earlier repairs.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadRepair {
    /// The latest response that arrived, placed or not; `None` if none before it is missing.
    latest: Option<Psn>,
    /// Missing responses before this one were requested again at least once.
    asked: Option<Psn>,
    /// Responses before it were already requested when the last loss was reported to the window.
    reported: Option<Psn>,
    /// The repairs, oldest first.
    repairs: [Repair; REPAIRS],
    repair_count: usize,
    tail: TailProbe,
    /// Number of later responses after which a missing one is considered lost.
    later: u32,
}

/// State of the tail probe: the last response is requested again if no response arrives although
/// some are missing, before everything is requested again. As for TCP in RFC 8985, section 7.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TailProbe {
    /// No response is expected, or the probe was answered.
    Idle,
    /// The probe must be sent at this time, if no response arrives.
    At(Time),
    /// The last requested response must be requested again now.
    Due,
    /// Response `psn` was requested again: once it arrives, what is missing before it is lost.
    Sent(Psn),
}

/// A repeated request for missing responses.
#[derive(Clone, Copy, Debug, Default)]
struct Repair {
    first: Psn,
    end: Psn,
    /// Responses from this one on were requested after the repair.
    high: Psn,
}

impl ReadRepair {
    pub(super) fn new() -> Self {
        Self {
            latest: None,
            asked: None,
            reported: None,
            repairs: [Repair::default(); REPAIRS],
            repair_count: 0,
            tail: TailProbe::Idle,
            later: LATER_RESPONSES,
        }
    }

    /// Records a response that arrived, even a duplicate.
    pub(super) fn came(&mut self, psn: Psn) {
        if self.latest.is_none_or(|latest| latest.is_before(psn)) {
            self.latest = Some(psn);
        }
        self.later = LATER_RESPONSES;
        if self.tail == TailProbe::Sent(psn) {
            // Everything requested before the probe was answered before it, or is lost.
            (self.later, self.asked, self.repair_count) = (1, None, 0);
            self.tail = TailProbe::Idle;
        }
    }

    /// Whether a response arrived before one that is missing.
    pub(super) const fn has_gap(&self) -> bool {
        self.latest.is_some()
    }

    /// Schedules a tail probe after two round trips; `None` if no response is expected or nothing
    /// was lost.
    pub(super) fn expect(&mut self, now: Time, round_trip: Option<Duration>) {
        self.tail = match round_trip {
            Some(time) => TailProbe::At(now + (time * 2).max(TAIL_PROBE_FLOOR)),
            None => TailProbe::Idle,
        };
    }

    /// Time at which [`ReadRepair::time_passed`] must be called.
    pub(super) const fn deadline(&self) -> Option<Time> {
        match self.tail {
            TailProbe::At(time) => Some(time),
            TailProbe::Idle | TailProbe::Due | TailProbe::Sent(_) => None,
        }
    }

    /// Makes the tail probe due if its time has passed.
    pub(super) fn time_passed(&mut self, now: Time) {
        if self.deadline().is_some_and(|time| time <= now) {
            self.tail = TailProbe::Due;
        }
    }

    /// Whether the last requested response must be requested again now.
    pub(super) fn is_probe_due(&self) -> bool {
        self.tail == TailProbe::Due
    }

    /// Records that response `psn`, the last one, is requested again.
    pub(super) fn probed(&mut self, psn: Psn) {
        self.tail = TailProbe::Sent(psn);
    }

    /// Records that everything before `oldest` has arrived.
    pub(super) fn passed(&mut self, oldest: Psn) {
        self.latest = self.latest.filter(|latest| oldest.is_before(*latest));
        self.asked = self.asked.filter(|asked| oldest.is_before(*asked));
        self.reported = self.reported.filter(|reported| oldest.is_before(*reported));
        if self.repair_count > 0 {
            self.keep_repairs(|repair| oldest.is_before(repair.end));
        }
    }

    /// Discards all state: everything is retransmitted, or nothing any longer.
    pub(super) fn reset(&mut self) {
        (self.latest, self.asked, self.tail) = (None, None, TailProbe::Idle);
        self.repair_count = 0;
    }

    /// The next lost responses to be requested again, `first..end` of one RDMA READ. `oldest` is
    /// the first packet that is not done.
    pub(super) fn due(
        &self,
        oldest: Psn,
        reads: &OutstandingReads,
        early: &PsnSet,
    ) -> Option<(Psn, Psn)> {
        let latest = self.latest.filter(|latest| oldest.is_before(*latest))?.since(oldest);
        let since_oldest = |psn: Psn| if psn.is_before(oldest) { 0 } else { psn.since(oldest) };
        let missing = |first, end| {
            let end = oldest.plus(end);
            let first = early.first_missing(oldest.plus(first), end)?;
            Some((first, early.first_within(first, end).unwrap_or(end)))
        };
        let answered = |repair: &&Repair| since_oldest(repair.high) + self.later <= latest;
        let lost_again = (self.repairs[..self.repair_count].iter().take_while(answered))
            .find_map(|repair| missing(since_oldest(repair.first), since_oldest(repair.end)));
        let lost = |read: &OutstandingRead| {
            let first = since_oldest(read.first).max(self.asked.map_or(0, since_oldest));
            let end = since_oldest(read.end).min(latest);
            if first < end { missing(first, end) } else { None }
        };
        lost_again.or_else(|| {
            let (first, end) = reads.iter().find_map(lost)?;
            (since_oldest(first) + self.later <= latest).then_some((first, end))
        })
    }

    /// Records that responses `first..end` were requested again; `high` is the first that was not
    /// requested at all yet.
    pub(super) fn asked(&mut self, first: Psn, end: Psn, high: Psn) {
        if self.asked.is_none_or(|asked| asked.is_before(end)) {
            self.asked = Some(end);
        }
        self.keep_repairs(|repair| {
            if first.is_within(repair.first, repair.end) {
                repair.first = end;
            }
            repair.first.is_before(repair.end)
        });
        if self.repair_count == REPAIRS {
            self.repairs.copy_within(1.., 0);
            self.repair_count -= 1;
        }
        self.repairs[self.repair_count] = Repair { first, end, high };
        self.repair_count += 1;
    }

    fn keep_repairs(&mut self, keep: impl Fn(&mut Repair) -> bool) {
        let mut kept = 0;
        for index in 0..self.repair_count {
            if keep(&mut self.repairs[index]) {
                self.repairs[kept] = self.repairs[index];
                kept += 1;
            }
        }
        self.repair_count = kept;
    }

    /// Whether a loss of `first` must be reported to the window: losses among the responses
    /// requested before the last report belong to the same event. `high` is as for
    /// [`ReadRepair::asked`].
    pub(super) fn is_news(&mut self, first: Psn, high: Psn) -> bool {
        let news = self.reported.is_none_or(|reported| !first.is_before(reported));
        if news {
            self.reported = Some(high);
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    /// READs of eight responses each, from sequence number 0 on.
    struct Reader {
        repair: ReadRepair,
        reads: OutstandingReads,
        early: PsnSet,
        oldest: u32,
    }

    impl Reader {
        fn new(reads: u32) -> Self {
            let mut outstanding = OutstandingReads::new();
            for read in 0..reads {
                let (first, end) = (Psn::new(read * 8), Psn::new(read * 8 + 8));
                outstanding.push(OutstandingRead { first, end, ..OutstandingRead::default() });
            }
            let (repair, early) = (ReadRepair::new(), PsnSet::new());
            Self { repair, reads: outstanding, early, oldest: 0 }
        }

        fn come(&mut self, responses: impl IntoIterator<Item = u32>) {
            for psn in responses {
                self.repair.came(Psn::new(psn));
                self.early.insert(Psn::new(psn));
                while self.early.remove(Psn::new(self.oldest)) {
                    self.oldest += 1;
                }
                self.repair.passed(Psn::new(self.oldest));
            }
        }

        /// Asks for all that is due, where responses before `high` were asked for.
        fn ask(&mut self, high: u32) -> Vec<(u32, u32)> {
            let mut asked = vec![];
            while let Some((first, end)) =
                self.repair.due(Psn::new(self.oldest), &self.reads, &self.early)
            {
                self.repair.asked(first, end, Psn::new(high));
                asked.push((first.value(), end.value()));
            }
            asked
        }
    }

    #[test]
    fn each_gap_is_asked_for_once() {
        let mut reader = Reader::new(4);
        reader.come((0..20).filter(|psn| ![2, 3, 7, 8, 18].contains(psn)));
        // A request is for responses of one READ; one packet later is no proof.
        assert_eq!(reader.ask(32), [(2, 4), (7, 8), (8, 9)]);
        assert_eq!(reader.ask(32), []);
        reader.come(20..23);
        assert_eq!(reader.ask(32), [(18, 19)]);
        reader.come([2, 3, 7, 8, 18]);
        assert_eq!((reader.oldest, reader.ask(32)), (23, vec![]));
    }

    /// Responses that were asked for after a repair come before its own.
    #[test]
    fn a_lost_repair_is_asked_for_again() {
        let mut reader = Reader::new(8);
        reader.come((0..16).filter(|psn| ![1, 2, 3, 9].contains(psn)));
        assert_eq!(reader.ask(24), [(1, 4), (9, 10)]);
        reader.come([2]);
        reader.come(16..27);
        assert_eq!(reader.ask(40), [], "three packets later is no proof");
        reader.come([27, 28]);
        assert_eq!(reader.ask(48), [(1, 2), (3, 4), (9, 10)]);
        assert_eq!(reader.ask(48), []);
    }

    #[test]
    fn a_tail_probe_finds_what_is_lost() {
        let mut reader = Reader::new(2);
        reader.come((0..15).filter(|psn| *psn != 13));
        assert_eq!(reader.ask(16), []);
        let start = Time::from_nanos(1_000_000_000);
        reader.repair.expect(start, Some(MILLISECOND));
        reader.repair.time_passed(start + MILLISECOND);
        assert!(!reader.repair.is_probe_due());
        assert_eq!(reader.repair.deadline(), Some(start + 2 * MILLISECOND));
        reader.repair.time_passed(start + 2 * MILLISECOND);
        assert!(reader.repair.is_probe_due());
        reader.repair.probed(Psn::new(15));
        assert_eq!((reader.repair.deadline(), reader.ask(16)), (None, vec![]));
        reader.come([15]);
        assert_eq!(reader.ask(16), [(13, 14)]);
        assert_eq!(reader.ask(16), []);
        reader.come([13]);
        assert_eq!(reader.oldest, 16);
    }

    #[test]
    fn one_window_of_losses_is_one_event() {
        let mut repair = ReadRepair::new();
        assert!(repair.is_news(Psn::new(5), Psn::new(30)));
        assert!(!repair.is_news(Psn::new(29), Psn::new(40)));
        assert!(repair.is_news(Psn::new(30), Psn::new(60)));
    }

    /// However many gaps there are, what is remembered is bounded, and asking ends.
    #[test]
    fn asking_ends() {
        let mut reader = Reader::new(16);
        reader.come((0..128).filter(|psn| psn % 2 == 1));
        let asked = reader.ask(128);
        assert_eq!(asked.len(), 62);
        assert_eq!(reader.ask(128), []);
        reader.come([124, 126]);
        assert!(reader.ask(128).is_empty());
    }
}
