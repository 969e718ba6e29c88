//! Phase of a controller's registers, which the data path reads to decide whether commands are
//! allowed.

use std::sync::atomic::{AtomicU64, Ordering};

use nvme_proto::Status;

/// Phase of CC and CSTS as far as the data path depends on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum RegisterPhase {
    /// Not enabled. CSTS.RDY stays 1 until the I/O queues of the last epoch have left.
    Disabled,
    /// CSTS.RDY is 1, and commands are accepted.
    Ready,
    /// The host has shut it down or is shutting it down.
    ShutDown,
    /// CSTS.CFS is 1: the host must reset the controller.
    Fatal,
    /// The association is ending.
    Ended,
}

/// Number of times a controller was enabled. Commands and I/O queues belong to one epoch and are
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
    /// Stage of a controller that was never enabled.
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(word(RegisterPhase::Disabled, Epoch::default())))
    }

    /// Epoch in which commands other than fabrics commands are legal; `None` while they are not.
    pub(super) fn ready_epoch(&self) -> Option<Epoch> {
        let word = self.0.load(Ordering::Acquire);
        (word as u8 == RegisterPhase::Ready as u8).then_some(Epoch((word >> 8) as u32))
    }

    /// Whether commands of this epoch are legal.
    pub(super) fn is_ready_in(&self, epoch: Epoch) -> bool {
        self.0.load(Ordering::Acquire) == word(RegisterPhase::Ready, epoch)
    }

    /// Status of a command that is not legal now. The host cannot know that the target is ending
    /// the association, so it may repeat the command over the next one.
    pub(super) fn refusal(&self) -> Status {
        match self.0.load(Ordering::Acquire) as u8 == RegisterPhase::Ended as u8 {
            true => Status::ABORTED_SQ_DELETION,
            false => Status::COMMAND_SEQUENCE_ERROR.with_dnr(),
        }
    }

    /// Sets the phase. The caller holds the controller's lock. [`RegisterPhase::Ended`] is final.
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
