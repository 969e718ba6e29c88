//! Bounded set of connections and controllers that unauthorized peers hold: connections before a
//! successful Connect, and discovery controllers.

use std::collections::{BTreeMap, VecDeque};

use crate::limits::peer::Party;

/// Most members of a [`DisplacingSet`], in all and for one party.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DisplacingLimits {
    pub(crate) all: usize,
    pub(crate) of_party: usize,
}

/// Bounded set of members with their parties, oldest first. In a full set a new member displaces an
/// old one, so a party with many members keeps no other party out.
#[derive(Debug)]
pub(crate) struct DisplacingSet<K> {
    by_age: VecDeque<(K, Party)>,
    room: DisplacingLimits,
}

impl<K: PartialEq> DisplacingSet<K> {
    pub(crate) fn new(room: DisplacingLimits) -> Self {
        Self { by_age: VecDeque::new(), room }
    }

    /// Adds a member. If the set or the party is full, removes and returns a member: the oldest one
    /// of the full party, or else of the party with the most.
    pub(crate) fn add(&mut self, key: K, party: Party) -> Option<K> {
        let displaced = self.party_to_displace(party).and_then(|most| {
            let at = self.by_age.iter().position(|(_, other)| *other == most)?;
            self.by_age.remove(at)
        });
        self.by_age.push_back((key, party));
        displaced.map(|(key, _)| key)
    }

    /// Party whose oldest member is displaced to make room for one of `party`; `None` if there is
    /// room.
    fn party_to_displace(&self, party: Party) -> Option<Party> {
        let of_party = self.by_age.iter().filter(|(_, other)| *other == party).count();
        if of_party >= self.room.of_party {
            return Some(party);
        }
        if self.by_age.len() < self.room.all {
            return None;
        }
        let mut counts: BTreeMap<Party, usize> = BTreeMap::new();
        self.by_age.iter().for_each(|(_, other)| *counts.entry(*other).or_default() += 1);
        counts.into_iter().max_by_key(|(_, count)| *count).map(|(party, _)| party)
    }

    /// Removes a member that was authorized or is ending.
    pub(crate) fn remove(&mut self, key: &K) {
        self.by_age.retain(|(other, _)| other != key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: DisplacingLimits = DisplacingLimits { all: 64, of_party: 16 };

    fn ip(number: usize) -> Party {
        Party::Address([10, 0, 1, number as u8].into())
    }

    #[test]
    fn an_address_displaces_its_own_oldest() {
        let mut set = DisplacingSet::new(ROOM);
        assert_eq!(set.add(1000, ip(9)), None);
        for number in 0..ROOM.of_party {
            assert_eq!(set.add(number, ip(1)), None);
        }
        set.remove(&0);
        assert_eq!(set.add(2000, ip(1)), None, "one has got further");
        assert_eq!(set.add(2001, ip(1)), Some(1));
        assert_eq!(set.add(2002, ip(1)), Some(2));
    }

    #[test]
    fn the_address_with_most_members_is_displaced() {
        let mut set = DisplacingSet::new(ROOM);
        let mut number = 0;
        let mut add = |address, set: &mut DisplacingSet<usize>| {
            number += 1;
            set.add(number, address)
        };
        (0..ROOM.of_party - 1).for_each(|_| _ = add(ip(1), &mut set));
        let mut address = 0;
        while set.by_age.len() < ROOM.all {
            add(ip(2 + address % 40), &mut set);
            address += 1;
        }
        assert_eq!(add(ip(200), &mut set), Some(1));
        assert!(set.by_age.iter().any(|(_, other)| *other == ip(200)));
        assert_eq!(set.by_age.len(), ROOM.all);
    }
}
