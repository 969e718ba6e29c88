//! Messages that break a rule, and the explanations that they get.

use std::sync::Arc;

use feedrail_auth::{
    AuthPolicy, ControllerAuth, DhGroup, HashFunction, HostAuth, HostAuthError, HostKeys, HostStep,
    SendReaction,
};
use nvme_proto::auth::{
    AuthChallenge, AuthFailure, AuthMessage, AuthReply, AuthSuccess1, AuthTransaction, DhGroupId,
    FailureExplanation, HashId,
};

use crate::driver::{
    controller, controller_key, controller_with, host_key, offer, receive, seeded, send, setup,
};
use crate::transactions::negotiate;

const PAYLOAD: FailureExplanation = FailureExplanation::INCORRECT_PAYLOAD;
const MESSAGE: FailureExplanation = FailureExplanation::INCORRECT_MESSAGE;
const T_ID: AuthTransaction = AuthTransaction(1);

fn encode(message: &AuthMessage<'_>) -> Vec<u8> {
    message.encode(&mut [0; 4096]).expect("there is room").to_vec()
}

/// Sends the message, and checks that AUTH_Failure1 with the explanation follows.
fn assert_refused(
    mut controller: ControllerAuth,
    message: &[u8],
    explanation: FailureExplanation,
    what: &str,
) {
    assert_eq!(send(&mut controller, message), Ok(()), "{what}");
    let (bytes, disconnects) = receive(&mut controller).expect(what);
    let (failure, _) = AuthMessage::parse(&bytes).expect(what);
    let AuthMessage::Failure1(content) = failure else { panic!("{what}: {failure:?}") };
    assert_eq!((content.explanation, disconnects), (explanation, true), "{what}");
    assert!(!controller.is_authenticated());
}

#[test]
fn wrong_offers_are_refused() {
    let changed = |changes: &[(usize, u8)]| {
        let mut message = negotiate(1);
        changes.iter().for_each(|&(at, byte)| message[at] = byte);
        message
    };
    let long = [negotiate(1), vec![0]].concat();
    for (message, explanation, what) in [
        (changed(&[(6, 2)]), FailureExplanation::CONCATENATION_MISMATCH, "a TLS channel"),
        (changed(&[(6, 9)]), FailureExplanation::CONCATENATION_MISMATCH, "an unknown channel"),
        (changed(&[(8, 2)]), FailureExplanation::PROTOCOL_NOT_USABLE, "another protocol"),
        (changed(&[(12, 4)]), FailureExplanation::HASH_NOT_USABLE, "an unknown hash"),
        (changed(&[(12, 0)]), FailureExplanation::HASH_NOT_USABLE, "hash 0"),
        (changed(&[(42, 0x10)]), FailureExplanation::GROUP_NOT_USABLE, "an unknown group"),
        (changed(&[(10, 0)]), PAYLOAD, "no hash"),
        (changed(&[(11, 0)]), PAYLOAD, "no group"),
        (changed(&[(10, 31)]), PAYLOAD, "too many hashes"),
        (changed(&[(11, 255)]), PAYLOAD, "too many groups"),
        (changed(&[(7, 2)]), PAYLOAD, "a missing descriptor"),
        (negotiate(1)[..71].to_vec(), PAYLOAD, "a cut descriptor"),
        (long, PAYLOAD, "a byte behind the message"),
        (changed(&[(1, 0x77)]), MESSAGE, "an unknown message"),
        (vec![], PAYLOAD, "nothing"),
        (vec![0; 3], PAYLOAD, "half a header"),
        (vec![1, 4, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0], MESSAGE, "Success2"),
    ] {
        assert_refused(controller(), &message, explanation, what);
    }
    let none = changed(&[(7, 0)])[..8].to_vec();
    assert_refused(controller(), &none, FailureExplanation::PROTOCOL_NOT_USABLE, "no descriptor");
}

#[test]
fn a_group_above_the_strongest_is_refused() {
    let keys = HostKeys { host: host_key(), controller: None };
    let controller = controller_with(Some(keys), AuthPolicy::up_to(Some(DhGroup::Ffdhe2048)));
    let mut message = negotiate(1);
    message[42] = 5;
    let explanation = FailureExplanation::GROUP_NOT_USABLE;
    assert_refused(controller, &message, explanation, "ffdhe8192");
}

