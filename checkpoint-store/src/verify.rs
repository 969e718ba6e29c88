//! Verification of checkpoints: all their bytes are read.

use std::ops::{ControlFlow, Range};

use feedrail_initiator::Error;

use crate::error::StoreError;
use crate::read::{UnitFault, read_pieces};
use crate::store::CheckpointStore;

/// A unit whose bytes are not those that were saved.
#[derive(Clone, Debug)]
pub struct DamagedUnit {
    /// Name of the checkpoint.
    pub checkpoint: String,
    /// Name of the entry in the checkpoint.
    pub entry: String,
    /// First byte of the unit in the entry.
    pub offset: u64,
    /// Number of bytes of the entry in the unit.
    pub length: u64,
    /// First byte of the unit in the namespace.
    pub namespace_offset: u64,
    /// Status with which the target refused to read it; `None` if the checksum differs.
    pub cause: Option<Error>,
}

/// Result of a verification.
#[derive(Clone, Debug, Default)]
pub struct VerifyReport {
    /// Number of entries that were read.
    pub entries: usize,
    /// Bytes that were read.
    pub bytes: u64,
    /// Units that are damaged, by entry and offset.
    pub damaged: Vec<DamagedUnit>,
    /// Whether the first and the second copy of the manifest are damaged. The next change writes
    /// both again.
    pub damaged_manifest_copies: [bool; 2],
}

impl CheckpointStore {
    /// Reads both copies of the manifest and all entries of a checkpoint, or of all checkpoints,
    /// and compares their checksums.
    /// `progress` is called with the number of bytes of each unit, and can stop the call.
    ///
    /// # Errors
    /// [`StoreError::Volume`] if there is no such checkpoint, [`StoreError::Host`] if the target
    /// is lost, [`StoreError::Stopped`].
    pub fn verify(
        &self,
        checkpoint: Option<&str>,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<VerifyReport, StoreError> {
        let names = match checkpoint {
            Some(name) => vec![name.to_owned()],
            None => self.list().into_iter().map(|one| one.name).collect(),
        };
        let damaged_manifest_copies = self.check_manifest()?;
        let mut report = VerifyReport { damaged_manifest_copies, ..VerifyReport::default() };
        for name in names {
            for entry in self.entries(&name)? {
                let damaged = self.verify_range(&name, &entry.name, 0..entry.length, progress)?;
                report.damaged.extend(damaged);
                report.entries += 1;
                report.bytes += entry.length;
            }
        }
        Ok(report)
    }

    /// Reads a range of an entry, which begins with a unit, and returns the units that are damaged,
    /// in their order.
    pub(crate) fn verify_range(
        &self,
        checkpoint: &str,
        entry: &str,
        range: Range<u64>,
        progress: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Vec<DamagedUnit>, StoreError> {
        let from = range.start;
        let (plan, mut pipe) = self.begin_read(checkpoint, entry, range)?;
        let mut damaged = Vec::new();
        let result = read_pieces(&mut pipe, &plan, &mut |index, bytes| {
            let cause = match bytes {
                Ok(_) => None,
                Err(UnitFault::Checksum) => Some(None),
                Err(UnitFault::Device(error)) if error.status().is_none() => {
                    return ControlFlow::Break(error.into());
                }
                Err(UnitFault::Device(error)) => Some(Some(error)),
            };
            damaged.extend(cause.map(|cause| (index, cause)));
            let length = plan.pieces[index].length as u64;
            progress(length).map_break(|()| StoreError::Stopped)
        });
        self.end_read(pipe);
        result?;
        damaged.sort_unstable_by_key(|(index, _)| *index);
        let unit_bytes = self.unit_bytes();
        let unit = |(index, cause): (usize, Option<Error>)| DamagedUnit {
            checkpoint: checkpoint.to_owned(),
            entry: entry.to_owned(),
            offset: from + index as u64 * unit_bytes,
            length: plan.pieces[index].length as u64,
            namespace_offset: plan.pieces[index].offset,
            cause,
        };
        Ok(damaged.into_iter().map(unit).collect())
    }
}
