//! Deliberate bugs, one at a time, to test whether the simulator finds them. Only builds with the
//! feature `deliberate-bugs` can have one.

use core::sync::atomic::{AtomicU8, Ordering};

/// Bug that this crate can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Bug {
    /// A flush succeeds without doing anything.
    DropFlush = 1,
    /// A write with Force Unit Access stays in the volatile cache.
    IgnoreFua,
    /// A write is acknowledged when it begins.
    AcknowledgeEarly,
    /// The buffer of a read is freed before the host has its bytes.
    ReuseBufferEarly,
    /// Each command gets two responses.
    CompleteTwice,
    /// An aborted command continues without a response.
    DropAbort,
    /// Writes to a write-protected namespace are executed.
    IgnoreWriteProtect,
    /// The progress block is never lent.
    KeepProgressBlock,
    /// An account that had the progress block is not moved behind those that wait for it.
    LendOutOfTurn,
    /// The progress block is lent only to accounts that hold something.
    SkipEmptyAccounts,
    /// A request that finds room does not queue behind waiting ones.
    BypassLine,
    /// A host may reconnect while storage still executes commands of queues that it has left.
    IgnoreDepartures,
    /// A controller reset completes while storage still executes commands of closed queues.
    ResetEarly,
    /// A command that waits for an earlier epoch's writes waits for its reads as well.
    AwaitReads,
}

/// Whether this build can have bugs.
pub(crate) const POSSIBLE: bool = cfg!(feature = "deliberate-bugs");

/// Number of the present [`Bug`]; 0 for none.
static PRESENT: AtomicU8 = AtomicU8::new(0);

/// Sets the bug of the crate, which replaces an earlier one.
pub fn set(bug: Option<Bug>) {
    PRESENT.store(bug.map_or(0, |bug| bug as u8), Ordering::Relaxed);
}

/// Whether the crate has a bug: never, in builds without the feature.
#[inline]
pub(crate) fn has(bug: Bug) -> bool {
    POSSIBLE && PRESENT.load(Ordering::Relaxed) == bug as u8
}
