//! State of a controller in one atomic word, by which the data path admits commands.

use std::sync::atomic::{AtomicU64, Ordering};

use nvme_proto::Status;

/// Phase of a controller, from CC and CSTS, as far as the data path depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum RegisterPhase {
    /// CC.EN is 0. CSTS.RDY stays 1 until the I/O queues of the last epoch have left.
    Disabled,
    /// CSTS.RDY is 1, and commands are accepted.
    Ready,
    /// The host has shut down the controller or is shutting it down.
    ShutDown,
    /// CSTS.CFS is 1: the host must reset the controller.
    Fatal,
    /// The association is ending.
    Ended,
}

/// Number of times that the controller was enabled. Commands of an earlier epoch are refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Epoch(u32);

/// [`RegisterPhase`] (low 8 bits) and [`Epoch`] of a controller.
#[derive(Debug)]
pub(super) struct Stage(AtomicU64);

fn word(phase: RegisterPhase, epoch: Epoch) -> u64 {
    u64::from(epoch.0) << 8 | phase as u64
}

impl Stage {
    /// Creates the state of a controller that was never enabled.
    pub(super) fn new() -> Self {
        Self(AtomicU64::new(word(RegisterPhase::Disabled, Epoch::default())))
    }

    /// Epoch, if commands other than fabrics commands are allowed now.
    pub(super) fn ready_epoch(&self) -> Option<Epoch> {
        let word = self.0.load(Ordering::Acquire);
        (word as u8 == RegisterPhase::Ready as u8).then_some(Epoch((word >> 8) as u32))
    }

    /// Whether commands that arrived in this epoch are allowed.
    pub(super) fn is_ready_in(&self, epoch: Epoch) -> bool {
        self.0.load(Ordering::Acquire) == word(RegisterPhase::Ready, epoch)
    }

    /// Status for a command that is not allowed now. If the target ends the association, which the
    /// host cannot know, the status allows it to repeat the command over the next one.
    pub(super) fn refusal(&self) -> Status {
        match self.0.load(Ordering::Acquire) as u8 == RegisterPhase::Ended as u8 {
            true => Status::ABORTED_SQ_DELETION,
            false => Status::COMMAND_SEQUENCE_ERROR.with_dnr(),
        }
    }

    /// Sets the phase; [`RegisterPhase::Ready`] begins the next epoch, and [`RegisterPhase::Ended`]
    /// is final. The caller holds the controller's lock.
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
