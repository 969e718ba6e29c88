//! Results of authentication transactions.

use nvme_proto::Status;
use nvme_proto::auth::FailureExplanation;

use crate::group::DhGroup;
use crate::hash::HashFunction;

/// Result of a transaction that succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Authenticated {
    /// Hash function of the responses.
    pub hash: HashFunction,
    /// Diffie-Hellman group; `None` is the null group.
    pub group: Option<DhGroup>,
    /// Whether the controller has authenticated, too.
    pub bidirectional: bool,
}

/// End of a transaction at a controller, for metrics and logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthEvent {
    /// The host is authenticated.
    Authenticated(Authenticated),
    /// The controller refused the host.
    Refused(FailureExplanation),
    /// The host refused the controller.
    RefusedByHost(FailureExplanation),
    /// The host was silent for too long.
    TimedOut,
}

/// Reason that a host is not authenticated, with what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostAuthError {
    /// The controller sent AUTH_Failure1.
    #[error("the target refused this host: {0}{hint}", hint = hint_of(*.0))]
    RefusedByController(FailureExplanation),
    /// The host found a fault, and told the controller with AUTH_Failure2.
    #[error("the target did not authenticate as it should: {0}{hint}", hint = own_hint_of(*.0))]
    Refused(FailureExplanation),
    /// A command that carries a message failed.
    #[error("an authentication command failed: {0}")]
    CommandFailed(Status),
    /// The controller did not answer in time.
    #[error("the target did not answer in time")]
    TimedOut,
    /// The caller reported what cannot have happened.
    #[error("authentication steps were reported out of order")]
    OutOfOrder,
}

fn hint_of(explanation: FailureExplanation) -> &'static str {
    match explanation {
        FailureExplanation::FAILED => {
            ". The target has no key for this host NQN, or a different one; the two digits after \
             \"DHHC-1:\" must be the same on both sides too"
        }
        FailureExplanation::HASH_NOT_USABLE => ". The target allows none of the offered hashes",
        FailureExplanation::GROUP_NOT_USABLE => ". The target allows none of the offered groups",
        FailureExplanation::CONCATENATION_MISMATCH => ". The target wants a TLS channel",
        _ => "",
    }
}

fn own_hint_of(explanation: FailureExplanation) -> &'static str {
    match explanation {
        FailureExplanation::FAILED => {
            ". It has no controller key, or a different one: compare this host's controller key with \
             the target's, also the two digits after \"DHHC-1:\""
        }
        FailureExplanation::HASH_NOT_USABLE | FailureExplanation::GROUP_NOT_USABLE => {
            ". It chose what this host has not offered"
        }
        _ => "",
    }
}
