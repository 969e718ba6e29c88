//! Hosts at the other end of connections, and the parties that quotas are counted for.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use rdma::LocalPeer;

/// Host at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemotePeer {
    /// IP address and port, as far as the connection request contains them.
    pub address: SocketAddr,
    /// Process of the host as the kernel reports it, if it shares memory with the target.
    pub process: Option<LocalPeer>,
}

/// Location of a host: a process if it is on shared memory, since its address is one of the
/// target's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerOrigin {
    /// An address on the network.
    Address(IpAddr),
    /// A process of this machine.
    Process {
        /// Effective user of the process, as the kernel reports it.
        uid: u32,
        /// Process number; 0 if it is in another PID namespace.
        pid: i32,
    },
}

/// Peers that share one quota. Chosen by location, since hosts can invent NQNs and users can start
/// processes.
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
