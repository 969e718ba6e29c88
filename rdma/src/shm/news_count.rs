//! A counter in shared memory that changes whenever an end publishes something.
//!
//! A polling group reads this word of each link, and the rings only of links where it has changed.

use core::sync::atomic::{AtomicU64, Ordering};

use super::shared_word::SharedWord;

/// The counter, which only one end writes.
pub(super) struct NewsCount<'a, W = AtomicU64>(pub(super) &'a W);

impl<'a, W: SharedWord> NewsCount<'a, W> {
    /// Increments the counter after something was published; a reader of the new count sees it.
    pub(super) fn count(&self) {
        // There is no other writer, unless the peer writes to our word, which affects only the
        // peer.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    pub(super) fn word(&self) -> &'a W {
        self.0
    }
}
