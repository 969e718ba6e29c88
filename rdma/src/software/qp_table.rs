//! The table of a group's queue pairs, by slot and by queue pair number.

use crate::QpKey;

/// Entries in reusable slots, looked up by number through a hash table with open addressing.
pub(crate) struct QpTable<E> {
    slots: Vec<QueuePairSlot<E>>,
    vacant: Vec<u32>,
    /// Hash table from number to slot; at most half full. The length is a power of two.
    index: Vec<Bucket>,
    len: usize,
}

struct QueuePairSlot<E> {
    /// Number of past uses of the slot, so that the key of a released queue pair is detected as
    /// stale.
    generation: u32,
    entry: Option<(u32, E)>,
}

/// The slot of a number. The number is stored here as well, so that a lookup touches only the entry
/// that it finds: with many queue pairs this table stays in the cache, their entries do not.
#[derive(Clone, Copy)]
struct Bucket {
    number: u32,
    slot: u32,
}

impl Bucket {
    const EMPTY: Self = Self { number: 0, slot: u32::MAX };

    fn is_empty(self) -> bool {
        self.slot == Self::EMPTY.slot
    }
}

impl<E> QpTable<E> {
    /// Creates a table that need not grow until it holds more than `expected` entries.
    pub(crate) fn new(expected: usize) -> Self {
        let buckets = (2 * expected.max(8)).next_power_of_two();
        Self {
            slots: Vec::with_capacity(expected),
            vacant: Vec::with_capacity(expected),
            index: vec![Bucket::EMPTY; buckets],
            len: 0,
        }
    }

    /// Number of slots, in use or not.
    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Adds an entry under a number that is not in the table yet; returns its slot.
    pub(crate) fn insert(&mut self, number: u32, entry: E) -> u32 {
        if 2 * (self.len + 1) > self.index.len() {
            self.grow();
        }
        let slot = match self.vacant.pop() {
            Some(slot) => slot,
            None => {
                self.slots.push(QueuePairSlot { generation: 0, entry: None });
                u32::try_from(self.slots.len() - 1).expect("fewer queue pairs than their numbers")
            }
        };
        self.slots[slot as usize].entry = Some((number, entry));
        self.len += 1;
        self.link(Bucket { number, slot });
        slot
    }

    pub(crate) fn remove(&mut self, slot: u32) -> E {
        let place = &mut self.slots[slot as usize];
        let (number, entry) = place.entry.take().expect("a slot in use");
        place.generation = place.generation.wrapping_add(1);
        self.vacant.push(slot);
        self.len -= 1;
        self.unlink(number);
        entry
    }

    /// The slot of a number; `None` if it is not in the table.
    pub(crate) fn find(&self, number: u32) -> Option<u32> {
        let found = self.index[self.seek(number)];
        (!found.is_empty()).then_some(found.slot)
    }

    /// The entry of a slot, which must be in use.
    pub(crate) fn get(&self, slot: u32) -> &E {
        &self.slots[slot as usize].entry.as_ref().expect("a slot in use").1
    }

    /// The entry of a slot, which must be in use.
    pub(crate) fn get_mut(&mut self, slot: u32) -> &mut E {
        &mut self.slots[slot as usize].entry.as_mut().expect("a slot in use").1
    }

    /// The key of a slot's present entry.
    pub(crate) fn key(&self, slot: u32) -> QpKey {
        QpKey(u64::from(self.slots[slot as usize].generation) << 32 | u64::from(slot))
    }

    /// The slot of a key. Panics if the key is stale, which is a bug of the caller.
    pub(crate) fn slot(&self, QpKey(key): QpKey) -> u32 {
        let slot = u32::try_from(key & u64::from(u32::MAX)).expect("the lower half");
        let place = self.slots.get(slot as usize);
        let fresh =
            place.is_some_and(|p| u64::from(p.generation) == key >> 32 && p.entry.is_some());
        assert!(fresh, "a queue pair key was used after release");
        slot
    }

    /// The entries of all slots in use, in the order of the slots.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &E> {
        self.slots.iter().filter_map(|slot| slot.entry.as_ref().map(|(_, entry)| entry))
    }

    fn bucket(&self, number: u32) -> usize {
        // Numbers are random except for the group's index in the low bits, which the shift removes.
        let hash = number.wrapping_mul(0x9E37_79B1) >> 8;
        hash as usize & (self.index.len() - 1)
    }

    fn after(&self, bucket: usize) -> usize {
        (bucket + 1) & (self.index.len() - 1)
    }

    /// The bucket of a number, or the empty bucket where it would be inserted.
    fn seek(&self, number: u32) -> usize {
        let mut bucket = self.bucket(number);
        while !self.index[bucket].is_empty() && self.index[bucket].number != number {
            bucket = self.after(bucket);
        }
        bucket
    }

    /// Adds a number that is not in the table.
    fn link(&mut self, entry: Bucket) {
        let bucket = self.seek(entry.number);
        self.index[bucket] = entry;
    }

    /// Removes a number that is in the table, and reinserts the numbers after it.
    fn unlink(&mut self, number: u32) {
        let bucket = self.seek(number);
        self.index[bucket] = Bucket::EMPTY;
        let mut next = self.after(bucket);
        while !self.index[next].is_empty() {
            let entry = std::mem::replace(&mut self.index[next], Bucket::EMPTY);
            self.link(entry);
            next = self.after(next);
        }
    }

    fn grow(&mut self) {
        let buckets = 2 * self.index.len();
        let entries = std::mem::replace(&mut self.index, vec![Bucket::EMPTY; buckets]);
        entries.into_iter().filter(|entry| !entry.is_empty()).for_each(|entry| self.link(entry));
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_map(actions in prop::collection::vec((0u32..64, any::<bool>()), 0..400)) {
            let mut table = QpTable::new(2);
            let mut model = BTreeMap::new();
            for (number, insert) in actions {
                let number = number << 8 | 1;
                match (insert, model.get(&number).copied()) {
                    (true, None) => {
                        let slot = table.insert(number, number);
                        model.insert(number, slot);
                    }
                    (false, Some(slot)) => {
                        prop_assert_eq!(table.remove(slot), number);
                        model.remove(&number);
                    }
                    _ => {}
                }
                for number in (0..64).map(|number| number << 8 | 1) {
                    prop_assert_eq!(table.find(number), model.get(&number).copied());
                }
            }
            prop_assert_eq!(table.iter().count(), model.len());
        }
    }

    #[test]
    #[should_panic(expected = "after release")]
    fn a_stale_key_is_noticed() {
        let mut table = QpTable::new(1);
        let slot = table.insert(7, ());
        let key = table.key(slot);
        table.remove(slot);
        table.insert(8, ());
        table.slot(key);
    }
}
