//! Reads batches from local files with a pool of threads.

use std::collections::BTreeMap;
use std::mem;
use std::ops::Range;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use anyhow::{Context as _, Result, anyhow};
use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, never, unbounded};
use feedrail_initiator::{Entry, Grant, RegionSlice};

use super::reader::{BatchReader, LOOK_UP_AFTER};
use super::samples::SampleBatch;
use crate::interrupt::Interrupt;

/// Minimum bytes of the ranges that a thread receives at a time, since handing over short ranges
/// one by one would be expensive. It is less if the batch would not suffice for all threads.
const PART_BYTES: u64 = 64 << 10;

/// Synchronous reader of ranges of local files, used by one thread.
pub(super) trait RangeReader: Send {
    /// Reads the ranges into the buffer, one behind the other. Returns the bytes requested from the
    /// files, which may include parts of blocks that no range covers.
    fn read(&mut self, entries: &[Entry], into: &mut [u8]) -> Result<u64>;
}

/// Size of the work that a thread receives at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PoolParts {
    /// Some of the ranges, about [`PART_BYTES`], so that all threads work on the batch.
    Few,
    /// The whole batch, for a reader that itself has many reads in flight (io_uring).
    Batch,
}

/// Threads that read the batches of one rank.
pub(super) struct PoolReader {
    slots: Vec<PoolSlot>,
    parts: PoolParts,
    /// Queue to the threads. `None` during drop, which ends them.
    work: Option<Sender<Part>>,
    done: Receiver<PartDone>,
    threads: Vec<JoinHandle<()>>,
    asked_bytes: u64,
}

/// Ranges for one thread, and the memory that they are read into.
struct Part {
    slot: usize,
    /// Indexes of the ranges in the batch; the first one identifies the part.
    range: Range<usize>,
    entries: Arc<[Entry]>,
    memory: RegionSlice,
}

struct PartDone {
    slot: usize,
    first: usize,
    memory: RegionSlice,
    asked_bytes: Result<u64>,
}

struct PoolSlot {
    /// All of the slot's memory; while reads are in flight, the rest that no thread has.
    memory: Option<RegionSlice>,
    /// Memory that threads have returned, by the index of its first range.
    parts: BTreeMap<usize, RegionSlice>,
    under_way: usize,
    failure: Option<anyhow::Error>,
}

impl PoolReader {
    /// Starts one thread for each reader.
    pub(super) fn new(
        readers: Vec<Box<dyn RangeReader>>,
        parts: PoolParts,
        slots: usize,
        slot_bytes: usize,
    ) -> Result<Self> {
        let slots = (0..slots).map(|_| PoolSlot::new(slot_bytes)).collect::<Result<_>>()?;
        let ((work, waiting), (finished, done)) = (unbounded::<Part>(), unbounded());
        let mut pool = Self {
            slots,
            parts,
            work: Some(work),
            done,
            threads: Vec::with_capacity(readers.len()),
            asked_bytes: 0,
        };
        for mut reader in readers {
            let (waiting, finished) = (waiting.clone(), finished.clone());
            let run = move || {
                for part in waiting {
                    if finished.send(part.read(&mut *reader)).is_err() {
                        break;
                    }
                }
            };
            let started = thread::Builder::new().spawn(run);
            pool.threads.push(started.context("cannot start a thread: lower --read-threads")?);
        }
        Ok(pool)
    }

    fn part_bytes(&self, batch: &SampleBatch) -> u64 {
        match self.parts {
            PoolParts::Batch => u64::MAX,
            PoolParts::Few => {
                let share = batch.bytes / (self.threads.len() as u64).max(1);
                share.clamp(1, PART_BYTES)
            }
        }
    }

    fn take_back(&mut self, done: PartDone) {
        let slot = &mut self.slots[done.slot];
        slot.under_way -= 1;
        slot.parts.insert(done.first, done.memory);
        match done.asked_bytes {
            Ok(bytes) => self.asked_bytes += bytes,
            Err(error) => slot.failure = slot.failure.take().or(Some(error)),
        }
    }
}

impl BatchReader for PoolReader {
    fn begin(&mut self, slot: usize, batch: &SampleBatch) -> Result<()> {
        let entries: Arc<[Entry]> = batch.entries.as_slice().into();
        let part_bytes = self.part_bytes(batch);
        let free = &mut self.slots[slot];
        let mut memory = free.memory.take().context("the slot is in use")?;
        let work = self.work.as_ref().context("the pool is closed")?;
        for range in divide(&entries, part_bytes) {
            let bytes: u64 = entries[range.clone()].iter().map(|one| u64::from(one.length)).sum();
            let rest = memory.split_off(usize::try_from(bytes)?);
            let entries = Arc::clone(&entries);
            work.send(Part { slot, range, entries, memory: mem::replace(&mut memory, rest) })
                .map_err(|_| anyhow!("the reading threads have ended"))?;
            free.under_way += 1;
        }
        free.parts.insert(entries.len(), memory);
        Ok(())
    }

    fn finish(&mut self, slot: usize, interrupt: &Interrupt) -> Result<()> {
        while self.slots[slot].under_way > 0 {
            match self.done.recv_timeout(LOOK_UP_AFTER) {
                Ok(done) => self.take_back(done),
                Err(RecvTimeoutError::Timeout) => interrupt.check()?,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(anyhow!("the reading threads have ended"));
                }
            }
        }
        self.slots[slot].join()
    }

    fn copy_out(&self, slot: usize, at: usize, to: &mut [u8]) -> Result<()> {
        let memory = self.slots[slot].memory.as_ref().context("the slot is in use")?;
        memory.copy_out(at, to);
        Ok(())
    }

    fn asked_bytes(&self) -> u64 {
        self.asked_bytes
    }
}

