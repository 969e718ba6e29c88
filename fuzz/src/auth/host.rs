//! A host, and a controller that sends what it likes.

use std::sync::Arc;

use feedrail_auth::{
    AuthOffer, DhGroup, HashFunction, HostAuth, HostAuthError, HostSetup, HostStep, HostWorkResult,
    SequenceNumbers,
};
use nvme_proto::Status;
use nvme_proto::auth::{
    AuthChallenge, AuthFailure, AuthMessage, AuthSuccess1, AuthTransaction, DhGroupId,
    FailureExplanation, HashId,
};

use super::{Challenged, MESSAGE_BYTES, encode, hash_id, keys, pair, parties, shared};
use crate::input::Input;

/// Bytes of an operation; those of a message as it is follow it.
pub const RECORD_BYTES: usize = 8;

const T_ID: AuthTransaction = AuthTransaction(7);

/// Flags, then operations: a host that asks for a response believes no controller that has not
/// given the right one, and each transaction ends once.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut world = HostWorld::new(input.u8());
    let _ = input.array::<{ RECORD_BYTES - 1 }>();
    while !input.is_empty() {
        let record = input.array::<RECORD_BYTES>();
        world.operate(record, &mut input);
    }
}

struct HostWorld {
    host: HostAuth,
    is_bidirectional: bool,
    /// Message that the host sent last.
    sent: Vec<u8>,
    /// Hash function and group of the last challenge message.
    chosen: (HashId, DhGroupId),
    /// Message that the host was given last.
    given: Vec<u8>,
    /// Whether the right response was given.
    is_proved: bool,
    has_ended: bool,
}

impl HostWorld {
    fn new(flags: u8) -> Self {
        let [host_key, controller_key] = keys().clone();
        let is_bidirectional = flags & 1 != 0;
        let groups = [None, Some(DhGroup::Ffdhe2048)];
        let groups = &groups[usize::from(flags & 2 != 0)..];
        let setup = HostSetup {
            parties: *parties(),
            host_key,
            controller_key: is_bidirectional.then_some(controller_key),
            offer: AuthOffer::new(&HashFunction::ALL, groups).expect("short lists"),
            sequences: SequenceNumbers::new(&mut |bytes| bytes.fill(flags)),
        };
        let (host, step) = HostAuth::begin(Arc::new(setup), T_ID);
        let mut world = Self {
            host,
            is_bidirectional,
            sent: Vec::new(),
            chosen: (HashId(0), DhGroupId::NULL),
            given: Vec::new(),
            is_proved: false,
            has_ended: false,
        };
        world.take(step);
        world
    }

    fn operate(&mut self, record: [u8; RECORD_BYTES], input: &mut Input<'_>) {
        let [operation, a, b, c, ..] = record;
        match operation % 8 {
            0 => {
                let step = self.host.sent();
                self.take(step);
            }
            1 => {
                let length = usize::from(u16::from_le_bytes([a, b])) % (MESSAGE_BYTES + 8);
                let message = input.slice(length).to_vec();
                self.give(message);
            }
            2 => self.challenge(a, b, c),
            3 => self.succeed(a, b),
            4 => {
                let content = AuthFailure::new(T_ID, FailureExplanation(a));
                self.give(encode(&AuthMessage::Failure1(content)));
            }
            5 => {
                let result = HostWorkResult::new(pair().public().to_vec(), shared());
                let step = self.host.computed(result, &mut |bytes| bytes.fill(a));
                self.take(step);
            }
            6 => {
                let mut message = self.given.clone();
                if let Some(byte) = message.get_mut(usize::from(u16::from_le_bytes([a, b]))) {
                    *byte ^= c;
                }
                self.give(message);
            }
            _ => {
                let step = match a & 1 {
                    0 => self.host.timed_out(),
                    _ => self.host.command_failed(Status::INVALID_FIELD),
                };
                self.take(step);
            }
        }
    }

    fn challenge(&mut self, a: u8, b: u8, c: u8) {
        let hash = hash_id(a);
        let length = HashFunction::of(hash).map_or(16, HashFunction::output_bytes);
        let challenge = vec![c; length + usize::from(a & 0x80 != 0)];
        let group = DhGroupId(b & 7);
        let has_value = (group != DhGroupId::NULL) != (b & 0x80 != 0);
        self.give(encode(&AuthMessage::Challenge(AuthChallenge {
            transaction: AuthTransaction(T_ID.0 + u16::from(a & 0x40 != 0)),
            hash,
            group,
            sequence: c.into(),
            challenge: &challenge,
            dh_value: if has_value { pair().public() } else { &[] },
        })));
    }

    /// Gives the right response to the last reply, none, or a wrong one.
    fn succeed(&mut self, faults: u8, byte: u8) {
        let right = self.right_response();
        let mut response = right.clone().unwrap_or_else(|| vec![byte; 32]);
        if faults & 1 != 0 {
            response[usize::from(byte) % 32] ^= byte;
        }
        let is_valid = right.is_some() != (faults & 2 != 0);
        self.give(encode(&AuthMessage::Success1(AuthSuccess1 {
            transaction: AuthTransaction(T_ID.0 + u16::from(faults & 4 != 0)),
            hash_bytes: response.len() as u8,
            response: is_valid.then_some(&response[..]),
        })));
    }

    /// Response to the challenge in the host's last reply.
    fn right_response(&self) -> Option<Vec<u8>> {
        let Ok((AuthMessage::Reply(reply), _)) = AuthMessage::parse(&self.sent) else {
            return None;
        };
        let challenged = Challenged {
            hash: HashFunction::of(self.chosen.0)?,
            group: self.chosen.1,
            transaction: T_ID,
            sequence: reply.sequence,
            challenge: reply.challenge?,
        };
        Some(challenged.respond(|input| input.controller_response(&keys()[1])).to_vec())
    }

    fn give(&mut self, message: Vec<u8>) {
        match AuthMessage::parse(&message) {
            // After its reply the host takes no challenge.
            Ok((AuthMessage::Challenge(challenge), _)) if !self.has_replied() => {
                self.chosen = (challenge.hash, challenge.group);
            }
            Ok((AuthMessage::Success1(success), _)) => {
                let right = self.right_response();
                self.is_proved |= right.is_some() && right.as_deref() == success.response;
            }
            _ => {}
        }
        let step = self.host.received(&message, &mut |bytes| bytes.fill(0x99));
        self.given = message;
        self.take(step);
    }

    fn has_replied(&self) -> bool {
        matches!(AuthMessage::parse(&self.sent), Ok((AuthMessage::Reply(_), _)))
    }

    fn take(&mut self, step: HostStep) {
        if self.has_ended {
            let is_refused = matches!(step, HostStep::Finish(Err(HostAuthError::OutOfOrder)));
            assert!(is_refused, "{step:?} after the end");
            return;
        }
        match step {
            HostStep::Send(bytes) => {
                AuthMessage::parse(&bytes).expect("its own message");
                self.sent = bytes;
            }
            HostStep::Receive => {}
            HostStep::Compute(work) => assert_eq!(work.group(), DhGroup::Ffdhe2048),
            HostStep::Finish(Ok(authenticated)) => {
                assert_eq!(authenticated.bidirectional, self.is_bidirectional);
                assert!(self.is_proved || !self.is_bidirectional, "the response was wrong");
                self.has_ended = true;
            }
            HostStep::Finish(Err(error)) => {
                assert!(!error.to_string().is_empty());
                self.has_ended = true;
            }
        }
    }
}
