//! RDMA WRITEs that came before a packet that is missing.

use crate::Psn;
use crate::rc::psn_set::PsnSet;
use crate::rc::selective_ack::SelectiveAckBits;

/// One of so many packets that come while one is missing is answered, unless it asks or shows that
/// another is missing.
const ANSWER_EVERY: u8 = 4;

/// The packets of a peer that sends again only what is missing. Packets that were placed count as
/// received, and are not placed a second time.
#[derive(Debug)]
pub(super) struct ReceivedAhead {
    placed: PsnSet,
    /// The latest packet that came, placed or not.
    latest: Option<Psn>,
    /// Packets that came since the last one that was answered.
    unanswered: u8,
}

impl ReceivedAhead {
    pub(super) const fn new() -> Self {
        Self { placed: PsnSet::new(), latest: None, unanswered: 0 }
    }

    /// Whether `psn`, which is not before `expected`, can be remembered.
    pub(super) const fn reaches(expected: Psn, psn: Psn) -> bool {
        psn.since(expected) < PsnSet::REACH
    }

    /// Whether a packet is placed already.
    pub(super) const fn has(&self, psn: Psn) -> bool {
        self.placed.contains(psn)
    }

    /// A packet was placed.
    pub(super) const fn placed(&mut self, psn: Psn) {
        self.placed.insert(psn);
    }

    /// A packet came that is not the expected one; returns whether to answer immediately.
    #[must_use]
    pub(super) fn came(&mut self, psn: Psn, asked: bool) -> bool {
        let new_gap = match self.latest {
            Some(latest) => latest.next().is_before(psn),
            None => true,
        };
        if self.latest.is_none_or(|latest| latest.is_before(psn)) {
            self.latest = Some(psn);
        }
        self.unanswered += 1;
        let answer = new_gap || asked || self.unanswered >= ANSWER_EVERY;
        if answer {
            self.unanswered = 0;
        }
        answer
    }

    /// Everything before `expected` is done now; `first` was expected before.
    pub(super) fn pass(&mut self, first: Psn, expected: Psn) {
        self.placed.remove_range(first, expected);
        self.latest = self.latest.filter(|latest| expected.is_before(*latest));
    }

    /// The latest packet, while one before it is missing.
    pub(super) const fn latest(&self) -> Option<Psn> {
        self.latest
    }

    /// Which packets after `expected` were placed.
    pub(super) fn bits(&self, expected: Psn) -> SelectiveAckBits {
        SelectiveAckBits::of(&self.placed, expected)
    }
}
