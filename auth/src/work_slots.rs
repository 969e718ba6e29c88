//! Bounds of the work that peers cause before they have proved anything.

use std::collections::BTreeMap;

/// Places for pieces of work, limited in all and for each address. Memory is bounded by the limit:
/// an address without work has no entry.
#[derive(Debug)]
pub struct WorkSlots<A> {
    total: usize,
    per_address: usize,
    used: usize,
    by_address: BTreeMap<A, usize>,
}

impl<A: Ord> WorkSlots<A> {
    /// Creates `total` places; one address may have `per_address` of them.
    pub const fn new(total: usize, per_address: usize) -> Self {
        Self { total, per_address, used: 0, by_address: BTreeMap::new() }
    }

    /// Takes a place, and returns whether there was one.
    #[must_use]
    pub fn take(&mut self, address: A) -> bool {
        let of_address = self.by_address.get(&address).copied().unwrap_or(0);
        if self.used >= self.total || of_address >= self.per_address {
            return false;
        }
        self.used += 1;
        self.by_address.insert(address, of_address + 1);
        true
    }

    /// Gives a place back that the address has taken.
    pub fn give_back(&mut self, address: &A) {
        let Some(count) = self.by_address.get_mut(address) else { return };
        self.used -= 1;
        *count -= 1;
        if *count == 0 {
            self.by_address.remove(address);
        }
    }

    /// Number of places taken.
    pub const fn used(&self) -> usize {
        self.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_leaves_places_to_others() {
        let mut slots = WorkSlots::new(3, 2);
        assert!(slots.take(1) && slots.take(1) && !slots.take(1));
        assert!(slots.take(2) && !slots.take(2), "three are all");
        slots.give_back(&1);
        assert!(slots.take(2) && !slots.take(3));
        for address in [1, 2, 2, 2, 7] {
            slots.give_back(&address);
        }
        assert_eq!((slots.used(), slots.by_address.len()), (0, 0));
    }
}
