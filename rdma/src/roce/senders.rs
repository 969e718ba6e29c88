//! Choice of the sender (UDP source port) for each connection.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::wire::{MAX_SENDERS, SenderIndex};

/// Number of connections by group, peer and sender.
#[derive(Default)]
pub(super) struct SenderUse(BTreeMap<(u8, IpAddr), [u32; MAX_SENDERS]>);

/// The sender of a connection's packets; it never changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    group: u8,
    peer: IpAddr,
    pub(super) sender: SenderIndex,
    /// The UDP source port, to be announced to the peer; `None` if it is not fixed.
    pub(super) port: Option<u16>,
}

impl SenderUse {
    /// Chooses a sender for a new connection: the first of those with the fewest connections
    /// between this group and peer. Connections to different peers, whose flows differ anyway, thus
    /// share senders and system calls. `ports` are the senders' UDP source ports.
    pub(super) fn choose(&mut self, group: u8, peer: IpAddr, ports: &[u16]) -> Source {
        let counts = self.0.entry((group, peer)).or_default();
        let senders = SenderIndex::all().zip(ports);
        let chosen = senders.min_by_key(|(sender, _)| counts[sender.get()]);
        let sender = chosen.map_or(SenderIndex::FIRST, |(sender, _)| sender);
        counts[sender.get()] += 1;
        Source { group, peer, sender, port: chosen.map(|(_, &port)| port) }
    }

    /// Releases the sender of a connection that has ended.
    pub(super) fn leave(&mut self, source: &Source) {
        let key = (source.group, source.peer);
        let Some(counts) = self.0.get_mut(&key) else { return };
        let count = &mut counts[source.sender.get()];
        *count = count.saturating_sub(1);
        if counts.iter().all(|&count| count == 0) {
            self.0.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORTS: [u16; 4] = [50_000, 51_000, 52_000, 53_000];

    fn peer(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    #[test]
    fn connections_to_one_peer_are_spread_evenly() {
        let mut senders = SenderUse::default();
        let sources: Vec<_> = (0..8).map(|_| senders.choose(1, peer(1), &PORTS)).collect();
        let ports: Vec<_> = sources.iter().filter_map(|source| source.port).collect();
        assert_eq!(ports, [PORTS, PORTS].concat());
        for source in &sources {
            assert_eq!(source.port, Some(PORTS[source.sender.get()]));
        }
        // The next takes the place of one that has ended.
        senders.leave(&sources[6]);
        assert_eq!(senders.choose(1, peer(1), &PORTS).port, Some(PORTS[2]));
    }

    #[test]
    fn the_first_connection_of_each_group_and_peer_has_the_first_sender() {
        let mut senders = SenderUse::default();
        for (group, last) in [(1, 1), (1, 2), (2, 1), (2, 2)] {
            assert_eq!(senders.choose(group, peer(last), &PORTS).sender, SenderIndex::FIRST);
        }
        assert_eq!(senders.choose(2, peer(1), &PORTS).port, Some(PORTS[1]));
    }

    #[test]
    fn there_may_be_one_port_or_none() {
        for ports in [&PORTS[..1], &[]] {
            let mut senders = SenderUse::default();
            for _ in 0..3 {
                let source = senders.choose(1, peer(1), ports);
                assert_eq!(source.sender, SenderIndex::FIRST);
                assert_eq!(source.port, ports.first().copied());
            }
        }
    }

    #[test]
    fn nothing_is_kept_of_peers_without_connections() {
        let mut senders = SenderUse::default();
        let sources: Vec<_> =
            (0..100).map(|index| senders.choose(1, peer(index % 5), &PORTS)).collect();
        assert_eq!(senders.0.len(), 5);
        sources.iter().for_each(|source| senders.leave(source));
        assert!(senders.0.is_empty());
    }
}
