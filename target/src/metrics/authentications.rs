//! Ends of authentication transactions, counted by host and result.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use feedrail_auth::AuthEvent;
use nvme_proto::Nqn;
use nvme_proto::auth::FailureExplanation;

use crate::limits::MAX_ALLOWED_HOSTS;

/// Result of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum AuthResult {
    Authenticated,
    /// The response of the host is wrong, or it has no key here.
    Failed,
    ProtocolNotUsable,
    ConcatenationMismatch,
    HashNotUsable,
    GroupNotUsable,
    IncorrectPayload,
    IncorrectMessage,
    /// The host refused the target.
    RefusedByHost,
    TimedOut,
    /// Too much work was waiting.
    Busy,
}

impl AuthResult {
    /// Value of the label `result`.
    fn label(self) -> &'static str {
        match self {
            Self::Authenticated => "authenticated",
            Self::Failed => "failed",
            Self::ProtocolNotUsable => "protocol_not_usable",
            Self::ConcatenationMismatch => "concatenation_mismatch",
            Self::HashNotUsable => "hash_not_usable",
            Self::GroupNotUsable => "group_not_usable",
            Self::IncorrectPayload => "incorrect_payload",
            Self::IncorrectMessage => "incorrect_message",
            Self::RefusedByHost => "refused_by_host",
            Self::TimedOut => "timed_out",
            Self::Busy => "busy",
        }
    }
}

impl From<AuthEvent> for AuthResult {
    fn from(event: AuthEvent) -> Self {
        match event {
            AuthEvent::Authenticated(_) => Self::Authenticated,
            AuthEvent::RefusedByHost(_) => Self::RefusedByHost,
            AuthEvent::TimedOut => Self::TimedOut,
            AuthEvent::Refused(explanation) => match explanation {
                FailureExplanation::PROTOCOL_NOT_USABLE => Self::ProtocolNotUsable,
                FailureExplanation::CONCATENATION_MISMATCH => Self::ConcatenationMismatch,
                FailureExplanation::HASH_NOT_USABLE => Self::HashNotUsable,
                FailureExplanation::GROUP_NOT_USABLE => Self::GroupNotUsable,
                FailureExplanation::INCORRECT_PAYLOAD => Self::IncorrectPayload,
                FailureExplanation::INCORRECT_MESSAGE => Self::IncorrectMessage,
                _ => Self::Failed,
            },
        }
    }
}

/// Subsystem, host with a key (`None` for all others), and result.
type Counted = (Nqn, Option<Nqn>, AuthResult);

/// Counts of transactions. Hosts without keys are counted together, so that strangers cannot fill
/// the table with names.
#[derive(Debug, Default)]
pub(crate) struct AuthCounts(Mutex<BTreeMap<Counted, u64>>);

/// Count of transactions of one host with one result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AuthCount {
    pub(crate) nqn: String,
    /// NQN of the host; `other` for all that have no keys.
    pub(crate) host: String,
    pub(crate) result: &'static str,
    pub(crate) count: u64,
}

impl AuthCounts {
    /// Counts a transaction; `host` is `None` for a host without keys.
    pub(crate) fn add(&self, nqn: Nqn, host: Option<Nqn>, result: AuthResult) {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full =
            counts.len() >= MAX_ALLOWED_HOSTS && !counts.contains_key(&(nqn, host, result));
        let host = host.filter(|_| !is_full);
        *counts.entry((nqn, host, result)).or_default() += 1;
    }

    /// Returns the counts by subsystem, host and result.
    pub(crate) fn list(&self) -> Vec<AuthCount> {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = |((nqn, host, result), count): (&Counted, &u64)| AuthCount {
            nqn: nqn.to_string(),
            host: host.map_or_else(|| "other".to_owned(), |host| host.to_string()),
            result: result.label(),
            count: *count,
        };
        counts.iter().map(count).collect()
    }
}
