//! Bugs that are put in on purpose, one at a time, to see whether the simulator finds them. Only
//! builds with the feature `deliberate-bugs` can have one.

use core::sync::atomic::{AtomicU8, Ordering};

/// A bug that this crate can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Bug {
    /// Packets after a gap are executed as if none was missing.
    IgnorePsnGap = 1,
    /// Windows are not reduced when packets are lost.
    IgnoreLosses,
}

/// The present [`Bug`] as a number, zero for none.
static PRESENT: AtomicU8 = AtomicU8::new(0);

/// Gives the crate this bug, and no other, from now on.
pub fn set(bug: Option<Bug>) {
    PRESENT.store(bug.map_or(0, |bug| bug as u8), Ordering::Relaxed);
}

/// Whether the crate has a bug: never, in builds without the feature.
#[inline]
pub(crate) fn has(bug: Bug) -> bool {
    cfg!(feature = "deliberate-bugs") && PRESENT.load(Ordering::Relaxed) == bug as u8
}
