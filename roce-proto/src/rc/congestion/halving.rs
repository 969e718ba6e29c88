//! Each loss halves the window, which approaches the place of the loss again only slowly.

use core::mem;
use core::time::Duration;

use super::{CongestionControl, FULL_PACKET, LARGEST_WINDOW, RoundTrip};
use crate::Time;

const STOCK_BUFFER: u64 = 425_984;
const INITIAL: u64 = 2 * FULL_PACKET;
const INITIAL_CEILING: u64 = STOCK_BUFFER / 8 * 7;
const SMALLEST: u64 = FULL_PACKET;
const CEILING_INTERVAL: Duration = Duration::from_millis(20);

/// The window grows by a packet each round trip up to a ceiling. Above, losses are to be expected,
/// and both rise slowly; faster as long as there was none.
#[derive(Clone, Debug)]
pub(crate) struct Halving {
    limit: u64,
    ceiling: u64,
    ceiling_raised: Time,
    /// The ceiling is still a guess: nothing was ever lost.
    guessed: bool,
    last_cut: Option<Time>,
}

impl Halving {
    pub(crate) const fn new() -> Self {
        Self {
            limit: INITIAL,
            ceiling: INITIAL_CEILING,
            ceiling_raised: Time::ZERO,
            guessed: true,
            last_cut: None,
        }
    }
}

impl CongestionControl for Halving {
    fn window(&self) -> u64 {
        self.limit
    }

    fn pacing_rate(&self, round_trip: &RoundTrip) -> Option<u64> {
        super::rate(self.limit, round_trip)
    }

    fn on_ack(&mut self, now: Time, bytes: u64, _: Option<Duration>) {
        if self.limit < self.ceiling {
            self.limit = (self.limit + FULL_PACKET * bytes / self.limit).min(self.ceiling);
        } else if now - self.ceiling_raised >= CEILING_INTERVAL {
            let part = if self.guessed { 4 } else { 32 };
            let step = (self.ceiling / part).max(FULL_PACKET / 4);
            self.ceiling_raised = now;
            self.ceiling = (self.ceiling + step).min(LARGEST_WINDOW);
            self.limit = self.ceiling;
        }
    }

    fn on_loss(&mut self, now: Time, left: Time) {
        if self.last_cut.is_some_and(|cut| left < cut) {
            return;
        }
        self.last_cut = Some(now);
        self.ceiling_raised = now;
        // A guess was too high by a step at the most.
        let kept = if mem::take(&mut self.guessed) { self.limit / 8 * 5 } else { self.limit / 2 };
        self.ceiling = kept.max(SMALLEST);
        self.limit = (self.limit / 2).max(SMALLEST);
    }

    fn on_timeout(&mut self, now: Time, left: Time) {
        self.on_loss(now, left);
    }
}
