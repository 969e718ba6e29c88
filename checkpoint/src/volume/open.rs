//! Opening of the volume on a namespace.

use super::{NamespaceAttributes, Volume, all_done, data};
use crate::allocation::{Extent, FreeSpace};
use crate::deliberate_bugs::{self, Bug};
use crate::error::{Error, VolumeFormatError};
use crate::manifest::{CheckpointTable, MANIFEST_MAX};
use crate::operation::{OperationOutcome, Request};
use crate::run::{Procedure, ProcedureStep};
use crate::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock};

/// Procedure that opens a volume: reads both superblocks, then the manifest of the newest valid
/// one, and if that is damaged the manifest of the other one.
#[derive(Debug)]
pub struct Opening {
    device: NamespaceAttributes,
    state: State,
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one, for a few operations")]
enum State {
    Begin,
    Superblocks,
    Manifest { raw: [Vec<u8>; 2], found: Found, candidates: Vec<usize>, error: Option<Error> },
}

/// Superblocks A and B, or why they are not valid.
type Found = [Result<Superblock, Error>; 2];

/// Returns the requests that read both superblocks.
pub(super) fn superblock_reads() -> Vec<Request> {
    let read = |offset| Request::Read { offset, length: SUPERBLOCK_BYTES as u64 };
    SUPERBLOCK_OFFSETS.map(read).to_vec()
}

/// Returns the units of the manifest that a superblock names.
pub(super) fn manifest_extent(superblock: &Superblock) -> Extent {
    let units = superblock.geometry.units_of(superblock.manifest_bytes);
    Extent { first: superblock.manifest_unit, units }
}

impl Opening {
    /// Makes the procedure for the volume on a namespace. It writes nothing.
    pub fn new(device: NamespaceAttributes) -> Self {
        Self { device, state: State::Begin }
    }

    fn superblocks(
        &mut self,
        outcomes: Vec<OperationOutcome>,
    ) -> Result<ProcedureStep<Volume>, Error> {
        let bytes: Vec<_> = outcomes.into_iter().map(data).collect();
        let decode = |bytes: &Result<Vec<u8>, Error>| {
            let bytes = bytes.as_ref().map_err(Clone::clone)?;
            Ok(Superblock::decode(bytes)?)
        };
        let found: Found = [decode(&bytes[0]), decode(&bytes[1])];
        if found.iter().any(|one| *one == Err(VolumeFormatError::Newer.into())) {
            return Err(VolumeFormatError::Newer.into());
        }
        let mut candidates: Vec<_> = (0..2).filter(|&index| found[index].is_ok()).collect();
        let generation = |index: &usize| found[*index].as_ref().map_or(0, |one| one.generation);
        candidates.sort_by_key(generation);
        let raw = [0, 1].map(|index: usize| bytes[index].clone().unwrap_or_default());
        self.next(raw, found, candidates, None)
    }

    /// Reads the manifest of the last candidate, the newest superblock that was not tried.
    fn next(
        &mut self,
        raw: [Vec<u8>; 2],
        found: Found,
        candidates: Vec<usize>,
        error: Option<Error>,
    ) -> Result<ProcedureStep<Volume>, Error> {
        let superblock = candidates.last().and_then(|&index| found[index].as_ref().ok());
        let Some(superblock) = superblock else {
            let [a, b] = found;
            let of_superblocks =
                a.err().filter(|a| *a != VolumeFormatError::Magic.into()).or(b.err());
            return Err(error
                .or(of_superblocks)
                .unwrap_or_else(|| VolumeFormatError::Magic.into()));
        };
        let needed = superblock.geometry.capacity_units() * superblock.geometry.unit_bytes();
        if needed > self.device.bytes {
            return Err(Error::TooSmall { bytes: self.device.bytes, needed });
        }
        if superblock.manifest_bytes > MANIFEST_MAX {
            return Err(VolumeFormatError::Limit("bytes of the manifest").into());
        }
        let offset = superblock.manifest_unit * superblock.geometry.unit_bytes();
        let length = superblock.manifest_bytes.next_multiple_of(4096);
        self.state = State::Manifest { raw, found, candidates, error };
        Ok(ProcedureStep::Ask(vec![Request::Read { offset, length }]))
    }

