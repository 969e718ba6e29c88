//! Printed state has no secrets.

use std::sync::Arc;

use feedrail_auth::{
    AuthOffer, ControllerAuth, DhGroup, HashFunction, HostAuth, HostKeys, HostStep, KeyPair,
    ReceiveReaction, SendReaction, SharedSecret, Transformation,
};
use nvme_proto::auth::AuthTransaction;

use crate::driver::{controller, controller_key, host_key, offer, secret, seeded, setup};

/// Checks that a text has neither two neighbouring bytes of a secret nor its Base64.
fn assert_redacted(text: &str) {
    for secret in ["0, 1", "00, 01", "0001", "0x0, 0x1", "100, 101", "6465", "AAEC", "ZGVm"] {
        assert!(!text.contains(secret), "{secret:?} in {text}");
    }
}

#[test]
fn debug_of_secrets_shows_lengths_only() {
    let secret = secret(Transformation::Hmac(HashFunction::Sha256), 0);
    let pair = KeyPair::generate(DhGroup::Ffdhe2048, &mut |bytes| {
        bytes.iter_mut().zip(0..).for_each(|(byte, number)| *byte = number);
    });
    let shared = SharedSecret::from_bytes((0..=255).collect());
    let keys = HostKeys { host: host_key(), controller: Some(controller_key()) };
    let setup = setup(Some(controller_key()), AuthOffer::default());
    let text = format!("{secret:?} {pair:?} {shared:?} {keys:?} {setup:?} {keys:#?}");
    assert_redacted(&text);
    assert!(text.contains("32 bytes"), "{text}");
}

/// Runs a transaction, and calls `look` with the state machines before each step.
fn watch(group: Option<DhGroup>, mut look: impl FnMut(&HostAuth, &ControllerAuth)) {
    let offer = offer(HashFunction::Sha512, group);
    let mut controller = controller();
    let setup = Arc::new(setup(Some(controller_key()), offer));
    let (mut host, mut step) = HostAuth::begin(setup, AuthTransaction(1));
    loop {
        look(&host, &controller);
        step = match step {
            HostStep::Send(message) => {
                if let SendReaction::Compute(work) = controller.send(&message) {
                    look(&host, &controller);
                    assert_redacted(&format!("{work:?}"));
                    let result = work.run(&mut seeded(1));
                    assert_redacted(&format!("{result:?}"));
                    controller.computed(result);
                }
                host.sent()
            }
            HostStep::Receive => {
                let ReceiveReaction::Respond(bytes) = controller.receive(4096, &mut seeded(2))
                else {
                    panic!("it succeeds");
                };
                host.received(&bytes, &mut seeded(3))
            }
            HostStep::Compute(work) => {
                let result = work.run(&mut seeded(4));
                assert_redacted(&format!("{work:?} {result:?}"));
                host.computed(result, &mut seeded(5))
            }
            HostStep::Finish(result) => {
                assert!(result.is_ok(), "{result:?}");
                return;
            }
        };
    }
}

#[test]
fn debug_of_state_machines_has_no_keys_responses_and_exponents() {
    for group in [None, Some(DhGroup::Ffdhe2048)] {
        let mut looks = 0;
        watch(group, |host, controller| {
            looks += 1;
            let text = format!("{host:?} {controller:?}");
            assert_redacted(&text);
            // No list of bytes at all.
            assert!(!text.contains(", 0x") && text.len() < 6000, "{text}");
        });
        assert!(looks >= 6, "{looks}");
    }
}
