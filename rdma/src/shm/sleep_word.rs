//! The word in shared memory with which an end of a link requests to be woken.

use core::sync::atomic::{AtomicU64, Ordering};

use super::shared_word::SharedWord;
use crate::WakeFor;
use crate::software::sync::fence;

/// The end polls and need not be woken.
const AWAKE: u64 = 0;
/// Wake the end for new records.
const FOR_RECORDS: u64 = 1;
/// Wake the end for new records, and when its own records were read.
const FOR_ALL: u64 = 2;

/// News that an end has published since its last check whether to wake the peer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PeerNews {
    /// New records were written.
    pub(super) records: bool,
    /// Records of the peer were read.
    pub(super) read: bool,
}

/// The word: one end sets it to be woken, the other resets it when it wakes that end. The accesses
/// are relaxed; the ordering comes from fences.
pub(super) struct SleepWord<'a, W = AtomicU64>(pub(super) &'a W);

impl<W: SharedWord> SleepWord<'_, W> {
    /// Requests to be woken for `what`. [`publish_sleep`] must follow, and then a last check for
    /// news.
    pub(super) fn fall_asleep(&self, what: WakeFor) {
        let wanted = match what {
            WakeFor::Arrivals => FOR_RECORDS,
            WakeFor::Everything => FOR_ALL,
        };
        self.0.store(wanted, Ordering::Relaxed);
    }

    /// Withdraws the request of [`SleepWord::fall_asleep`].
    pub(super) fn wake_up(&self) {
        self.0.store(AWAKE, Ordering::Relaxed);
    }

    /// Whether the peer must be woken for these news. If so, resets the word, so that it is woken
    /// once.
    pub(super) fn must_ring(&self, news: PeerNews) -> bool {
        // Pairs with `publish_sleep`: either this sees that the other end sleeps, or the other end
        // sees what was published.
        fence(Ordering::SeqCst);
        let wanted = match self.0.load(Ordering::Relaxed) {
            AWAKE => false,
            FOR_RECORDS => news.records,
            _ => news.records || news.read,
        };
        wanted && self.0.swap(AWAKE, Ordering::Relaxed) != AWAKE
    }
}

/// Fence between [`SleepWord::fall_asleep`] and the last check for news.
pub(super) fn publish_sleep() {
    fence(Ordering::SeqCst);
}

#[cfg(all(test, loom))]
mod loom_tests;
