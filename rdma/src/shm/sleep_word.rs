//! The word in shared memory by which an end of a link asks to be rung.

use core::sync::atomic::{AtomicU64, Ordering};

use super::shared_word::SharedWord;
use crate::WakeFor;
use crate::software::sync::fence;

/// The end is awake, and looks by itself.
const AWAKE: u64 = 0;
/// Ring for new records.
const FOR_RECORDS: u64 = 1;
/// Ring for new records, and when those of the sleeper were read.
const FOR_ALL: u64 = 2;

/// The news that an end has for its peer.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PeerNews {
    /// There are new records.
    pub(super) records: bool,
    /// Records of the peer were read.
    pub(super) read: bool,
}

/// The word that one end writes to be rung, and the other takes back when it rings. The orderings
/// are for fences to make.
pub(super) struct SleepWord<'a, W = AtomicU64>(pub(super) &'a W);

impl<W: SharedWord> SleepWord<'_, W> {
    /// Asks to be rung. [`publish_sleep`] goes before the last look for news.
    pub(super) fn fall_asleep(&self, what: WakeFor) {
        let wanted = match what {
            WakeFor::Arrivals => FOR_RECORDS,
            WakeFor::Everything => FOR_ALL,
        };
        self.0.store(wanted, Ordering::Relaxed);
    }

    /// Tells the peer that it need not ring.
    pub(super) fn wake_up(&self) {
        self.0.store(AWAKE, Ordering::Relaxed);
    }

    /// Whether the sleeper is to be rung for what was published, which is asked of one only.
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

/// Goes between falling asleep and the last look for news.
pub(super) fn publish_sleep() {
    fence(Ordering::SeqCst);
}

#[cfg(all(test, loom))]
mod loom_tests;
