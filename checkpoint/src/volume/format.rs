//! Formatting of a namespace as an empty volume.

use uuid::Uuid;

use super::publish::manifest_writes;
use super::{NamespaceAttributes, all_done, data};
use crate::allocation::FreeSpace;
use crate::error::Error;
use crate::manifest::{CheckpointTable, TableOrigin};
use crate::operation::{OperationOutcome, Request, WritePayload};
use crate::run::{Procedure, ProcedureStep};
use crate::signature::{self, LOOK_BYTES};
use crate::superblock::{Geometry, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock};

/// Minimum number of units behind the superblocks: two copies of three manifests, those of both
/// superblocks and the next one, and a unit of data.
const UNITS_MIN: u64 = 7;

/// Procedure that formats a namespace as an empty volume, unless it holds data of a known kind.
#[derive(Debug)]
pub struct Formatting {
    superblock: Superblock,
    manifest: Vec<u8>,
    is_forced: bool,
    round: u32,
}

impl Formatting {
    /// Makes the procedure. A unit has `1 << unit_shift` bytes; 20 is usual. With `is_forced` the
    /// namespace is formatted whatever it holds. The procedure fails with [`Error::Occupied`]
    /// before it writes anything.
    ///
    /// # Errors
    /// [`Error::TooSmall`] for the namespace, [`Error::Format`] for a wrong `unit_shift`.
    pub fn new(
        device: NamespaceAttributes,
        uuid: Uuid,
        unit_shift: u32,
        is_forced: bool,
    ) -> Result<Self, Error> {
        let unit_bytes = 1_u64.checked_shl(unit_shift).unwrap_or(u64::MAX);
        let needed = LOOK_BYTES
            .next_multiple_of(unit_bytes)
            .saturating_add(unit_bytes.saturating_mul(UNITS_MIN));
        if device.bytes < needed {
            return Err(Error::TooSmall { bytes: device.bytes, needed });
        }
        let geometry = Geometry::new(unit_shift, device.bytes)?;
        let manifest = CheckpointTable::default().encode(uuid, TableOrigin::Committed(1))?;
        let mut free = FreeSpace::new(geometry.first_unit(), geometry.capacity_units(), &[])?;
        let units = geometry.units_of(manifest.len() as u64);
        let superblock = Superblock {
            uuid,
            geometry,
            generation: 1,
            manifest_units: free.take_pair(units, unit_bytes)?.map(|copy| copy.first),
            manifest_bytes: manifest.len() as u64,
            manifest_crc32c: crc32c::crc32c(&manifest),
            lease: None,
        };
        Ok(Self { superblock, manifest, is_forced, round: 0 })
    }
}

impl Procedure for Formatting {
    type Output = ();

    fn advance(&mut self, mut outcomes: Vec<OperationOutcome>) -> Result<ProcedureStep<()>, Error> {
        self.round += 1;
        if self.round == 2
            && let Some(outcome) = outcomes.pop()
        {
            let bytes = data(outcome)?;
            if let Some(signature) = signature::find(&bytes)
                && !self.is_forced
            {
                return Err(Error::Occupied(signature));
            }
        }
        all_done(outcomes)?;
        let write = |offset, bytes, fua| Request::Write {
            offset,
            payload: WritePayload::Bytes(bytes),
            fua,
        };
        Ok(match self.round {
            1 => ProcedureStep::Ask(vec![Request::Read { offset: 0, length: LOOK_BYTES }]),
            // A volume that the namespace holds becomes invalid before its data is overwritten.
            2 => {
                let zeroes = |offset| write(offset, vec![0; SUPERBLOCK_BYTES], true);
                ProcedureStep::Ask(SUPERBLOCK_OFFSETS.map(zeroes).to_vec())
            }
            3 => {
                let manifest = std::mem::take(&mut self.manifest);
                ProcedureStep::Ask(manifest_writes(&self.superblock, manifest))
            }
            4 => ProcedureStep::Ask(vec![Request::Flush]),
            5 => ProcedureStep::Ask(vec![write(
                SUPERBLOCK_OFFSETS[0],
                self.superblock.encode(),
                true,
            )]),
            _ => ProcedureStep::Done(()),
        })
    }
}
