//! Superblocks: blocks of one atomic write unit that name the manifest and the writer's lease.

use uuid::Uuid;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::allocation::Extent;
use crate::error::VolumeFormatError;

/// Size of a superblock, in bytes.
pub const SUPERBLOCK_BYTES: usize = 4096;

/// Offsets of superblocks A and B in the namespace, in bytes.
pub const SUPERBLOCK_OFFSETS: [u64; 2] = [0, 65_536];

/// Time after the end of a lease in which no other writer takes it, in milliseconds: commands of
/// its writer may still arrive at the namespace.
pub const LEASE_GRACE_MS: u64 = 30_000;

/// Pause of a writer that has taken the lease before it reads the superblocks again, in
/// milliseconds. A writer that found the lease free at the same time writes its own in that time.
pub(crate) const LEASE_SETTLE_MS: u64 = 200;

/// First byte behind the superblocks. Data and manifests begin there, rounded up to a unit.
const DATA_OFFSET: u64 = 131_072;
/// Maximum length of a manifest, in bytes.
pub(crate) const MANIFEST_MAX: u64 = 256 << 20;
const MAGIC: [u8; 8] = *b"FRCKPTV\0";
const VERSION: u32 = 1;

/// Fields of a superblock as they are stored. Zeros and a CRC-32C follow them.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Layout {
    magic: [u8; 8],
    version: U32,
    unit_shift: U32,
    uuid: [u8; 16],
    required_features: U64,
    optional_features: U64,
    generation: U64,
    capacity_units: U64,
    manifest_units: [U64; 2],
    manifest_bytes: U64,
    manifest_crc32c: U32,
    reserved: U32,
    lease_host: [u8; 16],
    lease_number: U64,
    lease_expiry_ms: U64,
}

/// Size of units and number of units of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    unit_shift: u32,
    capacity_units: u64,
}

impl Geometry {
    /// Makes the geometry of a volume on a namespace. A unit has `1 << unit_shift` bytes;
    /// `unit_shift` is 12 to 24, usually 20.
    ///
    /// # Errors
    /// [`VolumeFormatError::Field`] for a wrong `unit_shift` or a namespace without room for data.
    pub fn new(unit_shift: u32, namespace_bytes: u64) -> Result<Self, VolumeFormatError> {
        if !(12..=24).contains(&unit_shift) {
            return Err(VolumeFormatError::Field("unit_shift"));
        }
        let geometry = Self { unit_shift, capacity_units: namespace_bytes >> unit_shift };
        let has_room = geometry.capacity_units > geometry.first_unit();
        if has_room { Ok(geometry) } else { Err(VolumeFormatError::Field("capacity_units")) }
    }

    /// Returns the size of a unit, in bytes.
    pub fn unit_bytes(&self) -> u64 {
        1 << self.unit_shift
    }

    /// Returns the number of the first unit that data or a manifest may have.
    pub fn first_unit(&self) -> u64 {
        DATA_OFFSET.div_ceil(self.unit_bytes())
    }

    /// Returns the number of units, those of the superblocks included.
    pub fn capacity_units(&self) -> u64 {
        self.capacity_units
    }

    /// Returns the number of units that `bytes` bytes need.
    pub fn units_of(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.unit_bytes())
    }
}

/// Right of one writer to change the volume for a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Host of the writer; reported to others.
    pub host: Uuid,
    /// Random number that tells writers apart; never zero.
    pub number: u64,
    /// End of the lease, in milliseconds since 1970.
    pub expiry_ms: u64,
}

/// Contents of a superblock that was read or will be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// UUID of the volume; its replicas have the same.
    pub uuid: Uuid,
    /// Size of units and number of units.
    pub geometry: Geometry,
    /// Number of the superblock, one above that of the one written before; from 1.
    pub generation: u64,
    /// First unit of each of the two copies of the manifest. The units of a copy are adjacent.
    pub manifest_units: [u64; 2],
    /// Length of the manifest, in bytes.
    pub manifest_bytes: u64,
    /// CRC-32C of the manifest, without the padding of its last unit.
    pub manifest_crc32c: u32,
    /// Lease of the writer; `None` if the last writer has released it.
    pub lease: Option<Lease>,
}

