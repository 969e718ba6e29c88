//! The window for the receiver's buffer: each loss halves it, and it approaches the size at the
//! loss again only slowly.

use core::mem;
use core::time::Duration;

use super::{FULL_PACKET, LARGEST_WINDOW};
use crate::Time;

const STOCK_BUFFER: u64 = 425_984;
const INITIAL: u64 = 2 * FULL_PACKET;
const INITIAL_CEILING: u64 = STOCK_BUFFER / 8 * 7;
const SMALLEST: u64 = FULL_PACKET;
const CEILING_INTERVAL: Duration = Duration::from_millis(20);

/// The window grows by one packet per round trip up to a ceiling. Beyond it losses are likely, so
/// window and ceiling rise slowly; faster before the first loss.
#[derive(Clone, Debug)]
pub(super) struct Halving {
    limit: u64,
    ceiling: u64,
    ceiling_raised: Time,
    /// True until the first loss: the ceiling is an estimate.
    guessed: bool,
}

impl Halving {
    pub(super) const fn new() -> Self {
        Self { limit: INITIAL, ceiling: INITIAL_CEILING, ceiling_raised: Time::ZERO, guessed: true }
    }

    pub(super) const fn window(&self) -> u64 {
        self.limit
    }

    /// Grows the window after packets of cost `bytes` were acknowledged, if it had held back
    /// packets. With `doubles`, on long paths, it may double per round trip until the first loss
    /// (RFC 5681, 3.1). On short paths linear growth is fast enough, and many senders that double
    /// at the same time would overflow one buffer.
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

    /// Reduces the window after a loss by the receive buffer.
    pub(super) fn on_loss(&mut self, now: Time) {
        self.ceiling_raised = now;
        // The estimate was too high by at most one step.
        let kept = if mem::take(&mut self.guessed) { self.limit / 8 * 5 } else { self.limit / 2 };
        self.ceiling = kept.max(SMALLEST);
        self.limit = (self.limit / 2).max(SMALLEST);
    }
}
