//! The table of the checkpoints of a volume, and its encoded form, the manifest.

use std::collections::BTreeSet;

use uuid::Uuid;

use crate::allocation::{Extent, FreeSpace};
use crate::error::VolumeFormatError;
use crate::name::{CheckpointName, EntryName};
use crate::record::{self, Record};
use crate::superblock::{Geometry, MANIFEST_MAX};

const METADATA_MAX: usize = 1 << 20;
const CHECKPOINTS_MAX: usize = 65_536;
const MAGIC: &[u8; 8] = b"FRCKPTM\0";
const VERSION: u32 = 1;
/// Generation in the header of an incomplete table.
const INCOMPLETE: u64 = 0;
/// Bytes of magic, version, reserved, UUID and generation.
const HEADER_BYTES: usize = 40;

const CHECKPOINT: u16 = 1;
const NAME: u16 = 2;
const STEP: u16 = 3;
const CREATED: u16 = 4;
const METADATA: u16 = 5;
const ENTRY: u16 = 6;
const LENGTH: u16 = 7;
const EXTENTS: u16 = 8;
const CHECKSUMS: u16 = 9;
const BEFORE_REPAIR: u16 = 10;

/// Commit that made the table of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableOrigin {
    /// The commit of this generation.
    Committed(u64),
    /// None: a repair is copying the table from another replica, and parts of it are missing.
    Incomplete {
        /// Generation of the complete table before the repair; `None` if the replica may have lost
        /// a newer one by damage.
        before: Option<u64>,
    },
}

/// Table of the checkpoints of a volume. The manifest is its encoded form on the namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckpointTable {
    /// Checkpoints in the order in which they were committed; each name occurs once.
    pub checkpoints: Vec<Checkpoint>,
}

/// State of a training job at one step: entries that were committed together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Name, which no other checkpoint of the volume has.
    pub name: CheckpointName,
    /// Training step, as the writer gave it.
    pub step: u64,
    /// Time at which the save began, in milliseconds since 1970.
    pub created_ms: u64,
    /// Metadata of the user, at most 1 MiB; this crate does not interpret it.
    pub metadata: Vec<u8>,
    /// Entries in the order in which they were added; each name occurs once.
    pub entries: Vec<CheckpointEntry>,
}

/// Named sequence of bytes in a checkpoint, such as a tensor or a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointEntry {
    /// Name, which no other entry of the checkpoint has.
    pub name: EntryName,
    /// Length of the entry, in bytes.
    pub length: u64,
    /// Units with the bytes of the entry, in the order of the bytes.
    pub extents: Vec<Extent>,
    /// CRC-32C of each unit. That of the last unit covers the bytes of the entry only.
    pub checksums: Vec<u32>,
}

impl TableOrigin {
    /// Returns the generation of the last complete table, `None` if it may have been lost.
    pub(crate) fn generation(self) -> Option<u64> {
        match self {
            Self::Committed(generation) => Some(generation),
            Self::Incomplete { before } => before,
        }
    }
}

impl Checkpoint {
    /// Makes a checkpoint that gets its first entry now, with the step in its name.
    pub(crate) fn empty(name: CheckpointName, created_ms: u64) -> Self {
        let (step, metadata, entries) = (name.step(), Vec::new(), Vec::new());
        Self { name, step, created_ms, metadata, entries }
    }

    /// Whether another checkpoint has the same facts and bytes, wherever the bytes are.
    pub fn has_same_bytes(&self, other: &Self) -> bool {
        let facts = |one: &Self| (one.name.clone(), one.step, one.created_ms);
        let is_same = |(one, other): (&CheckpointEntry, &CheckpointEntry)| {
            one.name == other.name && one.length == other.length && one.checksums == other.checksums
        };
        facts(self) == facts(other)
            && self.metadata == other.metadata
            && self.entries.len() == other.entries.len()
            && self.entries.iter().zip(&other.entries).all(is_same)
    }
}

impl CheckpointEntry {
    /// Returns the unit of the namespace that holds unit `index` of the entry.
    pub(crate) fn unit(&self, index: u64) -> Option<u64> {
        let mut rest = index;
        for extent in &self.extents {
            if rest < extent.units {
                return Some(extent.first + rest);
            }
            rest -= extent.units;
        }
        None
    }
}

impl CheckpointTable {
    /// Returns the checkpoint of this name.
    pub fn checkpoint(&self, name: &str) -> Option<&Checkpoint> {
        self.checkpoints.iter().find(|checkpoint| checkpoint.name.as_str() == name)
    }

