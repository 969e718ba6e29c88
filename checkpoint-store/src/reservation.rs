//! Reserved space of an entry, which another process can write.

use feedrail_checkpoint::{Checkpoint, CheckpointEntry, EntryName, Extent};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::error::StoreError;

/// Space of an entry of a save on one volume, from [`StoreSave::reserve`](crate::StoreSave). It can
/// be sent to another process, whose [`RankWriter`](crate::RankWriter) writes there under the lease
/// of the save.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryReservation {
    pub(crate) volume: Uuid,
    /// Number of the lease of the store that saves.
    pub(crate) lease: u64,
    /// Random number of the save.
    pub(crate) save: Uuid,
    pub(crate) unit_bytes: u64,
    /// Length of the entry in bytes.
    pub(crate) length: u64,
    /// First unit and number of units of each extent.
    pub(crate) extents: Vec<(u64, u64)>,
}

impl EntryReservation {
    /// Returns the length of the entry in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Returns the number of the unit in the namespace that holds unit `index` of the entry.
    pub(crate) fn unit(&self, mut index: u64) -> Option<u64> {
        for (first, units) in &self.extents {
            if index < *units {
                return first.checked_add(index);
            }
            index -= units;
        }
        None
    }

    /// Returns whether the extents have the units of the entry, are among `units` of the volume,
    /// and have none in common with those of committed checkpoints.
    pub(crate) fn is_free(&self, units: std::ops::Range<u64>, committed: &[Checkpoint]) -> bool {
        let is_inside = |(first, count): &(u64, u64)| {
            *first >= units.start && first.checked_add(*count).is_some_and(|end| end <= units.end)
        };
        if !self.extents.iter().all(is_inside) {
            return false;
        }
        let sum: u64 = self.extents.iter().map(|(_, count)| count).sum();
        let entries = committed.iter().flat_map(|one| &one.entries);
        let mut used = entries.flat_map(|entry| entry.extents.iter());
        sum == self.length.div_ceil(self.unit_bytes) && !used.any(|used| self.has_units_of(used))
    }

    fn has_units_of(&self, other: &Extent) -> bool {
        self.extents
            .iter()
            .any(|(first, count)| *first < other.end() && other.first < first + count)
    }

    /// Returns the entry with these checksums, to read it.
    pub(crate) fn entry(&self, checksums: Vec<u32>) -> Result<CheckpointEntry, StoreError> {
        let name = EntryName::new("reserved")?;
        let extents =
            self.extents.iter().map(|(first, units)| Extent { first: *first, units: *units });
        Ok(CheckpointEntry { name, length: self.length, extents: extents.collect(), checksums })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn space_of_committed_checkpoints_is_refused() {
        let reservation = EntryReservation {
            volume: Uuid::nil(),
            lease: 1,
            save: Uuid::nil(),
            unit_bytes: 4096,
            length: 3 * 4096 - 5,
            extents: vec![(10, 2), (20, 1)],
        };
        let committed = |first, units| Checkpoint {
            name: feedrail_checkpoint::CheckpointName::new("a").unwrap(),
            step: 0,
            created_ms: 0,
            metadata: Vec::new(),
            entries: vec![CheckpointEntry {
                name: EntryName::new("b").unwrap(),
                length: units * 4096,
                extents: vec![Extent { first, units }],
                checksums: vec![0; units as usize],
            }],
        };
        assert!(reservation.is_free(1..100, &[committed(12, 8)]));
        assert!(!reservation.is_free(1..100, &[committed(11, 1)]));
        assert!(!reservation.is_free(1..100, &[committed(15, 6)]));
        assert!(!reservation.is_free(1..20, &[]) && !reservation.is_free(11..100, &[]));
        let short = EntryReservation { length: 4096, ..reservation.clone() };
        assert!(!short.is_free(1..100, &[]));
        assert_eq!((reservation.unit(1), reservation.unit(2)), (Some(11), Some(20)));
        assert_eq!(reservation.unit(3), None);
    }
}
