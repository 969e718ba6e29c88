//! Bugs injected on purpose, one at a time, to check that the simulator finds them. Only builds
//! with the feature `deliberate-bugs` can have one.

use core::sync::atomic::{AtomicU8, Ordering};

/// A bug that can be injected into this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Bug {
    /// The end of a memory region or window is not checked.
    SkipRkeyBound = 1,
    /// Packets with a wrong ICRC are accepted.
    AcceptCorruptPackets,
}

/// The injected [`Bug`] by its number; zero for none.
static PRESENT: AtomicU8 = AtomicU8::new(0);

/// Injects this bug instead of the one before, or none.
pub fn set(bug: Option<Bug>) {
    PRESENT.store(bug.map_or(0, |bug| bug as u8), Ordering::Relaxed);
}

/// Whether a bug is injected; false in builds without the feature.
#[inline]
pub(crate) fn has(bug: Bug) -> bool {
    cfg!(feature = "deliberate-bugs") && PRESENT.load(Ordering::Relaxed) == bug as u8
}
