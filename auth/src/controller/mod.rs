//! The controller's side of all transactions of a queue.

mod reaction;
mod stage;
mod work;

use std::sync::Arc;

use nvme_proto::Status;
use nvme_proto::auth::{
    AuthFailure, AuthMessage, AuthNegotiate, AuthReply, AuthSuccess1, AuthTransaction,
    ConcatenatedChannel, DhChapDescriptor, FailureExplanation,
};

pub use reaction::{ReceiveReaction, SendReaction, TimeoutReaction};
pub use work::{ControllerWork, ControllerWorkResult, WorkId};

use stage::{CheckedReply, Chosen, ControllerStage, SentChallenge, check_reply};

use crate::digest::AuthDigest;
use crate::group::DhGroup;
use crate::hash::HashFunction;
use crate::key_agreement::SharedSecret;
use crate::negotiation::AuthPolicy;
use crate::outcome::{AuthEvent, Authenticated};
use crate::random::RandomBytes;
use crate::response::{Parties, ResponseInput};
use crate::secret::AuthKey;
use crate::sequence::SequenceNumbers;

/// Most bytes of a message that a controller sends.
const MESSAGE_BYTES: usize = 16 + AuthDigest::MAX_BYTES + 1024;

/// Keys of a host and of the subsystem towards it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostKeys {
    /// Key with which the host authenticates.
    pub host: AuthKey,
    /// Key with which the controller authenticates, if the host asks for it.
    pub controller: Option<AuthKey>,
}

/// Authentication of one queue by a controller, from Connect until the queue ends.
///
/// The caller hands over Authentication Send with [`ControllerAuth::send`] and Authentication
/// Receive with [`ControllerAuth::receive`], and executes work. While
/// [`ControllerAuth::is_authenticated`] is false, all other commands but Connect get
/// Authentication Required. While [`ControllerAuth::awaits_host`], a timer runs that each of the
/// two commands restarts (Base, 8.3.4.2: as long as the Keep Alive Timeout, or 2 minutes without
/// it).
#[derive(Debug)]
pub struct ControllerAuth {
    parties: Parties,
    keys: Option<Arc<HostKeys>>,
    policy: Arc<AuthPolicy>,
    sequences: Arc<SequenceNumbers>,
    authenticated: Option<Authenticated>,
    stage: ControllerStage,
    next_work: u64,
    event: Option<AuthEvent>,
}

impl ControllerAuth {
    /// Begins with a queue whose host is not authenticated. A host without keys is refused after
    /// its reply, as one with another key.
    pub fn new(
        parties: Parties,
        keys: Option<Arc<HostKeys>>,
        policy: Arc<AuthPolicy>,
        sequences: Arc<SequenceNumbers>,
    ) -> Self {
        Self {
            parties,
            keys,
            policy,
            sequences,
            authenticated: None,
            stage: ControllerStage::Idle,
            next_work: 0,
            event: None,
        }
    }

    /// Whether the host has proved who it is. Another transaction on the queue changes that only if
    /// it fails.
    pub const fn is_authenticated(&self) -> bool {
        self.authenticated.is_some()
    }

    /// Result of the last transaction that succeeded, if none has failed since.
    pub const fn authenticated(&self) -> Option<Authenticated> {
        self.authenticated
    }

    /// Whether the timer has to run.
    pub const fn awaits_host(&self) -> bool {
        !self.is_authenticated() || !matches!(self.stage, ControllerStage::Idle)
    }

    /// Replaces the keys, for replies that come later.
    pub fn set_keys(&mut self, keys: Option<Arc<HostKeys>>) {
        self.keys = keys;
    }

    /// Replaces the policy, for transactions that begin later.
    pub fn set_policy(&mut self, policy: Arc<AuthPolicy>) {
        self.policy = policy;
    }

    /// Takes the end of a transaction, once.
    pub const fn take_event(&mut self) -> Option<AuthEvent> {
        self.event.take()
    }

