//! Interface of all methods of reading batches.

use core::time::Duration;

use anyhow::Result;

use super::samples::SampleBatch;
use crate::interrupt::Interrupt;

/// How long a wait may last before Ctrl-C is looked for.
pub(super) const LOOK_UP_AFTER: Duration = Duration::from_millis(100);

/// Reads batches for one rank, some of them ahead of the one that is waited for. A slot is a buffer
/// for one batch.
pub(super) trait BatchReader: Send {
    /// Begins to read a batch into an idle slot.
    fn begin(&mut self, slot: usize, batch: &SampleBatch) -> Result<()>;

    /// Waits until the batch of a slot is in its buffer. Fails if it cannot be read, or a signal
    /// came.
    fn finish(&mut self, slot: usize, interrupt: &Interrupt) -> Result<()>;

    /// Copies bytes of a slot that is finished, from `at` on.
    fn copy_out(&self, slot: usize, at: usize, to: &mut [u8]) -> Result<()>;

    /// Bytes that were asked of a file or a target so far: more than those of the batches where
    /// only whole blocks can be read.
    fn asked_bytes(&self) -> u64;
}

/// Reads nothing: what a loop costs that waits for no data.
pub(super) struct NoReader;

impl BatchReader for NoReader {
    fn begin(&mut self, _: usize, _: &SampleBatch) -> Result<()> {
        Ok(())
    }

    fn finish(&mut self, _: usize, _: &Interrupt) -> Result<()> {
        Ok(())
    }

    fn copy_out(&self, _: usize, _: usize, _: &mut [u8]) -> Result<()> {
        Ok(())
    }

    fn asked_bytes(&self) -> u64 {
        0
    }
}