impl Drop for PoolReader {
    fn drop(&mut self) {
        self.work = None;
        // No queued part is read: each thread ends after the part that it is reading.
        self.done = never();
        for thread in self.threads.drain(..) {
            // The panic of a thread was printed when it happened.
            let _ = thread.join();
        }
    }
}

impl Part {
    fn read(mut self, reader: &mut dyn RangeReader) -> PartDone {
        let entries = &self.entries[self.range.clone()];
        let memory = self.memory.as_mut_slice().context("memory of this process");
        let asked_bytes = memory.and_then(|into| reader.read(entries, into));
        PartDone { slot: self.slot, first: self.range.start, memory: self.memory, asked_bytes }
    }
}

impl PoolSlot {
    fn new(bytes: usize) -> Result<Self> {
        // `PerCommand` memory can be borrowed as a slice, since no target has access to it.
        let memory = RegionSlice::allocate(bytes, Grant::PerCommand)
            .with_context(|| format!("no memory for a batch of {bytes} bytes"))?;
        Ok(Self { memory: Some(memory), parts: BTreeMap::new(), under_way: 0, failure: None })
    }

    /// Joins the parts of the slot's memory again and returns the first read error, if any.
    fn join(&mut self) -> Result<()> {
        let parts = mem::take(&mut self.parts).into_values();
        let whole = parts.map(Ok).reduce(|whole, part| whole?.join(part?));
        let whole = whole.transpose();
        self.memory = whole.map_err(|_| anyhow!("parts of a buffer do not follow each other"))?;
        self.failure.take().map_or(Ok(()), Err)
    }
}

/// Divides the ranges into parts of at least `part_bytes` each, except for the last.
fn divide(entries: &[Entry], part_bytes: u64) -> Vec<Range<usize>> {
    let (mut parts, mut start, mut bytes) = (Vec::new(), 0, 0);
    for (number, entry) in entries.iter().enumerate() {
        bytes += u64::from(entry.length);
        if bytes >= part_bytes {
            parts.push(start..number + 1);
            (start, bytes) = (number + 1, 0);
        }
    }
    if start < entries.len() {
        parts.push(start..entries.len());
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fills a range with the low byte of its offset; fails at offset 13.
    struct Offsets;

    impl RangeReader for Offsets {
        fn read(&mut self, entries: &[Entry], into: &mut [u8]) -> Result<u64> {
            let base = entries.first().map_or(0, |entry| entry.dst);
            for entry in entries {
                anyhow::ensure!(entry.offset != 13, "unlucky");
                let at = (entry.dst - base) as usize;
                into[at..at + entry.length as usize].fill(entry.offset as u8);
            }
            Ok(into.len() as u64)
        }
    }

    fn batch(ranges: &[(u64, u32)]) -> SampleBatch {
        let mut batch = SampleBatch::default();
        for &(offset, length) in ranges {
            batch.entries.push(Entry { shard: 0, length, offset, dst: batch.bytes });
            batch.bytes += u64::from(length);
        }
        batch
    }

    fn pool(threads: usize) -> PoolReader {
        let readers = (0..threads).map(|_| Box::new(Offsets) as Box<dyn RangeReader>).collect();
        PoolReader::new(readers, PoolParts::Few, 2, 1000).unwrap()
    }

    #[test]
    fn parts_come_back_in_order() {
        let interrupt = Interrupt::install().unwrap();
        let mut pool = pool(3);
        for round in 0..20 {
            let ranges: Vec<(u64, u32)> = (20..40).map(|n| (n + round, n as u32 / 2)).collect();
            pool.begin(0, &batch(&ranges)).unwrap();
            pool.begin(1, &batch(&[(200, 1000)])).unwrap();
            pool.finish(1, &interrupt).unwrap();
            pool.finish(0, &interrupt).unwrap();
            let mut bytes = vec![0; batch(&ranges).bytes as usize];
            pool.copy_out(0, 0, &mut bytes).unwrap();
            let expected: Vec<u8> = ranges
                .iter()
                .flat_map(|&(offset, length)| vec![offset as u8; length as usize])
                .collect();
            assert_eq!(bytes, expected);
        }
    }

    #[test]
    fn a_failed_read_fails_its_batch_only() {
        let interrupt = Interrupt::install().unwrap();
        let mut pool = pool(2);
        pool.begin(0, &batch(&[(1, 10), (13, 10), (2, 10)])).unwrap();
        pool.begin(1, &batch(&[(3, 10)])).unwrap();
        assert!(pool.finish(0, &interrupt).unwrap_err().to_string().contains("unlucky"));
        pool.finish(1, &interrupt).unwrap();
        pool.begin(0, &batch(&[(1, 1000)])).unwrap();
        pool.finish(0, &interrupt).unwrap();
    }

    #[test]
    fn short_ranges_are_divided_into_parts() {
        let entries = batch(&[(0, 40), (0, 60), (0, 100), (0, 10)]).entries;
        assert_eq!(divide(&entries, 100), [0..2, 2..3, 3..4]);
        assert_eq!(divide(&entries, u64::MAX).first(), Some(&(0..4)));
        assert!(divide(&[], 1).is_empty());
    }
}
