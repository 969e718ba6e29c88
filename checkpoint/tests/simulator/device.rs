//! Namespace with a volatile write cache that loses power and fails operations.

use std::ops::Range;

use feedrail_checkpoint::{
    Error, Failure, OperationOutcome, Procedure, Request, Run, SUPERBLOCK_BYTES,
    SUPERBLOCK_OFFSETS, VolumeOperation, WritePayload,
};
use splitmix64::SplitMix64;

/// Bytes that are written as a whole when power is lost; longer writes are torn.
const SECTOR: usize = 512;

/// End of a procedure on a simulated device.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ended<T> {
    /// The procedure ended with this result.
    Well(Result<T, Error>),
    /// Power was lost before the procedure ended.
    PowerLost,
}

/// Simulated namespace with a write cache.
#[derive(Debug)]
pub(crate) struct SimulatedDevice {
    durable: Vec<u8>,
    /// Offsets and bytes of completed writes that are not durable, oldest first.
    cache: Vec<(usize, Vec<u8>)>,
    pub(crate) random: SplitMix64,
    /// Number of operations until power is lost; `None` if it is not.
    pub(crate) power_cut_in: Option<u64>,
    /// Bytes that cannot be read.
    pub(crate) unreadable: Range<u64>,
    /// Number of operations in a million that fail.
    pub(crate) failures_per_million: u32,
    /// Number of superblocks in a million that the driver does not send, since the lease has ended.
    pub(crate) late_per_million: u32,
}

impl SimulatedDevice {
    pub(crate) fn new(bytes: usize, seed: u64) -> Self {
        let random = SplitMix64::new(seed);
        let (durable, cache) = (vec![0; bytes], Vec::new());
        Self {
            durable,
            cache,
            random,
            power_cut_in: None,
            unreadable: 0..0,
            failures_per_million: 0,
            late_per_million: 0,
        }
    }

    pub(crate) fn size(&self) -> u64 {
        self.durable.len() as u64
    }

    /// Returns the durable bytes, to be damaged or copied.
    pub(crate) fn durable(&mut self) -> &mut Vec<u8> {
        &mut self.durable
    }

    /// Executes a procedure to its end, with the operations of a round in random order.
    pub(crate) fn drive<P: Procedure>(&mut self, procedure: P, source: &[u8]) -> Ended<P::Output> {
        let mut run = Run::new(procedure);
        let mut waiting = Vec::new();
        loop {
            if self.step(&mut run, &mut waiting, source) {
                return Ended::PowerLost;
            }
            if run.is_finished() {
                return Ended::Well(run.finish().expect("it is finished"));
            }
        }
    }

    /// Executes one operation of a run. Returns whether power was lost.
    pub(crate) fn step<P: Procedure>(
        &mut self,
        run: &mut Run<P>,
        waiting: &mut Vec<VolumeOperation>,
        source: &[u8],
    ) -> bool {
        waiting.extend(std::iter::from_fn(|| run.operation()));
        if waiting.is_empty() {
            return false;
        }
        let operation = waiting.swap_remove(self.random.index(waiting.len()));
        if self.is_power_cut() {
            self.lose_power(&operation.request, source);
            return true;
        }
        let outcome = self.execute(operation.request, source);
        run.complete(operation.id, outcome);
        false
    }

    fn is_power_cut(&mut self) -> bool {
        let Some(left) = &mut self.power_cut_in else { return false };
        let is_now = *left == 0;
        *left = left.saturating_sub(1);
        is_now
    }