    /// Returns the extents of all entries of all checkpoints.
    pub(crate) fn extents(&self) -> impl Iterator<Item = Extent> + '_ {
        let entries = self.checkpoints.iter().flat_map(|checkpoint| &checkpoint.entries);
        entries.flat_map(|entry| entry.extents.iter().copied())
    }

    /// Parses the manifest that a superblock of this volume and generation names, with the commit
    /// that made it.
    ///
    /// # Errors
    /// [`VolumeFormatError::Newer`] for a version or a required record that is unknown; the other
    /// variants for bytes that no writer stores.
    pub fn decode(
        bytes: &[u8],
        uuid: Uuid,
        generation: u64,
        geometry: &Geometry,
    ) -> Result<(Self, TableOrigin), VolumeFormatError> {
        let (header, rest) = bytes.split_at_checked(HEADER_BYTES).ok_or(VolumeFormatError::Cut)?;
        if !header.starts_with(MAGIC) {
            return Err(VolumeFormatError::Magic);
        }
        if header[8..12] != VERSION.to_le_bytes() {
            return Err(VolumeFormatError::Newer);
        }
        if header[16..32] != *uuid.as_bytes() {
            return Err(VolumeFormatError::Field("uuid"));
        }
        let (_, written) = header.split_last_chunk().ok_or(VolumeFormatError::Cut)?;
        let written = u64::from_le_bytes(*written);
        if written > generation {
            return Err(VolumeFormatError::Field("generation"));
        }
        let mut table = Self::default();
        let mut before = None;
        for record in record::records(rest) {
            let record = record?;
            match record.tag {
                CHECKPOINT => table.checkpoints.push(checkpoint(&record, geometry)?),
                BEFORE_REPAIR => before = Some(record.u64("before_repair")?),
                _ => record.unknown()?,
            }
            if table.checkpoints.len() > CHECKPOINTS_MAX {
                return Err(VolumeFormatError::Limit("checkpoints"));
            }
        }
        let names = table.checkpoints.iter().map(|checkpoint| checkpoint.name.as_str());
        distinct(names)?;
        let used: Vec<_> = table.extents().collect();
        FreeSpace::new(geometry.first_unit(), geometry.capacity_units(), &used)?;
        let origin = match written {
            INCOMPLETE => TableOrigin::Incomplete { before },
            generation => TableOrigin::Committed(generation),
        };
        Ok((table, origin))
    }

    /// Returns the manifest: the bytes of this table of a volume.
    ///
    /// # Errors
    /// [`VolumeFormatError::Limit`] for too many checkpoints, or too many bytes of metadata or of
    /// the manifest.
    pub fn encode(&self, uuid: Uuid, origin: TableOrigin) -> Result<Vec<u8>, VolumeFormatError> {
        let (generation, before) = match origin {
            TableOrigin::Committed(generation) => (generation, None),
            TableOrigin::Incomplete { before } => (INCOMPLETE, before),
        };
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(uuid.as_bytes());
        bytes.extend(generation.to_le_bytes());
        if self.checkpoints.len() > CHECKPOINTS_MAX {
            return Err(VolumeFormatError::Limit("checkpoints"));
        }
        for checkpoint in &self.checkpoints {
            record::push(&mut bytes, CHECKPOINT, &encode_checkpoint(checkpoint)?)?;
        }
        if let Some(before) = before {
            record::push_optional(&mut bytes, BEFORE_REPAIR, &before.to_le_bytes())?;
        }
        let is_short = bytes.len() as u64 <= MANIFEST_MAX;
        if is_short { Ok(bytes) } else { Err(VolumeFormatError::Limit("bytes of the manifest")) }
    }
}

fn encode_checkpoint(checkpoint: &Checkpoint) -> Result<Vec<u8>, VolumeFormatError> {
    if checkpoint.metadata.len() > METADATA_MAX {
        return Err(VolumeFormatError::Limit("bytes of metadata"));
    }
    let mut bytes = Vec::new();
    record::push(&mut bytes, NAME, checkpoint.name.as_str().as_bytes())?;
    record::push(&mut bytes, STEP, &checkpoint.step.to_le_bytes())?;
    record::push(&mut bytes, CREATED, &checkpoint.created_ms.to_le_bytes())?;
    record::push(&mut bytes, METADATA, &checkpoint.metadata)?;
    for entry in &checkpoint.entries {
        record::push(&mut bytes, ENTRY, &encode_entry(entry)?)?;
    }
    Ok(bytes)
}

