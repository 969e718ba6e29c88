//! Remote endpoints, and what may be on its way to each.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use roce_proto::rc::SendWindow;
use slab::Slab;

/// The endpoints that queue pairs of one group are connected to. Each group has its own window
/// towards an endpoint, so that no lock is taken; the windows adapt to each other by the losses
/// that they see.
#[derive(Default)]
pub(crate) struct Paths {
    paths: Slab<EndpointPath>,
    by_endpoint: BTreeMap<SocketAddr, PathKey>,
}

/// The index of a path in its [`Paths`], reused after the last queue pair has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PathKey(usize);

/// The way to one remote endpoint.
pub(crate) struct EndpointPath {
    pub(crate) endpoint: SocketAddr,
    pub(crate) window: SendWindow,
    /// Packets from there with a wrong invariant CRC.
    icrc_failures: u64,
    users: usize,
}

impl EndpointPath {
    /// Counts a packet with a wrong invariant CRC, and says so ever more rarely.
    pub(crate) fn count_icrc_failure(&mut self) {
        self.icrc_failures += 1;
        if self.icrc_failures.is_power_of_two() {
            tracing::warn!(
                peer = %self.endpoint,
                failures = self.icrc_failures,
                "packets with a wrong invariant CRC: a damaged network, or an address translated on the way"
            );
        }
    }
}

impl Paths {
    /// The path to an endpoint, for one more queue pair.
    pub(crate) fn join(&mut self, endpoint: SocketAddr) -> PathKey {
        let key = *self.by_endpoint.entry(endpoint).or_insert_with(|| {
            let window = SendWindow::new();
            PathKey(self.paths.insert(EndpointPath {
                endpoint,
                window,
                icrc_failures: 0,
                users: 0,
            }))
        });
        self.get(key).users += 1;
        key
    }

    /// One queue pair less.
    pub(crate) fn leave(&mut self, key: PathKey) {
        let path = self.get(key);
        path.users -= 1;
        if path.users == 0 {
            let endpoint = path.endpoint;
            self.paths.remove(key.0);
            self.by_endpoint.remove(&endpoint);
        }
    }

    /// A path that a queue pair has joined.
    pub(crate) fn get(&mut self, key: PathKey) -> &mut EndpointPath {
        &mut self.paths[key.0]
    }
}