    fn manifest(
        &mut self,
        outcome: OperationOutcome,
        (raw, found): ([Vec<u8>; 2], Found),
        mut candidates: Vec<usize>,
        error: Option<Error>,
    ) -> Result<ProcedureStep<Volume>, Error> {
        let current = candidates.pop().ok_or(VolumeFormatError::Magic)?;
        let superblock = found[current].clone()?;
        match data(outcome).and_then(|bytes| Ok(decode(&superblock, &bytes)?)) {
            Ok(table) => self.volume(raw, &found, current, table).map(ProcedureStep::Done),
            Err(Error::Format(VolumeFormatError::Newer)) => Err(VolumeFormatError::Newer.into()),
            Err(new) => self.next(raw, found, candidates, error.or(Some(new))),
        }
    }

    fn volume(
        &self,
        raw: [Vec<u8>; 2],
        found: &Found,
        current: usize,
        table: CheckpointTable,
    ) -> Result<Volume, Error> {
        let superblock = found[current].clone()?;
        let good = |one: &Result<Superblock, Error>| one.as_ref().ok().copied();
        let last_generation =
            found.iter().filter_map(good).map(|one| one.generation).max().unwrap_or(0);
        let geometry = superblock.geometry;
        let mut manifest_extents = [None; 2];
        manifest_extents[current] = Some(manifest_extent(&superblock));
        // The manifest of the older superblock is not free: a reader uses it if the newer
        // superblock is damaged.
        let older = good(&found[1 - current])
            .filter(|older| older.uuid == superblock.uuid && older.geometry == geometry)
            .filter(|older| older.generation < superblock.generation)
            .map(|older| manifest_extent(&older));
        let used = |older: Option<Extent>| {
            let manifests = manifest_extents.iter().flatten().copied().chain(older);
            let mut used: Vec<_> = table.extents().chain(manifests).collect();
            used.sort_unstable();
            used.dedup();
            FreeSpace::new(geometry.first_unit(), geometry.capacity_units(), &used)
        };
        let (free, older) = match used(older) {
            Ok(free) => (free, older),
            Err(_) => (used(None)?, None),
        };
        manifest_extents[1 - current] = older;
        Ok(Volume {
            device: self.device,
            raw,
            current,
            superblock,
            last_generation,
            table,
            manifest_extents,
            free,
            lease: None,
            is_unknown: false,
        })
    }
}

/// Verifies and parses a manifest, which may be followed by padding.
fn decode(superblock: &Superblock, bytes: &[u8]) -> Result<CheckpointTable, VolumeFormatError> {
    let length = usize::try_from(superblock.manifest_bytes).map_err(|_| VolumeFormatError::Cut)?;
    let bytes = bytes.get(..length).ok_or(VolumeFormatError::Cut)?;
    let is_good = crc32c::crc32c(bytes) == superblock.manifest_crc32c;
    if !is_good && !deliberate_bugs::has(Bug::IgnoreManifestCrc) {
        return Err(VolumeFormatError::Crc);
    }
    CheckpointTable::decode(bytes, superblock.uuid, superblock.generation, &superblock.geometry)
}

impl Procedure for Opening {
    type Output = Volume;

    fn advance(&mut self, outcomes: Vec<OperationOutcome>) -> Result<ProcedureStep<Volume>, Error> {
        match std::mem::replace(&mut self.state, State::Begin) {
            State::Begin => {
                all_done(outcomes)?;
                self.state = State::Superblocks;
                Ok(ProcedureStep::Ask(superblock_reads()))
            }
            State::Superblocks => self.superblocks(outcomes),
            State::Manifest { raw, found, candidates, error } => {
                let outcome = outcomes.into_iter().next().unwrap_or(OperationOutcome::Done);
                self.manifest(outcome, (raw, found), candidates, error)
            }
        }
    }
}
