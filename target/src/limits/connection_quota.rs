//! Quota of connections that hosts have with subsystems, over all devices.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

use crate::limits::Limits;
use crate::limits::peer::Party;

/// Counts of connections whose Connect to a subsystem succeeded, in all and for each address or
/// user of this machine. Not counted by NQN: a host could use up another host's share by sending
/// its NQN.
#[derive(Debug, Default)]
pub(crate) struct Admissions {
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    connections: u32,
    /// Connections of each party; parties without any are not listed.
    by_party: BTreeMap<Party, u32>,
}

/// Permit of an admitted connection. Dropping it removes the connection from the counts.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    admissions: Arc<Admissions>,
    party: Party,
}

/// Reason that no further connection is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Full {
    /// The process has `limits.connections` connections, which is the number given.
    #[error("there are {0} connections, as limits.connections says; raise it if hosts need more")]
    All(u32),
    /// The party has `limits.connections_per_host` connections, which is the number given.
    #[error(
        "its address or user has {0} connections, as limits.connections_per_host says; raise it if the host needs more"
    )]
    Party(u32),
}

impl Counts {
    fn check(&self, party: Party, limits: &Limits) -> Result<(), Full> {
        let of_party = self.by_party.get(&party).copied().unwrap_or(0);
        if of_party >= limits.connections_per_host {
            return Err(Full::Party(limits.connections_per_host));
        }
        if self.connections >= limits.connections {
            return Err(Full::All(limits.connections));
        }
        Ok(())
    }
}

impl Admissions {
    /// Checks whether one more connection of this party would be admitted now.
    pub(crate) fn check(&self, party: Party, limits: &Limits) -> Result<(), Full> {
        self.change(|counts| counts.check(party, limits))
    }

    /// Admits and counts one more connection of this party, unless a limit is reached.
    pub(crate) fn admit(
        self: &Arc<Self>,
        party: Party,
        limits: &Limits,
    ) -> Result<ConnectionPermit, Full> {
        self.change(|counts| {
            counts.check(party, limits)?;
            counts.connections += 1;
            *counts.by_party.entry(party).or_default() += 1;
            Ok(())
        })?;
        Ok(ConnectionPermit { admissions: Arc::clone(self), party })
    }

    fn change<T>(&self, change: impl FnOnce(&mut Counts) -> T) -> T {
        change(&mut self.counts.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.admissions.change(|counts| {
            counts.connections -= 1;
            if let Entry::Occupied(mut of_party) = counts.by_party.entry(self.party) {
                *of_party.get_mut() -= 1;
                if *of_party.get() == 0 {
                    of_party.remove();
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_the_total_and_the_share_are_limits() {
        let limits = Limits { connections: 5, connections_per_host: 3, ..Limits::default() };
        let admissions = Arc::new(Admissions::default());
        let admit = |host: u32| admissions.admit(Party::User(host), &limits);
        let mut first: Vec<_> = (0..10).filter_map(|_| admit(1).ok()).collect();
        assert_eq!(first.len(), 3);
        let second: Vec<_> = (0..10).filter_map(|_| admit(2).ok()).collect();
        assert_eq!(second.len(), 2);
        assert_eq!(admit(1).unwrap_err(), Full::Party(3));
        assert_eq!(admit(3).unwrap_err(), Full::All(5));
        first.pop();
        let third = admit(3);
        assert!(third.is_ok());
        drop((first, second, third));
        assert!(admissions.change(|counts| counts.connections == 0 && counts.by_party.is_empty()));
    }
}
