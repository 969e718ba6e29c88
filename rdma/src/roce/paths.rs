//! Remote endpoints with the congestion window for each.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use roce_proto::rc::SendWindow;
use slab::Slab;

/// The remote endpoints of one group's queue pairs. Each group has its own congestion window per
/// endpoint, so that no lock is needed; the windows share the path by reacting to losses.
#[derive(Default)]
pub(crate) struct Paths {
    paths: Slab<EndpointPath>,
    by_endpoint: BTreeMap<SocketAddr, PathKey>,
}

/// Index of a path in [`Paths`]; reused once the path has no queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PathKey(usize);

pub(crate) struct EndpointPath {
    pub(crate) endpoint: SocketAddr,
    pub(crate) window: SendWindow,
    /// Number of packets from the endpoint with a wrong ICRC.
    icrc_failures: u64,
    users: usize,
}

impl EndpointPath {
    /// Counts a packet with a wrong ICRC; logs it if the count is a power of two.
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
    /// Returns the path to an endpoint, and counts a queue pair that uses it.
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

    /// Removes a queue pair from a path; the last one removes the path.
    pub(crate) fn leave(&mut self, key: PathKey) {
        let path = self.get(key);
        path.users -= 1;
        if path.users == 0 {
            let endpoint = path.endpoint;
            self.paths.remove(key.0);
            self.by_endpoint.remove(&endpoint);
        }
    }

    pub(crate) fn get(&mut self, key: PathKey) -> &mut EndpointPath {
        &mut self.paths[key.0]
    }
}
