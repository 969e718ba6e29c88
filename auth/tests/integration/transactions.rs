//! Transactions over a network that delivers everything.

use feedrail_auth::{
    AuthEvent, AuthOffer, AuthPolicy, Authenticated, DhGroup, HashFunction, HostAuthError,
    HostKeys, HostSetup, ReceiveReaction, SendReaction, TimeoutReaction, Transformation,
};
use nvme_proto::Status;
use nvme_proto::auth::FailureExplanation;

use crate::driver::{
    controller, controller_key, controller_with, host_key, offer, parties, receive, run, secret,
    seeded, send, setup,
};

const FAILED: FailureExplanation = FailureExplanation::FAILED;

#[test]
fn every_hash_and_group_in_one_direction_and_in_both() {
    let groups = [None].into_iter().chain(DhGroup::ALL.map(Some));
    for group in groups {
        for hash in HashFunction::ALL {
            // With large groups one hash function is enough.
            if group > Some(DhGroup::Ffdhe3072) && hash != HashFunction::Sha384 {
                continue;
            }
            for bidirectional in [false, true] {
                let mut controller = controller();
                let key = bidirectional.then(controller_key);
                let expected = Authenticated { hash, group, bidirectional };
                assert_eq!(
                    run(setup(key, offer(hash, group)), 1, &mut controller),
                    Ok(expected),
                    "{hash} {group:?}"
                );
                assert_eq!(controller.authenticated(), Some(expected));
                assert_eq!(controller.take_event(), Some(AuthEvent::Authenticated(expected)));
                assert_eq!(controller.take_event(), None);
                assert!(!controller.awaits_host());
            }
        }
    }
}

#[test]
fn the_default_is_ffdhe3072() {
    let keys = HostKeys { host: host_key(), controller: None };
    let mut controller = controller_with(Some(keys), AuthPolicy::default());
    let authenticated = run(setup(None, AuthOffer::default()), 1, &mut controller);
    assert_eq!(authenticated.map(|result| result.group), Ok(Some(DhGroup::Ffdhe3072)));
}

#[test]
fn another_key_of_the_host_is_refused() {
    let other_nqn = secret(Transformation::Hmac(HashFunction::Sha256), 0);
    let other_nqn = other_nqn.key_for(&parties().subsystem);
    let other_code = secret(Transformation::Hmac(HashFunction::Sha512), 0);
    let other_code = other_code.key_for(&parties().host.0);
    let untransformed = secret(Transformation::None, 0).key_for(&parties().host.0);
    for group in [None, Some(DhGroup::Ffdhe2048)] {
        for key in [controller_key(), other_nqn.clone(), other_code.clone(), untransformed.clone()]
        {
            let mut controller = controller();
            let own = setup(None, offer(HashFunction::Sha256, group));
            let result = run(HostSetup { host_key: key, ..own }, 1, &mut controller);
            assert_eq!(result, Err(HostAuthError::RefusedByController(FAILED)));
            assert!(!controller.is_authenticated());
            assert_eq!(controller.take_event(), Some(AuthEvent::Refused(FAILED)));
        }
    }
}

#[test]
fn a_host_without_a_key_at_the_controller_is_refused_as_one_with_another_key() {
    let mut controller = controller_with(None, AuthPolicy::default());
    let result = run(setup(None, offer(HashFunction::Sha256, None)), 1, &mut controller);
    assert_eq!(result, Err(HostAuthError::RefusedByController(FAILED)));
}

#[test]
fn a_controller_with_another_key_is_refused_by_the_host() {
    let mut controller = controller();
    let setup = setup(Some(host_key()), offer(HashFunction::Sha256, None));
    assert_eq!(run(setup, 1, &mut controller), Err(HostAuthError::Refused(FAILED)));
    assert!(!controller.is_authenticated());
    assert_eq!(controller.take_event(), Some(AuthEvent::RefusedByHost(FAILED)));
}

#[test]
fn a_controller_without_a_key_of_its_own_cannot_answer() {
    let keys = HostKeys { host: host_key(), controller: None };
    let mut controller = controller_with(Some(keys), AuthPolicy::default());
    let setup = setup(Some(controller_key()), offer(HashFunction::Sha256, None));
    let result = run(setup, 1, &mut controller);
    assert_eq!(result, Err(HostAuthError::RefusedByController(FAILED)));
}