fn encode_entry(entry: &CheckpointEntry) -> Result<Vec<u8>, VolumeFormatError> {
    let mut bytes = Vec::new();
    record::push(&mut bytes, NAME, entry.name.as_str().as_bytes())?;
    record::push(&mut bytes, LENGTH, &entry.length.to_le_bytes())?;
    let extents: Vec<u8> = entry
        .extents
        .iter()
        .flat_map(|extent| [extent.first.to_le_bytes(), extent.units.to_le_bytes()].concat())
        .collect();
    record::push(&mut bytes, EXTENTS, &extents)?;
    let checksums: Vec<u8> = entry.checksums.iter().flat_map(|crc| crc.to_le_bytes()).collect();
    record::push(&mut bytes, CHECKSUMS, &checksums)?;
    Ok(bytes)
}

fn checkpoint(record: &Record<'_>, geometry: &Geometry) -> Result<Checkpoint, VolumeFormatError> {
    let (mut name, mut step, mut created_ms) = (None, None, None);
    let mut metadata = Vec::new();
    let mut entries = Vec::new();
    for record in record::records(record.bytes) {
        let record = record?;
        match record.tag {
            NAME => name = Some(CheckpointName::new(record.text("name")?)?),
            STEP => step = Some(record.u64("step")?),
            CREATED => created_ms = Some(record.u64("created")?),
            METADATA if record.bytes.len() > METADATA_MAX => {
                return Err(VolumeFormatError::Limit("bytes of metadata"));
            }
            METADATA => metadata = record.bytes.to_vec(),
            ENTRY => entries.push(entry(&record, geometry)?),
            _ => record.unknown()?,
        }
    }
    distinct(entries.iter().map(|entry: &CheckpointEntry| entry.name.as_str()))?;
    Ok(Checkpoint {
        name: name.ok_or(VolumeFormatError::Field("name"))?,
        step: step.ok_or(VolumeFormatError::Field("step"))?,
        created_ms: created_ms.ok_or(VolumeFormatError::Field("created"))?,
        metadata,
        entries,
    })
}

fn entry(record: &Record<'_>, geometry: &Geometry) -> Result<CheckpointEntry, VolumeFormatError> {
    let (mut name, mut length, mut extents, mut checksums) = (None, None, None, None);
    for record in record::records(record.bytes) {
        let record = record?;
        match record.tag {
            NAME => name = Some(EntryName::new(record.text("name")?)?),
            LENGTH => length = Some(record.u64("length")?),
            EXTENTS => extents = Some(decode_extents(record.bytes, geometry)?),
            CHECKSUMS => {
                let (words, rest) = record.bytes.as_chunks::<4>();
                if !rest.is_empty() {
                    return Err(VolumeFormatError::Field("checksums"));
                }
                checksums = Some(words.iter().map(|word| u32::from_le_bytes(*word)).collect());
            }
            _ => record.unknown()?,
        }
    }
    let entry = CheckpointEntry {
        name: name.ok_or(VolumeFormatError::Field("name"))?,
        length: length.ok_or(VolumeFormatError::Field("length"))?,
        extents: extents.ok_or(VolumeFormatError::Field("extents"))?,
        checksums: checksums.ok_or(VolumeFormatError::Field("checksums"))?,
    };
    let units = geometry.units_of(entry.length);
    let mut sum = 0_u64;
    for extent in &entry.extents {
        sum = sum.checked_add(extent.units).ok_or(VolumeFormatError::Field("extents"))?;
    }
    let is_sound = sum == units && entry.checksums.len() as u64 == units;
    if is_sound { Ok(entry) } else { Err(VolumeFormatError::Field("length")) }
}

fn decode_extents(bytes: &[u8], geometry: &Geometry) -> Result<Vec<Extent>, VolumeFormatError> {
    let (pairs, rest) = bytes.as_chunks::<16>();
    if !rest.is_empty() {
        return Err(VolumeFormatError::Field("extents"));
    }
    let extents = pairs.iter().map(|pair| {
        let pair = u128::from_le_bytes(*pair);
        let extent = Extent { first: pair as u64, units: (pair >> 64) as u64 };
        let end = extent.first.checked_add(extent.units);
        let is_inside = extent.first >= geometry.first_unit()
            && extent.units > 0
            && end.is_some_and(|end| end <= geometry.capacity_units());
        if is_inside { Ok(extent) } else { Err(VolumeFormatError::Field("extents")) }
    });
    extents.collect()
}

fn distinct<'a>(mut names: impl Iterator<Item = &'a str>) -> Result<(), VolumeFormatError> {
    let mut seen = BTreeSet::new();
    if names.all(|name| seen.insert(name)) { Ok(()) } else { Err(VolumeFormatError::Field("name")) }
}
