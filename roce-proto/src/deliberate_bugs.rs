//! Bugs injected on purpose, one at a time, to check that the simulator finds them. Only builds
//! with the feature `deliberate-bugs` can have one.

use core::sync::atomic::{AtomicU8, Ordering};

/// A bug that can be injected into this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Bug {
    /// Packets after a gap in the sequence are executed as if no packet was missing.
    IgnorePsnGap = 1,
    /// Congestion windows are not reduced when packets are lost.
    IgnoreLosses,
}

/// The injected [`Bug`] as a number, zero for none.
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
