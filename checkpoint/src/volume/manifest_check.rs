//! Check of both copies of the manifest, for a verification of the whole volume.

use super::open::{decode, manifest_read};
use super::{Volume, data};
use crate::error::Error;
use crate::operation::OperationOutcome;
use crate::run::{Procedure, ProcedureStep};

/// Procedure that reads both copies of the present manifest and returns whether the first and the
/// second one are damaged or unreadable, as [`Volume::damaged_manifest_copies`] does afterwards.
#[derive(Debug)]
pub struct ManifestCheck<'a> {
    volume: &'a mut Volume,
    is_begun: bool,
}

impl Volume {
    /// Returns the procedure that checks both copies of the manifest. It writes nothing.
    pub fn check_manifest(&mut self) -> ManifestCheck<'_> {
        ManifestCheck { volume: self, is_begun: false }
    }
}

impl Procedure for ManifestCheck<'_> {
    type Output = [bool; 2];

    fn advance(
        &mut self,
        outcomes: Vec<OperationOutcome>,
    ) -> Result<ProcedureStep<[bool; 2]>, Error> {
        let superblock = &self.volume.superblock;
        if !std::mem::replace(&mut self.is_begun, true) {
            let reads = [0, 1].map(|copy| manifest_read(superblock, copy));
            return Ok(ProcedureStep::Ask(reads.to_vec()));
        }
        let mut damaged = [false; 2];
        for (damaged, outcome) in damaged.iter_mut().zip(outcomes) {
            *damaged = !data(outcome).is_ok_and(|bytes| decode(superblock, &bytes).is_ok());
        }
        self.volume.damaged_copies = damaged;
        Ok(ProcedureStep::Done(damaged))
    }
}
