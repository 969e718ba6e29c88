//! RDMA WRITEs that arrived before a missing packet.

use crate::Psn;
use crate::rc::psn_set::PsnSet;
use crate::rc::selective_ack::SelectiveAckBits;

/// While a packet is missing, one of this many packets is acknowledged, besides those that request
/// an acknowledgement or reveal a further gap.
const ANSWER_EVERY: u8 = 4;

/// Received packets after a gap, from a peer with selective recovery. Packets that were placed are
/// reported as received, and are not placed again.
#[derive(Debug)]
pub(super) struct ReceivedAhead {
    placed: PsnSet,
    /// The latest packet that arrived, placed or not, while one before it is missing.
    latest: Option<Psn>,
    /// Number of packets that arrived since the last acknowledgement.
    unanswered: u8,
}

impl ReceivedAhead {
    pub(super) const fn new() -> Self {
        Self { placed: PsnSet::new(), latest: None, unanswered: 0 }
    }

    /// Whether `psn`, which is not before `expected`, is within the window of the set.
    pub(super) const fn reaches(expected: Psn, psn: Psn) -> bool {
        psn.since(expected) < PsnSet::REACH
    }

    /// Whether the packet has been placed.
    pub(super) const fn has(&self, psn: Psn) -> bool {
        self.placed.contains(psn)
    }

    /// Records that the packet was placed.
    pub(super) const fn placed(&mut self, psn: Psn) {
        self.placed.insert(psn);
    }

    /// Records that a packet after the expected one arrived; returns whether to acknowledge
    /// immediately.
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

    /// Discards packets before `expected`, which are done; `first` is the former expected packet.
    pub(super) fn pass(&mut self, first: Psn, expected: Psn) {
        self.placed.remove_range(first, expected);
        self.latest = self.latest.filter(|latest| expected.is_before(*latest));
    }

    /// The latest packet, while one before it is missing.
    pub(super) const fn latest(&self) -> Option<Psn> {
        self.latest
    }

    /// The bitmap of the packets after `expected` that were placed.
    pub(super) fn bits(&self, expected: Psn) -> SelectiveAckBits {
        SelectiveAckBits::of(&self.placed, expected)
    }
}