    /// Takes the data of Authentication Send.
    pub fn send(&mut self, payload: &[u8]) -> SendReaction {
        if let ControllerStage::FailureDue(_) | ControllerStage::Ended = self.stage {
            return SendReaction::Abort(Status::COMMAND_SEQUENCE_ERROR.with_dnr());
        }
        let message = match AuthMessage::parse(payload) {
            Ok((message, length)) if length == payload.len() => message,
            Ok((message, _)) => {
                let explanation = FailureExplanation::INCORRECT_PAYLOAD;
                return self.fail(message.transaction(), explanation);
            }
            Err(error) => return self.fail(self.transaction(), error.explanation()),
        };
        match (&self.stage, message) {
            (ControllerStage::Idle, AuthMessage::Negotiate(negotiate)) => {
                self.negotiate(&negotiate)
            }
            // The rest of a transaction that has timed out.
            (
                ControllerStage::Idle,
                AuthMessage::Reply(_) | AuthMessage::Success2(_) | AuthMessage::Failure2(_),
            ) if self.is_authenticated() => {
                SendReaction::Abort(Status::COMMAND_SEQUENCE_ERROR.with_dnr())
            }
            (ControllerStage::Idle, message) => {
                self.fail(message.transaction(), FailureExplanation::INCORRECT_MESSAGE)
            }
            (_, message) if message.transaction() != self.transaction() => {
                self.fail(self.transaction(), FailureExplanation::INCORRECT_PAYLOAD)
            }
            (_, AuthMessage::Failure2(content)) => {
                self.end(AuthEvent::RefusedByHost(content.explanation));
                SendReaction::Disconnect
            }
            (ControllerStage::ReplyWanted(_), AuthMessage::Reply(reply)) => self.reply(&reply),
            (ControllerStage::Success2Wanted(chosen), AuthMessage::Success2(_)) => {
                let chosen = *chosen;
                self.succeed(chosen, true);
                SendReaction::Complete
            }
            _ => self.fail(self.transaction(), FailureExplanation::INCORRECT_MESSAGE),
        }
    }

    /// Answers Authentication Receive, which has memory for `length` bytes.
    pub fn receive(&mut self, length: usize, random: &mut RandomBytes<'_>) -> ReceiveReaction {
        let stage = std::mem::replace(&mut self.stage, ControllerStage::Ended);
        match stage {
            ControllerStage::ChallengeDue(chosen, pair) => {
                let challenge = SentChallenge {
                    chosen,
                    sequence: self.sequences.next(),
                    challenge: AuthDigest::random(chosen.hash.output_bytes(), random),
                    pair,
                };
                match encode(&challenge.message(), length) {
                    Ok(bytes) => {
                        self.stage = ControllerStage::ReplyWanted(challenge);
                        ReceiveReaction::Respond(bytes)
                    }
                    Err(status) => {
                        self.stage = ControllerStage::ChallengeDue(chosen, challenge.pair);
                        ReceiveReaction::Abort(status)
                    }
                }
            }
            ControllerStage::Success1Due(chosen, response) => {
                let message = AuthMessage::Success1(AuthSuccess1 {
                    transaction: chosen.transaction,
                    hash_bytes: chosen.hash.output_bytes() as u8,
                    response: response.as_deref(),
                });
                match encode(&message, length) {
                    Ok(bytes) => {
                        match response {
                            Some(_) => self.stage = ControllerStage::Success2Wanted(chosen),
                            None => self.succeed(chosen, false),
                        }
                        ReceiveReaction::Respond(bytes)
                    }
                    Err(status) => {
                        self.stage = ControllerStage::Success1Due(chosen, response);
                        ReceiveReaction::Abort(status)
                    }
                }
            }
            ControllerStage::FailureDue(content) => {
                match encode(&AuthMessage::Failure1(content), length) {
                    Ok(bytes) => ReceiveReaction::RespondAndDisconnect(bytes),
                    Err(status) => {
                        self.stage = ControllerStage::FailureDue(content);
                        ReceiveReaction::Abort(status)
                    }
                }
            }
            stage => {
                let waits = matches!(
                    stage,
                    ControllerStage::PairWanted(..) | ControllerStage::SecretWanted(..)
                );
                self.stage = stage;
                match waits {
                    true => ReceiveReaction::Wait,
                    false => ReceiveReaction::Abort(Status::COMMAND_SEQUENCE_ERROR.with_dnr()),
                }
            }
        }
    }

