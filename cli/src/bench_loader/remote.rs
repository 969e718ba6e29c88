//! Reads batches from targets, each with one read plan into one buffer.

use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow};
use feedrail_initiator::{Grant, Host, Outcome, Region, Shards, Submit, Ticket};

use super::reader::{BatchReader, LOOK_UP_AFTER};
use super::samples::SampleBatch;
use crate::interrupt::Interrupt;

/// Connected shards, shared by the readers of all ranks.
#[derive(Clone)]
pub(super) struct RemoteShards {
    pub(super) host: Host,
    pub(super) shards: Shards,
    /// Target and name of each shard, for error messages.
    pub(super) names: Arc<[String]>,
}

/// Reader that submits one read plan for each batch.
pub(super) struct RemoteReader {
    source: RemoteShards,
    slots: Vec<RemoteSlot>,
    asked_bytes: u64,
}

struct RemoteSlot {
    /// Declared before the region, so that it is dropped first, which cancels commands in flight.
    ticket: Option<PlannedBatch>,
    region: Region,
}

struct PlannedBatch {
    ticket: Ticket,
    /// Number of the shard that each range of the plan is read from.
    shards: Vec<u32>,
}

impl RemoteReader {
    /// Allocates `slots` buffers of `slot_bytes` each.
    pub(super) fn new(source: RemoteShards, slots: usize, slot_bytes: usize) -> Result<Self> {
        let slot = |_| {
            let region = Region::allocate(slot_bytes, Grant::Persistent)
                .with_context(|| format!("no memory for a batch of {slot_bytes} bytes"))?;
            Ok(RemoteSlot { ticket: None, region })
        };
        let slots = (0..slots).map(slot).collect::<Result<_>>()?;
        Ok(Self { source, slots, asked_bytes: 0 })
    }

    fn failure(&self, planned: &PlannedBatch) -> anyhow::Error {
        let failed = |outcome: &Outcome| !outcome.is_ok() && !outcome.is_pending();
        let entry = planned.ticket.outcomes().position(|outcome| failed(&outcome));
        let error = entry.and_then(|entry| planned.ticket.error(entry));
        let shard = entry.and_then(|entry| planned.shards.get(entry));
        let name = shard.and_then(|&shard| self.source.names.get(shard as usize));
        let error = error.map_or_else(|| anyhow!("a range was not read"), anyhow::Error::new);
        error.context(name.cloned().unwrap_or_default())
    }
}

impl BatchReader for RemoteReader {
    fn begin(&mut self, slot: usize, batch: &SampleBatch) -> Result<()> {
        let Self { source: RemoteShards { host, shards, .. }, slots, .. } = self;
        let slot = &mut slots[slot];
        let ticket = host.submit(shards, &batch.entries, &slot.region, Submit::default())?;
        let shards = batch.entries.iter().map(|entry| entry.shard).collect();
        slot.ticket = Some(PlannedBatch { ticket, shards });
        self.asked_bytes += batch.bytes;
        Ok(())
    }

    fn finish(&mut self, slot: usize, interrupt: &Interrupt) -> Result<()> {
        let Some(planned) = self.slots[slot].ticket.take() else { return Ok(()) };
        loop {
            let progress = planned.ticket.wait(planned.ticket.len(), Some(LOOK_UP_AFTER));
            if progress.failed > 0 {
                return Err(self.failure(&planned));
            }
            if planned.ticket.is_done() {
                return Ok(());
            }
            interrupt.check()?;
        }
    }

    fn copy_out(&self, slot: usize, at: usize, to: &mut [u8]) -> Result<()> {
        Ok(self.slots[slot].region.copy_out(at, to)?)
    }

    fn asked_bytes(&self) -> u64 {
        self.asked_bytes
    }
}
