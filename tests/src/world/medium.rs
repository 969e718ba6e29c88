//! The content of a simulated disk: in its volatile cache, and on the medium that a power loss
//! leaves.

use std::collections::BTreeMap;

use super::Random;

/// The unit of a disk's writes: a power loss tears between sectors, never within one.
pub(super) const SECTOR_BYTES: usize = 512;

type Sector = [u8; SECTOR_BYTES];

/// Bytes that are read back as they were written, until the power goes.
pub(super) struct Medium {
    /// The bytes that a read returns.
    bytes: Vec<u8>,
    /// Contents that a power loss may leave in each sector that is not durable as it is: the
    /// durable ones first and the present ones last, each with the number of the write that made
    /// it.
    unsettled: BTreeMap<usize, Vec<(u64, Box<Sector>)>>,
    /// Number of writes until now.
    writes: u64,
}

/// A moment in the life of a medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark(u64);

impl Medium {
    /// A medium that holds these bytes durably; whole sectors.
    pub(super) fn new(bytes: Vec<u8>) -> Self {
        assert!(bytes.len().is_multiple_of(SECTOR_BYTES), "whole sectors");
        Self { bytes, unsettled: BTreeMap::new(), writes: 0 }
    }

    /// The present contents, durable or not.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Puts whole sectors into the cache.
    pub(super) fn write(&mut self, offset: usize, bytes: &[u8]) {
        assert!(offset.is_multiple_of(SECTOR_BYTES), "at a sector");
        self.writes += 1;
        for (index, sector) in bytes.chunks_exact(SECTOR_BYTES).enumerate() {
            self.write_sector(offset / SECTOR_BYTES + index, sector);
        }
    }

    fn write_sector(&mut self, sector: usize, new: &[u8]) {
        let at = sector * SECTOR_BYTES;
        let place = &mut self.bytes[at..at + SECTOR_BYTES];
        let versions = self.unsettled.entry(sector).or_default();
        if versions.is_empty() {
            versions.push((0, boxed(place)));
        }
        versions.push((self.writes, boxed(new)));
        place.copy_from_slice(new);
    }

    /// Makes sectors durable as they are now.
    pub(super) fn persist(&mut self, offset: usize, length: usize) {
        let sectors = offset / SECTOR_BYTES..(offset + length).div_ceil(SECTOR_BYTES);
        let settled: Vec<usize> =
            self.unsettled.range(sectors).map(|(&sector, _)| sector).collect();
        for sector in settled {
            self.unsettled.remove(&sector);
        }
    }

    /// The present moment, to compare later ones with.
    pub(super) fn mark(&self) -> Mark {
        Mark(self.writes)
    }

    /// Makes all durable that was written before a moment.
    pub(super) fn persist_until(&mut self, Mark(until): Mark) {
        self.unsettled.retain(|_, versions| {
            let older = versions.iter().take_while(|(write, _)| *write <= until).count();
            versions.drain(..older.saturating_sub(1));
            versions.len() > 1
        });
    }

    /// Leaves of each sector one of the contents that it may have. Returns how many sectors lost
    /// their latest.
    pub(super) fn lose_power(&mut self, random: &mut Random) -> u64 {
        let mut lost = 0;
        for (sector, versions) in std::mem::take(&mut self.unsettled) {
            let survivor = random.within(0..versions.len() as u64) as usize;
            lost += u64::from(survivor + 1 < versions.len());
            let at = sector * SECTOR_BYTES;
            self.bytes[at..at + SECTOR_BYTES].copy_from_slice(&*versions[survivor].1);
        }
        lost
    }
}

fn boxed(sector: &[u8]) -> Box<Sector> {
    Box::new(sector.try_into().expect("the bytes of a sector"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: [u8; 512] = [1; 512];
    const B: [u8; 512] = [2; 512];

    /// The values that a sector may have after a power loss, found by trying.
    fn survivors(prepare: impl Fn(&mut Medium)) -> Vec<u8> {
        let mut seen: Vec<u8> = (0..64)
            .map(|seed| {
                let mut medium = Medium::new(vec![0; 1024]);
                prepare(&mut medium);
                medium.lose_power(&mut Random::new(seed));
                medium.bytes()[0]
            })
            .collect();
        seen.sort_unstable();
        seen.dedup();
        seen
    }

    #[test]
    fn an_unflushed_write_is_readable_and_losable() {
        let mut medium = Medium::new(vec![0; 1024]);
        medium.write(512, &A);
        assert_eq!(medium.bytes()[512..], A);
        assert_eq!(survivors(|medium| medium.write(0, &A)), [0, 1]);
    }

    #[test]
    fn durable_sectors_survive() {
        let durable = |medium: &mut Medium| {
            medium.write(0, &A);
            medium.persist(0, 512);
        };
        assert_eq!(survivors(durable), [1]);
        assert_eq!(
            survivors(|medium| {
                durable(medium);
                medium.write(0, &B);
            }),
            [1, 2]
        );
    }

    #[test]
    fn a_flush_covers_earlier_writes() {
        let flush_between = |medium: &mut Medium| {
            medium.write(0, &A);
            let mark = medium.mark();
            medium.write(0, &B);
            medium.persist_until(mark);
        };
        assert_eq!(survivors(flush_between), [1, 2]);
    }

    #[test]
    fn sectors_are_lost_one_by_one() {
        let torn = (0..64).any(|seed| {
            let mut medium = Medium::new(vec![0; 1024]);
            medium.write(0, &[1; 1024]);
            medium.lose_power(&mut Random::new(seed));
            medium.bytes()[0] != medium.bytes()[512]
        });
        assert!(torn);
    }
}
