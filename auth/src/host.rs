//! The host's side of one transaction.

use std::fmt;
use std::sync::Arc;

use nvme_proto::Status;
use nvme_proto::auth::{
    AuthChallenge, AuthFailure, AuthMessage, AuthNegotiate, AuthReply, AuthSuccess1, AuthSuccess2,
    AuthTransaction, ConcatenatedChannel, FailureExplanation,
};

use crate::digest::AuthDigest;
use crate::group::DhGroup;
use crate::hash::HashFunction;
use crate::key_agreement::{KeyPair, PublicValue, SharedSecret};
use crate::negotiation::AuthOffer;
use crate::outcome::{Authenticated, HostAuthError};
use crate::random::RandomBytes;
use crate::response::{Parties, ResponseInput};
use crate::secret::AuthKey;
use crate::sequence::SequenceNumbers;

/// Most bytes of a message that a host sends.
const MESSAGE_BYTES: usize = 16 + 2 * AuthDigest::MAX_BYTES + 1024;

/// Parameters that all transactions of a host with a subsystem have.
#[derive(Debug)]
pub struct HostSetup {
    /// Names of the two sides.
    pub parties: Parties,
    /// Key with which the host authenticates.
    pub host_key: AuthKey,
    /// Key with which the controller has to authenticate; `None` if it need not.
    pub controller_key: Option<AuthKey>,
    /// Offered hash functions and groups.
    pub offer: AuthOffer,
    /// Sequence numbers of the host's challenges.
    pub sequences: SequenceNumbers,
}

/// One authentication transaction of a host on one queue. To authenticate again, the caller
/// begins a new one with a new identifier.
///
/// Each event returns the next [`HostStep`]. After [`HostStep::Send`] and [`HostStep::Receive`] the
/// caller's timer runs.
#[derive(Debug)]
pub struct HostAuth {
    setup: Arc<HostSetup>,
    transaction: AuthTransaction,
    stage: HostStage,
}

/// Next step of a transaction, which the caller takes.
#[derive(Debug)]
#[must_use]
pub enum HostStep {
    /// Send the message with Authentication Send; its success is [`HostAuth::sent`].
    Send(Vec<u8>),
    /// Fetch a message with Authentication Receive; its data are for [`HostAuth::received`].
    Receive,
    /// Execute the work; its result is for [`HostAuth::computed`].
    Compute(HostWork),
    /// The transaction has ended. After an error the connection has to be closed.
    Finish(Result<Authenticated, HostAuthError>),
}

/// Exponentiations of a host: of a new pair, and with the controller's public value.
#[derive(Debug)]
pub struct HostWork {
    peer: PublicValue,
    group: DhGroup,
}

/// Result of [`HostWork`]: public value and shared secret.
pub struct HostWorkResult {
    public: Vec<u8>,
    shared: SharedSecret,
}

impl HostWork {
    /// Executes the work, with a new pair.
    pub fn run(&self, random: &mut RandomBytes<'_>) -> HostWorkResult {
        let pair = KeyPair::generate(self.group, random);
        HostWorkResult { public: pair.public().to_vec(), shared: pair.agree(&self.peer) }
    }

    /// Group of the values.
    pub const fn group(&self) -> DhGroup {
        self.group
    }
}

impl HostWorkResult {
    /// Takes values that were computed elsewhere, the most significant bytes first.
    pub const fn new(public: Vec<u8>, shared: SharedSecret) -> Self {
        Self { public, shared }
    }
}

impl fmt::Debug for HostWorkResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostWorkResult({} bytes)", self.public.len())
    }
}

/// Challenge of the controller, whose format has been checked.
#[derive(Debug)]
struct ReceivedChallenge {
    hash: HashFunction,
    group: Option<DhGroup>,
    sequence: u32,
    challenge: AuthDigest,
}

/// Reply that was sent, and the response that has to follow.
#[derive(Debug)]
struct SentReply {
    hash: HashFunction,
    group: Option<DhGroup>,
    /// Response that the controller has to give.
    expected: Option<AuthDigest>,
}

