//! Whether the registers of a controller allow commands, as the data path reads it.

use std::sync::atomic::{AtomicU64, Ordering};

use nvme_proto::Status;

/// CC and CSTS as far as the data path depends on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum RegisterPhase {
    /// Not enabled. As long as I/O queues of the last epoch are leaving, CSTS.RDY is still 1.
    Disabled,
    /// CSTS.RDY is 1, and commands are accepted.
    Ready,
    /// The host has shut it down, or is about to.
    ShutDown,
    /// CSTS.CFS is 1: the host must reset the controller.
    Fatal,
    /// The association is ending.
    Ended,
}

/// Counts how often a controller was enabled. Commands and I/O queues belong to one epoch and are
/// void in the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Epoch(u32);

/// [`RegisterPhase`] and [`Epoch`] in one word.
#[derive(Debug)]
pub(super) struct Stage(AtomicU64);

/// Phase and epoch in one word.
fn word(phase: RegisterPhase, epoch: Epoch) -> u64 {
    u64::from(epoch.0) << 8 | phase as u64
}

impl Stage {
    /// Of a controller that was never enabled.
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(word(RegisterPhase::Disabled, Epoch::default())))
    }

    /// The epoch in which commands other than fabrics commands are legal; `None` while they are
    /// not.
    pub(super) fn ready_epoch(&self) -> Option<Epoch> {
        let word = self.0.load(Ordering::Acquire);
        (word as u8 == RegisterPhase::Ready as u8).then_some(Epoch((word >> 8) as u32))
    }

    /// Whether commands of this epoch are legal.
    pub(super) fn is_ready_in(&self, epoch: Epoch) -> bool {
        self.0.load(Ordering::Acquire) == word(RegisterPhase::Ready, epoch)
    }

    /// The status of a command that is not legal now. The host cannot know that the target is
    /// ending the association: it may issue the command again, over the next one.
    pub(super) fn refusal(&self) -> Status {
        match self.0.load(Ordering::Acquire) as u8 == RegisterPhase::Ended as u8 {
            true => Status::ABORTED_SQ_DELETION,
            false => Status::COMMAND_SEQUENCE_ERROR.with_dnr(),
        }
    }

    /// Under the controller's lock, which the caller has. Nothing follows the end.
    pub(super) fn set(&self, phase: RegisterPhase) {
        let word = self.0.load(Ordering::Relaxed);
        if word as u8 == RegisterPhase::Ended as u8 {
            return;
        }
        let epoch = Epoch((word >> 8) as u32);
        let epoch =
            if phase == RegisterPhase::Ready { Epoch(epoch.0.wrapping_add(1)) } else { epoch };
        self.0.store(self::word(phase, epoch), Ordering::Release);
    }
}
