//! Interface of all readers of batches.

use core::time::Duration;

use anyhow::Result;

use super::samples::SampleBatch;
use crate::interrupt::Interrupt;

/// Longest wait before the reader checks for Ctrl-C.
pub(super) const LOOK_UP_AFTER: Duration = Duration::from_millis(100);

/// Reader of the batches of one rank, which reads some of them ahead. A slot is a buffer for one
/// batch.
pub(super) trait BatchReader: Send {
    /// Starts to read a batch into an idle slot.
    fn begin(&mut self, slot: usize, batch: &SampleBatch) -> Result<()>;

    /// Waits until the batch of a slot is in its buffer. Fails if it cannot be read, or after a
    /// signal.
    fn finish(&mut self, slot: usize, interrupt: &Interrupt) -> Result<()>;

    /// Copies bytes of a finished slot, beginning `at` bytes behind its start.
    fn copy_out(&self, slot: usize, at: usize, to: &mut [u8]) -> Result<()>;

    /// Bytes requested from files or targets so far: more than those of the batches if only whole
    /// blocks can be read.
    fn asked_bytes(&self) -> u64;
}

/// Reader that reads nothing, to measure what the loop itself costs.
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
