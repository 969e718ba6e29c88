//! Options of volumes and stores.

use std::time::Duration;

use uuid::Uuid;

/// How a namespace is formatted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormatOptions {
    /// Binary logarithm of the size of a unit, 12 to 24. A unit is what is allocated, and has one
    /// checksum. Default: 20, which is 1 MiB.
    pub unit_shift: u32,
    /// Whether to destroy a file system, partition table, archive or volume that the namespace
    /// holds. Default: false.
    pub is_forced: bool,
    /// UUID of the volume. Default: a random one.
    pub uuid: Uuid,
}

impl Default for FormatOptions {
    fn default() -> Self {
        Self { unit_shift: 20, is_forced: false, uuid: Uuid::new_v4() }
    }
}

/// How a volume is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreOptions {
    /// Length of the writer's lease, which is renewed when half of it has passed. After a writer
    /// was killed, the next can begin when this time and 30 s have passed. Default: 60 s.
    pub lease: Duration,
    /// Registered memory for data on its way, for the save and for reads each. It is at least one
    /// unit. Default: 64 MiB.
    pub staging_bytes: usize,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self { lease: Duration::from_secs(60), staging_bytes: 64 << 20 }
    }
}