#[derive(Debug)]
enum HostStage {
    /// AUTH_Negotiate is being sent.
    Negotiating,
    ChallengeWanted,
    SecretWanted(ReceivedChallenge),
    Replying(SentReply),
    Success1Wanted(SentReply),
    /// Success2 is being sent.
    Confirming(Authenticated),
    /// AUTH_Failure2 is being sent.
    Failing(HostAuthError),
    Finished,
}

impl HostAuth {
    /// Begins a transaction. Its identifier has to differ from that of the queue's last one.
    pub fn begin(setup: Arc<HostSetup>, transaction: AuthTransaction) -> (Self, HostStep) {
        let auth = Self { setup, transaction, stage: HostStage::Negotiating };
        let protocols = auth.setup.offer.descriptor();
        let step = auth.send(&AuthMessage::Negotiate(AuthNegotiate {
            transaction,
            concatenation: ConcatenatedChannel::NONE,
            protocols: protocols.as_slice(),
        }));
        (auth, step)
    }

    /// Takes the success of Authentication Send.
    pub fn sent(&mut self) -> HostStep {
        match std::mem::replace(&mut self.stage, HostStage::Finished) {
            HostStage::Negotiating => {
                self.stage = HostStage::ChallengeWanted;
                HostStep::Receive
            }
            HostStage::Replying(reply) => {
                self.stage = HostStage::Success1Wanted(reply);
                HostStep::Receive
            }
            HostStage::Confirming(authenticated) => HostStep::Finish(Ok(authenticated)),
            HostStage::Failing(error) => HostStep::Finish(Err(error)),
            _ => HostStep::Finish(Err(HostAuthError::OutOfOrder)),
        }
    }

    /// Takes the data of Authentication Receive. Bytes after the message are ignored.
    pub fn received(&mut self, data: &[u8], random: &mut RandomBytes<'_>) -> HostStep {
        let stage = std::mem::replace(&mut self.stage, HostStage::Finished);
        if !matches!(stage, HostStage::ChallengeWanted | HostStage::Success1Wanted(_)) {
            return HostStep::Finish(Err(HostAuthError::OutOfOrder));
        }
        let message = match AuthMessage::parse(data) {
            Ok((message, _)) => message,
            Err(error) => return self.fail(error.explanation()),
        };
        match (stage, message) {
            (_, AuthMessage::Failure1(content)) => {
                HostStep::Finish(Err(HostAuthError::RefusedByController(content.explanation)))
            }
            _ if message.transaction() != self.transaction => {
                self.fail(FailureExplanation::INCORRECT_PAYLOAD)
            }
            (HostStage::ChallengeWanted, AuthMessage::Challenge(challenge)) => {
                self.challenge(&challenge, random)
            }
            (HostStage::Success1Wanted(reply), AuthMessage::Success1(success)) => {
                self.success(&reply, &success)
            }
            _ => self.fail(FailureExplanation::INCORRECT_MESSAGE),
        }
    }

    /// Takes the result of work.
    pub fn computed(&mut self, result: HostWorkResult, random: &mut RandomBytes<'_>) -> HostStep {
        match std::mem::replace(&mut self.stage, HostStage::Finished) {
            HostStage::SecretWanted(challenge) => {
                self.reply(&challenge, Some(&result.shared), &result.public, random)
            }
            _ => HostStep::Finish(Err(HostAuthError::OutOfOrder)),
        }
    }

    /// Takes the failure of Authentication Send or Authentication Receive.
    pub fn command_failed(&mut self, status: Status) -> HostStep {
        self.end(HostAuthError::CommandFailed(status))
    }

    /// Takes the event that the timer has run out.
    pub fn timed_out(&mut self) -> HostStep {
        self.end(HostAuthError::TimedOut)
    }

    /// Ends the transaction, with the error that the host was about to tell of if there is one.
    fn end(&mut self, error: HostAuthError) -> HostStep {
        HostStep::Finish(Err(match std::mem::replace(&mut self.stage, HostStage::Finished) {
            HostStage::Failing(found) => found,
            HostStage::Finished => HostAuthError::OutOfOrder,
            _ => error,
        }))
    }

