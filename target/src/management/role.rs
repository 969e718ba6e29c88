//! Role of a management socket: what its clients may do, and who they may be.

use rdma::LocalPeer;

use super::audit::AuditedCall;
use super::rpc::RpcError;

/// Role of a socket, and of all clients that connect to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SocketRole {
    /// All methods, for root and the target's own user.
    Full,
    /// Methods that change nothing, for users that the socket's permissions let in.
    ReadOnly,
}

impl SocketRole {
    /// Permissions of the socket file.
    pub(super) fn permissions(self) -> u32 {
        match self {
            Self::Full => 0o600,
            Self::ReadOnly => 0o660,
        }
    }

    /// Whether a client may stay that the permissions of the file have let in.
    pub(super) fn admits(self, peer: LocalPeer) -> bool {
        self == Self::ReadOnly || peer.is_us_or_root()
    }

    /// Checks whether a call is allowed; `audited` is `None` if it changes nothing.
    ///
    /// # Errors
    /// The call may change something, and the socket is read-only.
    pub(super) fn check(self, audited: Option<&AuditedCall>) -> Result<(), RpcError> {
        match (self, audited) {
            (Self::ReadOnly, Some(_)) => Err(RpcError::refused(
                "this socket is read-only (management_read_only); the socket of the key management takes changes",
            )),
            _ => Ok(()),
        }
    }
}
