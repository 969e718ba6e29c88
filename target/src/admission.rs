//! How many connections the process has, whatever devices they came to.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

use crate::limits::Limits;

/// Counts connections, all of them and those of each host, whatever `H` a host is known by.
#[derive(Debug)]
pub(crate) struct Admissions<H> {
    hosts: Mutex<Hosts<H>>,
}

#[derive(Debug)]
struct Hosts<H> {
    connections: u32,
    /// How many of them are of one host; a host without any is not in here.
    by_host: BTreeMap<H, u32>,
}

/// A connection's place among those that there may be.
#[derive(Debug)]
pub(crate) struct Admission<H: Copy + Ord> {
    admissions: Arc<Admissions<H>>,
    host: H,
}

impl<H> Default for Admissions<H> {
    fn default() -> Self {
        Self { hosts: Mutex::new(Hosts { connections: 0, by_host: BTreeMap::new() }) }
    }
}

impl<H: Copy + Ord> Admissions<H> {
    /// A place for one more connection of this host, unless there are too many.
    pub(crate) fn admit(self: &Arc<Self>, host: H, limits: &Limits) -> Option<Admission<H>> {
        self.change(|hosts| {
            let of_host = hosts.by_host.get(&host).copied().unwrap_or(0);
            let room =
                hosts.connections < limits.connections && of_host < limits.connections_per_host;
            room.then(|| {
                hosts.connections += 1;
                hosts.by_host.insert(host, of_host + 1);
            })
        })?;
        Some(Admission { admissions: Arc::clone(self), host })
    }

    fn change<T>(&self, change: impl FnOnce(&mut Hosts<H>) -> T) -> T {
        change(&mut self.hosts.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<H: Copy + Ord> Drop for Admission<H> {
    fn drop(&mut self) {
        self.admissions.change(|hosts| {
            hosts.connections -= 1;
            if let Entry::Occupied(mut of_host) = hosts.by_host.entry(self.host) {
                *of_host.get_mut() -= 1;
                if *of_host.get() == 0 {
                    of_host.remove();
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn all_have_what_there_is_and_one_has_its_share() {
        let limits = Limits { connections: 5, connections_per_host: 3, ..Limits::default() };
        let admissions = Arc::new(Admissions::default());
        let admit = |host: u8| admissions.admit(IpAddr::from([127, 0, 0, host]), &limits);
        let mut first: Vec<_> = (0..10).filter_map(|_| admit(1)).collect();
        assert_eq!(first.len(), 3);
        let second: Vec<_> = (0..10).filter_map(|_| admit(2)).collect();
        assert_eq!(second.len(), 2);
        assert!(admit(3).is_none());
        first.pop();
        let third = admit(3);
        assert!(third.is_some());
        drop((first, second, third));
        assert!(admissions.change(|hosts| hosts.connections == 0 && hosts.by_host.is_empty()));
    }
}
