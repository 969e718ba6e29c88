//! Stages of a transaction at a controller.

use std::sync::Arc;

use nvme_proto::auth::{AuthChallenge, AuthFailure, AuthMessage, AuthReply, AuthTransaction};

use super::work::WorkId;
use crate::digest::AuthDigest;
use crate::group::DhGroup;
use crate::hash::HashFunction;
use crate::key_agreement::{KeyPair, PublicValue};

/// Parameters of a transaction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chosen {
    pub(super) transaction: AuthTransaction,
    pub(super) hash: HashFunction,
    pub(super) group: Option<DhGroup>,
}

/// Challenge that a host has been sent.
#[derive(Debug)]
pub(super) struct SentChallenge {
    pub(super) chosen: Chosen,
    pub(super) sequence: u32,
    pub(super) challenge: AuthDigest,
    pub(super) pair: Option<Arc<KeyPair>>,
}

/// Reply of a host, whose format has been checked.
#[derive(Debug)]
pub(super) struct CheckedReply {
    pub(super) response: AuthDigest,
    /// Challenge C2 and its sequence number.
    pub(super) challenge: Option<(AuthDigest, u32)>,
}

#[derive(Debug)]
pub(super) enum ControllerStage {
    /// No transaction is in progress.
    Idle,
    PairWanted(Chosen, WorkId),
    /// The next Authentication Receive gets the challenge.
    ChallengeDue(Chosen, Option<Arc<KeyPair>>),
    ReplyWanted(SentChallenge),
    SecretWanted(SentChallenge, CheckedReply, WorkId),
    /// The next Authentication Receive gets Success1.
    Success1Due(Chosen, Option<AuthDigest>),
    Success2Wanted(Chosen),
    /// The next Authentication Receive gets AUTH_Failure1.
    FailureDue(AuthFailure),
    /// The connection has to end.
    Ended,
}

impl SentChallenge {
    pub(super) fn message(&self) -> AuthMessage<'_> {
        AuthMessage::Challenge(AuthChallenge {
            transaction: self.chosen.transaction,
            hash: self.chosen.hash.id(),
            group: DhGroup::id_of(self.chosen.group),
            sequence: self.sequence,
            challenge: &self.challenge,
            dh_value: self.pair.as_ref().map_or(&[], |pair| pair.public()),
        })
    }
}

/// Checks lengths, the sequence number, and the host's public value, which it returns; `None` if
/// one of them is wrong.
pub(super) fn check_reply(
    sent: &SentChallenge,
    reply: &AuthReply<'_>,
) -> Option<(CheckedReply, Option<PublicValue>)> {
    if reply.response.len() != sent.chosen.hash.output_bytes() {
        return None;
    }
    let peer = match sent.chosen.group {
        Some(group) => Some(PublicValue::new(group, reply.dh_value).ok()?),
        None if reply.dh_value.is_empty() => None,
        None => return None,
    };
    let challenge = match reply.challenge {
        // A challenge of a secure channel only, which was not asked for.
        Some(_) if reply.sequence == 0 => return None,
        Some(challenge) => Some((AuthDigest::new(challenge), reply.sequence)),
        None => None,
    };
    Some((CheckedReply { response: AuthDigest::new(reply.response), challenge }, peer))
}
