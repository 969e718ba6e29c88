//! Bugs injected on purpose, one at a time, to check that the simulator finds them. Only builds
//! with the feature `deliberate-bugs` can have one.

use std::sync::atomic::{AtomicU8, Ordering};

/// A bug that can be injected into this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Bug {
    /// The superblock is written without a Flush after data and manifest.
    SkipFlush = 1,
    /// The superblock is written without FUA.
    SkipFua,
    /// The newest superblock is overwritten, not the older one.
    OverwriteNewest,
    /// Readers get data whose CRC-32C does not match.
    IgnoreDataCrc,
    /// A manifest whose CRC-32C does not match is accepted.
    IgnoreManifestCrc,
    /// Space of a deleted checkpoint is free before the deletion is committed.
    ReuseBeforeCommit,
    /// The new manifest overwrites the present one.
    OverwriteManifest,
    /// A commit does not compare the superblocks with those that the writer knows.
    IgnoreFence,
    /// A writer takes the lease while that of another writer is live.
    IgnoreLease,
    /// An aborted save does not free its space.
    LeakOnAbort,
    /// The second copy of the manifest is not written.
    SkipSecondCopy,
    /// The second copy of the manifest is not read if the first one is damaged.
    IgnoreSecondCopy,
    /// A damaged copy of the manifest stays as it is when the volume is changed.
    KeepDamagedCopy,
    /// A save may take the space that the manifest of the next deletion needs.
    SkipReserve,
    /// The newest replica is the one whose lease was changed last.
    CompareLeases,
    /// A repair marks the table as complete before it has copied the checkpoints.
    CompleteEarly,
    /// A repair does not delete what the newest replica does not have.
    ForgetDeletes,
    /// A replica with an incomplete table does not tell which commits it had before.
    ForgetClaim,
    /// The lease of a repair hides that the replica has lost a commit by damage.
    ForgetDamage,
    /// A repair relies on the older table of a replica that has lost a commit by damage.
    KeepAfterDamage,
    /// Space of a replaced entry is used before the commit that replaces it.
    ReuseReplaced,
    /// Space of a replaced entry is not freed.
    LeakReplaced,
    /// A checkpoint stays when its last entry is removed.
    KeepEmpty,
    /// A rename replaces entries that it should not.
    ReplaceUnasked,
    /// An entry grows into the units behind it, whoever has them.
    GrowInPlace,
    /// A writer that has taken the lease does not read it again.
    SkipSecondRead,
    /// A repair does not look for damaged units.
    ForgetUnits,
    /// A unit is rewritten with bytes that do not have its checksum.
    RewriteUnverified,
    /// A rewritten unit is not durable.
    RewriteInCache,
    /// A reader takes a manifest that was overwritten since it read the superblocks for damaged.
    IgnoreChange,
}

/// Every bug, in the order of the simulator's report.
pub const BUGS: [Bug; 30] = [
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
    Bug::SkipSecondCopy,
    Bug::IgnoreSecondCopy,
    Bug::KeepDamagedCopy,
    Bug::SkipReserve,
    Bug::CompareLeases,
    Bug::CompleteEarly,
    Bug::ForgetDeletes,
    Bug::ForgetClaim,
    Bug::ForgetDamage,
    Bug::KeepAfterDamage,
    Bug::ReuseReplaced,
    Bug::LeakReplaced,
    Bug::KeepEmpty,
    Bug::ReplaceUnasked,
    Bug::GrowInPlace,
    Bug::SkipSecondRead,
    Bug::ForgetUnits,
    Bug::RewriteUnverified,
    Bug::RewriteInCache,
    Bug::IgnoreChange,
];

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