/// Controller that has sent a challenge, and the challenge.
fn challenged(group: u8) -> (ControllerAuth, Vec<u8>) {
    let mut controller = controller();
    let mut message = negotiate(1);
    message[42] = group;
    send(&mut controller, &message).expect("it is accepted");
    let (challenge, _) = receive(&mut controller).expect("a challenge");
    (controller, challenge)
}

#[test]
fn wrong_replies_are_refused() {
    let reply = AuthReply {
        transaction: T_ID,
        sequence: 1,
        response: &[1; 32],
        challenge: None,
        dh_value: &[],
    };
    let encoded = encode(&AuthMessage::Reply(reply));
    let with = |reply| encode(&AuthMessage::Reply(reply));
    let dh_value = |last| [&[0; 255][..], &[last]].concat();
    for (group, message, explanation, what) in [
        (0, encoded.clone(), FailureExplanation::FAILED, "a wrong response"),
        (0, with(AuthReply { transaction: AuthTransaction(2), ..reply }), PAYLOAD, "T_ID"),
        (0, with(AuthReply { response: &[1; 48], ..reply }), PAYLOAD, "a longer hash"),
        (0, with(AuthReply { response: &[], ..reply }), PAYLOAD, "no response"),
        (0, with(AuthReply { dh_value: &[2; 4], ..reply }), PAYLOAD, "a DH value"),
        (0, [&encoded[..], &[0]].concat(), PAYLOAD, "a byte behind the message"),
        (0, encoded[..encoded.len() - 1].to_vec(), PAYLOAD, "a cut reply"),
        (
            0,
            with(AuthReply { sequence: 0, challenge: Some(&[1; 32]), ..reply }),
            PAYLOAD,
            "a challenge for a secure channel",
        ),
        (1, encoded.clone(), PAYLOAD, "no DH value"),
        (1, with(AuthReply { dh_value: &dh_value(0), ..reply }), PAYLOAD, "0"),
        (1, with(AuthReply { dh_value: &dh_value(1), ..reply }), PAYLOAD, "1"),
        (1, with(AuthReply { dh_value: &[0xFF; 256], ..reply }), PAYLOAD, "above p"),
        (1, with(AuthReply { dh_value: &[7; 252], ..reply }), PAYLOAD, "a short value"),
        (1, with(AuthReply { dh_value: &dh_value(2), ..reply }), FailureExplanation::FAILED, "2"),
        (0, negotiate(1), MESSAGE, "AUTH_Negotiate again"),
        (
            0,
            encode(&AuthMessage::Failure1(AuthFailure::new(T_ID, PAYLOAD))),
            MESSAGE,
            "the controller's own message",
        ),
    ] {
        assert_refused(challenged(group).0, &message, explanation, what);
    }
}

#[test]
fn a_challenge_that_is_sent_back_is_refused() {
    let (controller, bytes) = challenged(0);
    let Ok((AuthMessage::Challenge(challenge), _)) = AuthMessage::parse(&bytes) else {
        panic!("a challenge");
    };
    // Even with the right response.
    let input = feedrail_auth::ResponseInput {
        parties: &crate::driver::parties(),
        hash: HashFunction::Sha256,
        transaction: T_ID,
        concatenation: nvme_proto::auth::ConcatenatedChannel::NONE,
        sequence: challenge.sequence,
        challenge: challenge.challenge,
        shared: None,
    };
    let reply = AuthMessage::Reply(AuthReply {
        transaction: T_ID,
        sequence: challenge.sequence,
        response: &input.host_response(&host_key()),
        challenge: Some(challenge.challenge),
        dh_value: &[],
    });
    assert_refused(controller, &encode(&reply), FailureExplanation::FAILED, "C2 is C1");
}

#[test]
fn a_host_may_give_up_at_any_time() {
    let (mut controller, _) = challenged(0);
    let failure = encode(&AuthMessage::Failure2(AuthFailure::new(T_ID, MESSAGE)));
    assert!(matches!(controller.send(&failure), SendReaction::Disconnect));
    assert_eq!(controller.take_event(), Some(feedrail_auth::AuthEvent::RefusedByHost(MESSAGE)));
}

/// Host whose message has been sent, and that gets these data; the explanation that it sends.
fn explanation_of(host: &mut HostAuth, data: &[u8]) -> FailureExplanation {
    let HostStep::Send(bytes) = host.received(data, &mut seeded(1)) else {
        panic!("a failure is sent");
    };
    let Ok((AuthMessage::Failure2(content), _)) = AuthMessage::parse(&bytes) else {
        panic!("{bytes:?}");
    };
    let HostStep::Finish(Err(HostAuthError::Refused(explanation))) = host.sent() else {
        panic!("it ends");
    };
    assert_eq!(explanation, content.explanation);
    explanation
}

