//! Bugs that are put in on purpose, one at a time, to see whether the simulator finds them. Only
//! builds with the feature `deliberate-bugs` can have one.

use core::sync::atomic::{AtomicU8, Ordering};

/// A bug that this crate can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Bug {
    /// A flush ends well and does nothing.
    DropFlush = 1,
    /// A write with Force Unit Access ends in the volatile cache.
    IgnoreFua,
    /// A write ends well when it begins.
    AcknowledgeEarly,
    /// The buffer of a read is free again before the host has its bytes.
    ReuseBufferEarly,
    /// Each command has two responses.
    CompleteTwice,
    /// An aborted command goes on.
    DropAbort,
    /// Writes to a write-protected namespace are executed.
    IgnoreWriteProtect,
    /// The progress block is never lent.
    KeepProgressBlock,
    /// An account that had the progress block is not moved behind those that wait for it.
    LendOutOfTurn,
    /// The progress block is lent only to accounts that hold something.
    SkipEmptyAccounts,
    /// A request that finds room does not stand in line behind those that find none.
    BypassLine,
    /// A host may come back though storage still works for queues that it has left.
    IgnoreDepartures,
    /// A controller reset is complete though storage still works for queues that it has sent away.
    ResetEarly,
    /// A command that waits for an earlier epoch's writes waits for its reads as well.
    AwaitReads,
}

/// Whether this build may have bugs at all.
pub(crate) const POSSIBLE: bool = cfg!(feature = "deliberate-bugs");

/// The present [`Bug`] by its number; zero for none.
static PRESENT: AtomicU8 = AtomicU8::new(0);

/// Gives the crate this bug, and no other, from now on.
pub fn set(bug: Option<Bug>) {
    PRESENT.store(bug.map_or(0, |bug| bug as u8), Ordering::Relaxed);
}

/// Whether the crate has a bug: never, in builds without the feature.
#[inline]
pub(crate) fn has(bug: Bug) -> bool {
    POSSIBLE && PRESENT.load(Ordering::Relaxed) == bug as u8
}
