//! Hosts at the other end of connections, and whom their share of anything is counted for.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use rdma::LocalPeer;

/// A host at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemotePeer {
    /// Its address and port, as far as its request tells them.
    pub address: SocketAddr,
    /// The process that it is, as the kernel knows it, if memory is shared with it.
    pub process: Option<LocalPeer>,
}

/// Where a host is: all hosts on shared memory have an address of the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerOrigin {
    /// At an address of the network.
    Address(IpAddr),
    /// In a process of this machine.
    Process {
        /// Its effective user, as the kernel knows it.
        uid: u32,
        /// The number of the process; zero in another process namespace.
        pid: i32,
    },
}

/// Those who have a share together. No host chooses it: it could have as many shares as it likes
/// otherwise, as a user can have processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Party {
    /// All hosts at an address.
    Address(IpAddr),
    /// All processes of a user of this machine that share memory with the target.
    User(u32),
}

impl RemotePeer {
    pub(crate) fn origin(self) -> PeerOrigin {
        match self.process {
            Some(LocalPeer { uid, pid, .. }) => PeerOrigin::Process { uid, pid },
            None => PeerOrigin::Address(self.address.ip()),
        }
    }

    pub(crate) fn party(self) -> Party {
        self.origin().party()
    }
}

impl From<SocketAddr> for RemotePeer {
    fn from(address: SocketAddr) -> Self {
        Self { address, process: None }
    }
}

impl fmt::Display for RemotePeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

impl PeerOrigin {
    pub(crate) fn party(self) -> Party {
        match self {
            Self::Address(ip) => Party::Address(ip),
            Self::Process { uid, .. } => Party::User(uid),
        }
    }
}