    fn execute(&mut self, request: Request, source: &[u8]) -> OperationOutcome {
        let is_pause = matches!(request, Request::Pause { .. });
        if !is_pause && self.random.chance(self.failures_per_million) {
            let failure = [Failure::CapacityExceeded, Failure::Device][self.random.index(2)];
            return OperationOutcome::Failed(failure);
        }
        match request {
            Request::Write { offset, .. } | Request::CompareAndWrite { offset, .. }
                if SUPERBLOCK_OFFSETS.contains(&offset)
                    && self.random.chance(self.late_per_million) =>
            {
                OperationOutcome::Failed(Failure::LeaseEnded)
            }
            Request::Read { offset, length }
                if offset < self.unreadable.end && self.unreadable.start < offset + length =>
            {
                OperationOutcome::Failed(Failure::Device)
            }
            Request::Read { offset, length } => {
                OperationOutcome::Data(self.read(offset, length as usize))
            }
            Request::Write { offset, payload, fua } => {
                let bytes = bytes_of(payload, source);
                self.write(offset as usize, bytes, fua)
            }
            Request::Flush => {
                for (offset, bytes) in std::mem::take(&mut self.cache) {
                    self.durable[offset..offset + bytes.len()].copy_from_slice(&bytes);
                }
                OperationOutcome::Done
            }
            Request::Deallocate { offset, length } => {
                self.write(offset as usize, vec![0; length as usize], false)
            }
            Request::CompareAndWrite { offset, expected, bytes } => {
                if self.read(offset, expected.len()) != expected {
                    return OperationOutcome::Failed(Failure::Miscompare);
                }
                self.write(offset as usize, bytes, true)
            }
            Request::Pause { .. } => OperationOutcome::Done,
        }
    }

    fn write(&mut self, offset: usize, bytes: Vec<u8>, fua: bool) -> OperationOutcome {
        if fua {
            self.durable[offset..offset + bytes.len()].copy_from_slice(&bytes);
            // Older bytes in the cache must not overwrite these later.
            let end = offset + bytes.len();
            self.cache.retain(|(at, old)| *at >= end || at + old.len() <= offset);
        } else {
            self.cache.push((offset, bytes));
        }
        OperationOutcome::Done
    }

    fn read(&self, offset: u64, length: usize) -> Vec<u8> {
        let offset = offset as usize;
        let mut bytes = self.durable[offset..offset + length].to_vec();
        for (at, cached) in &self.cache {
            let begin = offset.max(*at);
            let end = (offset + length).min(at + cached.len());
            if begin < end {
                bytes[begin - offset..end - offset].copy_from_slice(&cached[begin - at..end - at]);
            }
        }
        bytes
    }

    /// Loses power while no operation is in execution.
    pub(crate) fn lose_cache(&mut self) {
        self.lose_power(&Request::Flush, &[]);
    }

    /// Makes random sectors of the cached writes and of the write in execution durable, in random
    /// order; a write of 4096 bytes is atomic.
    fn lose_power(&mut self, request: &Request, source: &[u8]) {
        match request {
            Request::Write { offset, payload, .. } => {
                self.cache.push((*offset as usize, bytes_of(payload.clone(), source)));
            }
            Request::CompareAndWrite { offset, expected, bytes }
                if self.read(*offset, expected.len()) == *expected =>
            {
                self.cache.push((*offset as usize, bytes.clone()));
            }
            _ => {}
        }
        let mut cache = std::mem::take(&mut self.cache);
        self.random.shuffle(&mut cache);
        let survivors = self.random.below(1_000_001) as u32;
        for (offset, bytes) in cache {
            let is_atomic = bytes.len() == SUPERBLOCK_BYTES;
            let piece = if is_atomic { SUPERBLOCK_BYTES } else { SECTOR };
            for (index, part) in bytes.chunks(piece).enumerate() {
                if self.random.chance(survivors) {
                    let at = offset + index * piece;
                    self.durable[at..at + part.len()].copy_from_slice(part);
                }
            }
        }
        self.power_cut_in = None;
    }
}

fn bytes_of(payload: WritePayload, source: &[u8]) -> Vec<u8> {
    match payload {
        WritePayload::Bytes(bytes) => bytes,
        WritePayload::Source { range, padding } => {
            let mut bytes = source[range].to_vec();
            bytes.resize(bytes.len() + padding, 0);
            bytes
        }
    }
}
