//! Those that anybody may be without saying who he is: connections before their Connect has succeeded, discovery controllers.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

/// How many of a [`Crowd`] there may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    pub(crate) all: usize,
    pub(crate) of_address: usize,
}

/// Those who are there, oldest first. A newer one takes the place of the oldest, so that nobody who holds many keeps others
/// out.
#[derive(Debug)]
pub(crate) struct Crowd<K> {
    by_age: VecDeque<(K, IpAddr)>,
    room: Room,
}

impl<K: PartialEq> Crowd<K> {
    pub(crate) fn new(room: Room) -> Self {
        Self { by_age: VecDeque::new(), room }
    }

    /// Adds one. Returns one that has to go for it: the oldest of its address, or of the address that has the most.
    pub(crate) fn add(&mut self, key: K, address: IpAddr) -> Option<K> {
        let displaced = self.crowded(address).and_then(|crowded| {
            let at = self.by_age.iter().position(|(_, other)| *other == crowded)?;
            self.by_age.remove(at)
        });
        self.by_age.push_back((key, address));
        displaced.map(|(key, _)| key)
    }

    /// The address that has to give up one before another one comes from `address`.
    fn crowded(&self, address: IpAddr) -> Option<IpAddr> {
        let of_address = self.by_age.iter().filter(|(_, other)| *other == address).count();
        if of_address >= self.room.of_address {
            return Some(address);
        }
        if self.by_age.len() < self.room.all {
            return None;
        }
        let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
        self.by_age.iter().for_each(|(_, other)| *counts.entry(*other).or_default() += 1);
        counts.into_iter().max_by_key(|(_, count)| *count).map(|(address, _)| address)
    }

    /// One has said who it is, or is ending.
    pub(crate) fn remove(&mut self, key: &K) {
        self.by_age.retain(|(other, _)| other != key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: Room = Room { all: 64, of_address: 16 };

    fn ip(number: usize) -> IpAddr {
        IpAddr::from([10, 0, 1, number as u8])
    }

    #[test]
    fn an_address_displaces_its_own_oldest() {
        let mut crowd = Crowd::new(ROOM);
        assert_eq!(crowd.add(1000, ip(9)), None);
        for number in 0..ROOM.of_address {
            assert_eq!(crowd.add(number, ip(1)), None);
        }
        crowd.remove(&0);
        assert_eq!(crowd.add(2000, ip(1)), None, "one has got further");
        assert_eq!(crowd.add(2001, ip(1)), Some(1));
        assert_eq!(crowd.add(2002, ip(1)), Some(2));
    }

    #[test]
    fn the_address_with_the_most_makes_room_for_others() {
        let mut crowd = Crowd::new(ROOM);
        let mut number = 0;
        let mut add = |address, crowd: &mut Crowd<usize>| {
            number += 1;
            crowd.add(number, address)
        };
        (0..ROOM.of_address - 1).for_each(|_| _ = add(ip(1), &mut crowd));
        let mut address = 0;
        while crowd.by_age.len() < ROOM.all {
            add(ip(2 + address % 40), &mut crowd);
            address += 1;
        }
        assert_eq!(add(ip(200), &mut crowd), Some(1));
        assert!(crowd.by_age.iter().any(|(_, other)| *other == ip(200)));
        assert_eq!(crowd.by_age.len(), ROOM.all);
    }
}