    fn challenge(&mut self, message: &AuthChallenge<'_>, random: &mut RandomBytes<'_>) -> HostStep {
        let offer = &self.setup.offer;
        let hash = HashFunction::of(message.hash).filter(|&hash| offer.has_hash(hash));
        let Some(hash) = hash else { return self.fail(FailureExplanation::HASH_NOT_USABLE) };
        let group = DhGroup::of(message.group).filter(|&group| offer.has_group(group));
        let Some(group) = group else { return self.fail(FailureExplanation::GROUP_NOT_USABLE) };
        let is_long = message.challenge.len() == hash.output_bytes();
        let peer = group.map(|group| PublicValue::new(group, message.dh_value));
        let challenge = ReceivedChallenge {
            hash,
            group,
            sequence: message.sequence,
            challenge: AuthDigest::new(message.challenge),
        };
        match (peer, group) {
            (None, _) if is_long && message.dh_value.is_empty() => {
                self.reply(&challenge, None, &[], random)
            }
            (Some(Ok(peer)), Some(group)) if is_long => {
                self.stage = HostStage::SecretWanted(challenge);
                HostStep::Compute(HostWork { peer, group })
            }
            _ => self.fail(FailureExplanation::INCORRECT_PAYLOAD),
        }
    }

    fn reply(
        &mut self,
        received: &ReceivedChallenge,
        shared: Option<&SharedSecret>,
        public: &[u8],
        random: &mut RandomBytes<'_>,
    ) -> HostStep {
        let hash = received.hash;
        let input = ResponseInput {
            parties: &self.setup.parties,
            hash,
            transaction: self.transaction,
            concatenation: ConcatenatedChannel::NONE,
            sequence: received.sequence,
            challenge: &received.challenge,
            shared,
        };
        let response = input.host_response(&self.setup.host_key);
        let own = self.setup.controller_key.as_ref().map(|key| {
            let sequence = self.setup.sequences.next();
            let challenge = AuthDigest::random(hash.output_bytes(), random);
            let input = ResponseInput { sequence, challenge: &challenge, ..input };
            let expected = input.controller_response(key);
            (sequence, challenge, expected)
        });
        let step = self.send(&AuthMessage::Reply(AuthReply {
            transaction: self.transaction,
            // Linux takes 0 for the request of a secure channel, also without a challenge.
            sequence: own.as_ref().map_or(1, |(sequence, ..)| *sequence),
            response: &response,
            challenge: own.as_ref().map(|(_, challenge, _)| &challenge[..]),
            dh_value: public,
        }));
        let expected = own.map(|(.., expected)| expected);
        self.stage = HostStage::Replying(SentReply { hash, group: received.group, expected });
        step
    }

    fn success(&mut self, reply: &SentReply, message: &AuthSuccess1<'_>) -> HostStep {
        if usize::from(message.hash_bytes) != reply.hash.output_bytes() {
            return self.fail(FailureExplanation::INCORRECT_PAYLOAD);
        }
        let authenticated = Authenticated {
            hash: reply.hash,
            group: reply.group,
            bidirectional: reply.expected.is_some(),
        };
        match (&reply.expected, message.response) {
            (None, None) => HostStep::Finish(Ok(authenticated)),
            (None, Some(_)) => self.fail(FailureExplanation::INCORRECT_PAYLOAD),
            (Some(expected), Some(response)) if expected.matches(response) => {
                self.stage = HostStage::Confirming(authenticated);
                self.send(&AuthMessage::Success2(AuthSuccess2 { transaction: self.transaction }))
            }
            // Also a controller that gives no response where one was asked for.
            (Some(_), _) => self.fail(FailureExplanation::FAILED),
        }
    }

    fn fail(&mut self, explanation: FailureExplanation) -> HostStep {
        self.stage = HostStage::Failing(HostAuthError::Refused(explanation));
        self.send(&AuthMessage::Failure2(AuthFailure::new(self.transaction, explanation)))
    }

    fn send(&self, message: &AuthMessage<'_>) -> HostStep {
        let mut buffer = [0; MESSAGE_BYTES];
        let bytes = message.encode(&mut buffer).expect("messages of hosts have a greatest length");
        HostStep::Send(bytes.to_vec())
    }
}
