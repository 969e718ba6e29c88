//! The word in shared memory that says whether an end has published anything since the peer looked.
//!
//! A group looks at this word of each of its links, and at nothing else of those without news.

use core::sync::atomic::{AtomicU64, Ordering};

use super::shared_word::SharedWord;

/// The word, which one end writes.
pub(super) struct NewsCount<'a, W = AtomicU64>(pub(super) &'a W);

impl<'a, W: SharedWord> NewsCount<'a, W> {
    /// Says that something was published. Who reads the new count sees what that was.
    pub(super) fn count(&self) {
        // There is no other writer, unless the peer misleads itself.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    /// The word that the other end reads.
    pub(super) fn word(&self) -> &'a W {
        self.0
    }
}
