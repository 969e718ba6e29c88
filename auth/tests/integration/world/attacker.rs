//! The attacker: it knows every message, and no key.

use nvme_proto::auth::{
    AuthChallenge, AuthFailure, AuthMessage, AuthNegotiate, AuthReply, AuthSuccess1, AuthSuccess2,
    AuthTransaction, ConcatenatedChannel, DhChapDescriptor, DhGroupId, FailureExplanation, HashId,
};

use super::Ground;
use super::watch::Watch;

/// Fate of a message in the attacker's hands.
pub(super) enum Delivery {
    Lost,
    /// Messages that arrive, one after the other.
    Arrives(Vec<Vec<u8>>),
}

/// Connection of the attacker's own.
struct OwnConnection {
    controller: Watch,
    transaction: AuthTransaction,
    /// Challenge that the controller sent last.
    challenge: Vec<u8>,
    /// Whether the host was given the challenge, so that its next reply is worth a try.
    is_relayed: bool,
}

pub(super) struct Attacker {
    own: OwnConnection,
}

impl Attacker {
    pub(super) fn new(ground: &Ground) -> Self {
        Self { own: OwnConnection::new(ground) }
    }

    /// Exchanges some messages on a connection of its own.
    pub(super) fn act(&mut self, ground: &mut Ground) {
        if ground.random.chance(300_000) {
            self.own = OwnConnection::new(ground);
        }
        for _ in 0..1 + ground.random.below(5) {
            ground.tally.attacks += 1;
            self.own.exchange(ground);
        }
    }

    /// Decides what arrives in place of a message.
    pub(super) fn meddle(&mut self, ground: &mut Ground, message: Vec<u8>) -> Delivery {
        // It may talk to a controller itself first, and pass on the answers.
        if ground.random.chance(300_000) {
            self.act(ground);
        }
        Delivery::Arrives(match ground.random.below(8) {
            0 => {
                ground.tally.lost += 1;
                return Delivery::Lost;
            }
            1 => vec![message.clone(), message],
            2 => vec![any_recorded(ground), message],
            3 => vec![any_recorded(ground)],
            4 => vec![with_transaction(any_recorded(ground), &message)],
            5 => {
                self.own.is_relayed = true;
                vec![with_transaction(self.own.challenge.clone(), &message)]
            }
            6 => vec![damaged(ground, message)],
            _ => vec![with_transaction(made_up(ground, &self.own.challenge), &message)],
        })
    }
}

impl OwnConnection {
    fn new(ground: &Ground) -> Self {
        let transaction = AuthTransaction::default();
        Self {
            controller: Watch::new(ground),
            transaction,
            challenge: Vec::new(),
            is_relayed: false,
        }
    }

    fn exchange(&mut self, ground: &mut Ground) {
        let message = match ground.random.below(10) {
            _ if std::mem::take(&mut self.is_relayed) => self.reply_of_the_host(ground),
            0..4 => {
                // A challenge for a reply to come, with the number of a transaction to come.
                let ahead = ground.random.below(3) as u16;
                self.transaction = AuthTransaction(ground.last_transaction().wrapping_add(ahead));
                negotiate(ground)
            }
            4 => any_recorded(ground),
            5 => {
                let message = any_recorded(ground);
                damaged(ground, message)
            }
            6 => self.reply_of_the_host(ground),
            _ => made_up(ground, &self.challenge),
        };
        let transaction = self.transaction;
        let _ = self.controller.send(ground, &patched(message, transaction));
        if let Ok(message) = self.controller.receive(ground)
            && let Ok((AuthMessage::Challenge(_), _)) = AuthMessage::parse(&message)
        {
            self.challenge = message;
        }
    }

    /// The last reply of the host that was recorded.
    fn reply_of_the_host(&self, ground: &Ground) -> Vec<u8> {
        let is_reply = |message: &&Vec<u8>| {
            matches!(AuthMessage::parse(message), Ok((AuthMessage::Reply(_), _)))
        };
        ground.recorded.iter().rev().find(is_reply).cloned().unwrap_or_default()
    }
}

