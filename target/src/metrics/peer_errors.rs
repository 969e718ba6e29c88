//! Protocol errors by the IP address of the peer, in a table of bounded size.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::limits::PEERS_REMEMBERED;
use crate::metrics::snapshot::PeerErrors;

/// Errors by peer. If the table is full, a new peer replaces the one with the fewest errors.
#[derive(Debug, Default)]
pub struct PeerErrorTable {
    peers: Mutex<BTreeMap<IpAddr, Errors>>,
}

/// Error counts of one peer, as in [`PeerErrors`].
#[derive(Clone, Copy, Debug, Default)]
struct Errors {
    commands_failed: u64,
    connections_lost: u64,
}

impl Errors {
    fn total(self) -> u64 {
        self.commands_failed.saturating_add(self.connections_lost)
    }
}

impl PeerErrorTable {
    pub(crate) fn add_failed(&self, peer: IpAddr, commands: u64) {
        if commands > 0 {
            self.update(peer, |errors| errors.commands_failed += commands);
        }
    }

    /// Counts a connection that ended because the peer violated the protocol or stopped responding.
    pub(crate) fn add_lost(&self, peer: IpAddr) {
        self.update(peer, |errors| errors.connections_lost += 1);
    }

    /// Returns at most `most` peers, those with the most errors first.
    pub fn worst(&self, most: usize) -> Vec<PeerErrors> {
        let mut peers: Vec<_> =
            self.peers().iter().map(|(peer, errors)| (*peer, *errors)).collect();
        peers.sort_by_key(|(peer, errors)| (std::cmp::Reverse(errors.total()), *peer));
        peers.truncate(most);
        let report = |(peer, errors): (IpAddr, Errors)| PeerErrors {
            peer: peer.to_string(),
            commands_failed: errors.commands_failed,
            connections_lost: errors.connections_lost,
        };
        peers.into_iter().map(report).collect()
    }

    fn update(&self, peer: IpAddr, change: impl FnOnce(&mut Errors)) {
        let mut peers = self.peers();
        if !peers.contains_key(&peer) && peers.len() >= PEERS_REMEMBERED {
            let least =
                peers.iter().min_by_key(|(_, errors)| errors.total()).map(|(peer, _)| *peer);
            least.map(|least| peers.remove(&least));
        }
        change(peers.entry(peer).or_default());
    }

    fn peers(&self) -> MutexGuard<'_, BTreeMap<IpAddr, Errors>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_bounded_and_keeps_the_worst() {
        let table = PeerErrorTable::default();
        let villain: IpAddr = [10, 0, 0, 1].into();
        table.add_failed(villain, 1000);
        for last in 0..4 * PEERS_REMEMBERED as u32 {
            table.add_lost(std::net::Ipv4Addr::from_bits(0x0B00_0000 + last).into());
        }
        let worst = table.worst(usize::MAX);
        assert_eq!(worst.len(), PEERS_REMEMBERED);
        assert_eq!((worst[0].peer.as_str(), worst[0].commands_failed), ("10.0.0.1", 1000));
    }
}
