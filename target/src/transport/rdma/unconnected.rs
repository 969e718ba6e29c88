//! Connections whose Connect has not succeeded yet: nobody knows whose they are.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use ::rdma::ConnId;

use crate::limits::{UNCONNECTED, UNCONNECTED_PER_ADDRESS};

/// The connections of one device that have not got further, oldest first.
#[derive(Debug, Default)]
pub(super) struct Unconnected {
    by_age: VecDeque<(ConnId, IpAddr)>,
}

impl Unconnected {
    /// Adds a connection. Returns one that has to go for it: the oldest of its address, or of the
    /// address that has the most.
    pub(super) fn add(&mut self, conn: ConnId, address: IpAddr) -> Option<ConnId> {
        let displaced = self.crowded(address).and_then(|crowded| {
            let at = self.by_age.iter().position(|(_, other)| *other == crowded)?;
            self.by_age.remove(at)
        });
        self.by_age.push_back((conn, address));
        displaced.map(|(conn, _)| conn)
    }

    /// The address that has to give up a connection before another one comes from `address`.
    fn crowded(&self, address: IpAddr) -> Option<IpAddr> {
        let of_address = self.by_age.iter().filter(|(_, other)| *other == address).count();
        if of_address >= UNCONNECTED_PER_ADDRESS {
            return Some(address);
        }
        if self.by_age.len() < UNCONNECTED {
            return None;
        }
        let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
        self.by_age.iter().for_each(|(_, other)| *counts.entry(*other).or_default() += 1);
        counts.into_iter().max_by_key(|(_, count)| *count).map(|(address, _)| address)
    }

    /// A connection has got further, or is ending.
    pub(super) fn remove(&mut self, conn: ConnId) {
        self.by_age.retain(|(other, _)| *other != conn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(number: usize) -> IpAddr {
        IpAddr::from([10, 0, 1, number as u8])
    }

    fn conn(number: usize) -> ConnId {
        ConnId(number as u64)
    }

    #[test]
    fn an_address_displaces_its_own_oldest() {
        let mut unconnected = Unconnected::default();
        assert_eq!(unconnected.add(conn(1000), ip(9)), None);
        for number in 0..UNCONNECTED_PER_ADDRESS {
            assert_eq!(unconnected.add(conn(number), ip(1)), None);
        }
        unconnected.remove(conn(0));
        assert_eq!(unconnected.add(conn(2000), ip(1)), None, "one has got further");
        assert_eq!(unconnected.add(conn(2001), ip(1)), Some(conn(1)));
        assert_eq!(unconnected.add(conn(2002), ip(1)), Some(conn(2)));
    }

    #[test]
    fn the_address_with_the_most_makes_room_for_others() {
        let mut unconnected = Unconnected::default();
        let mut number = 0;
        let mut add = |address, unconnected: &mut Unconnected| {
            number += 1;
            unconnected.add(conn(number), address)
        };
        (0..UNCONNECTED_PER_ADDRESS - 1).for_each(|_| _ = add(ip(1), &mut unconnected));
        let mut address = 0;
        while unconnected.by_age.len() < UNCONNECTED {
            add(ip(2 + address % 40), &mut unconnected);
            address += 1;
        }
        assert_eq!(add(ip(200), &mut unconnected), Some(conn(1)));
        assert!(unconnected.by_age.iter().any(|(_, other)| *other == ip(200)));
        assert_eq!(unconnected.by_age.len(), UNCONNECTED);
    }
}
