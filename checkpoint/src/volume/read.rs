//! Reads of entries, verified unit by unit.

use std::ops::Range;

use super::{Volume, data};
use crate::deliberate_bugs::{self, Bug};
use crate::error::Error;
use crate::manifest::CheckpointEntry;
use crate::operation::{OperationOutcome, Request};
use crate::run::{Procedure, ProcedureStep};

/// Units that must be read for a byte range of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadPlan {
    /// Pieces of the range in order, each from one unit.
    pub pieces: Vec<ReadPiece>,
}

/// Unit that is read as a whole to verify its checksum, and the part of it inside the range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadPiece {
    /// First byte of the unit in the namespace.
    pub offset: u64,
    /// Number of bytes of the unit that belong to the entry; the checksum covers them.
    pub length: usize,
    /// CRC-32C of these bytes, from the manifest.
    pub crc32c: u32,
    /// Indexes of the bytes of the unit that belong to the range.
    pub wanted: Range<usize>,
}

impl ReadPiece {
    /// Verifies the bytes of the unit, and returns those inside the range. `bytes` may have padding
    /// at its end.
    ///
    /// # Errors
    /// [`Error::Damaged`] if the checksum differs or bytes are missing.
    pub fn verify<'a>(&self, bytes: &'a [u8]) -> Result<&'a [u8], Error> {
        let damaged = Error::Damaged { offset: self.offset };
        let bytes = bytes.get(..self.length).ok_or(damaged.clone())?;
        let is_good =
            crc32c::crc32c(bytes) == self.crc32c || deliberate_bugs::has(Bug::IgnoreDataCrc);
        bytes.get(self.wanted.clone()).filter(|_| is_good).ok_or(damaged)
    }
}

impl Volume {
    /// Returns the units to read for a byte range of an entry.
    ///
    /// # Errors
    /// [`Error::Missing`] for an unknown name, [`Error::Range`] for a range outside of the entry.
    pub fn read_plan(
        &self,
        checkpoint: &str,
        entry: &str,
        range: Range<u64>,
    ) -> Result<ReadPlan, Error> {
        let missing = |name: &str| Error::Missing(name.to_owned());
        let found = self.table.checkpoint(checkpoint).ok_or_else(|| missing(checkpoint))?;
        let found = found.entries.iter().find(|found| found.name.as_str() == entry);
        self.entry_plan(found.ok_or_else(|| missing(entry))?, range)
    }

    /// Returns what to read for a byte range of an entry of this volume or of a save.
    ///
    /// # Errors
    /// [`Error::Range`] for a range that is not inside the entry.
    pub fn entry_plan(
        &self,
        found: &CheckpointEntry,
        range: Range<u64>,
    ) -> Result<ReadPlan, Error> {
        if range.start > range.end || range.end > found.length {
            return Err(Error::Range);
        }
        let unit_bytes = self.unit_bytes();
        let units = if range.is_empty() {
            0..0
        } else {
            range.start / unit_bytes..range.end.div_ceil(unit_bytes)
        };
        let piece = |index: u64| {
            let begin = index * unit_bytes;
            let length = unit_bytes.min(found.length - begin);
            let from = range.start.saturating_sub(begin);
            let to = (range.end - begin).min(length);
            Some(ReadPiece {
                offset: found.unit(index)? * unit_bytes,
                length: length as usize,
                crc32c: *found.checksums.get(index as usize)?,
                wanted: from as usize..to as usize,
            })
        };
        let pieces = units.map(piece).collect::<Option<_>>().ok_or(Error::Range)?;
        Ok(ReadPlan { pieces })
    }
}

/// Procedure that reads the units of a plan, verifies them, and returns the bytes of the range.
#[derive(Debug)]
pub struct Reading {
    plan: ReadPlan,
    is_begun: bool,
}

impl Reading {
    /// Makes the procedure for a plan.
    pub fn new(plan: ReadPlan) -> Self {
        Self { plan, is_begun: false }
    }
}

impl Procedure for Reading {
    type Output = Vec<u8>;

    fn advance(
        &mut self,
        outcomes: Vec<OperationOutcome>,
    ) -> Result<ProcedureStep<Vec<u8>>, Error> {
        if !std::mem::replace(&mut self.is_begun, true) {
            let read = |piece: &ReadPiece| Request::Read {
                offset: piece.offset,
                length: piece.length.next_multiple_of(4096) as u64,
            };
            return Ok(ProcedureStep::Ask(self.plan.pieces.iter().map(read).collect()));
        }
        let mut bytes = Vec::new();
        for (piece, outcome) in self.plan.pieces.iter().zip(outcomes) {
            bytes.extend_from_slice(piece.verify(&data(outcome)?)?);
        }
        Ok(ProcedureStep::Done(bytes))
    }
}
