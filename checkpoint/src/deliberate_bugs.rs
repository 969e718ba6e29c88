//! Bugs that are put in on purpose, one at a time, to see whether the simulator finds them. Only
//! builds with the feature `deliberate-bugs` can have one.

use std::sync::atomic::{AtomicU8, Ordering};

/// A bug that this crate can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Bug {
    /// The superblock is written without a Flush after data and manifest.
    SkipFlush = 1,
    /// The superblock is written without FUA.
    SkipFua,
    /// The newest superblock is overwritten, not the older one.
    OverwriteNewest,
    /// Data is given to readers whatever its CRC is.
    IgnoreDataCrc,
    /// A manifest is accepted whatever its CRC is.
    IgnoreManifestCrc,
    /// Space of a deleted checkpoint is free before the deletion is committed.
    ReuseBeforeCommit,
    /// The manifest is written where the present one is.
    OverwriteManifest,
    /// A commit does not look whether another writer has the volume.
    IgnoreFence,
    /// Another writer's live lease is taken over.
    IgnoreLease,
    /// An aborted save keeps its space.
    LeakOnAbort,
}

/// All of them.
pub const BUGS: [Bug; 10] = [
    Bug::SkipFlush,
    Bug::SkipFua,
    Bug::OverwriteNewest,
    Bug::IgnoreDataCrc,
    Bug::IgnoreManifestCrc,
    Bug::ReuseBeforeCommit,
    Bug::OverwriteManifest,
    Bug::IgnoreFence,
    Bug::IgnoreLease,
    Bug::LeakOnAbort,
];

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
