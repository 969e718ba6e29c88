//! Reading entries.

use std::ops::Range;

use super::{Volume, data};
use crate::deliberate_bugs::{self, Bug};
use crate::error::Error;
use crate::operation::{OperationOutcome, Request};
use crate::run::{Procedure, ProcedureStep};

/// The units that a byte range of an entry needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadPlan {
    /// Units, in the order of the range.
    pub pieces: Vec<ReadPiece>,
}

/// A unit to be read as a whole, and the part of it that is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadPiece {
    /// Its first byte in the namespace.
    pub offset: u64,
    /// Number of bytes that the checksum covers.
    pub length: usize,
    /// Their CRC-32C.
    pub crc32c: u32,
    /// The bytes that belong to the range.
    pub wanted: Range<usize>,
}

impl ReadPiece {
    /// The wanted part of a unit's bytes.
    ///
    /// # Errors
    /// [`Error::Damaged`] if the checksum is another.
    pub fn verify<'a>(&self, bytes: &'a [u8]) -> Result<&'a [u8], Error> {
        let damaged = Error::Damaged { offset: self.offset };
        let bytes = bytes.get(..self.length).ok_or(damaged.clone())?;
        let is_good =
            crc32c::crc32c(bytes) == self.crc32c || deliberate_bugs::has(Bug::IgnoreDataCrc);
        bytes.get(self.wanted.clone()).filter(|_| is_good).ok_or(damaged)
    }
}

impl Volume {
    /// What to read for a byte range of an entry.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Range`].
    pub fn read_plan(
        &self,
        checkpoint: &str,
        entry: &str,
        range: Range<u64>,
    ) -> Result<ReadPlan, Error> {
        let missing = |name: &str| Error::Missing(name.to_owned());
        let found = self.manifest.checkpoint(checkpoint).ok_or_else(|| missing(checkpoint))?;
        let found = found.entries.iter().find(|found| found.name.as_str() == entry);
        let found = found.ok_or_else(|| missing(entry))?;
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

/// Reads and verifies what a plan names.
#[derive(Debug)]
pub struct Reading {
    plan: ReadPlan,
    is_begun: bool,
}

impl Reading {
    /// Reads what a plan names.
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
