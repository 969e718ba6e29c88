//! A controller, and a host that sends what it likes.

use std::sync::Arc;

use feedrail_auth::{
    AuthPolicy, ControllerAuth, ControllerWork, ControllerWorkResult, DhGroup, HashFunction,
    HostKeys, ReceiveReaction, SendReaction, SequenceNumbers, TimeoutReaction,
};
use nvme_proto::auth::{
    AuthFailure, AuthMessage, AuthNegotiate, AuthReply, AuthSuccess2, AuthTransaction,
    ConcatenatedChannel, DhChapDescriptor, DhGroupId, FailureExplanation,
};

use super::{Challenged, MESSAGE_BYTES, encode, hash_id, keys, pair, parties, shared};
use crate::input::Input;

/// Bytes of an operation; those of a message as it is follow it.
pub const RECORD_BYTES: usize = 8;

/// Flags, then operations: a controller lets a host in only after the right response to its last
/// challenge, and not after it has refused the host.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut world = ControllerWorld::new(input.u8());
    let _ = input.array::<{ RECORD_BYTES - 1 }>();
    while !input.is_empty() {
        let record = input.array::<RECORD_BYTES>();
        world.operate(record, &mut input);
        world.check();
    }
}

struct ControllerWorld {
    controller: ControllerAuth,
    has_key: bool,
    work: Option<ControllerWork>,
    old_work: Option<ControllerWork>,
    /// Challenge message that was received last.
    challenge: Vec<u8>,
    /// Message that was sent last.
    sent: Vec<u8>,
    /// Whether the last challenge has had the right response, by a host with the key.
    is_proved: bool,
    drawn: u8,
}

impl ControllerWorld {
    fn new(flags: u8) -> Self {
        let [host, controller] = keys().clone();
        let host_keys = HostKeys { host, controller: (flags & 1 != 0).then_some(controller) };
        let has_key = flags & 2 == 0;
        let strongest = (flags & 4 != 0).then_some(DhGroup::Ffdhe2048);
        let sequences = SequenceNumbers::new(&mut |bytes| bytes.fill(flags | 0xF0));
        let controller = ControllerAuth::new(
            *parties(),
            has_key.then(|| Arc::new(host_keys)),
            Arc::new(AuthPolicy::up_to(strongest)),
            Arc::new(sequences),
        );
        Self {
            controller,
            has_key,
            work: None,
            old_work: None,
            challenge: Vec::new(),
            sent: Vec::new(),
            is_proved: false,
            drawn: 0,
        }
    }

    fn operate(&mut self, record: [u8; RECORD_BYTES], input: &mut Input<'_>) {
        let [operation, a, b, c, d, ..] = record;
        let transaction = AuthTransaction(u16::from(a & 3));
        match operation % 12 {
            0 => {
                let length = usize::from(u16::from_le_bytes([a, b])) % (MESSAGE_BYTES + 8);
                let message = input.slice(length).to_vec();
                self.send(message);
            }
            1 => self.receive(usize::from(u16::from_le_bytes([a, b]))),
            2 => self.receive(4096),
            3 => self.negotiate(transaction, b, c, d),
            4 => self.reply(record),
            5 => self.send(encode(&AuthMessage::Success2(AuthSuccess2 { transaction }))),
            6 => {
                let content = AuthFailure::new(transaction, FailureExplanation(b));
                self.send(encode(&AuthMessage::Failure2(content)));
            }
            7 => self.finish_work(),
            8 => {
                if let Some(work) = &self.old_work {
                    let result = result_of(work);
                    self.controller.computed(result);
                }
            }
            9 => self.time_out(),
            10 => {
                let mut message = self.sent.clone();
                if let Some(byte) = message.get_mut(usize::from(u16::from_le_bytes([a, b]))) {
                    *byte ^= c;
                }
                self.send(message);
            }
            _ => {
                if let Some(work) = self.work.take() {
                    self.controller.cannot_compute(work.id());
                }
            }
        }
    }

    fn send(&mut self, message: Vec<u8>) {
        let was_authenticated = self.controller.is_authenticated();
        self.is_proved |= self.is_right_reply(&message);
        match self.controller.send(&message) {
            SendReaction::Complete => {}
            SendReaction::Compute(work) => self.old_work = self.work.replace(work),
            SendReaction::Abort(status) => assert!(!status.is_success()),
            SendReaction::Disconnect => assert!(!self.controller.is_authenticated()),
        }
        if !was_authenticated && self.controller.is_authenticated() {
            assert!(self.is_proved, "Success2 comes after a right response");
        }
        self.sent = message;
    }

