//! Reasons that an in-band authentication fails.

use feedrail_auth::HostAuthError;
use nvme_proto::Status;
use nvme_proto::auth::FailureExplanation;

/// Reason that host and target are not authenticated, with what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AuthenticationFailure {
    /// The target requires authentication, and the host has no secret.
    #[error(
        "the target requires authentication of this host: give --dhchap-secret-file or \
         --dhchap-secret (dhchap_secret_file in Python)"
    )]
    SecretMissing,
    /// The target requires a secure channel, which only TCP has.
    #[error(
        "the target requires a secure channel (TLS), which RDMA does not have: let it require \
         authentication only"
    )]
    SecureChannel,
    /// The host has a secret of the controller, and the target does not authenticate.
    #[error(
        "this host has a controller secret, and the target does not authenticate ({0}): configure \
         both keys at the target, or connect without --dhchap-ctrl-secret"
    )]
    NotOffered(Status),
    /// A transaction failed, on the side that the error names.
    #[error(transparent)]
    Failed(HostAuthError),
    /// The target no longer takes a queue for authenticated, and the host connects again.
    #[error("the target requires it again")]
    Withdrawn,
    /// The target required authentication again shortly after the host had repeated it.
    #[error("the target requires it again although it has just succeeded; look into its log")]
    WithdrawnAgain,
}

impl AuthenticationFailure {
    /// Returns whether another attempt has the same result, until a key or a configuration changes.
    pub(crate) const fn is_final(self) -> bool {
        match self {
            Self::Withdrawn | Self::Failed(HostAuthError::TimedOut) => false,
            Self::Failed(HostAuthError::CommandFailed(status)) => status.do_not_retry(),
            _ => true,
        }
    }

    /// Returns whether the target refused the host's response. It does so for another key, and when
    /// it has too much to compute.
    pub(crate) fn is_refused_response(self) -> bool {
        let failed = FailureExplanation::FAILED;
        self == Self::Failed(HostAuthError::RefusedByController(failed))
    }
}
