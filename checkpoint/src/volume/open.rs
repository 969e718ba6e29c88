//! Opening of the volume on a namespace.

use super::{NamespaceAttributes, Volume, all_done, data};
use crate::allocation::{Extent, FreeSpace};
use crate::deliberate_bugs::{self, Bug};
use crate::error::{Error, VolumeFormatError};
use crate::manifest::{CheckpointTable, TableOrigin};
use crate::operation::{OperationOutcome, Request};
use crate::run::{Procedure, ProcedureStep};
use crate::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS, Superblock};

/// Procedure that opens a volume: reads both superblocks, then the manifest of the newest valid
/// one: its first copy, and if that is damaged or unreadable its second copy. If both are, it
/// continues with the manifest of the other superblock. A copy that is damaged may have been
/// overwritten after commits of a writer: the procedure begins again if the superblocks have
/// changed.
#[derive(Debug)]
pub struct Opening {
    device: NamespaceAttributes,
    state: State,
    /// How often it may begin again.
    restarts: u32,
}

/// How often a volume is opened again that is changed while it is opened.
const RESTARTS: u32 = 16;

#[derive(Debug)]
enum State {
    Begin,
    Superblocks,
    Manifest {
        raw: [Vec<u8>; 2],
        found: Found,
        candidates: Vec<Candidate>,
        error: Option<Error>,
    },
    /// A copy was damaged, and the superblocks are read again.
    Again {
        raw: [Vec<u8>; 2],
        found: Found,
        candidates: Vec<Candidate>,
        error: Option<Error>,
    },
}

/// Superblocks A and B, or why they are not valid.
type Found = [Result<Superblock, Error>; 2];

pub(super) fn superblock_reads() -> Vec<Request> {
    let read = |offset| Request::Read { offset, length: SUPERBLOCK_BYTES as u64 };
    SUPERBLOCK_OFFSETS.map(read).to_vec()
}

/// Copy of a manifest that may be read.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    /// Index of the superblock that names it.
    slot: usize,
    /// Index of the copy, 0 or 1.
    copy: usize,
}

pub(super) fn manifest_read(superblock: &Superblock, copy: usize) -> Request {
    let offset = superblock.manifest_units[copy] * superblock.geometry.unit_bytes();
    Request::Read { offset, length: superblock.manifest_bytes.next_multiple_of(4096) }
}

impl Opening {
    /// Makes the procedure for the volume on a namespace. It writes nothing.
    pub fn new(device: NamespaceAttributes) -> Self {
        Self { device, state: State::Begin, restarts: RESTARTS }
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
        let mut slots: Vec<_> = (0..2).filter(|&slot| found[slot].is_ok()).collect();
        slots.sort_by_key(|&slot| found[slot].as_ref().map_or(0, |one| one.generation));
        let copies = |slot| [1, 0].map(|copy| Candidate { slot, copy });
        let candidates = slots.into_iter().flat_map(copies).collect();
        let raw = [0, 1].map(|index: usize| bytes[index].clone().unwrap_or_default());
        self.next(raw, found, candidates, None)
    }