fn negotiated() -> HostAuth {
    let offer = offer(HashFunction::Sha256, None);
    let setup = Arc::new(setup(Some(controller_key()), offer));
    let (mut host, _) = HostAuth::begin(setup, T_ID);
    assert!(matches!(host.sent(), HostStep::Receive));
    host
}

#[test]
fn wrong_challenges_are_refused() {
    let challenge = AuthChallenge {
        transaction: T_ID,
        hash: HashId::SHA_256,
        group: DhGroupId::NULL,
        sequence: 1,
        challenge: &[1; 32],
        dh_value: &[],
    };
    let with = |challenge| encode(&AuthMessage::Challenge(challenge));
    let success = AuthSuccess1 { transaction: T_ID, hash_bytes: 32, response: None };
    for (data, explanation, what) in [
        (
            with(AuthChallenge { hash: HashId::SHA_512, challenge: &[1; 64], ..challenge }),
            FailureExplanation::HASH_NOT_USABLE,
            "a hash that was not offered",
        ),
        (
            with(AuthChallenge { hash: HashId(9), ..challenge }),
            FailureExplanation::HASH_NOT_USABLE,
            "an unknown hash",
        ),
        (
            with(AuthChallenge { group: DhGroupId::FFDHE2048, dh_value: &[2; 256], ..challenge }),
            FailureExplanation::GROUP_NOT_USABLE,
            "a group that was not offered",
        ),
        (with(AuthChallenge { challenge: &[1; 31], ..challenge }), PAYLOAD, "a short challenge"),
        (with(AuthChallenge { dh_value: &[2; 8], ..challenge }), PAYLOAD, "a DH value"),
        (with(AuthChallenge { transaction: AuthTransaction(2), ..challenge }), PAYLOAD, "T_ID"),
        (with(challenge)[..40].to_vec(), PAYLOAD, "a cut challenge"),
        (vec![], PAYLOAD, "nothing"),
        (encode(&AuthMessage::Success1(success)), MESSAGE, "success without a challenge"),
        (negotiate(1), MESSAGE, "the host's own message"),
    ] {
        assert_eq!(explanation_of(&mut negotiated(), &data), explanation, "{what}");
    }
}

#[test]
fn a_host_that_asked_for_a_response_wants_it() {
    let challenge = AuthMessage::Challenge(AuthChallenge {
        transaction: T_ID,
        hash: HashId::SHA_256,
        group: DhGroupId::NULL,
        sequence: 1,
        challenge: &[1; 32],
        dh_value: &[],
    });
    let success = AuthSuccess1 { transaction: T_ID, hash_bytes: 32, response: None };
    for (success, explanation, what) in [
        (success, FailureExplanation::FAILED, "no response"),
        (
            AuthSuccess1 { response: Some(&[1; 32]), ..success },
            FailureExplanation::FAILED,
            "another response",
        ),
        (AuthSuccess1 { hash_bytes: 48, ..success }, PAYLOAD, "another hash length"),
        (
            AuthSuccess1 { transaction: AuthTransaction(2), ..success },
            PAYLOAD,
            "another transaction",
        ),
    ] {
        let mut host = negotiated();
        let reply = host.received(&encode(&challenge), &mut seeded(1));
        assert!(matches!(reply, HostStep::Send(_)), "{reply:?}");
        assert!(matches!(host.sent(), HostStep::Receive));
        let success = encode(&AuthMessage::Success1(success));
        assert_eq!(explanation_of(&mut host, &success), explanation, "{what}");
    }
}

#[test]
fn steps_out_of_order_end_the_transaction() {
    let wrong = |step| matches!(step, HostStep::Finish(Err(HostAuthError::OutOfOrder)));
    let mut host = negotiated();
    assert!(wrong(host.sent()), "nothing was sent");
    assert!(wrong(host.sent()), "it has ended");
    let mut host = negotiated();
    let timed_out = host.timed_out();
    assert!(matches!(timed_out, HostStep::Finish(Err(HostAuthError::TimedOut))));
    assert!(wrong(host.received(&negotiate(1), &mut seeded(1))), "it has ended");
}