#[test]
fn another_transaction_keeps_or_ends_the_authentication() {
    let mut controller = controller();
    let own = || setup(None, offer(HashFunction::Sha256, None));
    for transaction in 1..4 {
        assert!(run(own(), transaction, &mut controller).is_ok());
        assert!(controller.is_authenticated());
    }
    let other = HostSetup { host_key: controller_key(), ..own() };
    let refused = Err(HostAuthError::RefusedByController(FAILED));
    assert_eq!(run(other, 9, &mut controller), refused);
    assert!(!controller.is_authenticated());
    assert!(controller.awaits_host());
}

#[test]
fn new_keys_count_from_the_next_reply() {
    let mut controller = controller();
    let own = || setup(None, offer(HashFunction::Sha256, None));
    assert!(run(own(), 1, &mut controller).is_ok());
    let keys = HostKeys { host: controller_key(), controller: None };
    controller.set_keys(Some(std::sync::Arc::new(keys)));
    assert!(controller.is_authenticated(), "until the next transaction");
    let refused = Err(HostAuthError::RefusedByController(FAILED));
    assert_eq!(run(own(), 2, &mut controller), refused);
}

#[test]
fn a_transaction_may_stay_unfinished_on_an_authenticated_queue_only() {
    let mut authenticated = controller();
    let own = || setup(None, offer(HashFunction::Sha256, None));
    assert!(run(own(), 1, &mut authenticated).is_ok());
    for (mut controller, reaction) in
        [(authenticated, TimeoutReaction::Forget), (controller(), TimeoutReaction::Disconnect)]
    {
        assert_eq!(send(&mut controller, &negotiate(2)), Ok(()));
        assert!(receive(&mut controller).is_ok(), "a challenge");
        assert!(controller.awaits_host());
        assert_eq!(controller.timed_out(), reaction);
        assert_eq!(controller.is_authenticated(), reaction == TimeoutReaction::Forget);
        // What follows belongs to no transaction.
        let late = [1, 4, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let status = Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr());
        assert_eq!(send(&mut controller, &late), status);
        assert_eq!(receive(&mut controller).map(drop), status);
        let is_alive = reaction == TimeoutReaction::Forget;
        assert_eq!(run(own(), 3, &mut controller).is_ok(), is_alive);
    }
}

#[test]
fn commands_that_come_too_early_wait_or_are_refused() {
    let mut controller = controller();
    let sequence_error = Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr());
    assert_eq!(receive(&mut controller).map(drop), sequence_error, "there is nothing yet");
    let mut message = negotiate(1);
    // ffdhe2048.
    message[8 + 34] = 1;
    let SendReaction::Compute(work) = controller.send(&message) else {
        panic!("a pair is wanted");
    };
    let waits = |reaction| matches!(reaction, ReceiveReaction::Wait);
    assert!(waits(controller.receive(4096, &mut seeded(1))));
    controller.computed(work.run(&mut seeded(2)));
    // The same result again changes nothing.
    controller.computed(work.run(&mut seeded(3)));
    let short = controller.receive(16 + 32 + 255, &mut seeded(4));
    let invalid = Status::INVALID_FIELD.with_dnr();
    assert!(matches!(short, ReceiveReaction::Abort(status) if status == invalid), "{short:?}");
    let (challenge, _) = receive(&mut controller).expect("with more memory");
    assert_eq!(challenge.len(), 16 + 32 + 256);
    controller.computed(work.run(&mut seeded(5)));
    assert_eq!(receive(&mut controller).map(drop), sequence_error, "the reply is missing");
}

#[test]
fn work_that_is_not_done_ends_the_transaction() {
    let mut controller = controller();
    let mut message = negotiate(1);
    message[8 + 34] = 1;
    let SendReaction::Compute(work) = controller.send(&message) else {
        panic!("a pair is wanted");
    };
    controller.cannot_compute(work.id());
    let (failure, disconnects) = receive(&mut controller).expect("AUTH_Failure1");
    assert_eq!((failure, disconnects), (vec![0, 0xF1, 0, 0, 1, 0, 1, 1], true));
}

/// AUTH_Negotiate with SHA-256 and the null group.
pub(crate) fn negotiate(transaction: u8) -> Vec<u8> {
    let mut message = vec![0; 72];
    (message[4], message[7]) = (transaction, 1);
    message[8..13].copy_from_slice(&[1, 0, 1, 1, 1]);
    message
}
