//! Deliberate bugs, one at a time, to test whether the simulator finds them. They exist only in
//! builds with the feature `deliberate-bugs`.

use core::sync::atomic::{AtomicU8, Ordering};

/// Bug that tests can switch on.
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
    /// An account that had the progress block does not move behind the accounts that wait for it.
    LendOutOfTurn,
    /// The progress block is lent only to accounts that hold buffers.
    SkipEmptyAccounts,
    /// A request for a buffer does not queue behind waiting requests if there is room for it.
    BypassLine,
    /// A host may reconnect while storage still executes commands of its former queues.
    IgnoreDepartures,
    /// A controller reset completes while storage still executes commands of closed queues.
    ResetEarly,
    /// A command that has to wait for an earlier epoch's writes waits for its reads as well.
    AwaitReads,
    /// The response to a list of ranges counts one more than were read.
    CountRangeUnread,
}

const POSSIBLE: bool = cfg!(feature = "deliberate-bugs");

/// Number of the [`Bug`] that is switched on; 0 for none.
static PRESENT: AtomicU8 = AtomicU8::new(0);

/// Switches a bug on in place of an earlier one; `None` switches it off.
pub fn set(bug: Option<Bug>) {
    PRESENT.store(bug.map_or(0, |bug| bug as u8), Ordering::Relaxed);
}

/// Whether a bug is switched on; always false in builds without the feature.
#[inline]
pub(crate) fn has(bug: Bug) -> bool {
    POSSIBLE && PRESENT.load(Ordering::Relaxed) == bug as u8
}
