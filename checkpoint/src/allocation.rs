//! Free space of a volume, in units of its geometry.

use crate::error::{Error, VolumeFormatError};

/// Adjacent units of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extent {
    /// First unit, counted from the beginning of the namespace.
    pub first: u64,
    /// Number of units, at least 1.
    pub units: u64,
}

impl Extent {
    /// Returns the number of the first unit behind the extent.
    pub fn end(&self) -> u64 {
        self.first + self.units
    }
}

/// Free extents of a volume, sorted by address; no two of them are adjacent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FreeSpace(Vec<Extent>);

impl FreeSpace {
    /// Makes the free space of the units `first..end` without the extents in `used`. Fails if two
    /// of these overlap, or if one lies outside of `first..end`.
    pub(crate) fn new(first: u64, end: u64, used: &[Extent]) -> Result<Self, VolumeFormatError> {
        let mut used = used.to_vec();
        used.sort_unstable();
        let mut free = Vec::new();
        let mut next = first;
        for extent in used {
            if extent.first < next {
                return Err(VolumeFormatError::Overlap);
            }
            free.push(Extent { first: next, units: extent.first - next });
            next = extent.end();
        }
        let last = end.checked_sub(next).ok_or(VolumeFormatError::Field("extent"))?;
        free.push(Extent { first: next, units: last });
        free.retain(|extent| extent.units > 0);
        Ok(Self(free))
    }

    /// Returns the total number of free units.
    pub(crate) fn units(&self) -> u64 {
        self.0.iter().map(|extent| extent.units).sum()
    }

    /// Allocates units from the lowest addresses. `unit_bytes` is for the error.
    pub(crate) fn take(&mut self, units: u64, unit_bytes: u64) -> Result<Vec<Extent>, Error> {
        if units > self.units() {
            let needed_bytes = units.saturating_mul(unit_bytes);
            return Err(Error::CapacityExceeded {
                needed_bytes,
                free_bytes: self.units() * unit_bytes,
            });
        }
        let mut taken = Vec::new();
        let mut missing = units;
        while missing > 0 {
            let free = &mut self.0[0];
            let part = Extent { first: free.first, units: missing.min(free.units) };
            free.first += part.units;
            free.units -= part.units;
            missing -= part.units;
            taken.push(part);
            self.0.retain(|extent| extent.units > 0);
        }
        Ok(taken)
    }

    /// Allocates two extents as far from each other as possible, each of `units` adjacent units: at
    /// the beginning of the first free extent that is large enough, and at the end of the last one.
    /// They are adjacent only if there is no other free unit.
    pub(crate) fn take_pair(&mut self, units: u64, unit_bytes: u64) -> Result<[Extent; 2], Error> {
        let full = Error::CapacityExceeded {
            needed_bytes: units.saturating_mul(2).saturating_mul(unit_bytes),
            free_bytes: self.units() * unit_bytes,
        };
        let has_room = |free: &&mut Extent| free.units >= units;
        let low = self.0.iter_mut().find(has_room).ok_or_else(|| full.clone())?;
        let first = Extent { first: low.first, units };
        low.first += units;
        low.units -= units;
        let second = self.0.iter_mut().rfind(has_room).map(|high| {
            high.units -= units;
            Extent { first: high.end(), units }
        });
        self.0.retain(|extent| extent.units > 0);
        let Some(second) = second else {
            self.free(&[first]);
            return Err(full);
        };
        Ok([first, second])
    }

    /// Whether [`FreeSpace::take_pair`] of these units succeeds.
    pub(crate) fn has_pair(&self, units: u64) -> bool {
        self.0.iter().map(|extent| extent.units / units).sum::<u64>() >= 2
    }

    /// Marks allocated units as free, and merges adjacent extents.
    pub(crate) fn free(&mut self, extents: &[Extent]) {
        self.0.extend(extents);
        self.0.sort_unstable();
        self.0.dedup_by(|next, last| {
            let joins = last.end() == next.first;
            if joins {
                last.units += next.units;
            }
            joins
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocated_units_can_be_freed() {
        let used = [Extent { first: 4, units: 2 }];
        let mut free = FreeSpace::new(2, 10, &used).unwrap();
        let before = free.clone();
        let taken = free.take(3, 1).unwrap();
        assert_eq!(taken, [Extent { first: 2, units: 2 }, Extent { first: 6, units: 1 }]);
        assert!(matches!(free.take(4, 1), Err(Error::CapacityExceeded { free_bytes: 3, .. })));
        free.free(&taken);
        assert_eq!(free, before);
        let pair = [Extent { first: 2, units: 2 }, Extent { first: 8, units: 2 }];
        assert_eq!(free.take_pair(2, 1), Ok(pair));
        free.free(&pair);
        assert!(free.has_pair(2) && !free.has_pair(3));
        free.take_pair(3, 1).unwrap_err();
        assert_eq!(free, before);
        let apart = [Extent { first: 2, units: 1 }, Extent { first: 9, units: 1 }];
        assert_eq!(free.take_pair(1, 1), Ok(apart));
    }

    #[test]
    fn overlaps_are_refused() {
        let used = [Extent { first: 4, units: 2 }, Extent { first: 5, units: 1 }];
        assert_eq!(FreeSpace::new(2, 10, &used), Err(VolumeFormatError::Overlap));
        let used = [Extent { first: 9, units: 2 }];
        assert_eq!(FreeSpace::new(2, 10, &used), Err(VolumeFormatError::Field("extent")));
    }
}
