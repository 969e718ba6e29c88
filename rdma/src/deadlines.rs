//! Deadlines of queue pairs or connections: a binary heap with an index, so that entries can be
//! changed and removed.

use crate::Time;

const NOWHERE: u32 = u32::MAX;

/// Deadlines by slot, at most one each. A deadline that moves later may keep its earlier entry
/// until that is due, so that moving it costs nothing.
#[derive(Debug, Default)]
pub struct Deadlines {
    heap: Vec<(Time, u32)>,
    /// Position of each slot's entry in the heap.
    places: Vec<u32>,
}

impl Deadlines {
    /// Reserves memory for the slots below `slots`.
    pub fn reserve(&mut self, slots: usize) {
        if self.places.len() < slots {
            self.places.resize(slots, NOWHERE);
            self.heap.reserve(slots - self.heap.len());
        }
    }

    /// The earliest deadline of all slots.
    pub fn earliest(&self) -> Option<Time> {
        self.heap.first().map(|&(time, _)| time)
    }

    /// Sets the deadline of a slot to `time`, unless it has an earlier one; when that one is due,
    /// the caller sets the next deadline. Memory for the slot is reserved.
    pub fn at_latest(&mut self, slot: u32, time: Time) {
        let place = self.places[slot as usize];
        if place == NOWHERE {
            self.heap.push((time, slot));
            self.places[slot as usize] = at(self.heap.len() - 1);
            self.rise(self.heap.len() - 1);
        } else if time < self.heap[place as usize].0 {
            self.heap[place as usize].0 = time;
            self.rise(place as usize);
        }
    }

    /// Removes the deadline of a slot, if it has one.
    pub fn remove(&mut self, slot: u32) {
        let place = self.places[slot as usize];
        if place != NOWHERE {
            self.remove_at(place as usize);
        }
    }

    /// Removes and returns a slot whose deadline is not after `now`.
    pub fn pop_due(&mut self, now: Time) -> Option<u32> {
        let &(time, slot) = self.heap.first()?;
        if time > now {
            return None;
        }
        self.remove_at(0);
        Some(slot)
    }

    fn remove_at(&mut self, place: usize) {
        let (_, slot) = self.heap.swap_remove(place);
        self.places[slot as usize] = NOWHERE;
        if let Some(&(_, moved)) = self.heap.get(place) {
            self.places[moved as usize] = at(place);
            self.rise(place);
            self.sink(self.places[moved as usize] as usize);
        }
    }

    fn rise(&mut self, mut place: usize) {
        while place > 0 && self.heap[place].0 < self.heap[(place - 1) / 2].0 {
            self.swap(place, (place - 1) / 2);
            place = (place - 1) / 2;
        }
    }

    fn sink(&mut self, mut place: usize) {
        loop {
            let children = [2 * place + 1, 2 * place + 2];
            let time =
                |place: usize| self.heap.get(place).map_or(Time::from_nanos(u64::MAX), |e| e.0);
            let child = children.into_iter().min_by_key(|&child| time(child)).unwrap_or(place);
            if time(child) >= self.heap[place].0 {
                return;
            }
            self.swap(place, child);
            place = child;
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.places[self.heap[a].1 as usize] = at(a);
        self.places[self.heap[b].1 as usize] = at(b);
    }
}

fn at(place: usize) -> u32 {
    u32::try_from(place).expect("slots are numbered with 32 bits")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn slots_come_due_in_order(actions in prop::collection::vec((0u32..16, 0u64..100, any::<bool>()), 0..200)) {
            let mut deadlines = Deadlines::default();
            deadlines.reserve(16);
            let mut model = std::collections::BTreeMap::<u32, u64>::new();
            for (slot, nanos, remove) in actions {
                if remove {
                    deadlines.remove(slot);
                    model.remove(&slot);
                } else {
                    deadlines.at_latest(slot, Time::from_nanos(nanos));
                    let deadline = model.entry(slot).or_insert(nanos);
                    *deadline = nanos.min(*deadline);
                }
                let earliest = model.values().min().map(|&nanos| Time::from_nanos(nanos));
                prop_assert_eq!(deadlines.earliest(), earliest);
            }
            for now in 0..100 {
                while let Some(slot) = deadlines.pop_due(Time::from_nanos(now)) {
                    prop_assert_eq!(model.remove(&slot), Some(now));
                }
            }
            prop_assert!(model.is_empty() && deadlines.earliest().is_none());
        }
    }
}