    fn receive(&mut self, length: usize) {
        self.drawn = self.drawn.wrapping_add(1);
        let drawn = self.drawn;
        let bytes = match self.controller.receive(length, &mut |bytes| bytes.fill(drawn)) {
            ReceiveReaction::Respond(bytes) => bytes,
            ReceiveReaction::RespondAndDisconnect(bytes) => {
                assert!(!self.controller.is_authenticated());
                bytes
            }
            ReceiveReaction::Wait => {
                assert!(self.work.is_some(), "it waits for work");
                return;
            }
            ReceiveReaction::Abort(status) => {
                assert!(!status.is_success());
                return;
            }
        };
        assert!(bytes.len() <= length);
        match AuthMessage::parse(&bytes).expect("its own message").0 {
            AuthMessage::Challenge(_) => (self.challenge, self.is_proved) = (bytes, false),
            AuthMessage::Success1(_) => assert!(self.is_proved, "the response was wrong"),
            AuthMessage::Failure1(_) => {}
            message => panic!("{message:?} is a host's"),
        }
    }

    fn negotiate(&mut self, transaction: AuthTransaction, b: u8, c: u8, d: u8) {
        let offer = DhChapDescriptor::new(&[hash_id(b)], &[DhGroupId(c & 7)]);
        let offer = [offer.expect("one of each")];
        self.send(encode(&AuthMessage::Negotiate(AuthNegotiate {
            transaction,
            concatenation: ConcatenatedChannel(if d < 250 { 0 } else { d }),
            protocols: &offer[..usize::from(d != 249)],
        })));
    }

    /// Sends a reply to the last challenge, right or with faults.
    fn reply(&mut self, [_, faults, sequence, byte, ..]: [u8; RECORD_BYTES]) {
        let challenge_bytes = self.challenge.clone();
        let Ok((AuthMessage::Challenge(challenge), _)) = AuthMessage::parse(&challenge_bytes)
        else {
            return;
        };
        let hash = HashFunction::of(challenge.hash).expect("the controller chose it");
        let challenged = Challenged {
            hash,
            group: challenge.group,
            transaction: challenge.transaction,
            sequence: challenge.sequence,
            challenge: challenge.challenge,
        };
        let mut response = challenged.respond(|input| input.host_response(&keys()[0])).to_vec();
        response[usize::from(byte) % hash.output_bytes()] ^= if faults & 1 != 0 { byte } else { 0 };
        let own = vec![byte; response.len()];
        let has_value = (challenge.group != DhGroupId::NULL) != (faults & 4 != 0);
        let dh_value = if has_value { pair().public() } else { &[] };
        self.send(encode(&AuthMessage::Reply(AuthReply {
            transaction: AuthTransaction(
                challenge.transaction.0.wrapping_add(u16::from(faults & 8 != 0)),
            ),
            sequence: sequence.into(),
            response: &response,
            challenge: (faults & 2 != 0).then_some(&own[..]),
            dh_value,
        })));
    }

    /// Whether a message has the right response to the last challenge.
    fn is_right_reply(&self, message: &[u8]) -> bool {
        let (Ok((AuthMessage::Challenge(challenge), _)), Ok((AuthMessage::Reply(reply), _))) =
            (AuthMessage::parse(&self.challenge), AuthMessage::parse(message))
        else {
            return false;
        };
        let challenged = Challenged {
            hash: HashFunction::of(challenge.hash).expect("the controller chose it"),
            group: challenge.group,
            transaction: challenge.transaction,
            sequence: challenge.sequence,
            challenge: challenge.challenge,
        };
        let response = challenged.respond(|input| input.host_response(&keys()[0]));
        self.has_key && response[..] == *reply.response
    }

    fn finish_work(&mut self) {
        if let Some(work) = self.work.take() {
            let result = result_of(&work);
            self.controller.computed(result);
            self.old_work = Some(work);
        }
    }

    fn time_out(&mut self) {
        let was_authenticated = self.controller.is_authenticated();
        let reaction = self.controller.timed_out();
        assert_eq!(reaction == TimeoutReaction::Forget, was_authenticated);
        assert_eq!(self.controller.is_authenticated(), was_authenticated);
    }

    fn check(&mut self) {
        assert!(!self.controller.is_authenticated() || self.has_key);
        assert!(self.controller.is_authenticated() || self.controller.awaits_host());
        let _ = self.controller.take_event();
    }
}

fn result_of(work: &ControllerWork) -> ControllerWorkResult {
    match work {
        ControllerWork::KeyPair { id, group } => {
            assert_eq!(*group, DhGroup::Ffdhe2048, "the strongest that is allowed");
            ControllerWorkResult::KeyPair { id: *id, pair: Arc::clone(pair()) }
        }
        ControllerWork::Agree { id, .. } => {
            ControllerWorkResult::Agree { id: *id, shared: shared() }
        }
    }
}