    /// Takes the result of work.
    pub fn computed(&mut self, result: ControllerWorkResult) {
        let stage = std::mem::replace(&mut self.stage, ControllerStage::Ended);
        self.stage = match (stage, result) {
            (
                ControllerStage::PairWanted(chosen, wanted),
                ControllerWorkResult::KeyPair { id, pair },
            ) if id == wanted && Some(pair.group()) == chosen.group => {
                ControllerStage::ChallengeDue(chosen, Some(pair))
            }
            (
                ControllerStage::SecretWanted(sent, reply, wanted),
                ControllerWorkResult::Agree { id, shared },
            ) if id == wanted => {
                self.verify(&sent, &reply, Some(&shared));
                return;
            }
            (stage, _) => stage,
        };
    }

    /// Gives up the work that the transaction waits for, because there is too much of it.
    pub fn cannot_compute(&mut self, id: WorkId) {
        if let ControllerStage::PairWanted(_, wanted) | ControllerStage::SecretWanted(.., wanted) =
            self.stage
            && wanted == id
        {
            self.refuse(self.transaction(), FailureExplanation::FAILED);
        }
    }

    /// Takes the event that the timer has run out.
    pub fn timed_out(&mut self) -> TimeoutReaction {
        if self.is_authenticated() {
            self.stage = ControllerStage::Idle;
            return TimeoutReaction::Forget;
        }
        self.end(AuthEvent::TimedOut);
        TimeoutReaction::Disconnect
    }

    fn negotiate(&mut self, negotiate: &AuthNegotiate<'_>) -> SendReaction {
        let transaction = negotiate.transaction;
        if negotiate.concatenation != ConcatenatedChannel::NONE {
            return self.fail(transaction, FailureExplanation::CONCATENATION_MISMATCH);
        }
        let Some(offer) = negotiate.dh_hmac_chap() else {
            return self.fail(transaction, FailureExplanation::PROTOCOL_NOT_USABLE);
        };
        let (hash, group) = match choose(&self.policy, offer) {
            Ok(choice) => choice,
            Err(explanation) => return self.fail(transaction, explanation),
        };
        let chosen = Chosen { transaction, hash, group };
        let Some(group) = group else {
            self.stage = ControllerStage::ChallengeDue(chosen, None);
            return SendReaction::Complete;
        };
        let id = self.next_work();
        self.stage = ControllerStage::PairWanted(chosen, id);
        SendReaction::Compute(ControllerWork::KeyPair { id, group })
    }

    fn reply(&mut self, reply: &AuthReply<'_>) -> SendReaction {
        let stage = std::mem::replace(&mut self.stage, ControllerStage::Ended);
        let ControllerStage::ReplyWanted(sent) = stage else {
            unreachable!("the caller has matched the stage");
        };
        let Some((checked, peer)) = check_reply(&sent, reply) else {
            return self.fail(sent.chosen.transaction, FailureExplanation::INCORRECT_PAYLOAD);
        };
        match (sent.pair.clone(), peer) {
            (Some(pair), Some(peer)) => {
                let id = self.next_work();
                self.stage = ControllerStage::SecretWanted(sent, checked, id);
                SendReaction::Compute(ControllerWork::Agree { id, pair, peer })
            }
            _ => {
                self.verify(&sent, &checked, None);
                SendReaction::Complete
            }
        }
    }

