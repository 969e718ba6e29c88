//! Hosts in the test's own process, for results that the command line does not show.

use std::time::Duration;

use feedrail_initiator::{
    Controller, Grant, Host, HostBuilder, Namespace, RegionSlice, SubsystemAddress,
};
use nvme_proto::Nsid;

use super::Daemon;

/// Timeout of operations that must end soon, with or without success.
const SOON: Duration = Duration::from_secs(10);

/// A host that gives up on a target after some seconds.
pub fn host() -> HostBuilder {
    Host::builder().loss_timeout(SOON).io_timeout(SOON)
}

impl Daemon {
    /// The address and NQN of this daemon's (first) subsystem, for an initiator.
    ///
    /// # Panics
    /// If the daemon said no valid name.
    pub fn target(&self) -> SubsystemAddress {
        let nqn = self.nqn().parse().expect("the daemon says its subsystem's name");
        SubsystemAddress { address: self.address(), nqn }
    }

    /// Connects a host to it.
    ///
    /// # Panics
    /// If the connection is refused or times out.
    #[track_caller]
    pub fn connect(&self, host: &Host) -> Controller {
        host.connect(self.target()).wait().expect("the daemon takes the connection")
    }

    /// Connects a host and opens namespace 1.
    ///
    /// # Panics
    /// If there is no connection or no such namespace.
    #[track_caller]
    pub fn open(&self, host: &Host) -> Namespace {
        self.connect(host).namespace(Nsid(1)).wait().expect("there is a namespace 1")
    }
}

/// Memory with these bytes.
pub fn slice_of(bytes: &[u8]) -> RegionSlice {
    RegionSlice::from_vec(bytes.to_vec(), Grant::Persistent)
}

/// Zeroed memory that targets may write.
pub fn empty_slice(length: usize) -> RegionSlice {
    RegionSlice::from_vec(vec![0; length], Grant::Persistent)
}
