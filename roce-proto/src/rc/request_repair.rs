//! Which packets of requests are sent again to a peer that tells which of them it has.

use core::time::Duration;

use crate::rc::psn_set::PsnSet;
use crate::{Psn, Time};

/// A packet is sent again when one has come that is this much later: less is taken for reordering.
const LATER_PACKETS: u32 = 3;

/// State of the packets that were sent and not confirmed. All of its sets lie within
/// [`PsnSet::REACH`] of the oldest of these.
#[derive(Debug)]
pub(super) struct RequestRepair {
    /// The peer has received them, though not all before them.
    arrived: PsnSet,
    /// Packets that are missing and to be sent again. They are not charged to the window.
    due: PsnSet,
    /// Sent again in this round. Packets that were sent again before it are late, or were lost,
    /// when it ends: then packets that were sent for the first time in it have come, or there was
    /// time for it.
    again: PsnSet,
    /// Sent again in the round before.
    again_before: PsnSet,
    /// The first packet that was sent for the first time in this round.
    round: Psn,
    round_began: Time,
    /// The latest packet that the peer has seen, until it is confirmed.
    latest: Option<Psn>,
    /// When to send again what is missing then, if no answer comes before.
    deadline: Option<Time>,
}

impl RequestRepair {
    pub(super) const fn new() -> Self {
        Self {
            arrived: PsnSet::new(),
            due: PsnSet::new(),
            again: PsnSet::new(),
            again_before: PsnSet::new(),
            round: Psn::new(0),
            round_began: Time::ZERO,
            latest: None,
            deadline: None,
        }
    }

    /// Whether the peer has received a packet.
    pub(super) const fn has_arrived(&self, psn: Psn) -> bool {
        self.arrived.contains(psn)
    }

    /// The peer has received a packet; false if that was known.
    pub(super) const fn arrived(&mut self, psn: Psn) -> bool {
        self.due.remove(psn);
        self.arrived.insert(psn)
    }

    /// Whether a packet that was sent is charged to the window no longer.
    pub(super) const fn is_released(&self, psn: Psn) -> bool {
        self.arrived.contains(psn) || self.due.contains(psn)
    }

    /// How many of the packets `first..end` that is.
    pub(super) fn released(&self, first: Psn, end: Psn) -> u32 {
        self.arrived.count(first, end) + self.due.count(first, end)
    }

    /// Whether there is something to send again.
    pub(super) const fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// The first packet to send again of `first..end`.
    pub(super) fn first_due(&self, first: Psn, end: Psn) -> Option<Psn> {
        self.due.first_within(first, end)
    }

    /// A packet is missing, and to be sent again.
    pub(super) const fn missing(&mut self, psn: Psn) {
        self.due.insert(psn);
    }

    /// A packet is sent again; `high` is the next that will be sent for the first time.
    pub(super) const fn sent_again(&mut self, now: Time, psn: Psn, high: Psn) {
        self.due.remove(psn);
        if self.again.is_empty() && self.again_before.is_empty() {
            (self.round, self.round_began) = (high, now);
        }
        self.again.insert(psn);
    }

    /// The peer tells which packets came up to `latest`.
    pub(super) fn told(&mut self, latest: Psn) {
        if self.latest.is_none_or(|known| known.is_before(latest)) {
            self.latest = Some(latest);
        }
    }

    /// The peer has seen `latest`, and misses a packet before it; `high` is the next that will be
    /// sent for the first time. An answer is late after `late`.
    pub(super) fn seen(&mut self, now: Time, latest: Psn, high: Psn, late: Duration) {
        let passed = self.round.is_before(latest) && latest.since(self.round) >= LATER_PACKETS;
        if passed || now - self.round_began >= late {
            core::mem::swap(&mut self.again, &mut self.again_before);
            self.again.clear();
            (self.round, self.round_began) = (high, now);
        }
        self.deadline = Some(now + late * 2);
    }

    /// When to send again what is missing then.
    pub(super) const fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    /// No answer came for long enough: whatever is missing before the packet that is returned is to
    /// be sent again, though it was sent again before.
    pub(super) fn late(&mut self, now: Time) -> Option<Psn> {
        self.deadline.take_if(|deadline| *deadline <= now)?;
        self.again.clear();
        self.again_before.clear();
        self.latest
    }

    /// The packets of the 64 from `first` on that are missing, as far as is known, and were not
    /// sent again yet.
    pub(super) const fn unknown_from(&self, first: Psn) -> u64 {
        !(self.arrived.word_from(first)
            | self.due.word_from(first)
            | self.again.word_from(first)
            | self.again_before.word_from(first))
    }

    /// Everything before `to` is confirmed; `from` was the oldest packet that was not. The peer
    /// says of `to` that it is missing, whatever it said before; it is sent again here if it is
    /// before `next`.
    pub(super) fn confirmed(&mut self, from: Psn, to: Psn, next: Psn) {
        // The sets have nothing after it.
        if self.latest.is_none() {
            return;
        }
        for set in [&mut self.arrived, &mut self.due, &mut self.again, &mut self.again_before] {
            set.remove_range(from, to);
        }
        if self.arrived.remove(to) && to.is_before(next) {
            self.due.insert(to);
        }
        self.latest = self.latest.filter(|latest| !latest.is_before(to));
        self.deadline = self.deadline.filter(|_| self.latest.is_some());
    }

    /// All that is missing will be sent again in order.
    pub(super) const fn set_back(&mut self) {
        self.due.clear();
        self.again.clear();
        self.again_before.clear();
        self.deadline = None;
    }

    /// Believes nothing that the peer told: it does not answer.
    pub(super) const fn forget(&mut self) {
        *self = Self::new();
    }
}

/// Packets before this one are missing if they were not reported with `latest`.
pub(super) fn missing_before(latest: Psn) -> Psn {
    latest.minus(LATER_PACKETS - 1)
}