impl Superblock {
    /// Parses the first 4096 bytes of a slice.
    ///
    /// # Errors
    /// [`VolumeFormatError::Newer`] for a version or a required feature that is unknown; other
    /// variants for bytes that are not a superblock or are damaged.
    pub fn decode(bytes: &[u8]) -> Result<Self, VolumeFormatError> {
        let (layout, _) = Layout::read_from_prefix(bytes).map_err(|_| VolumeFormatError::Cut)?;
        let (body, crc) = bytes
            .get(..SUPERBLOCK_BYTES)
            .and_then(|bytes| bytes.split_last_chunk::<4>())
            .ok_or(VolumeFormatError::Cut)?;
        if layout.magic != MAGIC {
            return Err(VolumeFormatError::Magic);
        }
        if crc32c::crc32c(body) != u32::from_le_bytes(*crc) {
            return Err(VolumeFormatError::Crc);
        }
        if layout.version != VERSION || layout.required_features != 0 {
            return Err(VolumeFormatError::Newer);
        }
        Self::check(&layout)
    }

    fn check(layout: &Layout) -> Result<Self, VolumeFormatError> {
        let unit_shift = layout.unit_shift.get();
        let bytes = layout.capacity_units.get().checked_shl(unit_shift);
        let bytes = bytes.filter(|bytes| bytes >> unit_shift == layout.capacity_units.get());
        let geometry =
            Geometry::new(unit_shift, bytes.ok_or(VolumeFormatError::Field("capacity_units"))?)?;
        let length = layout.manifest_bytes.get();
        if length == 0 || length > MANIFEST_MAX {
            return Err(VolumeFormatError::Field("manifest_bytes"));
        }
        let manifest_units = layout.manifest_units.map(U64::get);
        let is_inside = |first: u64| {
            let end = first.checked_add(geometry.units_of(length));
            first >= geometry.first_unit() && end.is_some_and(|end| end <= geometry.capacity_units)
        };
        let [first, second] = manifest_units;
        let is_apart = first.abs_diff(second) >= geometry.units_of(length);
        if !(is_inside(first) && is_inside(second) && is_apart) {
            return Err(VolumeFormatError::Field("manifest_units"));
        }
        let generation = layout.generation.get();
        if generation == 0 || generation == u64::MAX {
            return Err(VolumeFormatError::Field("generation"));
        }
        let number = layout.lease_number.get();
        let lease = (number != 0).then(|| Lease {
            host: Uuid::from_bytes(layout.lease_host),
            number,
            expiry_ms: layout.lease_expiry_ms.get(),
        });
        Ok(Self {
            uuid: Uuid::from_bytes(layout.uuid),
            geometry,
            generation,
            manifest_units,
            manifest_bytes: length,
            manifest_crc32c: layout.manifest_crc32c.get(),
            lease,
        })
    }

    /// Returns the units of both copies of the manifest.
    pub(crate) fn manifest_extents(&self) -> [Extent; 2] {
        let units = self.geometry.units_of(self.manifest_bytes);
        self.manifest_units.map(|first| Extent { first, units })
    }

    /// Returns the superblock as the 4096 bytes that are written.
    pub fn encode(&self) -> Vec<u8> {
        let lease = self.lease.unwrap_or(Lease { host: Uuid::nil(), number: 0, expiry_ms: 0 });
        let layout = Layout {
            magic: MAGIC,
            version: VERSION.into(),
            unit_shift: self.geometry.unit_shift.into(),
            uuid: self.uuid.into_bytes(),
            required_features: 0.into(),
            optional_features: 0.into(),
            generation: self.generation.into(),
            capacity_units: self.geometry.capacity_units.into(),
            manifest_units: self.manifest_units.map(U64::new),
            manifest_bytes: self.manifest_bytes.into(),
            manifest_crc32c: self.manifest_crc32c.into(),
            reserved: 0.into(),
            lease_host: lease.host.into_bytes(),
            lease_number: lease.number.into(),
            lease_expiry_ms: lease.expiry_ms.into(),
        };
        let mut bytes = layout.as_bytes().to_vec();
        bytes.resize(SUPERBLOCK_BYTES - 4, 0);
        let crc = crc32c::crc32c(&bytes);
        bytes.extend(crc.to_le_bytes());
        bytes
    }
}