    /// Reads the last candidate, which is the newest one.
    fn next(
        &mut self,
        raw: [Vec<u8>; 2],
        found: Found,
        candidates: Vec<Candidate>,
        error: Option<Error>,
    ) -> Result<ProcedureStep<Volume>, Error> {
        let last = candidates.last();
        let named = last.and_then(|last| Some((found[last.slot].as_ref().ok()?, last.copy)));
        let Some((superblock, copy)) = named else {
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
        let read = manifest_read(superblock, copy);
        self.state = State::Manifest { raw, found, candidates, error };
        Ok(ProcedureStep::Ask(vec![read]))
    }

    fn manifest(
        &mut self,
        outcome: OperationOutcome,
        (raw, found): ([Vec<u8>; 2], Found),
        mut candidates: Vec<Candidate>,
        error: Option<Error>,
    ) -> Result<ProcedureStep<Volume>, Error> {
        let candidate = candidates.pop().ok_or(VolumeFormatError::Magic)?;
        let superblock = found[candidate.slot].clone()?;
        match data(outcome).and_then(|bytes| Ok(decode(&superblock, &bytes)?)) {
            Ok(decoded) => self.volume(raw, &found, candidate, decoded).map(ProcedureStep::Done),
            Err(Error::Format(VolumeFormatError::Newer)) => Err(VolumeFormatError::Newer.into()),
            Err(new) => {
                if deliberate_bugs::has(Bug::IgnoreSecondCopy) {
                    candidates.retain(|other| other.slot != candidate.slot);
                }
                let error = error.or(Some(new));
                if self.restarts == 0 || deliberate_bugs::has(Bug::IgnoreChange) {
                    return self.next(raw, found, candidates, error);
                }
                self.state = State::Again { raw, found, candidates, error };
                Ok(ProcedureStep::Ask(superblock_reads()))
            }
        }
    }

    /// Begins again if the superblocks are not those that were read before.
    fn again(
        &mut self,
        outcomes: Vec<OperationOutcome>,
        (raw, found): ([Vec<u8>; 2], Found),
        candidates: Vec<Candidate>,
        error: Option<Error>,
    ) -> Result<ProcedureStep<Volume>, Error> {
        let is_same = |(outcome, before): (&OperationOutcome, &Vec<u8>)| {
            *before == data(outcome.clone()).unwrap_or_default()
        };
        if outcomes.iter().zip(&raw).all(is_same) {
            return self.next(raw, found, candidates, error);
        }
        self.restarts -= 1;
        self.superblocks(outcomes)
    }

    fn volume(
        &self,
        raw: [Vec<u8>; 2],
        found: &Found,
        Candidate { slot: current, copy }: Candidate,
        (table, origin): (CheckpointTable, TableOrigin),
    ) -> Result<Volume, Error> {
        let superblock = found[current].clone()?;
        let good = |one: &Result<Superblock, Error>| one.as_ref().ok().copied();
        let last_generation =
            found.iter().filter_map(good).map(|one| one.generation).max().unwrap_or(0);
        let geometry = superblock.geometry;
        let present = superblock.manifest_extents();
        // The manifest of the older superblock is not free: a reader uses it if the newer
        // superblock is damaged.
        let older = good(&found[1 - current])
            .filter(|older| older.uuid == superblock.uuid && older.geometry == geometry)
            .filter(|older| older.generation < superblock.generation)
            .map(|older| older.manifest_extents());
        let used = |older: Option<[Extent; 2]>| {
            // Both superblocks may name one manifest.
            let older = older.filter(|older| *older != present);
            let manifests = older.into_iter().flatten().chain(present);
            let used: Vec<_> = table.extents().chain(manifests).collect();
            FreeSpace::new(geometry.first_unit(), geometry.capacity_units(), &used)
        };
        let (free, older) = match used(older) {
            Ok(free) => (free, older),
            Err(_) => (used(None)?, None),
        };
        let mut manifest_extents = [older; 2];
        manifest_extents[current] = Some(present);
        Ok(Volume {
            device: self.device,
            raw,
            current,
            superblock,
            last_generation,
            table,
            origin,
            manifest_extents,
            // The second copy is read after the first one has failed.
            damaged_copies: [copy == 1, false],
            free,
            lease: None,
            is_unknown: false,
        })
    }
}

/// Verifies and parses a copy of the manifest, which may be followed by padding. Returns the table
/// and the commit that made it.
pub(super) fn decode(
    superblock: &Superblock,
    bytes: &[u8],
) -> Result<(CheckpointTable, TableOrigin), VolumeFormatError> {
    let length = usize::try_from(superblock.manifest_bytes).map_err(|_| VolumeFormatError::Cut)?;
    let bytes = bytes.get(..length).ok_or(VolumeFormatError::Cut)?;
    let is_good = crc32c::crc32c(bytes) == superblock.manifest_crc32c;
    if !is_good && !deliberate_bugs::has(Bug::IgnoreManifestCrc) {
        return Err(VolumeFormatError::Crc);
    }
    let Superblock { uuid, generation, geometry, .. } = superblock;
    CheckpointTable::decode(bytes, *uuid, *generation, geometry)
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
            State::Again { raw, found, candidates, error } => {
                self.again(outcomes, (raw, found), candidates, error)
            }
        }
    }
}
