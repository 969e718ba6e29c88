//! Selective retransmission of request packets, to a peer that reports which it has received.

use core::time::Duration;

use crate::rc::psn_set::PsnSet;
use crate::{Psn, Time};

/// Number of later packets after which a missing one is considered lost; fewer may be reordering.
const LATER_PACKETS: u32 = 3;

/// State of the unconfirmed packets. All sets are within [`PsnSet::REACH`] of the oldest.
#[derive(Debug)]
pub(super) struct RequestRepair {
    /// Packets that the peer has received after a missing one.
    arrived: PsnSet,
    /// Lost packets to be retransmitted. They are not charged to the window.
    due: PsnSet,
    /// Packets retransmitted in this round. A round ends when packets first sent in it have
    /// arrived, or after the time for that: packets retransmitted before the round are then late or
    /// lost.
    again: PsnSet,
    /// Packets retransmitted in the preceding round.
    again_before: PsnSet,
    /// The first packet that was first sent in this round.
    round: Psn,
    round_began: Time,
    /// The latest packet that the peer has received, until it is confirmed.
    latest: Option<Psn>,
    /// Time at which all missing packets are retransmitted if no answer arrives.
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

    /// Whether the peer has received the packet.
    pub(super) const fn has_arrived(&self, psn: Psn) -> bool {
        self.arrived.contains(psn)
    }

    /// Records that the peer has received the packet; false if that was known.
    pub(super) const fn arrived(&mut self, psn: Psn) -> bool {
        self.due.remove(psn);
        self.arrived.insert(psn)
    }

    /// Whether the packet, which was sent, is not charged to the window.
    pub(super) const fn is_released(&self, psn: Psn) -> bool {
        self.arrived.contains(psn) || self.due.contains(psn)
    }

    /// Number of packets of `first..end` that are not charged to the window.
    pub(super) fn released(&self, first: Psn, end: Psn) -> u32 {
        self.arrived.count(first, end) + self.due.count(first, end)
    }

    /// Whether there are packets to retransmit.
    pub(super) const fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// The first packet of `first..end` to retransmit.
    pub(super) fn first_due(&self, first: Psn, end: Psn) -> Option<Psn> {
        self.due.first_within(first, end)
    }

    /// Marks a lost packet for retransmission.
    pub(super) const fn missing(&mut self, psn: Psn) {
        self.due.insert(psn);
    }

    /// Records a retransmission; `high` is the next packet that was never sent.
    pub(super) const fn sent_again(&mut self, now: Time, psn: Psn, high: Psn) {
        self.due.remove(psn);
        if self.again.is_empty() && self.again_before.is_empty() {
            (self.round, self.round_began) = (high, now);
        }
        self.again.insert(psn);
    }

    /// Records that the peer has reported packets up to `latest`.
    pub(super) fn told(&mut self, latest: Psn) {
        if self.latest.is_none_or(|known| known.is_before(latest)) {
            self.latest = Some(latest);
        }
    }

    /// Records that the peer has received `latest` and misses an earlier packet; `high` is the next
    /// packet that was never sent. An answer is considered late after `late`.
    pub(super) fn seen(&mut self, now: Time, latest: Psn, high: Psn, late: Duration) {
        let passed = self.round.is_before(latest) && latest.since(self.round) >= LATER_PACKETS;
        if passed || now - self.round_began >= late {
            core::mem::swap(&mut self.again, &mut self.again_before);
            self.again.clear();
            (self.round, self.round_began) = (high, now);
        }
        self.deadline = Some(now + late * 2);
    }

    /// Time at which [`RequestRepair::late`] returns a packet.
    pub(super) const fn deadline(&self) -> Option<Time> {
        self.deadline
    }

    /// If no answer arrived by the deadline, returns the latest packet reported: everything missing
    /// before it must be retransmitted, even if it was before.
    pub(super) fn late(&mut self, now: Time) -> Option<Psn> {
        self.deadline.take_if(|deadline| *deadline <= now)?;
        self.again.clear();
        self.again_before.clear();
        self.latest
    }

    /// Bitmap of the 64 packets from `first` on that are not known to have arrived and were not
    /// retransmitted yet.
    pub(super) const fn unknown_from(&self, first: Psn) -> u64 {
        !(self.arrived.word_from(first)
            | self.due.word_from(first)
            | self.again.word_from(first)
            | self.again_before.word_from(first))
    }

    /// Records that everything before `to` is confirmed; `from` is the formerly oldest packet.
    /// Packet `to` is missing, even if it was reported as received; it is retransmitted if it was
    /// sent (is before `next`).
    pub(super) fn confirmed(&mut self, from: Psn, to: Psn, next: Psn) {
        // In this case the sets are empty.
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

    /// Everything missing will be retransmitted in order: discards the retransmission state.
    pub(super) const fn set_back(&mut self) {
        self.due.clear();
        self.again.clear();
        self.again_before.clear();
        self.deadline = None;
    }

    /// Discards everything that the peer reported, since it does not answer.
    pub(super) const fn forget(&mut self) {
        *self = Self::new();
    }
}

/// Packets before the returned one are lost if they were not reported together with `latest`.
pub(super) fn missing_before(latest: Psn) -> Psn {
    latest.minus(LATER_PACKETS - 1)
}