fn any_recorded(ground: &mut Ground) -> Vec<u8> {
    match ground.recorded.len() {
        0 => Vec::new(),
        count => ground.recorded[ground.random.index(count)].clone(),
    }
}

/// Flips bits, or cuts or prolongs the message.
fn damaged(ground: &mut Ground, mut message: Vec<u8>) -> Vec<u8> {
    match ground.random.below(8) {
        0 => message.truncate(ground.random.index(message.len())),
        1 => message.push(ground.random.next_u64() as u8),
        _ if message.is_empty() => {}
        count => {
            for _ in 0..count / 2 {
                let at = ground.random.index(message.len());
                message[at] ^= 1 << ground.random.below(8);
            }
        }
    }
    message
}

/// Gives a message the transaction of a second one.
fn with_transaction(message: Vec<u8>, of: &[u8]) -> Vec<u8> {
    match of.get(4..6) {
        Some(&[low, high]) => patched(message, AuthTransaction(u16::from_le_bytes([low, high]))),
        _ => message,
    }
}

fn patched(mut message: Vec<u8>, transaction: AuthTransaction) -> Vec<u8> {
    if let Some(bytes) = message.get_mut(4..6) {
        bytes.copy_from_slice(&transaction.0.to_le_bytes());
    }
    message
}

fn negotiate(ground: &mut Ground) -> Vec<u8> {
    let hashes = [1, 2, 3].map(HashId);
    let group = DhGroupId(ground.random.below(2) as u8);
    let offer = [DhChapDescriptor::new(&hashes, &[DhGroupId::NULL, group]).expect("short lists")];
    encode(&AuthMessage::Negotiate(AuthNegotiate {
        transaction: AuthTransaction::default(),
        concatenation: ConcatenatedChannel::NONE,
        protocols: &offer,
    }))
}

/// A message without a key: with random bytes, with bytes of zeros, or with those of a challenge.
fn made_up(ground: &mut Ground, challenge: &[u8]) -> Vec<u8> {
    let transaction = AuthTransaction::default();
    let known = match AuthMessage::parse(challenge) {
        Ok((AuthMessage::Challenge(known), _)) => Some(known),
        _ => None,
    };
    let length = known.map_or(32, |known| known.challenge.len());
    let sequence = known.map_or(1, |known| known.sequence);
    let mut bytes = vec![0; length];
    match (ground.random.below(3), known) {
        (0, Some(known)) => bytes.copy_from_slice(known.challenge),
        (1, _) => bytes.fill_with(|| ground.random.next_u64() as u8),
        _ => {}
    }
    let dh_value = known.map_or(&[][..], |known| known.dh_value);
    let own_challenge = ground.random.chance(500_000).then_some(&bytes[..]);
    let failure = AuthFailure::new(transaction, FailureExplanation::FAILED);
    encode(&match ground.random.below(8) {
        0 => AuthMessage::Success2(AuthSuccess2 { transaction }),
        1 => AuthMessage::Success1(AuthSuccess1 {
            transaction,
            hash_bytes: length as u8,
            response: own_challenge,
        }),
        2 => AuthMessage::Failure1(failure),
        3 => AuthMessage::Failure2(failure),
        4 => AuthMessage::Challenge(AuthChallenge {
            transaction,
            hash: HashId(1 + ground.random.below(3) as u8),
            group: DhGroupId::NULL,
            sequence,
            challenge: &bytes,
            dh_value: &[],
        }),
        _ => AuthMessage::Reply(AuthReply {
            transaction,
            sequence,
            response: &bytes,
            challenge: own_challenge,
            dh_value,
        }),
    })
}

fn encode(message: &AuthMessage<'_>) -> Vec<u8> {
    message.encode(&mut [0; 4096]).expect("there is room").to_vec()
}