    /// Compares the response with the expected one, and computes the controller's own.
    fn verify(
        &mut self,
        sent: &SentChallenge,
        reply: &CheckedReply,
        shared: Option<&SharedSecret>,
    ) {
        let Chosen { transaction, hash, .. } = sent.chosen;
        let input = ResponseInput {
            parties: &self.parties,
            hash,
            transaction,
            concatenation: ConcatenatedChannel::NONE,
            sequence: sent.sequence,
            challenge: &sent.challenge,
            shared,
        };
        let repeats = |(challenge, _): &(AuthDigest, u32)| sent.challenge.matches(challenge);
        let keys = self.keys.clone();
        // Without keys it takes as long.
        let key = keys.as_ref().map_or_else(AuthKey::none, |keys| keys.host.clone());
        let proved = input.host_response(&key).matches(&reply.response);
        let Some(keys) = keys.filter(|_| proved && !reply.challenge.as_ref().is_some_and(repeats))
        else {
            return self.refuse(transaction, FailureExplanation::FAILED);
        };
        let response = match (&reply.challenge, &keys.controller) {
            (None, _) => None,
            (Some((challenge, sequence)), Some(key)) => {
                let input = ResponseInput { sequence: *sequence, challenge, ..input };
                Some(input.controller_response(key))
            }
            (Some(_), None) => return self.refuse(transaction, FailureExplanation::FAILED),
        };
        self.stage = ControllerStage::Success1Due(sent.chosen, response);
    }

    fn succeed(&mut self, chosen: Chosen, bidirectional: bool) {
        let authenticated = Authenticated { hash: chosen.hash, group: chosen.group, bidirectional };
        self.authenticated = Some(authenticated);
        self.event = Some(AuthEvent::Authenticated(authenticated));
        self.stage = ControllerStage::Idle;
    }

    /// Completes the command that brought a wrong message; AUTH_Failure1 follows.
    fn fail(
        &mut self,
        transaction: AuthTransaction,
        explanation: FailureExplanation,
    ) -> SendReaction {
        self.refuse(transaction, explanation);
        SendReaction::Complete
    }

    /// Refuses the host, also one that was authenticated before.
    fn refuse(&mut self, transaction: AuthTransaction, explanation: FailureExplanation) {
        self.end(AuthEvent::Refused(explanation));
        self.stage = ControllerStage::FailureDue(AuthFailure::new(transaction, explanation));
    }

    fn end(&mut self, event: AuthEvent) {
        self.authenticated = None;
        self.event = Some(event);
        self.stage = ControllerStage::Ended;
    }

    const fn next_work(&mut self) -> WorkId {
        self.next_work += 1;
        WorkId(self.next_work)
    }

    /// Identifier of the transaction in progress; 0 without one.
    fn transaction(&self) -> AuthTransaction {
        match &self.stage {
            ControllerStage::Idle | ControllerStage::Ended => AuthTransaction::default(),
            ControllerStage::PairWanted(chosen, _)
            | ControllerStage::ChallengeDue(chosen, _)
            | ControllerStage::Success1Due(chosen, _)
            | ControllerStage::Success2Wanted(chosen) => chosen.transaction,
            ControllerStage::ReplyWanted(sent) | ControllerStage::SecretWanted(sent, ..) => {
                sent.chosen.transaction
            }
            ControllerStage::FailureDue(content) => content.transaction,
        }
    }
}

/// Encodes a message for a host that has memory for `length` bytes.
fn encode(message: &AuthMessage<'_>, length: usize) -> Result<Vec<u8>, Status> {
    let mut buffer = [0; MESSAGE_BYTES];
    let room = &mut buffer[..length.min(MESSAGE_BYTES)];
    message.encode(room).map(<[u8]>::to_vec).ok_or(Status::INVALID_FIELD.with_dnr())
}

fn choose(
    policy: &AuthPolicy,
    offer: &DhChapDescriptor,
) -> Result<(HashFunction, Option<DhGroup>), FailureExplanation> {
    let (Some(hashes), Some(groups)) = (offer.hashes(), offer.groups()) else {
        return Err(FailureExplanation::INCORRECT_PAYLOAD);
    };
    let hash = policy.hashes.choose(hashes.filter_map(HashFunction::of));
    let group = policy.groups.choose(groups.filter_map(DhGroup::of));
    let hash = hash.ok_or(FailureExplanation::HASH_NOT_USABLE)?;
    Ok((hash, group.ok_or(FailureExplanation::GROUP_NOT_USABLE)?))
}
