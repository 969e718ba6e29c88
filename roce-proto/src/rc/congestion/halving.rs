//! The window that the receiver is good for: each loss halves it, and it approaches the place of
//! the loss again only slowly.

use core::mem;
use core::time::Duration;

use super::{FULL_PACKET, LARGEST_WINDOW};
use crate::Time;

const STOCK_BUFFER: u64 = 425_984;
const INITIAL: u64 = 2 * FULL_PACKET;
const INITIAL_CEILING: u64 = STOCK_BUFFER / 8 * 7;
const SMALLEST: u64 = FULL_PACKET;
const CEILING_INTERVAL: Duration = Duration::from_millis(20);

/// The window grows by a packet each round trip up to a ceiling. Above, losses are to be expected,
/// and both rise slowly; faster as long as there was none.
#[derive(Clone, Debug)]
pub(super) struct Halving {
    limit: u64,
    ceiling: u64,
    ceiling_raised: Time,
    /// The ceiling is still a guess: nothing was ever lost.
    guessed: bool,
}

impl Halving {
    pub(super) const fn new() -> Self {
        Self { limit: INITIAL, ceiling: INITIAL_CEILING, ceiling_raised: Time::ZERO, guessed: true }
    }

    pub(super) const fn window(&self) -> u64 {
        self.limit
    }

    /// Packets that cost `bytes` were acknowledged while this window had held packets up. `doubles`
    /// holds on long paths, where the window may double each round trip as long as nothing was lost
    /// (RFC 5681, 3.1). On short ones it soon has grown by packets, and many senders that double at
    /// the same time overrun one buffer.
    pub(super) fn on_ack(&mut self, now: Time, bytes: u64, doubles: bool) {
        if self.limit < self.ceiling {
            let step =
                if self.guessed && doubles { bytes } else { FULL_PACKET * bytes / self.limit };
            self.limit = (self.limit + step).min(self.ceiling);
        } else if now - self.ceiling_raised >= CEILING_INTERVAL {
            let part = if self.guessed { 4 } else { 32 };
            let step = (self.ceiling / part).max(FULL_PACKET / 4);
            self.ceiling_raised = now;
            self.ceiling = (self.ceiling + step).min(LARGEST_WINDOW);
            self.limit = self.ceiling;
        }
    }

    /// The receive buffer lost packets.
    pub(super) fn on_loss(&mut self, now: Time) {
        self.ceiling_raised = now;
        // A guess was too high by a step at the most.
        let kept = if mem::take(&mut self.guessed) { self.limit / 8 * 5 } else { self.limit / 2 };
        self.ceiling = kept.max(SMALLEST);
        self.limit = (self.limit / 2).max(SMALLEST);
    }
}
